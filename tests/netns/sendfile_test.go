package netns

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const sendfilePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: sink, from: lan, to: wan, proto: tcp, dport: 9, action: accept%s }
`

// BenchmarkSendfile sends 1 GiB through the host with rewritten headers and without,
// in turn, and prints what the kernel has worked for it: system time and softirqs
// of the whole machine, which should do nothing else.
func BenchmarkSendfile(b *testing.B) {
	const size, rounds = 1 << 30, 7
	policies := []string{fmt.Sprintf(sendfilePolicy, ""), fmt.Sprintf(sendfilePolicy, ", rewrite: { ttl: 64, dscp: ef }")}
	bb := newBench(b, testnet.RoutedOptions{}, policies[0])
	file := bigFile(b, size)
	l, err := bb.Server.Listen("tcp", at(testnet.Server4, 9))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	var system, wall [2][]time.Duration
	for round := range rounds + 1 {
		for i, p := range policies {
			bb.f.reload(b, p)
			sys, took := sendThrough(b, bb, l, file, size)
			if round > 0 { // the first one warms up
				system[i], wall[i] = append(system[i], sys), append(wall[i], took)
			}
		}
	}
	for i, name := range []string{"without", "rewritten"} {
		slices.Sort(system[i])
		slices.Sort(wall[i])
		fmt.Printf("%-10s system time %v (%v to %v), wall %v\n", name, system[i][rounds/2], system[i][0], system[i][rounds-1], wall[i][rounds/2])
	}
	fmt.Printf("ratio of system time %.3f, wanted at most 1.05\n", float64(system[1][rounds/2])/float64(system[0][rounds/2]))
}

// bigFile is a file in memory where there is a place for it.
func bigFile(b *testing.B, size int64) *os.File {
	b.Helper()
	dir := b.TempDir()
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		dir = "/dev/shm"
	}
	file, err := os.CreateTemp(dir, "sendfile")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = file.Close()
		_ = os.Remove(filepath.Clean(file.Name()))
	})
	chunk := make([]byte, 1<<20)
	for range size / int64(len(chunk)) {
		if _, err := file.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	return file
}

// sendThrough sends a file by sendfile and waits until all has arrived.
func sendThrough(b *testing.B, bb *bench, l net.Listener, file *os.File, size int64) (system, wall time.Duration) {
	b.Helper()
	arrived := make(chan int64, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			arrived <- -1
			return
		}
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 1<<20))
		_ = conn.Close()
		arrived <- n
	}()
	conn, err := bb.Client.Dial(testnet.Patience(b), "tcp", at(testnet.Server4, 9))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		b.Fatal(err)
	}
	began, before := time.Now(), kernelTime(b)
	if _, err := conn.(*net.TCPConn).ReadFrom(file); err != nil {
		b.Fatal(err)
	}
	_ = conn.Close()
	if n := <-arrived; n != size {
		b.Fatalf("%d bytes arrived of %d", n, size)
	}
	return kernelTime(b) - before, time.Since(began)
}

// kernelTime is what all CPUs have spent in the kernel, by /proc/stat.
func kernelTime(b *testing.B) time.Duration {
	b.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq
	var ticks int
	for _, i := range []int{3, 6, 7} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	const hertz = 100 // USER_HZ, the same on all machines
	return time.Duration(ticks) * time.Second / hertz
}
