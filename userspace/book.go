package userspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/policy"
)

// book says which rule a mark's number stands for. Beside the rules of the policy
// in force it has those of policies before, whose packets may still wait: each is
// judged by the policy that queued it. A book is never changed once workers have
// it.
type book struct {
	policy *policy.Policy // in force
	rules  []bookRule     // by policy.Rule.Inspect
}

// bookRule is one rule; policy is nil where the number stands for none.
type bookRule struct {
	policy *policy.Policy
	index  int
}

// newBook is the book of a policy. Rules of before that it gives no other meaning
// stay in it.
func newBook(p *policy.Policy, before *book) *book {
	b := &book{policy: p}
	if before != nil {
		b.rules = slices.Clone(before.rules)
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Action != policy.ActionInspect {
			continue
		}
		for len(b.rules) <= r.Inspect {
			b.rules = append(b.rules, bookRule{})
		}
		b.rules[r.Inspect] = bookRule{p, i}
	}
	return b
}

// rule is the one whose number a mark holds.
func (b *book) rule(mark uint32) bookRule {
	i := int64(b.policy.Marks.Field(mark)) - policy.MarkInspect
	if i < 0 || i >= int64(len(b.rules)) {
		return bookRule{}
	}
	return b.rules[i]
}

// Held lists the numbers of rules of earlier policies whose packets may still
// wait: the next policy must not give them to others (policy.Policy.Succeed).
func (s *Stage) Held() []int {
	b := s.book.Load()
	var held []int
	for i, r := range b.rules {
		if r.policy != nil && r.policy != b.policy {
			held = append(held, i)
		}
	}
	return held
}

// Apply has the workers judge by another policy, too: packets that the policy
// before has queued are still judged by that one. The next policy's rules must be
// numbered by policy.Policy.Succeed. Apply comes before the kernel half marks by
// the policy, Settle after it.
func (s *Stage) Apply(p *policy.Policy) error {
	before := s.book.Load()
	s.book.Store(newBook(p, before))
	if p.Failure.Overload == before.policy.Failure.Overload {
		return nil
	}
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.q.setFailOpen(p.Failure.Overload == policy.Open))
	}
	return errors.Join(errs...)
}

// Settle waits until no packet can come any more that was queued before it was
// called, and forgets the rules of earlier policies. When the context ends first
// they stay, and the error says so.
func (s *Stage) Settle(ctx context.Context) error {
	waitForGracePeriod()
	s.mu.Lock()
	running := s.running && !s.closed
	s.mu.Unlock()
	for _, w := range s.workers {
		if !running {
			break
		}
		if err := w.pass(ctx); err != nil {
			return fmt.Errorf("waiting for the packets that an earlier policy has queued: %w", err)
		}
	}
	b := s.book.Load()
	s.book.Store(newBook(b.policy, nil))
	return nil
}

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL, linux/membarrier.h.
const membarrierGlobal = 1

// waitForGracePeriod returns when all packets that were between fw_tc and their
// queue have come there: the kernel handles them within one RCU read-side section
// (synchronize_rcu in kernel/sched/membarrier.c).
func waitForGracePeriod() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		time.Sleep(drainQuiet) // a kernel that does not offer it
	}
}

// passRetry is how often a worker whose socket took no acknowledgement, because it
// was full, is asked again.
const passRetry = 2 * time.Millisecond

// pass returns when the worker has judged all that is in its socket now: it asks
// the kernel for an acknowledgement, which goes into the same socket behind them.
func (w *worker) pass(ctx context.Context) error {
	ticket := w.tickets.Add(1) & ticketMask
	tick := time.NewTicker(passRetry)
	defer tick.Stop()
	for {
		if err := w.q.ask(ticketSeq | ticket); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if w.passed.Load() == ticket {
			return nil
		}
	}
}
