package pktbuf

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Flow is a packet's two endpoints and protocol, in the packet's direction. It
// is comparable, of 40 bytes, and without pointers, so that tables of flows are
// nothing to the garbage collector. Ports are 0 for protocols without ports;
// ICMP echo has its identifier in both. The zero Flow is that of no packet.
type Flow struct {
	b [flowLen]byte
}

// What stands where in a Flow. IPv4 addresses take the first eight bytes of the
// addresses, and zeros follow: that is the form in which they lie in a packet.
const (
	flowPorts   = 0 // in network byte order, source first
	flowProto   = 4
	flowVersion = 5 // 4 or 6, and 0 in the zero Flow; two zeros follow
	flowAddrs   = 8 // source first
	flowLen     = flowAddrs + 2*16
)

// FlowOf returns the flow between two endpoints. It is the zero Flow where their
// addresses are not of one family. Zones are left out: packets have none.
func FlowOf(src, dst netip.AddrPort, proto uint8) (f Flow) {
	switch a, b := src.Addr(), dst.Addr(); {
	case a.Is4() && b.Is4():
		from, to := a.As4(), b.As4()
		copy(f.b[flowAddrs:], from[:])
		copy(f.b[flowAddrs+4:], to[:])
		f.b[flowVersion] = 4
	case a.Is6() && b.Is6():
		from, to := a.As16(), b.As16()
		copy(f.b[flowAddrs:], from[:])
		copy(f.b[flowAddrs+16:], to[:])
		f.b[flowVersion] = 6
	default:
		return Flow{}
	}
	f.setPorts(src.Port(), dst.Port())
	f.b[flowProto] = proto
	return f
}

func (f *Flow) setPorts(src, dst uint16) {
	binary.BigEndian.PutUint16(f.b[flowPorts:], src)
	binary.BigEndian.PutUint16(f.b[flowPorts+2:], dst)
}

// SrcPort returns the source port.
func (f Flow) SrcPort() uint16 { return binary.BigEndian.Uint16(f.b[flowPorts:]) }

// DstPort returns the destination port.
func (f Flow) DstPort() uint16 { return binary.BigEndian.Uint16(f.b[flowPorts+2:]) }

// Proto returns the protocol number.
func (f Flow) Proto() uint8 { return f.b[flowProto] }

// Src returns the source endpoint, not valid in the zero Flow.
func (f Flow) Src() netip.AddrPort { return netip.AddrPortFrom(f.addr(0), f.SrcPort()) }

// Dst returns the destination endpoint, not valid in the zero Flow.
func (f Flow) Dst() netip.AddrPort { return netip.AddrPortFrom(f.addr(1), f.DstPort()) }

// addr returns the source's address for 0 and the destination's for 1.
func (f *Flow) addr(i int) netip.Addr {
	switch f.b[flowVersion] {
	case 4:
		return netip.AddrFrom4([4]byte(f.b[flowAddrs+i*4:]))
	case 6:
		return netip.AddrFrom16([16]byte(f.b[flowAddrs+i*16:]))
	}
	return netip.Addr{}
}

// Reverse returns the flow as seen from the other side.
func (f Flow) Reverse() Flow { return FlowOf(f.Dst(), f.Src(), f.Proto()) }

// String returns the flow as in "6 192.0.2.1:5060 > 198.51.100.2:80".
func (f Flow) String() string {
	return strconv.Itoa(int(f.Proto())) + " " + f.Src().String() + " > " + f.Dst().String()
}

// Bytes returns the flow's memory, for hashing: flows are equal where their
// bytes are. It is not to be written to.
func (f *Flow) Bytes() []byte { return f.b[:] }

// Flow returns the flow of a parsed packet. It is false where the flow is not
// known: before Parse, after it has failed, and in fragments other than the
// first. Their addresses and protocol are filled in as far as they are known.
func (v *View) Flow() (f Flow, ok bool) {
	ok = v.FlowTo(&f)
	return f, ok
}

// FlowTo is Flow into memory of the caller, which is cheaper.
func (v *View) FlowTo(f *Flow) bool {
	*f = Flow{}
	switch {
	case v.state&hasIPv4 != 0:
		copy(f.b[flowAddrs:flowAddrs+8], v.IPv4()[12:])
		f.b[flowVersion] = 4
	case v.state&hasIPv6 != 0:
		copy(f.b[flowAddrs:], v.IPv6()[8:])
		f.b[flowVersion] = 6
	default:
		return false
	}
	f.b[flowProto] = v.proto
	switch {
	case v.state&hasPorts != 0:
		copy(f.b[flowPorts:flowPorts+4], v.pkt[v.l4:])
	case v.state&(hasICMP|hasICMPv6) != 0:
		id := v.echoID()
		f.setPorts(id, id)
	}
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
