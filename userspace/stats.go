package userspace

import (
	"runtime"
	"sync/atomic"
)

// Counters are what one worker, or all of them together, have done. Received is
// always the sum of Accepted, Dropped and Rewritten, and the sum of the reasons.
type Counters struct {
	Received  uint64 `json:"received"` // packets, super-packets counted once
	Accepted  uint64 `json:"accepted"` // unchanged
	Dropped   uint64 `json:"dropped"`
	Rewritten uint64 `json:"rewritten"` // accepted with another content

	Step      uint64 `json:"step"` // by ReasonStep, and so on
	Undecided uint64 `json:"undecided"`
	Malformed uint64 `json:"malformed"`
	More      uint64 `json:"more"`
	Overload  uint64 `json:"overload"`
	Unmarked  uint64 `json:"unmarked"`

	Panics        uint64 `json:"panics"`         // of inspectors and of functions in Options
	Broken        uint64 `json:"broken"`         // messages of the kernel that do not parse
	VerdictENOENT uint64 `json:"verdict_enoent"` // the kernel had given up on the packet
	VerdictErrors uint64 `json:"verdict_errors"` // refused for another reason
	ENOBUFS       uint64 `json:"enobufs"`        // times the socket ran full; see KernelQueue.UserDropped
	Decided       uint64 `json:"decided"`        // decisions about flows, offered again included
	DecidedErrors uint64 `json:"decided_errors"` // times it returned an error
	Learned       uint64 `json:"learned"`        // addresses for dynamic lists, known ones included
	LearnedErrors uint64 `json:"learned_errors"` // times it returned an error
	Unasked       uint64 `json:"unasked"`        // DNS responses without a question, from which nothing is learned
	Receives      uint64 `json:"receives"`       // system calls that brought something
}

// The counters as a worker holds them. Those of the reasons are in the reasons'
// order.
const (
	countReceived = iota
	countAccepted
	countDropped
	countRewritten
	countReason // the first of six
)

const (
	countPanics = iota + countReason + int(ReasonUnmarked)
	countBroken
	countVerdictENOENT
	countVerdictErrors
	countENOBUFS
	countDecided
	countDecidedErrors
	countLearned
	countLearnedErrors
	countUnasked
	countReceives
	counts
)

// tally is a worker's counters. The worker counts in its own memory and
// publishes once a batch, between two steps of the generation, so that a
// snapshot never mixes two batches.
type tally struct {
	own    [counts]uint64
	gen    atomic.Uint64 // odd while being published
	public [counts]atomic.Uint64
}

// count counts in the worker's own memory: no other processor looks at it.
func (t *tally) count(what int) { t.own[what]++ }

func (t *tally) reason(r Reason) { t.own[countReason+int(r)-1]++ }

// publish shows what was counted. Only the worker calls it.
func (t *tally) publish() {
	t.gen.Add(1)
	for i := range t.own {
		// A store that others can see costs more than a look: most of the
		// counters have not moved.
		if v := t.own[i]; v != t.public[i].Load() {
			t.public[i].Store(v)
		}
	}
	t.gen.Add(1)
}

// snapshot returns what was published last, all of one batch. It repeats while
// the worker is publishing, which takes some nanoseconds.
func (t *tally) snapshot() Counters {
	var v [counts]uint64
	for {
		gen := t.gen.Load()
		for i := range v {
			v[i] = t.public[i].Load()
		}
		if gen&1 == 0 && gen == t.gen.Load() {
			break
		}
		runtime.Gosched()
	}
	reason := func(r Reason) uint64 { return v[countReason+int(r)-1] }
	return Counters{
		Received:      v[countReceived],
		Accepted:      v[countAccepted],
		Dropped:       v[countDropped],
		Rewritten:     v[countRewritten],
		Step:          reason(ReasonStep),
		Undecided:     reason(ReasonUndecided),
		Malformed:     reason(ReasonMalformed),
		More:          reason(ReasonMore),
		Overload:      reason(ReasonOverload),
		Unmarked:      reason(ReasonUnmarked),
		Panics:        v[countPanics],
		Broken:        v[countBroken],
		VerdictENOENT: v[countVerdictENOENT],
		VerdictErrors: v[countVerdictErrors],
		ENOBUFS:       v[countENOBUFS],
		Decided:       v[countDecided],
		DecidedErrors: v[countDecidedErrors],
		Learned:       v[countLearned],
		LearnedErrors: v[countLearnedErrors],
		Unasked:       v[countUnasked],
		Receives:      v[countReceives],
	}
}

func (c *Counters) add(o Counters) {
	c.Received += o.Received
	c.Accepted += o.Accepted
	c.Dropped += o.Dropped
	c.Rewritten += o.Rewritten
	c.Step += o.Step
	c.Undecided += o.Undecided
	c.Malformed += o.Malformed
	c.More += o.More
	c.Overload += o.Overload
	c.Unmarked += o.Unmarked
	c.Panics += o.Panics
	c.Broken += o.Broken
	c.VerdictENOENT += o.VerdictENOENT
	c.VerdictErrors += o.VerdictErrors
	c.ENOBUFS += o.ENOBUFS
	c.Decided += o.Decided
	c.DecidedErrors += o.DecidedErrors
	c.Learned += o.Learned
	c.LearnedErrors += o.LearnedErrors
	c.Unasked += o.Unasked
	c.Receives += o.Receives
}

// QueueStats are one queue's counters beside the kernel's.
type QueueStats struct {
	Counters
	Kernel KernelQueue `json:"kernel"`
}

// Stats is a snapshot of a Stage.
type Stats struct {
	Counters              // of all queues
	Queues   []QueueStats `json:"queues"`
}
