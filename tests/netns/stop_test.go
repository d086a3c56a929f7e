package netns

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// TestNothingIsLeft stops a firewall in each way that there is, and compares
// what is seen from outside with what was there before it started.
func TestNothingIsLeft(t *testing.T) {
	ways := []struct {
		name string
		stop func(t *testing.T, f *firewall)
	}{
		{"SIGTERM", func(_ *testing.T, f *firewall) { f.stop() }},
		{"SIGKILL, detach", func(t *testing.T, f *firewall) {
			f.kill()
			f.mustDetach(t)
		}},
		{"detach", func(t *testing.T, f *firewall) {
			f.mustDetach(t)
			if err := f.wait(); err != nil {
				t.Errorf("the process that was asked to stop ended with %v", err)
			}
		}},
	}
	eachMode(t, allModes, func(t *testing.T, m mode) {
		r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
		f := prepare(t, r.Firewall, basePolicy)
		for i, way := range ways {
			if m.xdp == "generic" && i == 2 {
				continue // nothing new in it
			}
			t.Run(way.name, func(t *testing.T) {
				before := f.outside(t)
				f.start(m.flags()...)
				f.expectOutside(t, f.atWork(m))
				programs, counters := f.kernelIDs(t)
				way.stop(t, f)
				f.expectOutside(t, before)
				expectFreed(t, programs, counters)
			})
		}
	})
}

func (f *firewall) mustDetach(tb testing.TB) {
	tb.Helper()
	out, errs, code := f.run(append([]string{"detach"}, f.places()...)...)
	if code != 0 || errs != "" || !strings.HasSuffix(out, "nothing of hybridfw is attached\n") {
		tb.Errorf("detach: exit status %d, printed %q and %q", code, out, errs)
	}
}

// expectFreed waits for the kernel to free what nobody refers to any more.
func expectFreed(tb testing.TB, programs []ebpf.ProgramID, counters ebpf.MapID) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		left := 0
		for _, id := range programs {
			if p, err := ebpf.NewProgramFromID(id); err == nil {
				left++
				_ = p.Close()
			}
		}
		m, err := ebpf.NewMapFromID(counters)
		if err == nil {
			_ = m.Close()
		}
		if left == 0 && errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%d programs are still in the kernel; the map: %v", left, err)
		}
	}
}

func TestDetachWithNothingThere(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	before := f.outside(t)
	f.mustDetach(t)
	f.mustDetach(t)
	f.expectOutside(t, before)
}

// numbers sends numbered datagrams until it is stopped.
type numbers struct {
	conn  net.Conn
	sent  chan int // how many, once it has stopped
	halt  chan struct{}
	every time.Duration
	first chan struct{} // closed when the first is sent
}

func (b *bench) sendNumbers(tb testing.TB, address string, every time.Duration, message func(i int) []byte) *numbers {
	tb.Helper()
	n := &numbers{b.Client.MustDial(tb, "udp", address), make(chan int, 1), make(chan struct{}), every, make(chan struct{})}
	go func() {
		tick := time.NewTicker(n.every)
		defer tick.Stop()
		for i := 0; ; i++ {
			// Where nobody listens ICMP says so, and the next call reports it.
			if _, err := n.conn.Write(message(i)); err != nil {
				_, _ = n.conn.Write(message(i))
			}
			if i == 0 {
				close(n.first)
			}
			select {
			case <-tick.C:
			case <-n.halt:
				n.sent <- i + 1
				return
			}
		}
	}()
	<-n.first
	return n
}

func (n *numbers) stop() int {
	close(n.halt)
	return <-n.sent
}

// collector receives numbered datagrams.
type collector struct {
	conn net.PacketConn
	got  chan int
}

func (b *bench) collect(tb testing.TB, address string, number func([]byte) int) *collector {
	tb.Helper()
	c := &collector{b.Server.MustListenPacket(tb, "udp", address), make(chan int, 1<<20)}
	raw, err := c.conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	// More than the system-wide limit: a slow machine reads late.
	if controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
	}); controlErr != nil || err != nil {
		tb.Fatal(controlErr, err)
	}
	go func() {
		defer close(c.got)
		buf := make([]byte, 1500)
		for {
			n, _, err := c.conn.ReadFrom(buf)
			if err != nil {
				return
			}
			c.got <- number(buf[:n])
		}
	}()
	return c
}

// expectAll waits for all of n numbers, each once. Their order may change where
// packets that wait in a queue are overtaken.
func (c *collector) expectAll(tb testing.TB, n int) {
	tb.Helper()
	timeout := time.After(patience)
	arrived := make([]bool, n)
	for range n {
		select {
		case got := <-c.got:
			if got < 0 || got >= n || arrived[got] {
				tb.Errorf("number %d arrived twice, or was never sent", got)
				return
			}
			arrived[got] = true
		case <-timeout:
			first := slices.Index(arrived, false)
			missing := 0
			for _, ok := range arrived {
				if !ok {
					missing++
				}
			}
			tb.Errorf("%d of %d numbers never arrived, the first is %d", missing, n, first)
			return
		}
	}
}

// expectNone closes the collector and counts what it has got.
func (c *collector) expectNone(tb testing.TB) {
	tb.Helper()
	_ = c.conn.Close()
	n := 0
	for range c.got {
		n++
	}
	if n != 0 {
		tb.Errorf("%d datagrams that the policy drops have arrived", n)
	}
}

func numbered(i int) []byte { return []byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)} }

func number(b []byte) int {
	if len(b) != 4 {
		return -1
	}
	return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
}

// TestKilledFirewallIsTakenOver sends denied and allowed datagrams all the time.
func TestKilledFirewallIsTakenOver(t *testing.T) {
	eachMode(t, allModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy+`
  - { name: stream, from: lan, to: wan, proto: udp, dport: 5000, action: accept }
`, m.flags()...)
		var streams []*numbers
		var allowed, denied []*collector
		for _, fam := range families {
			allowed = append(allowed, b.collect(t, at(fam.server, 5000), number))
			denied = append(denied, b.collect(t, at(fam.server, 9), number))
			streams = append(streams, b.sendNumbers(t, at(fam.server, 5000), 100*time.Microsecond, numbered),
				b.sendNumbers(t, at(fam.server, 9), 100*time.Microsecond, numbered))
		}
		b.f.kill()
		left := b.f.outside(t)
		b.f.start(m.flags()...)
		b.f.expectOutside(t, b.f.atWork(m))
		b.f.eventually(t, "the new process judges", func(s status) bool {
			return s.Kernel.Sum("tc", "drop", "rule") >= 100 && s.Kernel.Sum("tc", "pass", "flow") >= 100
		})
		sent := make([]int, len(streams))
		for i, s := range streams {
			sent[i] = s.stop()
		}
		for i := range families {
			allowed[i].expectAll(t, sent[2*i])
			if sent[2*i+1] < 100 {
				t.Errorf("only %d denied datagrams were sent", sent[2*i+1])
			}
		}
		// What was sent last has been judged when the barriers are through.
		for i, fam := range families {
			b.barrier(t, fam)
			denied[i].expectNone(t)
		}
		if len(left) == 0 {
			t.Error("the killed process left nothing: there was nothing to take over")
		}
	})
}

func id(msg []byte) int { return int(msg[0])<<8 | int(msg[1]) }

// TestStopLosesNoAllowedPacket stops while every packet goes through the queue.
func TestStopLosesNoAllowedPacket(t *testing.T) {
	// Not with clsact: the kernel itself loses what an interface sends while
	// the qdisc is removed (dev_deactivate in net/sched/sch_generic.c).
	modes := []mode{{"tcx", "native"}, {"tcx", "generic"}, {"tcx", "off"}}
	eachMode(t, modes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		var streams []*numbers
		var collectors []*collector
		for _, fam := range families {
			collectors = append(collectors, b.collect(t, at(fam.server, 53), id))
			streams = append(streams, b.sendNumbers(t, at(fam.server, 53), 50*time.Microsecond, func(i int) []byte {
				return question(t, uint16(i), "good.example.", 1)
			}))
		}
		b.f.eventually(t, "packets are on their way through the queue", func(s status) bool { return s.User.Received > 500 })
		b.f.stop()
		for i, s := range streams {
			n := s.stop()
			if n > 1<<16 {
				t.Fatalf("%d numbers sent, the id of a question has 16 bits only", n)
			}
			collectors[i].expectAll(t, n)
		}
	})
}

// TestStopJudgesWhatWaits stops a process that has not come to judge what is in
// its queues.
func TestStopJudgesWhatWaits(t *testing.T) {
	eachMode(t, allModes, func(t *testing.T, m mode) {
		const waiting = 500
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		collectors := make([]*collector, len(families))
		for i, fam := range families {
			collectors[i] = b.collect(t, at(fam.server, 53), id)
		}
		b.f.signal(syscall.SIGSTOP)
		for _, fam := range families {
			conn := b.Client.MustDial(t, "udp", at(fam.server, 53))
			for i := range uint16(2 * waiting) {
				name := "good.example."
				if i >= waiting {
					name = "denied.example."
				}
				if _, err := conn.Write(question(t, i, name, 1)); err != nil {
					t.Fatal(err)
				}
			}
			b.barrier(t, fam)
		}
		b.f.signal(syscall.SIGTERM)
		b.f.signal(syscall.SIGCONT)
		if err := b.f.wait(); err != nil {
			t.Errorf("hybridfw ended with %v", err)
		}
		for i, fam := range families {
			// The next number would be that of a denied question.
			collectors[i].expectAll(t, waiting)
			b.barrier(t, fam)
			collectors[i].expectNone(t)
		}
	})
}
