package userspace

import (
	"runtime/debug"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// payloadMax is the longest packet that a verdict can carry: its attribute's
// length has 16 bits.
const payloadMax = 0xffff - attrHeader

// judge decides about packets, one at a time. It belongs to one worker and holds
// all that judging needs, so that nothing is allocated for a packet.
type judge struct {
	o      *Options
	policy *policy.Policy
	rules  []int // indices into policy.Rules, by Rule.Inspect
	tally  *tally
	flows  *flows
	dns    inspector
	tls    inspector

	// The clock is read once a batch: nothing here needs it finer.
	now   int64 // monotonic, when the batch was received
	empty int64 // when the socket was last seen empty

	// What belongs to the packet at hand.
	view pktbuf.View
	pkt  *packet // the one at hand
	flow pktbuf.Flow
	rule int // index into policy.Rules

	scratch []byte // where changed messages are built
	alarmed bool   // a panic has been logged
}

// newJudge allocates all that a judge will ever need.
func newJudge(o *Options, t *tally) *judge {
	j := &judge{
		o:       o,
		policy:  o.Policy,
		tally:   t,
		flows:   newFlows(o.Flows),
		dns:     new(dnsInspector),
		tls:     new(tlsInspector),
		scratch: make([]byte, 0, payloadMax),
	}
	for i := range o.Policy.Rules {
		r := &o.Policy.Rules[i]
		if r.Action != policy.ActionInspect {
			continue
		}
		for len(j.rules) <= r.Inspect {
			j.rules = append(j.rules, -1)
		}
		j.rules[r.Inspect] = i
	}
	return j
}

// verdict judges a packet whose id is known, whatever else is wrong with it, and
// counts it.
func (j *judge) verdict(p *packet, broken bool) verdict {
	action, reason := j.malformed()
	if !broken {
		action, reason = j.guarded(p)
	}
	j.tally.count(countReceived)
	j.tally.reason(reason)
	v := verdict{accept: action != policy.ActionDrop}
	// A drop carries no mark: the kernel frees the packet, and drops of packets
	// with different marks can share one message.
	if !v.accept {
		j.tally.count(countDropped)
		return v
	}
	v.mark = j.judgedMark(p.mark)
	if action == policy.ActionRewrite {
		v.payload = j.view.Bytes()
		j.tally.count(countRewritten)
		return v
	}
	j.tally.count(countAccepted)
	return v
}

// ruleOf is the rule whose number a mark holds, or -1.
func (j *judge) ruleOf(mark uint32) int {
	i := int64(j.policy.Marks.Field(mark)) - policy.MarkInspect
	if i < 0 || i >= int64(len(j.rules)) {
		return -1
	}
	return j.rules[i]
}

// judgedMark is an accepted packet's mark. The verdict's mark replaces the
// packet's, so bits of others are merged in.
func (j *judge) judgedMark(mark uint32) uint32 {
	marks := j.policy.Marks
	if rule := j.ruleOf(mark); rule >= 0 && j.policy.Rules[rule].Rewrites() {
		return mark | marks.Judged() // the number tells fw_tc_out that replies are wanted
	}
	return mark&^marks.Mask | marks.Judged()
}

// guarded judges a packet. A panic, in an inspector or in a function of Options,
// is as if the packet could not be parsed.
func (j *judge) guarded(p *packet) (action policy.Action, reason Reason) {
	defer func() {
		if v := recover(); v != nil {
			j.tally.count(countPanics)
			action, reason = j.policy.Failure.Malformed, ReasonMalformed
			if !j.alarmed {
				j.alarmed = true
				j.o.Log.Error("judging a packet panicked; further panics are only counted",
					"panic", v, "stack", string(debug.Stack()))
			}
		}
	}()
	return j.packet(p)
}

// malformed is the one place where failure.malformed is read for what does not
// parse.
func (j *judge) malformed() (policy.Action, Reason) {
	return j.policy.Failure.Malformed, ReasonMalformed
}

// packet finds the rule by the mark, looks through the headers and hands over to
// the protocol's way of judging.
func (j *judge) packet(p *packet) (policy.Action, Reason) {
	// The kernel half has matched the rules already and says in the mark which
	// one it was. A mark of another policy or another program names none.
	j.pkt = p
	if j.rule = j.ruleOf(p.mark); j.rule < 0 {
		return j.policy.Failure.Malformed, ReasonUnmarked
	}
	rule := &j.policy.Rules[j.rule]

	// The version in the packet itself is checked by Parse: where the two differ,
	// the packet is malformed.
	common := false
	if p.proto != etherIPv6 {
		common = j.view.InitIPv4(p.payload, &j.flow)
	} else if err := j.view.Init(pktbuf.IPv6, p.payload, nil); err != nil {
		return j.malformed()
	}
	if p.cut() {
		j.view.SetCut()
	}
	if p.skbInfo&skbUnfinished != 0 {
		j.view.SetUnfinished()
	}
	if !common {
		// Fragments: names and ports may be cut in two, so none is judged by its
		// content.
		if known, err := j.view.ParseFlow(&j.flow); err != nil || !known || j.view.IsFragment() {
			return j.malformed()
		}
	}
	switch j.view.Proto() {
	case pktbuf.ProtoTCP:
		return j.stream(rule)
	case pktbuf.ProtoUDP:
		if j.isDNS(rule) {
			// A super-packet holds several messages and does not say where they end.
			if p.skbInfo&skbGSO != 0 {
				return j.malformed()
			}
			return j.datagram(rule)
		}
	}
	return j.unnamed(rule)
}

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

// stream judges a TCP packet. The name is taken from a hello at the start of
// what is seen of the flow. A flow that starts otherwise has no name; bytes
// behind an unfinished hello are more of it, never a new start.
func (j *judge) stream(rule *policy.Rule) (policy.Action, Reason) {
	tcp := j.view.TCP()
	if tcp == nil {
		return j.malformed()
	}
	// What the receiver will discard must not decide for it. Such a packet
	// decides nothing itself either: anybody can send one.
	if j.pkt.skbInfo&(skbUnfinished|skbUnverified) == skbUnverified && j.view.CheckTransport() == pktbuf.ChecksumBad {
		return j.malformed()
	}
	f := j.flows.find(&j.flow)
	syn := tcp.Flags()&pktbuf.FlagSYN != 0
	if f != nil && syn {
		j.flows.remove(&j.flow)
		f = nil
	}
	stale := f != nil && f.stale(j.now, j.empty)
	if stale {
		// The kernel half should have kept this packet. It has lost the
		// flow, or knows it under another address: tell it again.
		f.kept = true
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
	got := j.tls.inspect(payload)
	if f != nil && f.decided {
		// A hello elsewhere in the stream is a new connection on the old ports,
		// or meant to look like one. It is judged, but a drop stands, unless
		// the kernel half has let a new connection begin since.
		// Handshake bytes only: the accepted flow's own next flight may begin with
		// other records, and is more of nothing.
		again := got == sawNames || got != sawNone && payload[0] == tlsHandshake
		if !again || seq == f.seq || f.action == policy.ActionDrop && !stale {
			return j.again(f)
		}
		j.flows.remove(&j.flow)
		f = nil
	}
	if f != nil && seq != f.seq {
		got = sawMore
	}
	switch got {
	case sawMore:
		return j.wait(rule, f, seq, len(payload))
	case sawMalformed:
		return j.decide(f, seq, j.policy.Failure.Malformed, ReasonMalformed)
	}
	queued := 1 // the packets that were let through to get here, and this one
	if f != nil {
		queued += int(f.packets)
	}
	r := j.steps(rule, j.tls, got)
	if got == sawNames {
		j.report(&r, j.tls, payload, queued)
	}
	return j.decide(f, seq, r.action, r.reason)
}

// unnamed judges a packet of a protocol without an inspector.
func (j *judge) unnamed(rule *policy.Rule) (policy.Action, Reason) {
	f := j.flows.find(&j.flow)
	if f != nil && f.stale(j.now, j.empty) {
		j.flows.remove(&j.flow)
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

// ruling is what a rule's steps say.
type ruling struct {
	action policy.Action
	reason Reason
	step   int // -1 where none decided
	log    bool
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

// steps applies the rule's steps to the names that an inspector saw.
func (j *judge) steps(rule *policy.Rule, in inspector, got outcome) ruling {
	if got != sawNames {
		return j.step(rule, policy.NameNone, nil)
	}
	kind, _ := in.kind()
	var all ruling
	for name, ok := in.next(); ok; name, ok = in.next() {
		r := j.step(rule, kind, name)
		r.log = r.log || all.log
		if all.reason != 0 && strictness(r.action) <= strictness(all.action) {
			all.log = r.log
			continue
		}
		all = r
	}
	return all
}

// step applies the rule's steps to one name. Where none decides, the policy's
// word is failure.undecided, and not that the packet waits for more: there is
// nothing more to see.
func (j *judge) step(rule *policy.Rule, kind policy.NameKind, name []byte) ruling {
	step, log := rule.MatchStep(kind, name)
	if step < 0 {
		return ruling{j.policy.Failure.Undecided, ReasonUndecided, step, log}
	}
	return ruling{rule.Steps[step].Action, ReasonStep, step, log}
}

// report tells Options.Seen each name. It allocates, and is not called without
// a listener.
func (j *judge) report(r *ruling, in inspector, payload []byte, queued int) {
	if j.o.Seen == nil || in.inspect(payload) != sawNames {
		return
	}
	_, kind := in.kind()
	for name, ok := in.next(); ok; name, ok = in.next() {
		j.o.Seen(Sighting{
			Flow:   j.flow,
			Kind:   kind,
			Name:   string(name),
			Rule:   j.rule,
			Action: r.action,
			Reason: r.reason,
			Log:    r.log,
			Queued: queued,
		})
	}
}

// wait lets a packet pass whose flow cannot be decided yet, within the budget.
func (j *judge) wait(rule *policy.Rule, f *flow, seq uint32, n int) (policy.Action, Reason) {
	if f == nil {
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			if j.policy.Failure.Overload == policy.Open {
				return policy.ActionAccept, ReasonOverload
			}
			return policy.ActionDrop, ReasonOverload
		}
		f.seq = seq
	}
	// A super-packet is one packet of the budget, but all its bytes count.
	f.packets++
	f.bytes += int64(n)
	f.at = j.now
	if int(f.packets) >= rule.Until.Packets || f.bytes >= int64(rule.Until.Bytes) {
		return j.decide(f, f.seq, j.policy.Failure.Undecided, ReasonUndecided)
	}
	return policy.ActionAccept, ReasonMore
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
		*f = flow{
			key: f.key, decided: true, kept: true, reason: reason, action: action,
			rule: int32(j.rule), seq: seq, at: j.now,
		}
	}
	if known := j.tell(j.rule, action, reason); f != nil {
		f.kept = !known
	}
	return action, reason
}

// again applies a decision to a further packet of its flow.
func (j *judge) again(f *flow) (policy.Action, Reason) {
	if f.kept && j.o.Decided != nil && j.tell(int(f.rule), f.action, f.reason) {
		f.kept, f.at = false, j.now
	}
	return f.action, f.reason
}

// tell hands a decision over and reports whether the kernel half knows it now.
func (j *judge) tell(rule int, action policy.Action, reason Reason) bool {
	j.tally.count(countDecided)
	if j.o.Decided == nil {
		return false
	}
	known := originalFlow(j.flow, j.pkt.ct, j.pkt.ctInfo)
	if err := j.o.Decided(Decision{Flow: known, Action: action, Rule: rule, Reason: reason}); err != nil {
		j.tally.count(countDecidedErrors)
		return false
	}
	return true
}
