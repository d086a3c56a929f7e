package userspace

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// arrivals sends n datagrams and counts what arrives.
func arrivals(tb testing.TB, c net.Conn, s *sink, n int) (arrived int) {
	tb.Helper()
	for range n {
		mustWrite(tb, c, []byte("hello"))
	}
	for patience := 100 * time.Millisecond; ; arrived++ {
		if _, _, ok := s.next(tb, patience); !ok {
			return arrived
		}
	}
}

func (r *running) outputCounters(tb testing.TB) HookCounters {
	tb.Helper()
	hooks, err := r.steer.Counters()
	if err != nil {
		tb.Fatal(err)
	}
	return hooks[2]
}

// With nobody at the queue, failure.no_listener decides, and what passes for it
// is counted.
func TestNoListener(t *testing.T) {
	for setting, want := range map[string]int{"no_listener: open": 10, "no_listener: closed": 0} {
		r := mustRun(t, Options{Policy: mustPolicy(t, setting+", malformed: accept", acceptAll)})
		s := mustSink(t, "127.0.0.1:0")
		c := mustDial(t, "udp", s.addr, markOf(0))
		if got := arrivals(t, c, s, 5); got != 5 {
			t.Errorf("%s: %d of 5 arrived with a listener", setting, got)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if got := arrivals(t, c, s, 10); got != want {
			t.Errorf("%s: %d of 10 arrived without a listener, want %d", setting, got, want)
		}
		if h := r.outputCounters(t); h.Queued != 15 || h.Past != uint64(want) {
			t.Errorf("%s: %+v", setting, h)
		}
		r.end(t)
	}
}

// mustWait opens a stage with steering that does not judge until run is called.
func mustWait(tb testing.TB, o Options) (r *running, run func()) {
	tb.Helper()
	testnet.Need(tb)
	o.Queue, o.Queues = testQueue, 1
	stage, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	steer, err := NewSteering(o)
	if err != nil {
		tb.Fatal(err)
	}
	r = &running{stage, steer, make(chan error, 1)}
	tb.Cleanup(func() { r.end(tb) })
	if err := steer.Install(); err != nil {
		tb.Fatal(err)
	}
	return r, func() { go func() { r.ended <- stage.Run() }() }
}

// When the queue is full, failure.overload decides. The kernel does not count
// what fails open; the rule behind the queue does.
func TestFullQueue(t *testing.T) {
	for setting, passed := range map[string]int{"overload: open": 16, "overload: closed": 0} {
		r, run := mustWait(t, Options{Policy: mustPolicy(t, setting, acceptAll), QueueLength: 4})
		s := mustSink(t, "127.0.0.1:0")
		c := mustDial(t, "udp", s.addr, markOf(0))
		if got := arrivals(t, c, s, 20); got != passed {
			t.Errorf("%s: %d of 20 arrived past a queue of 4, want %d", setting, got, passed)
		}
		k := r.Stats().Queues[0].Kernel
		if k.Waiting != 4 || int(k.Dropped) != 16-passed {
			t.Errorf("%s: kernel says %+v", setting, k)
		}
		if h := r.outputCounters(t); h.Queued != 20 || int(h.Past) != passed {
			t.Errorf("%s: %+v", setting, h)
		}
		run()
		for i := range 4 {
			if _, _, ok := s.next(t, 5*time.Second); !ok {
				t.Errorf("%s: %d of the 4 queued ones arrived", setting, i)
			}
		}
		r.end(t)
	}
}

// A socket that runs full loses packets, says so once, and goes on.
func TestFullSocket(t *testing.T) {
	r, run := mustWait(t, Options{Policy: mustPolicy(t, "", acceptAll), SocketBuffer: 1 << 13})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(0))
	const sent = 200
	if got := arrivals(t, c, s, sent); got != 0 {
		t.Errorf("%d arrived without a verdict", got)
	}
	k := r.Stats().Queues[0].Kernel
	if k.UserDropped == 0 || k.UserDropped+k.Waiting != sent {
		t.Fatalf("kernel says %+v of %d packets", k, sent)
	}
	run()
	if c := r.settled(t, k.Waiting); c.ENOBUFS == 0 || c.Accepted != k.Waiting {
		t.Errorf("%+v", c)
	}
	if got := arrivals(t, c, s, 5); got != int(k.Waiting)+5 {
		t.Errorf("%d arrived, want the %d queued before and 5", got, k.Waiting)
	}
}

// The kernel gives up on queued packets when a base chain goes; verdicts on them
// are counted, and nothing else happens.
func TestVerdictOnAPacketThatIsGone(t *testing.T) {
	r, run := mustWait(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(1))
	for _, name := range []string{"a.good.example", "b.good.example", "a.bad.example"} {
		mustWrite(t, c, dnsQuery(name, dnsmessage.TypeA))
	}
	if err := r.steer.Remove(); err != nil {
		t.Fatal(err)
	}
	if k := r.Stats().Queues[0].Kernel; k.Waiting != 0 {
		t.Fatalf("kernel says %+v", k)
	}
	if err := r.steer.Install(); err != nil {
		t.Fatal(err)
	}
	run()
	// One verdict on two packets, one on the third.
	mustWrite(t, c, dnsQuery("c.good.example", dnsmessage.TypeA))
	if _, _, ok := s.next(t, 5*time.Second); !ok {
		t.Error("the packet after those that are gone did not arrive")
	}
	deadline := time.Now().Add(5 * time.Second)
	for r.settled(t, 4).VerdictENOENT < 2 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if c := r.settled(t, 4); c.VerdictENOENT != 2 || c.VerdictErrors != 0 {
		t.Errorf("%+v", c)
	}
}
