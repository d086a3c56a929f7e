package userspace

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// What Replay.Judge may be told in place of an inspecting rule.
const (
	LookForNames     = -1 // names of any kind, and nothing is dropped
	LookForQuestions = -2 // the same, and what comes in datagrams is DNS
)

// Replay judges the packets of a capture as a worker judges those of its queue.
// Its memory is bounded by its Options. It is not for several goroutines.
type Replay struct {
	judge   *judge
	tally   tally
	packet  packet
	buf     [payloadMax]byte
	watch   int // the first of the two rules that only look
	started time.Time
	starts  []streamStart
}

// streamStart remembers where a TCP stream begins. A later one may take its place.
type streamStart struct {
	flow pktbuf.Flow
	seq  uint32
	ok   bool
}

// replayStarts bounds the memory for streams' starts.
const replayStarts = 1 << 14

// NewReplay returns a Replay. Of the options Policy, Flows, StreamMemory and Seen
// count; Seen is also told of questions in responses, with Rule -1 for what no
// inspecting rule was given for.
func NewReplay(o Options) (*Replay, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("preparing a replay: %w", err)
	}
	r := &Replay{watch: len(o.Policy.Rules), starts: make([]streamStart, replayStarts)}
	// The policy is the caller's; the rules that only look are added to a copy.
	given := o.Policy
	p := *given
	accept := policy.Step{Action: policy.ActionAccept, Log: true}
	question := policy.Step{QName: policy.NameMatch{Domains: new(policy.Domains)}, Log: true}
	budget := policy.Until{Packets: 1000, Bytes: 1 << 20}
	p.Rules = append(given.Rules[:len(given.Rules):len(given.Rules)],
		policy.Rule{Action: policy.ActionAccept, Until: budget, Steps: []policy.Step{accept}},
		policy.Rule{Action: policy.ActionAccept, Until: budget, Steps: []policy.Step{question, accept}})
	o.Policy, o.Decided, o.Start = &p, nil, r.start
	if told := o.Seen; told != nil {
		o.Seen = func(s Sighting) {
			s.Policy = given
			if s.Rule >= r.watch {
				s.Rule = -1
			}
			told(s)
		}
	}
	r.judge = newJudge(&o, &r.tally)
	r.judge.responses = true
	for _, in := range r.judge.onTCP {
		// Nobody can gain by a Host that comes late: nothing passes here.
		if http, ok := in.(*httpInspector); ok {
			http.lone = true
		}
	}
	return r, nil
}

// Judge judges a packet that begins with its IP header, by an inspecting rule of
// the policy or by LookForNames or LookForQuestions. It was wire bytes long, of
// which there may be fewer. Its checksums count as right: captures are made in
// front of the devices that make them so.
func (r *Replay) Judge(ip []byte, rule, wire int, at time.Time) (policy.Action, Reason) {
	j := r.judge
	if r.started.IsZero() {
		r.started = at
	}
	// It starts above 0, which stands for never, and does not go back.
	j.now = max(j.now, int64(at.Sub(r.started))+int64(time.Second))
	j.empty = j.now
	ip = r.buf[:copy(r.buf[:], ip)]
	p := &r.packet
	*p = packet{payload: ip, proto: etherIPv4}
	if len(ip) > 0 && ip[0]>>4 == 6 {
		p.proto = etherIPv6
	}
	if wire > len(ip) {
		p.capLen = uint32(wire)
	}
	if p.proto == etherIPv4 && len(ip) > 4 && binary.BigEndian.Uint16(ip[2:]) == 0 {
		// Its sender's device was to cut it into segments.
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	}
	j.pkt, j.rule = p, rule
	switch rule {
	case LookForNames:
		j.rule = r.watch
	case LookForQuestions:
		j.rule = r.watch + 1
	}
	r.note(ip, p.proto)
	action, reason := j.parsed(p)
	j.tally.reason(reason)
	return action, reason
}

// Counters returns what has been counted so far.
func (r *Replay) Counters() Counters {
	r.tally.publish()
	return r.tally.snapshot()
}

// note remembers where the stream begins that a SYN announces.
func (r *Replay) note(ip []byte, proto uint16) {
	var v pktbuf.View
	family := pktbuf.IPv4
	if proto == etherIPv6 {
		family = pktbuf.IPv6
	}
	if v.Init(family, ip, nil) != nil || v.Parse() != nil || v.TCP() == nil || v.TCP().Flags()&pktbuf.FlagSYN == 0 {
		return
	}
	if flow, ok := v.Flow(); ok {
		*r.place(&flow) = streamStart{flow, v.TCP().Seq() + 1, true}
	}
}

func (r *Replay) place(flow *pktbuf.Flow) *streamStart {
	_, tag := r.judge.flows.place(flow)
	return &r.starts[tag>>1%replayStarts]
}

func (r *Replay) start(flow pktbuf.Flow) (seq uint32, ok bool) {
	s := r.place(&flow)
	return s.seq, s.ok && s.flow == flow
}
