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
func (v *View) Flow() (Flow, bool) {
	var src, dst netip.Addr
	switch v.ver {
	case 4:
		h := v.pkt[v.l3 : v.l3+ipv4Len]
		src = netip.AddrFrom4([4]byte(h[12:16]))
		dst = netip.AddrFrom4([4]byte(h[16:20]))
	case 6:
		h := v.pkt[v.l3 : v.l3+ipv6Len]
		src = netip.AddrFrom16([16]byte(h[8:24]))
		dst = netip.AddrFrom16([16]byte(h[24:40]))
	default:
		return Flow{}, false
	}
	var sport, dport uint16
	if v.flags&flagPorts != 0 {
		h := v.pkt[v.l4 : v.l4+4]
		sport, dport = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
	} else if v.kind == kindICMP && v.ICMP().IsEcho() || v.kind == kindICMPv6 && v.ICMPv6().IsEcho() {
		sport = binary.BigEndian.Uint16(v.pkt[v.l4+4:])
		dport = sport
	}
	return Flow{
		Src:   netip.AddrPortFrom(src, sport),
		Dst:   netip.AddrPortFrom(dst, dport),
		Proto: v.proto,
	}, v.flags&(flagParsed|flagLater) == flagParsed
}
