package pktbuf

import "net/netip"

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
