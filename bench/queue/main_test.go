// Package queue holds the user-space stage against other readers of a netfilter queue:
// a tight loop in C (peer/reader.c), the limit, and go-nfqueue's own way of reading.
// Each reader is a process of its own; they take turns in the same network namespace.
package queue

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

var (
	rounds  = flag.Int("rounds", 7, "let the readers take `n` turns, at least 5")
	packets = flag.Int("packets", 20000, "let each judge `n` packets a turn")
)

// readerEnv names the reader that a process of this program is, see readers_test.go.
const readerEnv = "HYBRIDFW_BENCH_READER"

func TestMain(m *testing.M) {
	if name := os.Getenv(readerEnv); name != "" {
		if err := read(name); err != nil {
			fmt.Fprintln(os.Stderr, "reader:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testnet.Main(m)
}

const queueNumber = 77

// readers in the order in which they are shown; the first is the limit.
var readers = []string{"C, batches", "hybridfw", "go-nfqueue, a verdict each"}

// changers change a byte of each packet's payload, or do not: the first two in C, the
// others by a function of userspace.Queue.
var changers = []string{"C, unchanged", "C, changed", "hybridfw, unchanged", "hybridfw, changed"}

// command is how a reader is started, once per measurement.
func command(b testing.TB, h *testnet.Host, name string) *exec.Cmd {
	b.Helper()
	switch name {
	case readers[0], changers[0]:
		return h.Command(cReader(b), strconv.Itoa(queueNumber), "accept")
	case changers[1]:
		return h.Command(cReader(b), strconv.Itoa(queueNumber), "change")
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := h.Command(self)
	cmd.Env = append(os.Environ(), readerEnv+"="+name)
	return cmd
}

var cReader = func() func(testing.TB) string {
	var once sync.Once
	var path string
	return func(b testing.TB) string {
		b.Helper()
		once.Do(func() {
			dir, err := os.MkdirTemp("", "reader")
			if err != nil {
				b.Fatal(err)
			}
			path = filepath.Join(dir, "reader")
			if msg, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, "peer/reader.c").CombinedOutput(); err != nil {
				b.Fatalf("building the C reader: %v\n%s", err, msg)
			}
		})
		return path
	}
}()

// A reader is a process that has bound the queue.
type reader struct {
	b   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startReader(b testing.TB, h *testnet.Host, name string) *reader {
	b.Helper()
	r := &reader{b: b, cmd: command(b, h, name)}
	r.cmd.Stderr = os.Stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	r.out = bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if line, err := r.out.ReadString('\n'); line != "ready\n" {
		r.stop()
		b.Fatalf("%s is not ready: %q, %v", name, line, err)
	}
	return r
}

// hold stops the process while its queue is filled.
func (r *reader) hold() { r.signal(syscall.SIGSTOP) }

func (r *reader) signal(s syscall.Signal) {
	r.b.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.b.Fatal(err)
	}
}

// judge has the reader judge n packets, and gives the processor time that it took.
func (r *reader) judge(n int) time.Duration {
	r.b.Helper()
	r.begin(n)
	return r.spent()
}

// spent waits until the packets are judged, and gives the processor time.
func (r *reader) spent() time.Duration {
	r.b.Helper()
	// A packet that the reader has lost is never judged.
	patience := time.AfterFunc(time.Minute, func() { _ = r.cmd.Process.Kill() })
	defer patience.Stop()
	line, err := r.out.ReadString('\n')
	micros, bad := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || bad != nil {
		r.b.Fatalf("the reader says %q, %v", line, err)
	}
	return time.Duration(micros) * time.Microsecond
}

// begin has the reader judge n packets, and does not wait for it.
func (r *reader) begin(n int) {
	r.b.Helper()
	if _, err := fmt.Fprintln(r.in, n); err != nil {
		r.b.Fatal(err)
	}
	r.signal(syscall.SIGCONT)
}

// stop ends the process, whatever it does.
func (r *reader) stop() {
	r.in.Close()
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// A series is what was measured of one thing, a value a round.
type series []float64

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

func (s series) String() string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median(), slices.Min(s), slices.Max(s))
}

// BenchmarkQueue lets the readers take turns and prints medians, least and most, and
// ratios to the C reader.
func BenchmarkQueue(b *testing.B) {
	h := newSite(b)
	for _, size := range []int{64, 1400} {
		rates := make(map[string]series)
		table(b, readers, fmt.Sprintf("accept all, %d bytes, flood: us of processor time a packet", size), func(name string) float64 {
			us, rate := h.flooded(b, name, size)
			rates[name] = append(rates[name], rate/1e3)
			return us
		}, want{1, 0, 1.10, true}, want{2, 1, 3.5, false})
		show(readers, fmt.Sprintf("the same, %d bytes: 1,000 packets a second", size), []series{rates[readers[0]], rates[readers[1]], rates[readers[2]]}, want{1, 0, 0.95, false})
		table(b, readers, fmt.Sprintf("accept all, %d bytes, full queue: us of processor time a packet", size), func(name string) float64 {
			return h.drained(b, name, size)
		})
	}
	table(b, changers, "a byte changed and the checksum made right, 1,400 bytes, flood: us of processor time a packet", func(name string) float64 {
		us, _ := h.flooded(b, name, 1400)
		return us
	}, want{reader: 3, of: 2, ratio: 1.15, most: true})
	table(b, readers, "round trip of a lone packet: us, median of 2,000", func(name string) float64 {
		return h.roundTrip(b, name)
	}, want{1, 0, 1.10, true})
	table(b, readers, "TCP bulk through the queue, super-packets: Gbit/s", func(name string) float64 {
		return h.bulk(b, name)
	}, want{1, 0, 0.9, false})
}

// want is a wanted ratio of one reader to another.
type want struct {
	reader, of int
	ratio      float64
	most       bool // else at least
}

func table(b *testing.B, readers []string, title string, measure func(name string) float64, wants ...want) {
	b.Helper()
	all := make([]series, len(readers))
	for round := range max(5, *rounds) {
		for i := range readers {
			if round%2 == 1 {
				i = len(readers) - 1 - i
			}
			all[i] = append(all[i], measure(readers[i]))
		}
	}
	show(readers, title, all, wants...)
}

func show(readers []string, title string, all []series, wants ...want) {
	fmt.Printf("\n%s\n", title)
	for i, name := range readers {
		fmt.Printf("  %-28s %-28s %5.2f of the first\n", name, all[i], all[i].median()/all[0].median())
	}
	for _, w := range wants {
		ratio := all[w.reader].median() / all[w.of].median()
		reached, limit := ratio >= w.ratio, "at least"
		if w.most {
			reached, limit = ratio <= w.ratio, "at most"
		}
		verdict := "reached"
		if !reached {
			verdict = "NOT reached"
		}
		fmt.Printf("  %s to %s: %.2f, %s %.2f: %s\n", readers[w.reader], readers[w.of], ratio, limit, w.ratio, verdict)
	}
}
