package userspace

import "github.com/hybridfw/hybridfw/policy"

// isDNS reports whether a UDP packet is to be read as DNS: on DNS's port, and
// wherever the rule asks for names in DNS questions.
func (j *judge) isDNS(rule *policy.Rule) bool {
	if j.flow.DstPort() == dnsPort || j.flow.SrcPort() == dnsPort {
		return true
	}
	for i := range rule.Steps {
		if !rule.Steps[i].QName.Any() {
			return true
		}
	}
	return false
}

// unnamed judges a packet of a protocol without an inspector.
func (j *judge) unnamed(rule *policy.Rule) (policy.Action, Reason) {
	f := j.flows.find(&j.flow)
	if f != nil && f.stale(j.now, j.empty) {
		j.flows.remove(f)
		f = nil
	}
	if f != nil {
		return j.again(f)
	}
	r := j.steps(rule, nil, sawNone)
	return j.decide(nil, 0, r.action, r.reason)
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
	if got == sawNames && !response {
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
