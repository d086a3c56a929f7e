// Package userspace is the half of hybridfw that judges what the kernel half is
// not certain about: it reads packets from netfilter queues into its own memory,
// inspects them there, sends the verdicts, and hands each flow's decision back.
//
// A Stage judges by a policy. A program that only wants a queue has a Queue, and judges
// by a function of its own.
package userspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// Decision is what the user-space half has decided about a flow. It is handed
// to Options.Decided before the verdict on the packet that led to it is sent,
// so that no later packet of the flow can be queued after its decision.
type Decision struct {
	Flow   pktbuf.Flow   // in the packet's direction, before destination NAT
	Action policy.Action // ActionAccept or ActionDrop
	Rule   int           // index into Policy.Rules
	Mark   uint16        // the rule's, see policy.Rule.Mark
	Reason Reason
}

// Sighting is a name that an inspector saw.
type Sighting struct {
	Flow   pktbuf.Flow
	Kind   string // the protocol, a policy.L7
	Name   string // lower case, no final dot, "" where there is none
	Policy *policy.Policy
	Rule   int // index into Policy.Rules
	Action policy.Action
	Reason Reason
	Log    bool   // a step that matched says log: true
	Method string // HTTP
	Path   string // HTTP: escapes decoded, without the query
	Agent  string // HTTP: User-Agent
	ALPN   string // of a hello: the protocols offered, with commas in between
	JA4    string // of a hello: its fingerprint
	ECH    bool   // of a hello: an encrypted one is offered; Name is the outer one

	Versions string // of a hello: those offered, such as "1.3,1.2", with commas in between
	Resumes  bool   // of a hello: it asks to resume a session

	Response bool         // DNS: the question of a response; told of by a Replay and where a step is on responses
	Answers  []netip.Addr // DNS: the addresses in a response's answers

	Queued int // packets of the flow that came to user space so far, this one included
}

// Options configure a Stage and its Steering. The zero value of each field is
// its default.
type Options struct {
	Policy *policy.Policy // must be given

	Queue  uint16 // first queue number
	Queues int    // number of queues and workers; 0: one per CPU

	QueueLength  int // packets that may wait for a verdict, per queue; 0: 8192
	SocketBuffer int // bytes of them that may wait to be received, per queue; 0: 32 MiB
	Flows        int // flows that a worker can remember; 0: 8192
	StreamMemory int // bytes that a worker keeps of streams which one packet does not decide; 0: 4 MiB

	// Decided receives each flow's decision, on the worker that made it. An
	// error is counted; the verdict is sent all the same, and Decided is called
	// again with the flow's next packet.
	Decided func(Decision) error

	// Learned, if not nil, receives each address in an answer to a question that was
	// let through, where a dynamic list of the policy wants it, and for how long it
	// stays. It is called on the worker, before the answer passes. An error is
	// counted.
	Learned func(list *policy.List, addr netip.Addr, ttl time.Duration) error

	// Start, if not nil, says at which sequence number a TCP flow's first byte
	// stands, where that is known; the flow is as in Decision. Without it the
	// first segment with payload that comes is taken for the first of the stream.
	Start func(pktbuf.Flow) (seq uint32, ok bool)

	// Seen, if not nil, is told each name seen, on the worker that saw it.
	Seen func(Sighting)

	Log *slog.Logger // nil: discard
}

// Reason says why a packet or a flow was judged as it was. Each is one counter.
type Reason uint8

const (
	ReasonStep      Reason = iota + 1 // a step of the rule matched
	ReasonUndecided                   // no step matched, or the budget was spent: failure.undecided
	ReasonMalformed                   // could not be parsed: failure.malformed
	ReasonMore                        // not decided yet: the packet passes, the next is queued too
	ReasonOverload                    // no room to remember the flow: failure.overload
	ReasonUnmarked                    // the mark names no inspecting rule: failure.malformed
)

var reasonNames = [...]string{"none", "step", "undecided", "malformed", "more", "overload", "unmarked"}

// String returns the reason in one word.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

const (
	defaultQueueLength  = 8192
	defaultSocketBuffer = 32 << 20
	defaultFlows        = 8192
	defaultStreamMemory = 4 << 20

	maxQueues = 256 // each costs a thread and some megabytes
)

// withDefaults returns the options with every default filled in, or says which
// field cannot be.
func (o Options) withDefaults() (Options, error) {
	if o.Policy == nil {
		return o, errors.New("no policy given")
	}
	if o.Policy.Marks.Bits() < 2 {
		return o, fmt.Errorf("mark mask %#x has room for no rule: at least two bits are needed", o.Policy.Marks.Mask)
	}
	if o.Queues == 0 {
		o.Queues = min(runtime.NumCPU(), maxQueues)
	}
	switch {
	case o.Queues < 0 || o.Queues > maxQueues:
		return o, fmt.Errorf("%d queues: expected 1 to %d", o.Queues, maxQueues)
	case int(o.Queue)+o.Queues > 1<<16:
		return o, fmt.Errorf("queues %d to %d: the last queue number is 65535", o.Queue, int(o.Queue)+o.Queues-1)
	}
	return o.sized()
}

// sized fills in sizes and the log.
func (o Options) sized() (Options, error) {
	for _, f := range []struct {
		name        string
		value       *int
		least, most int
		byDefault   int
	}{
		{"queue length", &o.QueueLength, 1, 1 << 30, defaultQueueLength},
		{"socket buffer", &o.SocketBuffer, 1 << 12, 1 << 30, defaultSocketBuffer},
		{"flows", &o.Flows, ways, 1 << 24, defaultFlows},
		{"stream memory", &o.StreamMemory, streamMax, 1 << 30, defaultStreamMemory},
	} {
		if *f.value == 0 {
			*f.value = f.byDefault
		}
		if *f.value < f.least || *f.value > f.most {
			return o, fmt.Errorf("%s %d: expected %d to %d", f.name, *f.value, f.least, f.most)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
