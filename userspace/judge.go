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
	book   *book          // of this batch
	policy *policy.Policy // that the packet at hand is judged by
	tally  *tally
	flows  *flows
	dns    inspector
	*learner
	onTCP []inspector // of bytes that come in streams
	onUDP []datagrams

	// The clock is read once a batch: nothing here needs it finer.
	now   int64 // monotonic, when the batch was received
	empty int64 // when the socket was last seen empty

	// What belongs to the packet at hand.
	view pktbuf.View
	pkt  *packet // the one at hand
	flow pktbuf.Flow
	rule int // index into policy.Rules of the packet's policy

	begin uint32 // TCP: see flow

	scratch []byte // where changed messages are built
	alarmed bool   // a panic has been logged

	responses bool // questions in responses are told, too
}

// newJudge allocates all that a judge will ever need.
func newJudge(o *Options, t *tally) *judge {
	j := &judge{
		o:       o,
		book:    newBook(o.Policy, nil),
		policy:  o.Policy,
		tally:   t,
		flows:   newFlows(o.Flows, o.StreamMemory),
		dns:     new(dnsInspector),
		learner: newLearner(),
		scratch: make([]byte, 0, payloadMax),
	}
	for _, make := range overTCP {
		j.onTCP = append(j.onTCP, make())
	}
	for _, make := range overUDP {
		j.onUDP = append(j.onUDP, make())
	}
	return j
}

// verdict judges a packet whose id is known, whatever else is wrong with it, and
// counts it.
func (j *judge) verdict(p *packet, broken bool) verdict {
	j.policy = j.book.policy
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

// judgedMark is an accepted packet's mark. The verdict's mark replaces the
// packet's, so bits of others are merged in.
func (j *judge) judgedMark(mark uint32) uint32 {
	marks := j.policy.Marks
	if r := j.book.rule(mark); r.policy != nil && r.policy.Rules[r.index].WantsReplies() {
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

// packet finds the rule by the mark and hands over to the protocol's way of
// judging.
func (j *judge) packet(p *packet) (policy.Action, Reason) {
	// The kernel half has matched the rules already and says in the mark which
	// one it was. A mark of another policy or another program names none.
	j.pkt = p
	known := j.book.rule(p.mark)
	if known.policy == nil {
		return j.policy.Failure.Malformed, ReasonUnmarked
	}
	j.policy, j.rule = known.policy, known.index
	return j.parsed(p)
}

// parsed looks through a packet's headers and judges it by j.rule.
func (j *judge) parsed(p *packet) (policy.Action, Reason) {
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
	if rule.WantsReplies() && rule.IsReply(j.flow.SrcPort(), j.flow.DstPort()) && !j.isDNSReply(rule) {
		// Replies are wanted of DNS alone: what a server says first must not decide
		// about what its client asks for.
		return policy.ActionAccept, ReasonMore
	}
	switch j.view.Proto() {
	case pktbuf.ProtoTCP:
		return j.segment(rule)
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
