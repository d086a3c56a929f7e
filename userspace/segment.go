package userspace

import (
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// tellable is how many bytes it takes to say that a stream is of no known
// protocol. Fewer may be stray ones, in place of which the real ones come.
const tellable = 6

// segment judges a TCP packet. Names are taken from the start of the stream, put
// together out of its segments in whatever order and size they come. Segments
// pass until the one that decides: a hello is of no use to a server as long as
// one of them is missing.
func (j *judge) segment(rule *policy.Rule) (policy.Action, Reason) {
	tcp := j.view.TCP()
	if tcp == nil {
		return j.malformed()
	}
	// What the receiver will discard must not decide for it. Such a packet
	// decides nothing itself either: anybody can send one.
	if j.pkt.skbInfo&(skbUnfinished|skbUnverified) == skbUnverified && j.view.CheckTransport() == pktbuf.ChecksumBad {
		return j.malformed()
	}
	f := j.known()
	syn := tcp.Flags()&pktbuf.FlagSYN != 0
	if f != nil && syn {
		j.flows.remove(f)
		f = nil
	}
	payload := j.view.Payload()
	if len(payload) == 0 {
		// The kernel half queues none of these. Where somebody else does, a
		// connection must be able to come about before it can be judged.
		if f != nil && f.decided {
			return f.action, f.reason
		}
		return policy.ActionAccept, ReasonMore
	}
	seq := tcp.Seq()
	if syn {
		seq++ // a SYN with data takes one number itself
	}
	if f != nil && f.decided {
		if j.isDNSStream(rule) || !j.beginsAgain(f, seq, payload) {
			return j.again(f)
		}
		// On the old ports, its start is not the old one's; in the old stream,
		// where STARTTLS or a proxy has changed the protocol, it is here.
		start, known := j.streamStart()
		if old := f.begin; !known || start == old {
			j.begin, start = old, seq
		} else {
			j.begin = start
		}
		j.flows.remove(f)
		return j.undecided(rule, nil, position{start, int(int32(seq - start))}, payload)
	}
	if tcp.Flags()&pktbuf.FlagURG != 0 {
		// Most programs read a stream without its urgent byte, some with it: what
		// the name is, nobody here can know.
		return j.decide(f, seq, j.policy.Failure.Malformed, ReasonMalformed)
	}
	if j.isDNSStream(rule) {
		return j.dnsSegment(rule, f, seq, payload)
	}
	start := seq
	if f != nil {
		start, j.begin = f.seq, f.begin
	} else if first, known := j.streamStart(); known {
		start, j.begin = first, first
	} else {
		j.begin = start
	}
	return j.undecided(rule, f, position{start, int(int32(seq - start))}, payload)
}

// position is where a segment's payload stands in its stream.
type position struct {
	start uint32 // the stream's first sequence number
	at    int    // bytes from there
}

// beginsAgain reports whether a segment of a decided flow is to be judged as the
// first one of a new connection. A hello elsewhere in the stream is a new
// connection on the old ports, or meant to look like one. A drop stands, unless
// the kernel half has let a new connection begin since.
func (j *judge) beginsAgain(f *flow, seq uint32, payload []byte) bool {
	stale := f.stale(j.now, j.empty)
	if stale {
		// The kernel half should have kept this packet. It has lost the
		// flow, or knows it under another address: tell it again.
		f.kept = true
	}
	if seq == f.seq || f.action == policy.ActionDrop && !stale {
		return false
	}
	// Handshake bytes only: the accepted flow's own next flight may begin with
	// other records, and is more of nothing.
	in, got := j.look(payload)
	if _, weak := in.(*firstBytes); weak {
		return false // a few bytes of anything may look like these
	}
	return got == sawNames || got != sawNone && payload[0] == tlsHandshake
}

// look shows the start of a stream to the inspectors, until one of them knows
// what it is.
func (j *judge) look(b []byte) (inspector, outcome) {
	for _, in := range j.onTCP {
		if got := in.inspect(b); got != sawNone {
			return in, got
		}
	}
	return nil, sawNone
}

// undecided judges a segment of a flow that is new, where f is nil, or waits.
func (j *judge) undecided(rule *policy.Rule, f *flow, where position, payload []byte) (policy.Action, Reason) {
	start, at := where.start, where.at
	fin := j.view.TCP().Flags()&pktbuf.FlagFIN != 0
	// The common case: the stream's first segment, which says all.
	b := payload
	var in inspector
	got := sawMore
	if f == nil && at == 0 {
		in, got = j.look(b)
	}
	if got == sawMore || got == sawNone && len(b) < tellable && !fin {
		looked := f == nil && at == 0
		var err error
		if f, b, err = j.keep(f, start, at, payload); err != nil {
			return j.unkept(rule, f, start, err)
		}
		if !looked {
			in, got = j.look(b)
		}
		// Nothing comes behind a FIN: what is there is all that will be.
		fin = fin && len(b) == at+len(payload)
		if got == sawNone && len(b) < tellable && !fin {
			got = sawMore
		}
	}
	switch got {
	case sawMore:
		return j.wait(rule, f, len(payload), fin)
	case sawMalformed:
		return j.decide(f, start, j.policy.Failure.Malformed, ReasonMalformed)
	}
	queued := 1 // the packets that were let through to get here, and this one
	if f != nil {
		queued += int(f.packets)
	}
	r := j.steps(rule, in, got)
	if got == sawNames {
		j.report(&r, in, b, queued)
	} else {
		j.reportNothing(&r, queued)
	}
	return j.decide(f, start, r.action, r.reason)
}

// streamStart asks where the stream's first byte stands.
func (j *judge) streamStart() (seq uint32, ok bool) {
	// Data in a SYN are the stream's first bytes by themselves.
	if j.o.Start == nil || j.view.TCP().Flags()&pktbuf.FlagSYN != 0 {
		return 0, false
	}
	return j.o.Start(originalFlow(j.flow, j.pkt.ct, j.pkt.ctInfo))
}

// keep stores a segment's payload and returns the start of the stream as far as
// it is there.
func (j *judge) keep(f *flow, start uint32, at int, payload []byte) (*flow, []byte, error) {
	if f == nil {
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			return nil, nil, errNoRoom
		}
		f.seq, f.begin = start, j.begin
	}
	if err := j.flows.keep(f, at, payload, j.now); err != nil {
		return f, nil, err
	}
	return f, j.flows.streams.prefix(f.stream), nil
}

// unkept judges a segment that could not be stored.
func (j *judge) unkept(rule *policy.Rule, f *flow, start uint32, err error) (policy.Action, Reason) {
	if err != errNoRoom {
		// An honest sender repeats what it has sent. Which of the two the server
		// takes cannot be known.
		return j.decide(f, start, j.policy.Failure.Malformed, ReasonMalformed)
	}
	if j.policy.Failure.Overload != policy.Open {
		return policy.ActionDrop, ReasonOverload
	}
	if f != nil {
		// Its start has a gap for good: let it run into its budget.
		if action, reason := j.wait(rule, f, j.view.PayloadLen(), false); reason != ReasonMore {
			return action, reason
		}
	}
	return policy.ActionAccept, ReasonOverload
}
