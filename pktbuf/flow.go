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

// What stands where in a Flow. IPv4 addresses and ports stand as they do in a
// packet, so that one copy takes all of them; zeros follow. What is below 12 is
// then left for half an IPv6 address.
const (
	flowSrc4    = 0
	flowDst4    = 4
	flowPorts   = 8 // in network byte order, source first
	flowProto   = 12
	flowVersion = 13 // 4 or 6, and 0 in the zero Flow; two zeros follow
	flowSrc6    = 16
	flowDst6    = 32 // and on at 0
	flowLen     = 40
)

// FlowOf returns the flow between two endpoints. It is the zero Flow where their
// addresses are not of one family. Zones are left out: packets have none.
func FlowOf(src, dst netip.AddrPort, proto uint8) (f Flow) {
	switch a, b := src.Addr(), dst.Addr(); {
	case a.Is4() && b.Is4():
		from, to := a.As4(), b.As4()
		copy(f.b[flowSrc4:], from[:])
		copy(f.b[flowDst4:], to[:])
		f.b[flowVersion] = 4
	case a.Is6() && b.Is6():
		from, to := a.As16(), b.As16()
		f.setAddrs6(&from, &to)
		f.b[flowVersion] = 6
	default:
		return Flow{}
	}
	f.setPorts(src.Port(), dst.Port())
	f.b[flowProto] = proto
	return f
}

func (f *Flow) setAddrs6(src, dst *[16]byte) {
	*(*[16]byte)(f.b[flowSrc6:]) = *src
	*(*[8]byte)(f.b[flowDst6:]) = [8]byte(dst[:8])
	*(*[8]byte)(f.b[:]) = [8]byte(dst[8:])
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
func (f Flow) Src() netip.AddrPort {
	var a netip.Addr
	switch f.b[flowVersion] {
	case 4:
		a = netip.AddrFrom4([4]byte(f.b[flowSrc4:]))
	case 6:
		a = netip.AddrFrom16([16]byte(f.b[flowSrc6:]))
	}
	return netip.AddrPortFrom(a, f.SrcPort())
}

// Dst returns the destination endpoint, not valid in the zero Flow.
func (f Flow) Dst() netip.AddrPort {
	var a netip.Addr
	switch f.b[flowVersion] {
	case 4:
		a = netip.AddrFrom4([4]byte(f.b[flowDst4:]))
	case 6:
		var b [16]byte
		copy(b[:8], f.b[flowDst6:])
		copy(b[8:], f.b[:])
		a = netip.AddrFrom16(b)
	}
	return netip.AddrPortFrom(a, f.DstPort())
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
		copy(f.b[flowSrc4:flowDst4+4], v.IPv4()[12:])
		f.b[flowVersion] = 4
	case v.state&hasIPv6 != 0:
		h := v.IPv6()
		f.setAddrs6((*[16]byte)(h[8:]), (*[16]byte)(h[24:]))
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
