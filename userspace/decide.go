package userspace

import (
	"fmt"
	"net/netip"

	"github.com/hybridfw/hybridfw/policy"
)

// ruling is what a rule's steps say.
type ruling struct {
	action policy.Action
	reason Reason
	step   int // -1 where none decided
	log    bool
}

// acceptsAnything reports whether a step accepts that asks for nothing in particular.
func (r *ruling) acceptsAnything(rule *policy.Rule) bool {
	return r.action == policy.ActionAccept && r.step >= 0 && !rule.Steps[r.step].HasCondition()
}

// strictness orders actions: of several names the strictest ruling holds.
func strictness(a policy.Action) int {
	switch a {
	case policy.ActionDrop:
		return 3
	case policy.ActionRewrite:
		return 2
	}
	return 1
}

// steps applies the rule's steps to all that an inspector saw.
func (j *judge) steps(rule *policy.Rule, in inspector, got outcome) ruling {
	if got != sawNames {
		return j.step(rule, &sawNothing)
	}
	fingerprints := rule.AsksForJA4()
	var all ruling
	for seen := in.next(); seen != nil; seen = in.next() {
		if fingerprints && seen.Hello != nil {
			seen.JA4 = ja4(seen)
		}
		r := j.step(rule, seen)
		r.log = r.log || all.log
		if all.reason != 0 && strictness(r.action) <= strictness(all.action) {
			all.log = r.log
			continue
		}
		all = r
	}
	return all
}

var sawNothing policy.Sight

// step applies the rule's steps to one sight. Where none decides, the policy's
// word is failure.undecided, and not that the packet waits for more: there is
// nothing more to see.
func (j *judge) step(rule *policy.Rule, seen *policy.Sight) ruling {
	step, log := rule.MatchStep(seen)
	if step < 0 {
		return ruling{j.policy.Failure.Undecided, ReasonUndecided, step, log}
	}
	return ruling{rule.Steps[step].Action, ReasonStep, step, log}
}

// report tells Options.Seen each name. It allocates, and is not called without
// a listener.
func (j *judge) report(r *ruling, in inspector, b []byte, queued int) {
	if j.o.Seen == nil || in.inspect(b) != sawNames {
		return
	}
	for seen := in.next(); seen != nil; seen = in.next() {
		if seen.Response && !j.responses && !j.wantsResponse(r) {
			return // whoever asked has been told of
		}
		var answers []netip.Addr
		if seen.Response {
			answers = dnsAnswers(b)
		}
		j.tellSight(r, seen, answers, queued)
	}
}

// wantsResponse reports whether the step that decided is one on responses.
func (j *judge) wantsResponse(r *ruling) bool {
	return r.step >= 0 && j.policy.Rules[j.rule].Steps[r.step].Direction == policy.DirectionResponse
}

// reportNothing tells Options.Seen of a flow that is of no known protocol, where a
// step logs it.
func (j *judge) reportNothing(r *ruling, queued int) {
	if j.o.Seen != nil && r.log && !j.responses {
		j.tellSight(r, &sawNothing, nil, queued)
	}
}

// tellSight tells Options.Seen of one sight.
func (j *judge) tellSight(r *ruling, seen *policy.Sight, answers []netip.Addr, queued int) {
	fingerprint := "" // which costs more than all else
	if seen.Hello != nil && (r.log || j.responses) {
		fingerprint = ja4(seen)
	}
	j.o.Seen(Sighting{
		Flow:   j.flow,
		Kind:   seen.L7.String(),
		Name:   string(seen.Name),
		Policy: j.policy,
		Rule:   j.rule,
		Action: r.action,
		Reason: r.reason,
		Log:    r.log,
		Queued: queued,
		Method: string(seen.Method),
		Path:   string(seen.Path),
		Agent:  string(seen.Agent),
		ALPN:   alpnNames(seen.ALPN),
		ECH:    seen.ECH,
		JA4:    fingerprint,

		Versions: helloVersions(seen),
		Resumes:  seen.Resumes,
		Response: seen.Response,
		Answers:  answers,
	})
}

// wait lets a packet of n bytes pass whose flow cannot be decided yet, within the
// budget and as long as it is not the last one.
func (j *judge) wait(rule *policy.Rule, f *flow, n int, last bool) (policy.Action, Reason) {
	if j.spend(rule, f, n) || last {
		return j.decide(f, f.seq, j.policy.Failure.Undecided, ReasonUndecided)
	}
	return policy.ActionAccept, ReasonMore
}

// spend takes a packet of n bytes from a flow's budget and reports whether it is
// spent. A super-packet is one packet of it, but all its bytes count.
func (j *judge) spend(rule *policy.Rule, f *flow, n int) bool {
	f.packets++
	f.bytes += int64(n)
	f.at = j.now
	return int(f.packets) >= rule.Until.Packets || f.bytes >= int64(rule.Until.Bytes)
}

// decide decides the flow. The decision is remembered for packets of the flow
// that are queued already; where there is no room they are judged again.
func (j *judge) decide(f *flow, seq uint32, action policy.Action, reason Reason) (policy.Action, Reason) {
	if action != policy.ActionAccept {
		action = policy.ActionDrop // a rewrite is for single packets
	}
	if f == nil {
		f = j.flows.insert(&j.flow, j.now)
	}
	// Written down before it is told: when telling panics, the packets behind
	// this one still follow the decision.
	if f != nil {
		j.flows.streams.close(f.stream)
		*f = flow{
			key: f.key, decided: true, kept: true, reason: reason, action: action,
			rule: int32(j.rule), mark: j.policy.Rules[j.rule].Mark(), seq: seq, begin: j.begin, at: j.now,
		}
	}
	if known := j.tell(j.rule, j.policy.Rules[j.rule].Mark(), action, reason); f != nil {
		f.kept = !known
	}
	return action, reason
}

// known returns the flow of the packet at hand, nil where it is not known. Where the
// kernel half asks by another rule than has decided, a reload has changed the rule:
// the decision is void.
func (j *judge) known() *flow {
	f := j.flows.find(&j.flow)
	if f != nil && f.decided && f.mark != j.policy.Rules[j.rule].Mark() {
		j.flows.remove(f)
		return nil
	}
	return f
}

// again applies a decision to a further packet of its flow.
func (j *judge) again(f *flow) (policy.Action, Reason) {
	if f.kept && j.o.Decided != nil && j.tell(int(f.rule), f.mark, f.action, f.reason) {
		f.kept, f.at = false, j.now
	}
	return f.action, f.reason
}

// tell hands a decision over and reports whether the kernel half knows it now.
func (j *judge) tell(rule int, mark uint16, action policy.Action, reason Reason) bool {
	j.tally.count(countDecided)
	if j.o.Decided == nil {
		return false
	}
	known := originalFlow(j.flow, j.pkt.ct, j.pkt.ctInfo)
	if err := j.o.Decided(Decision{Flow: known, Action: action, Rule: rule, Mark: mark, Reason: reason}); err != nil {
		j.tally.count(countDecidedErrors)
		return false
	}
	return true
}

// alpnNames are the protocols that a hello offers, with commas in between.
func alpnNames(list []byte) string {
	var names []byte
	for r := (tlsReader{b: list}); len(r.b) > 0; {
		if len(names) > 0 {
			names = append(names, ',')
		}
		names = append(names, r.vector8()...)
	}
	return string(names)
}

// dtlsVersions by the low byte: they count downwards, and there was no 1.1.
var dtlsVersions = map[int]string{0xff: "1.0", 0xfd: "1.2", 0xfc: "1.3"}

// helloVersions are the versions that a hello offers, with commas in between.
func helloVersions(seen *policy.Sight) string {
	if len(seen.Hello) < 2 {
		return ""
	}
	list := seen.Versions
	if len(list) == 0 {
		list = seen.Hello[:2]
	}
	var names []byte
	for r := (tlsReader{b: list}); len(r.b) > 1; {
		v := r.uint16()
		if isGrease(v) {
			continue
		}
		if len(names) > 0 {
			names = append(names, ',')
		}
		switch {
		case v>>8 == 3 && v&0xff > 0: // TLS 1.0 is 3.1
			names = fmt.Appendf(names, "1.%d", v&0xff-1)
		case v>>8 == 0xfe && dtlsVersions[v&0xff] != "":
			names = append(names, dtlsVersions[v&0xff]...)
		default:
			names = fmt.Appendf(names, "%#04x", v)
		}
	}
	return string(names)
}
