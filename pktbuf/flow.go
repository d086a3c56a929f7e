package pktbuf

import (
	"encoding/binary"
	"net/netip"
)

// Flow is a packet's two endpoints and protocol, in the packet's direction. It
// is comparable. Ports are 0 for protocols without ports; ICMP echo has its
// identifier in both.
type Flow struct {
	Src, Dst netip.AddrPort
	Proto    uint8
}

// Reverse returns the flow as seen from the other side.
func (f Flow) Reverse() Flow {
	return Flow{Src: f.Dst, Dst: f.Src, Proto: f.Proto}
}

// Flow returns the flow of a parsed packet. It is false where the flow is not
// known: before Parse, after it has failed, and in fragments other than the
// first. Their addresses and protocol are filled in as far as they are known.
func (v *View) Flow() (f Flow, ok bool) {
	ok = v.FlowTo(&f)
	return f, ok
}

// FlowTo is Flow into memory of the caller, which is cheaper.
func (v *View) FlowTo(f *Flow) bool {
	var src, dst netip.Addr
	switch {
	case v.state&hasIPv4 != 0:
		src, dst = v.IPv4().Src(), v.IPv4().Dst()
	case v.state&hasIPv6 != 0:
		src, dst = v.IPv6().Src(), v.IPv6().Dst()
	default:
		*f = Flow{}
		return false
	}
	var sport, dport uint16
	switch {
	case v.state&hasPorts != 0:
		h := v.pkt[v.l4:]
		sport, dport = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
	case v.state&(hasICMP|hasICMPv6) != 0:
		sport = v.echoID()
		dport = sport
	}
	f.Src, f.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	f.Proto = v.proto
	return v.state&(parsed|laterPart) == parsed
}

// echoID returns the identifier of an ICMP or ICMPv6 echo message, 0 of others.
func (v *View) echoID() uint16 {
	if m := v.ICMP(); m != nil && m.IsEcho() {
		return m.ID()
	}
	if m := v.ICMPv6(); m != nil && m.IsEcho() {
		return m.ID()
	}
	return 0
}
