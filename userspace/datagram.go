package userspace

import (
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// isDNS reports whether a UDP packet is to be read as DNS: on DNS's port, and
// wherever the rule asks for names in DNS questions, unless it is QUIC. Where it
// asks for DNS as a protocol, what is no message is something else.
func (j *judge) isDNS(rule *policy.Rule) bool {
	if j.flow.DstPort() == dnsPort || j.flow.SrcPort() == dnsPort {
		return true
	}
	b := j.view.Payload()
	asked := false
	for i := range rule.Steps {
		s := &rule.Steps[i]
		if s.AsksForQuestion() {
			return !isQUIC(b)
		}
		asked = asked || s.L7.Has(policy.L7DNS)
	}
	return asked && !isQUIC(b) && j.dns.inspect(b) == sawNames
}

// isDNSReply reports whether a reply is to be read as DNS.
func (j *judge) isDNSReply(rule *policy.Rule) bool {
	switch j.view.Proto() {
	case pktbuf.ProtoTCP:
		return j.isDNSStream(rule)
	case pktbuf.ProtoUDP:
		return j.isDNS(rule)
	}
	return false
}

// asksForContent reports whether the rule has a step on what a hello or another
// first datagram says.
func asksForContent(rule *policy.Rule) bool {
	for i := range rule.Steps {
		if s := &rule.Steps[i]; s.AsksForHello() || s.L7 != 0 || !s.List.Any() {
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
	udp := j.view.Proto() == pktbuf.ProtoUDP
	if udp {
		b := j.view.Payload()
		for _, in := range j.onUDP {
			if in.begins(b) {
				return j.gathered(rule, f, in, b)
			}
		}
	}
	r := j.step(rule, &sawNothing)
	if r.action == policy.ActionAccept && udp && asksForContent(rule) {
		// A datagram says nothing about the next one. Were this one to decide,
		// a stray one in front of a hello would hide its name.
		return j.waitUDP(rule, f, &r)
	}
	j.reportNothing(&r, 1)
	return j.decide(f, 0, r.action, r.reason)
}

// gathered judges a datagram of a protocol that is known, of a flow that is not
// decided.
func (j *judge) gathered(rule *policy.Rule, f *flow, in datagrams, b []byte) (policy.Action, Reason) {
	f, saw, got, err := in.gather(j, f, b)
	if err != nil {
		return j.unkept(rule, f, 0, err)
	}
	switch got {
	case sawNames:
		queued := 1
		if f != nil {
			queued += int(f.packets)
		}
		r := j.steps(rule, in, got)
		j.report(&r, in, saw, queued)
		if _, quic := in.(*quicInspector); !quic && r.acceptsAnything(rule) && asksForContent(rule) {
			// It may be there for a server that will ignore it, in front of what is
			// to be denied. Of a QUIC hello that is believed: it takes keys to make.
			if f != nil {
				j.flows.streams.close(f.stream)
				f.stream = 0
			}
			return j.waitUDP(rule, f, &r)
		}
		return j.decide(f, 0, r.action, r.reason)
	case sawMalformed:
		return j.decide(f, 0, j.policy.Failure.Malformed, ReasonMalformed)
	}
	return j.waitUDP(rule, f, &ruling{action: j.policy.Failure.Undecided, reason: ReasonUndecided})
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
		j.learnFrom(rule, &r, msg)
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
