package userspace

import (
	"log/slog"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// Decision is what the user-space half has decided about a flow. It is handed
// to Options.Decided before the verdict on the packet that led to it is sent,
// so that no later packet of the flow can be queued after its decision.
type Decision struct {
	Flow   pktbuf.Flow   // in the direction of the packet that was judged
	Action policy.Action // ActionAccept or ActionDrop
	Rule   int           // index into Policy.Rules
	Reason Reason
}

// Sighting is a name that an inspector saw.
type Sighting struct {
	Flow   pktbuf.Flow
	Kind   string // "dns", "tls"
	Name   string // lower case, no final dot, "" for a hello without one
	Rule   int    // index into Policy.Rules
	Action policy.Action
	Reason Reason
	Log    bool // a step that matched says log: true
	Queued int  // packets of the flow that came to user space so far, this one included
}

// Options configure a Stage. The zero value of each field is its default.
type Options struct {
	Policy *policy.Policy

	Queue  uint16 // first queue number
	Queues int    // number of queues and workers; 0: one per CPU

	// Decided receives each flow's decision, on the worker that made it. An
	// error is counted; the verdict is sent all the same.
	Decided func(Decision) error

	// Seen, if not nil, is told each name seen, on the worker that saw it.
	Seen func(Sighting)

	Log *slog.Logger // nil: discard
}

// Reason says why a packet or a flow was judged as it was. Each is one counter.
type Reason uint8

const (
	ReasonStep      Reason = iota + 1 // a step of the rule matched
	ReasonUndecided                   // the rule's budget was spent: failure.undecided
	ReasonMalformed                   // could not be parsed: failure.malformed
	ReasonMore                        // not decided yet: the packet passes, the next is queued too
)
