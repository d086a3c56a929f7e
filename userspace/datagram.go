package userspace

import (
	"errors"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// errFrames says that a QUIC packet holds what no client sends.
var errFrames = errors.New("userspace: the frames of a quic packet are malformed")

// isDNS reports whether a UDP packet is to be read as DNS: on DNS's port, and
// wherever the rule asks for names in DNS questions, unless it is QUIC.
func (j *judge) isDNS(rule *policy.Rule) bool {
	if j.flow.DstPort() == dnsPort || j.flow.SrcPort() == dnsPort {
		return true
	}
	for i := range rule.Steps {
		if rule.Steps[i].AsksForQuestion() {
			return !isQUIC(j.view.Payload())
		}
	}
	return false
}

// asksForHello reports whether the rule has a step on what a hello says.
func asksForHello(rule *policy.Rule) bool {
	for i := range rule.Steps {
		if rule.Steps[i].AsksForHello() {
			return true
		}
	}
	return false
}

// unnamed judges a packet of UDP that is not DNS, or of a protocol without an
// inspector.
func (j *judge) unnamed(rule *policy.Rule) (policy.Action, Reason) {
	f := j.known()
	if f != nil && f.stale(j.now, j.empty) {
		j.flows.remove(f)
		f = nil
	}
	if f != nil && f.decided {
		return j.again(f)
	}
	if j.view.Proto() == pktbuf.ProtoUDP && isQUIC(j.view.Payload()) {
		return j.quicDatagram(rule, f)
	}
	r := j.step(rule, &sawNothing)
	if r.action == policy.ActionAccept && asksForHello(rule) && j.view.Proto() == pktbuf.ProtoUDP {
		// A datagram says nothing about the next one. Were this one to decide,
		// a stray one in front of a hello would hide its name.
		return j.waitUDP(rule, f, &r)
	}
	return j.decide(f, 0, r.action, r.reason)
}

// quicDatagram judges a datagram with long headers, of a flow that is not
// decided.
func (j *judge) quicDatagram(rule *policy.Rule, f *flow) (policy.Action, Reason) {
	var p quicPacket
	rest := j.view.Payload()
	good := f != nil && f.stream != 0 // a packet of the flow could be read
	for n := 0; n < quicPackets; n++ {
		var got outcome
		if rest, got = p.next(rest); got == sawMore {
			good = good || n == 0 && p.typ != quicInitial
			break
		}
		if got == sawMalformed {
			break
		}
		if p.typ != quicInitial {
			good = true // 0-RTT or a handshake's packet: the hello is elsewhere
			continue
		}
		f, got = j.quicOpen(f, &p)
		if f == nil {
			return j.unkept(rule, nil, 0, errNoRoom)
		}
		if got == sawNone {
			continue
		}
		good = true
		var err error
		if got, err = j.quicKeep(f); err != nil {
			return j.unkept(rule, f, 0, err)
		}
		if got == sawNames {
			r := j.steps(rule, j.quic, got)
			j.report(&r, j.quic, j.flows.streams.prefix(f.stream), int(f.packets)+1)
			return j.decide(f, 0, r.action, r.reason)
		}
	}
	if !good {
		return j.decide(f, 0, j.policy.Failure.Malformed, ReasonMalformed)
	}
	return j.waitUDP(rule, f, &ruling{action: j.policy.Failure.Undecided, reason: ReasonUndecided})
}

// quicOpen takes an Initial packet's protection off, with the keys of the flow, or
// with those that the packet itself names: the first packet's, and those after a
// Retry or in another version. It returns sawNone where no key fits; servers
// ignore such packets. The flow is nil where there was no room for it.
func (j *judge) quicOpen(f *flow, p *quicPacket) (*flow, outcome) {
	if f == nil {
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			return nil, sawNone
		}
	}
	if f.stream != 0 {
		peer := &j.flows.streams.all[f.stream-1].quic
		if peer.version == p.peer.version && j.quic.open(p, peer) {
			return f, sawMore
		}
		if *peer == p.peer {
			return f, sawNone
		}
	}
	if !j.quic.open(p, &p.peer) {
		return f, sawNone
	}
	// The client has begun anew: what it said before was for nobody.
	j.flows.streams.close(f.stream)
	f.stream = 0
	if f.stream = j.flows.open(f, j.now); f.stream == 0 {
		return nil, sawNone
	}
	j.flows.streams.all[f.stream-1].quic = p.peer
	return f, sawMore
}

// quicKeep stores the CRYPTO frames of the packet that was opened, and looks at
// what there is of the hello.
func (j *judge) quicKeep(f *flow) (outcome, error) {
	for {
		at, data, got := j.quic.crypto()
		if got == sawNone {
			break
		}
		if got == sawMalformed {
			return got, errFrames
		}
		if err := j.flows.keep(f, at, data, j.now); err != nil {
			return sawMore, err
		}
	}
	got := j.quic.inspect(j.flows.streams.prefix(f.stream))
	if got == sawMalformed {
		return got, errFrames
	}
	return got, nil
}

// waitUDP lets a datagram pass whose flow cannot be decided yet. When the budget
// is spent, what is given decides.
func (j *judge) waitUDP(rule *policy.Rule, f *flow, spent *ruling) (policy.Action, Reason) {
	if f == nil {
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			return j.unkept(rule, nil, 0, errNoRoom)
		}
	}
	if j.spend(rule, f, j.view.PayloadLen()) {
		return j.decide(f, 0, spent.action, spent.reason)
	}
	return policy.ActionAccept, ReasonMore
}

// datagram judges a DNS message. Each is judged by itself, and the flow stays as
// it is: the next question may be another one.
func (j *judge) datagram(rule *policy.Rule) (policy.Action, Reason) {
	msg := j.view.Payload()
	got := j.dns.inspect(msg)
	if got == sawMalformed {
		return j.malformed()
	}
	r := j.steps(rule, j.dns, got)
	response := dnsIsResponse(msg)
	if got == sawNames {
		j.report(&r, j.dns, msg, 1)
	}
	if r.action != policy.ActionRewrite {
		return r.action, r.reason
	}
	if !response {
		if j.pkt.hook == hookLocalIn {
			// The host itself will answer, and no hook of ours sees that.
			return j.policy.Failure.Undecided, ReasonUndecided
		}
		return policy.ActionAccept, r.reason // its response will be rewritten
	}
	// Built aside: what is taken over lies in the packet that is overwritten.
	changed, err := rewriteDNS(j.scratch, msg, rule.Steps[r.step].Answer)
	if err != nil || j.view.HeaderLen()+len(changed) > payloadMax {
		return j.malformed()
	}
	if err := j.view.ReplacePayload(0, j.view.PayloadLen(), changed); err != nil {
		return j.malformed()
	}
	return policy.ActionRewrite, r.reason
}
