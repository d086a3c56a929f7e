package userspace

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// cpu is the processor time that the process has used, user and system.
func cpu(tb testing.TB) (user, system time.Duration) {
	tb.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}

// bare is the least that a reader can do: receive in batches, find the last id,
// accept all up to it. What a worker costs above it is parsing and judging.
func bare(tb testing.TB, w *worker, packets int) {
	for got := 0; got < packets; {
		n, errno := w.receive(false)
		if errno != 0 {
			tb.Fatal(errno)
		}
		got += n
		b := w.slot(n-1, int(w.msgs[n-1].len))
		id := be32at(b[nlHeaderLen+nfHeaderLen+attrHeader:])
		w.verdicts.run, w.verdicts.runLast = n, id
		w.verdicts.runWhat = verdict{accept: true, mark: 1 << 16}
		if err := w.verdicts.send(); err != nil {
			tb.Fatal(err)
		}
	}
}

func be32at(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// BenchmarkQueue measures the processor time that a packet costs from the queue's
// socket to the local receiver, over loopback, with full batches. Nothing else
// runs in the process meanwhile.
func BenchmarkQueue(b *testing.B) {
	testnet.Need(b)
	query := dnsQuery("www.good.example", dnsmessage.TypeA)
	for _, c := range []struct {
		name    string
		rule    int
		payload []byte
		bare    bool
	}{
		{"bare/64B", 0, make([]byte, 36), true},
		{"accept/64B", 0, make([]byte, 36), false},
		{"bare/1400B", 0, make([]byte, 1372), true},
		{"accept/1400B", 0, make([]byte, 1372), false},
		{"bare/dns", 1, query, true},
		{"dns/dns", 1, query, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			var user, system time.Duration
			packets := 0
			for packets < b.N {
				n := min(b.N-packets, 20000)
				u, s := queueRound(b, n, c.rule, c.payload, c.bare)
				user, system, packets = user+u, system+s, packets+n
			}
			b.ReportMetric(float64(user)/float64(packets), "user-ns/packet")
			b.ReportMetric(float64(user+system)/float64(packets), "cpu-ns/packet")
		})
	}
}

// queueRound queues n packets and then judges them.
func queueRound(b *testing.B, n, rule int, payload []byte, isBare bool) (user, system time.Duration) {
	o := Options{
		Policy: mustPolicy(b, "", tlsRule+otherwiseAccept+rewriteRule), QueueLength: n + 1, SocketBuffer: 256 << 20,
		Decided: func(Decision) error { return nil },
	}
	o.Queue, o.Queues = testQueue, 1
	stage, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	steer, err := NewSteering(o)
	if err != nil {
		b.Fatal(err)
	}
	r := &running{stage, steer, make(chan error, 1)}
	defer r.end(b)
	if err := steer.Install(); err != nil {
		b.Fatal(err)
	}
	s := mustSink(b, "127.0.0.1:0")
	if err := s.SetReadBuffer(1 << 12); err != nil {
		b.Fatal(err)
	}
	conn := mustDial(b, "udp", s.addr, markOf(rule))
	// Queued packets are held against the socket that sent them.
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	if err := control([3]int{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 512 << 20})("", "", raw); err != nil {
		b.Fatal(err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		b.Fatal(err)
	}
	for range n {
		mustWrite(b, conn, payload)
	}
	if k := stage.Stats().Queues[0].Kernel; int(k.Waiting) != n {
		b.Fatalf("kernel says %+v of %d packets", k, n)
	}
	user0, system0 := cpu(b)
	if isBare {
		bare(b, stage.workers[0], n)
	} else {
		go func() { r.ended <- stage.Run() }()
		if err := r.drain(); err != nil {
			b.Fatal(err)
		}
		// Drain may have come before Run.
		for stage.Stats().Received < uint64(n) {
			time.Sleep(100 * time.Microsecond)
		}
	}
	user1, system1 := cpu(b)
	return user1 - user0, system1 - system0
}

// BenchmarkRoundTrip measures what the queue adds to a lone packet.
func BenchmarkRoundTrip(b *testing.B) {
	testnet.Need(b)
	for name, mark := range map[string]int{"queued": markOf(0), "past": 0} {
		b.Run(name, func(b *testing.B) {
			mustRun(b, Options{Policy: mustPolicy(b, "", acceptAll)})
			s := mustSink(b, "127.0.0.1:0")
			conn := mustDial(b, "udp", s.addr, mark)
			buf := make([]byte, 64)
			took := make([]time.Duration, 0, b.N)
			for range b.N {
				start := time.Now()
				mustWrite(b, conn, buf)
				if _, err := s.Read(buf); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-us")
		})
	}
}

// The structures that the kernel reads have its layout.
func TestLayoutOfKernelStructures(t *testing.T) {
	want := unsafe.Sizeof(unix.Msghdr{}) + unsafe.Sizeof(uintptr(0))
	if got := unsafe.Sizeof(mmsghdr{}); got != want {
		t.Errorf("struct mmsghdr has %d bytes, want %d", got, want)
	}
	if fmt.Sprintf("%x", wakeRequest[16:]) != "00000000"+fmt.Sprintf("%x", attr(cfgCmd, []byte{cmdPfBind, 0, 0, 0})) {
		t.Errorf("wake request %x", wakeRequest)
	}
}
