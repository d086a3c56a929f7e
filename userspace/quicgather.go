package userspace

import "errors"

func init() { overUDP = append(overUDP, func() datagrams { return new(quicInspector) }) }

func (q *quicInspector) begins(b []byte) bool { return isQUIC(b) }

// errFrames says that a QUIC packet holds what no client sends.
var errFrames = errors.New("userspace: the frames of a quic packet are malformed")

// gather looks at a datagram with long headers.
func (q *quicInspector) gather(j *judge, f *flow, rest []byte) (*flow, []byte, outcome, error) {
	var p quicPacket
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
		f, got = q.unprotect(j, f, &p)
		if f == nil {
			return nil, nil, got, errNoRoom
		}
		if got == sawNone {
			continue
		}
		good = true
		var err error
		if got, err = q.keep(j, f); err != nil || got == sawNames {
			return f, j.flows.streams.prefix(f.stream), got, err
		}
	}
	if !good {
		return f, nil, sawMalformed, nil
	}
	return f, nil, sawMore, nil
}

// unprotect takes an Initial packet's protection off, with the keys of the flow, or
// with those that the packet itself names: the first packet's, and those after a
// Retry or in another version. It returns sawNone where no key fits; servers
// ignore such packets. The flow is nil where there was no room for it.
func (q *quicInspector) unprotect(j *judge, f *flow, p *quicPacket) (*flow, outcome) {
	if f == nil {
		if f = j.flows.insert(&j.flow, j.now); f == nil {
			return nil, sawNone
		}
	}
	if f.stream != 0 {
		peer := &j.flows.streams.all[f.stream-1].quic
		if peer.version == p.peer.version && q.open(p, peer) {
			return f, sawMore
		}
		if *peer == p.peer {
			return f, sawNone
		}
	}
	if !q.open(p, &p.peer) {
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

// keep stores the CRYPTO frames of the packet that was opened, and looks at what
// there is of the hello.
func (q *quicInspector) keep(j *judge, f *flow) (outcome, error) {
	for {
		at, data, got := q.crypto()
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
	got := q.inspect(j.flows.streams.prefix(f.stream))
	if got == sawMalformed {
		return got, errFrames
	}
	return got, nil
}
