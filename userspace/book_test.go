package userspace

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/policy"
)

const (
	acceptRule = "  - { name: all, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: accept }] }\n"
	dropRule   = "  - { name: all, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: drop }] }\n"
)

// successor is a policy numbered to replace another.
func successor(tb testing.TB, before *policy.Policy, failure, rules string, held ...int) *policy.Policy {
	tb.Helper()
	p := mustPolicy(tb, failure, rules)
	if err := p.Succeed(before, held); err != nil {
		tb.Fatal(err)
	}
	return p
}

// TestPacketsAreJudgedByThePolicyThatQueuedThem mixes packets of two policies.
func TestPacketsAreJudgedByThePolicyThatQueuedThem(t *testing.T) {
	w := newTester(t, "", acceptRule)
	first := w.judge.policy
	second := successor(t, first, "malformed: accept", dropRule)
	send := func(rule int) bool {
		return w.judged(t, rule, tcpPacket(1, []byte("SSH-2.0-x\r\n")))
	}
	if !send(0) || send(1) {
		t.Error("before the reload: want rule 0 to accept, and 1 to be nobody's")
	}
	w.book.Store(newBook(second, w.book.Load()))
	for range 3 {
		if !send(0) || send(1) {
			t.Error("amid the reload: want that the one policy accepts and the other drops")
		}
	}
	var rules []int
	for _, d := range w.decisions {
		rules = append(rules, int(d.Mark))
	}
	// Each number asks anew: what another rule has decided does not hold for it.
	if want := []int{1, 2, 1, 2, 1, 2}; !slices.Equal(rules[len(rules)-6:], want) {
		t.Errorf("decisions by marks %v, want %v at the end", rules, want)
	}
	w.book.Store(newBook(second, nil))
	unmarked := w.tally.snapshot().Unmarked
	if !send(0) {
		t.Error("a number that nobody has any more is malformed, which the new policy accepts")
	}
	if got := w.tally.snapshot().Unmarked - unmarked; got != 1 {
		t.Errorf("%d packets unmarked, want 1", got)
	}
}

// TestSettleWaitsForWhatIsQueued holds the worker at a packet of the first policy.
func TestSettleWaitsForWhatIsQueued(t *testing.T) {
	hold := make(chan struct{})
	held := make(chan struct{}, 64)
	first := mustPolicy(t, "", acceptRule)
	r := mustRun(t, Options{Policy: first, Decided: func(d Decision) error {
		if d.Mark == first.Rules[0].Mark() {
			held <- struct{}{}
			<-hold
		}
		return nil
	}})
	s := mustSink(t, "127.0.0.1:0")
	for range 5 {
		mustWrite(t, mustDial(t, "udp", s.addr, markOf(0)), []byte("old"))
	}
	<-held
	second := successor(t, first, "", dropRule)
	if err := r.Apply(second); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, mustDial(t, "udp", s.addr, markOf(1)), []byte("new"))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := r.Settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("settled while packets wait: %v", err)
	}
	if got := r.Held(); !slices.Equal(got, []int{0}) {
		t.Errorf("held numbers %v, want the first rule's", got)
	}
	// A third policy in a hurry must not take the number either.
	if third := successor(t, second, "", acceptRule, r.Held()...); third.Rules[0].Inspect != 2 {
		t.Errorf("the third policy's rule has number %d, want 2", third.Rules[0].Inspect)
	}
	close(hold)
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.Held(); len(got) != 0 {
		t.Errorf("held numbers %v, want none", got)
	}
	c := r.settled(t, 6)
	if c.Accepted != 5 || c.Dropped != 1 || c.Unmarked != 0 {
		t.Errorf("%+v, want the 5 old packets accepted, and the new one dropped", c)
	}
	r.end(t)
}

// TestReloadsUnderTraffic changes between two policies while marked packets come.
func TestReloadsUnderTraffic(t *testing.T) {
	inForce := mustPolicy(t, "", acceptRule)
	r := mustRun(t, Options{Policy: inForce, Queues: 1})
	s := mustSink(t, "127.0.0.1:0")
	const rounds, each = 50, 20
	sent := 0
	for i := range rounds {
		rules := dropRule
		if i%2 == 1 {
			rules = acceptRule
		}
		next := successor(t, inForce, "", rules, r.Held()...)
		if err := r.Apply(next); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*policy.Policy{inForce, next} {
			c := mustDial(t, "udp", s.addr, markOf(p.Rules[0].Inspect))
			for range each {
				mustWrite(t, c, []byte("x"))
				sent++
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := r.Settle(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		inForce = next
	}
	c := r.settled(t, uint64(sent))
	if c.Accepted != c.Dropped || c.Accepted != rounds*each || c.Unmarked != 0 {
		t.Errorf("%+v, want as many accepted as dropped, %d, and none unknown", c, rounds*each)
	}
	r.end(t)
}

// TestOverloadMayChange has a queue that is full drop, then let through.
func TestOverloadMayChange(t *testing.T) {
	const closed = "overload: closed, malformed: drop"
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	first := mustPolicy(t, closed, acceptRule)
	r := mustRun(t, Options{Policy: first, QueueLength: 4, Decided: func(Decision) error {
		select {
		case held <- struct{}{}:
		default:
		}
		<-hold
		return nil
	}})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(0))
	mustWrite(t, c, []byte("the one that is held"))
	<-held
	flood := func() {
		for range 20 {
			_, _ = c.Write([]byte("x")) // a full queue's drop is reported to a local sender
		}
	}
	flood()
	if _, _, ok := s.next(t, 100*time.Millisecond); ok {
		t.Error("a packet came through a full queue, closed")
	}
	if err := r.Apply(successor(t, first, "overload: open, malformed: drop", acceptRule)); err != nil {
		t.Fatal(err)
	}
	flood()
	if _, _, ok := s.next(t, 5*time.Second); !ok {
		t.Error("no packet came past a full queue, open")
	}
	close(hold)
	r.end(t)
}
