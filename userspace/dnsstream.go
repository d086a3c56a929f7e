package userspace

import (
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// isDNSStream reports whether a TCP packet is to be read as DNS: on DNS's port,
// and where the rule asks for nothing but names in DNS questions.
func (j *judge) isDNSStream(rule *policy.Rule) bool {
	if j.flow.DstPort() == dnsPort || j.flow.SrcPort() == dnsPort {
		return true
	}
	asked := false
	for i := range rule.Steps {
		s := &rule.Steps[i]
		dns := s.L7.Only(policy.L7DNS)
		asked = asked || s.AsksForQuestion() || dns
		if s.AsksForHello() || s.AsksForRequest() || s.L7 != 0 && !dns || !s.List.Any() {
			return false
		}
	}
	return asked
}

// dnsSegment judges a TCP packet of a DNS connection that is not dropped: each
// message has its length in front (RFC 1035 section 4.2.2), one segment may hold
// several of them or a part of one. Each is judged by itself, and the flow stays
// undecided: the next question may be another one. Only a drop decides, because
// one message cannot be taken out of a stream.
func (j *judge) dnsSegment(rule *policy.Rule, f *flow, seq uint32, payload []byte) (policy.Action, Reason) {
	if f == nil {
		start, ok := j.streamStart()
		if !ok {
			start = seq
		}
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			return j.unkept(rule, nil, 0, errNoRoom)
		}
		f.seq = start
	}
	at := int(int32(seq - f.seq))
	b := payload
	if f.stream != 0 || at != 0 {
		var err error
		if f, b, err = j.keep(f, f.seq, at, payload); err != nil {
			return j.unkept(rule, f, f.seq, err)
		}
		f.settled = false
		b = b[min(int(f.taken), len(b)):]
	}
	all, used, got := j.dnsMessages(rule, b)
	switch {
	case got == sawMalformed:
		return j.decide(f, f.seq, j.policy.Failure.Malformed, ReasonMalformed)
	case all.action != policy.ActionNone && all.action != policy.ActionAccept:
		return j.decide(f, f.seq, policy.ActionDrop, all.reason)
	case used == 0 && f.stream == 0:
		if err := j.flows.keep(f, 0, payload, j.now); err != nil {
			return j.unkept(rule, f, f.seq, err)
		}
		return j.wait(rule, f, len(payload), false)
	case used == 0:
		return j.wait(rule, f, len(payload), false)
	}
	if err := j.dnsTaken(f, used, b); err != nil {
		return j.unkept(rule, f, f.seq, err)
	}
	// Only now is it known that all of them pass.
	for b = b[:used]; len(b) > 0; {
		end := 2 + int(binary.BigEndian.Uint16(b))
		j.learnFrom(rule, &all, b[2:end])
		b = b[end:]
	}
	return all.action, all.reason
}

// dnsMessages judges all whole messages that b begins with. The strictest ruling
// holds for them all.
func (j *judge) dnsMessages(rule *policy.Rule, b []byte) (all ruling, used int, got outcome) {
	for len(b) >= used+2 {
		n := int(binary.BigEndian.Uint16(b[used:]))
		if len(b) < used+2+n {
			// A length that no question has, and no answer on this port.
			if n < dnsHeaderLen {
				return all, used, sawMalformed
			}
			break
		}
		msg := b[used+2 : used+2+n]
		used += 2 + n
		if got = j.dns.inspect(msg); got == sawMalformed {
			return all, used, got
		}
		r := j.steps(rule, j.dns, got)
		if got == sawNames {
			j.report(&r, j.dns, msg, 1)
		}
		if all.action == policy.ActionNone || strictness(r.action) > strictness(all.action) {
			all = r
		}
	}
	return all, used, sawNames
}

// dnsTaken notes that bytes of b have been judged, and keeps the others.
func (j *judge) dnsTaken(f *flow, used int, b []byte) error {
	f.packets, f.bytes, f.at = 0, 0, j.now
	f.settled = false
	if f.stream == 0 {
		if used < len(b) {
			f.taken = int32(used)
			return j.flows.keep(f, 0, b, j.now)
		}
		f.seq += uint32(used)
		f.settled = true
		return nil
	}
	f.taken += int32(used)
	if st := &j.flows.streams.all[f.stream-1]; int(f.taken) == st.end {
		j.flows.streams.close(f.stream)
		f.seq += uint32(f.taken)
		f.stream, f.taken, f.settled = 0, 0, true
	}
	return nil
}
