package userspace

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// slow is a policy's worth of packets that take their time.
func slow(d time.Duration) func(Sighting) { return func(Sighting) { time.Sleep(d) } }

func TestDrainJudgesAllThatIsQueued(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule), Seen: slow(2 * time.Millisecond)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(1))
	const sent = 200
	for range sent {
		mustWrite(t, c, dnsQuery("www.good.example", dnsmessage.TypeA))
	}
	if waiting := r.Stats().Queues[0].Kernel.Waiting; waiting == 0 {
		t.Error("nothing is queued when draining begins")
	}
	if err := r.drain(); err != nil {
		t.Fatal(err)
	}
	st := r.Stats()
	if st.Accepted != sent || st.Queues[0].Kernel.Waiting != 0 {
		t.Errorf("%+v", st)
	}
	for i := range sent {
		if _, _, ok := s.next(t, time.Second); !ok {
			t.Fatalf("%d of %d arrived", i, sent)
		}
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestDrainEndsWithItsContext(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule), Seen: slow(time.Millisecond)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(1))
	for range 2000 {
		mustWrite(t, c, dnsQuery("www.good.example", dnsmessage.TypeA))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := r.Drain(ctx)
	// One batch of 64 more, a millisecond each.
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	contains(t, err, "packets are left", context.DeadlineExceeded.Error())
}

// An idle worker is woken up, a stage that never ran is closed, and both twice.
func TestStopOfAnIdleStage(t *testing.T) {
	testnet.Need(t)
	for range 50 {
		r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 3, Flows: 8})
		start := time.Now()
		r.end(t)
		if took := time.Since(start); took > time.Second {
			t.Fatalf("took %v", took)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := r.Run(); err == nil {
			t.Error("a closed stage runs")
		}
	}
	s, err := Open(Options{Policy: mustPolicy(t, "", acceptAll), Queue: testQueue, Flows: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Drain(context.Background()), s.Close()); err != nil {
		t.Error(err)
	}
}

func descriptors(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

// Opening and closing leaves nothing behind: descriptors, goroutines, queues.
func TestNothingLeaks(t *testing.T) {
	testnet.Need(t)
	p := mustPolicy(t, "", acceptAll)
	round := func() {
		s, err := Open(Options{Policy: p, Queue: testQueue, Queues: 2, Flows: 8, StreamMemory: streamMax})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- s.Run() }()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		// Close may come before Run; then that is an error.
		<-ended
		// A queue that cannot be had, behind one that can.
		other, err := openQueue(queueOptions{num: testQueue + 1, length: 1, socketBuffer: 1 << 16})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Policy: p, Queue: testQueue, Queues: 2, Flows: 8, StreamMemory: streamMax}); !errors.Is(err, ErrQueueInUse) {
			t.Fatal(err)
		}
		if err := other.close(); err != nil {
			t.Fatal(err)
		}
	}
	round()
	fds, goroutines := descriptors(t), runtime.NumGoroutine()
	for range 100 {
		round()
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if now := descriptors(t); now > fds {
		t.Errorf("%d descriptors after 100 rounds, %d before", now, fds)
	}
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines after 100 rounds, %d before", now, goroutines)
	}
	queues, err := ReadKernelQueues()
	if err != nil || len(queues) != 0 {
		t.Errorf("queues left: %+v, %v", queues, err)
	}
}

// When the socket is closed under a worker, Run says so and stops the others.
func TestSocketClosedUnderUs(t *testing.T) {
	testnet.Need(t)
	s, err := Open(Options{Policy: mustPolicy(t, "", acceptAll), Queue: testQueue, Queues: 2, Flows: 8, StreamMemory: streamMax})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Run() }()
	// The descriptor becomes that of another file. A receive that is blocked goes
	// on with the socket until it is woken up, by way of another descriptor.
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := unix.FcntlInt(uintptr(s.workers[0].q.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(null, s.workers[0].q.fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := (&queue{fd: socket}).wake(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		contains(t, err, "queue 100", unix.ENOTSOCK.Error())
	case <-time.After(5 * time.Second):
		t.Fatal("the worker does not notice")
	}
	if err := errors.Join(unix.Close(null), unix.Close(socket)); err != nil {
		t.Error(err)
	}
	if err := s.Close(); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("Close says %v", err)
	}
}

// TestDrainBeforeRun: a stage that is told to drain before it runs judges what is
// queued when it does, and ends.
func TestDrainBeforeRun(t *testing.T) {
	testnet.Need(t)
	stage, err := Open(Options{Policy: mustPolicy(t, "", acceptAll), Queues: 2, StreamMemory: 4 * streamMax})
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stage.Run() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it runs on")
	}
	if err := stage.Close(); err != nil {
		t.Error(err)
	}
}
