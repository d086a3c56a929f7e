package pktbuf

import (
	"encoding/binary"
	"math/bits"
)

const (
	icmpLen   = 8
	icmpv6Len = 4
	udpLen    = 8
	sctpLen   = 12
	tcpLen    = 20
)

// Parse walks the headers to the payload, once, and checks every length on the
// way. After an error the headers in front of the one at fault can still be
// read.
func (v *View) Parse() error {
	_, err := v.ParseFlow(nil)
	return err
}

// ParseFlow is Parse and FlowTo in one step, which is cheaper than both; known is
// what FlowTo returns. With nil it is Parse.
//
// It has short ways for packets that are plain: TCP or UDP, IPv4 without options
// or IPv6 without extension headers, whole, in one piece and without padding.
// Everything else, and every packet that is wrong, is for parseFlowAny, which
// needs nothing of this.
func (v *View) ParseFlow(f *Flow) (known bool, err error) {
	if p := v.pkt; v.family == IPv4 && len(p) >= ipv4Len+udpLen && binary.LittleEndian.Uint64(p)&plain4Mask == plain4(len(p)) {
		if p[9] == ProtoUDP && plainUDP4(p) {
			v.state, v.proto, v.l3, v.l4, v.pay = foundUDP4, ProtoUDP, 0, ipv4Len, ipv4Len+udpLen
			v.end = uint32(len(p))
			if f != nil {
				f.set4((*[16]byte)(p[12:]), ProtoUDP)
			}
			return true, nil
		} else if off := plainTCP4(p); off != 0 {
			v.state, v.proto, v.l3, v.l4, v.pay = foundTCP4, ProtoTCP, 0, ipv4Len, uint16(ipv4Len+off)
			v.end = uint32(len(p))
			if f != nil {
				f.set4((*[16]byte)(p[12:]), ProtoTCP)
			}
			return true, nil
		}
	} else if v.family == IPv6 && v.parsePlain6(f) {
		return true, nil
	}
	return v.parseFlowAny(f)
}

// InitIPv4 is Init of an IPv4 packet without room and, where the packet is a
// common one, ParseFlow in the same step: the cheapest way from received bytes
// to a flow. Common is what has a short way in ParseFlow. For all others, and for
// every packet that is wrong, it returns false and is Init alone: ParseFlow goes
// on from there.
func (v *View) InitIPv4(p []byte, f *Flow) (common bool) {
	v.pkt = p
	return v.common(p, f)
}

// common does what InitIPv4 does besides noting the packet's memory: that may
// call the collector's write barrier, and a function without calls needs neither
// a frame nor a look at the stack, which cost as much as looking at the packet.
func (v *View) common(p []byte, f *Flow) bool {
	if len(p) >= ipv4Len+udpLen && binary.LittleEndian.Uint64(p)&plain4Mask == plain4(len(p)) {
		// What is assigned together becomes one store of four or eight bytes.
		if p[9] == ProtoUDP && plainUDP4(p) {
			v.pay, v.frag, v.end = ipv4Len+udpLen, 0, uint32(len(p))
			v.family, v.flags, v.state, v.proto, v.l3, v.l4 = IPv4, 0, foundUDP4, ProtoUDP, 0, ipv4Len
			f.set4((*[16]byte)(p[12:]), ProtoUDP)
			return true
		} else if off := plainTCP4(p); off != 0 {
			v.pay, v.end = uint16(ipv4Len+off), uint32(len(p))
			v.family, v.flags, v.state, v.proto, v.l3, v.l4 = IPv4, 0, foundTCP4, ProtoTCP, 0, ipv4Len
			f.set4((*[16]byte)(p[12:]), ProtoTCP)
			return true
		}
	}
	v.family, v.flags, v.state = IPv4, 0, 0
	return false
}

// What the short ways find.
const (
	foundUDP4 = hasIPv4 | hasUDP | hasPorts | parsed
	foundTCP4 = hasIPv4 | hasTCP | hasPorts | parsed
)

// plainUDP4 reports whether a UDP packet's own length is that of the IP packet.
func plainUDP4(p []byte) bool {
	return binary.LittleEndian.Uint16(p[ipv4Len+4:]) == bits.ReverseBytes16(uint16(len(p)-ipv4Len))
}

// plainTCP4 returns the length of the TCP header, 0 where the packet holds none.
func plainTCP4(p []byte) int {
	if len(p) < ipv4Len+tcpLen || p[9] != ProtoTCP {
		return 0
	}
	if off := int(p[ipv4Len+12]>>4) * 4; off >= tcpLen && ipv4Len+off <= len(p) {
		return off
	}
	return 0
}

// set4 fills in a flow from where addresses and ports stand in the packet.
func (f *Flow) set4(p *[16]byte, proto uint8) {
	*(*[16]byte)(f.b[:]) = *p
	f.b[flowProto], f.b[flowVersion], f.b[flowVersion+1], f.b[flowVersion+2] = proto, 4, 0, 0
	*(*[16]byte)(f.b[16:]) = [16]byte{}
	*(*[8]byte)(f.b[32:]) = [8]byte{}
}

// plain4Mask covers version, header length, total length, more-fragments bit and
// fragment offset in the first eight bytes of an IPv4 header, as a little-endian
// number.
const plain4Mask = 0xff3f_0000_ffff_00ff

// plain4 returns what plain4Mask must leave of a header without options, of a
// whole packet of n bytes. Other bytes are not 0 where n is beyond 16 bits.
func plain4(n int) uint64 {
	return bits.RotateLeft64(bits.ReverseBytes64(uint64(n)), 32) + 0x45
}

// parsePlain6 is ParseFlow for IPv6 without extension headers. Where it returns
// false it has done nothing.
func (v *View) parsePlain6(f *Flow) bool {
	p := v.pkt
	if len(p) < ipv6Len+udpLen || p[0]>>4 != 6 || int(binary.BigEndian.Uint16(p[4:])) != len(p)-ipv6Len {
		return false
	}
	if p[6] == ProtoUDP && binary.LittleEndian.Uint16(p[ipv6Len+4:]) == binary.LittleEndian.Uint16(p[4:]) {
		v.state, v.proto, v.l3, v.l4, v.pay = hasIPv6|hasUDP|hasPorts|parsed, ProtoUDP, 0, ipv6Len, ipv6Len+udpLen
	} else if off := 0; p[6] == ProtoTCP && len(p) >= ipv6Len+tcpLen {
		if off = int(p[ipv6Len+12]>>4) * 4; off < tcpLen || ipv6Len+off > len(p) {
			return false
		}
		v.state, v.proto, v.l3, v.l4, v.pay = hasIPv6|hasTCP|hasPorts|parsed, ProtoTCP, 0, ipv6Len, uint16(ipv6Len+off)
	} else {
		return false
	}
	v.end = uint32(len(p))
	if f != nil {
		f.setAddrs6((*[16]byte)(p[8:]), (*[16]byte)(p[24:]))
		*(*[4]byte)(f.b[flowPorts:]) = [4]byte(p[ipv6Len:])
		f.b[flowProto], f.b[flowVersion], f.b[flowVersion+1], f.b[flowVersion+2] = p[6], 6, 0, 0
	}
	return true
}

// parseFlowAny is ParseFlow for every packet.
//
//go:noinline
func (v *View) parseFlowAny(f *Flow) (known bool, err error) {
	err = v.parseAny()
	if f != nil {
		known = v.FlowTo(f)
	}
	return known, err
}

// parseAny is Parse for every packet.
func (v *View) parseAny() error {
	v.state = 0
	switch v.family {
	case IPv4:
		return v.parseIPv4(0)
	case IPv6:
		return v.parseIPv6(0)
	case Bridge:
		l3, version, err := linkHeader(v.pkt)
		switch {
		case err != nil:
			return err
		case version == IPv4:
			return v.parseIPv4(l3)
		}
		return v.parseIPv6(l3)
	}
	return ErrProto
}

func (v *View) parseIPv4(l3 int) error {
	p := v.pkt
	if len(p)-l3 < ipv4Len {
		return ErrShort
	}
	h := p[l3:]
	if h[0]>>4 != 4 {
		return ErrProto
	}
	ihl := int(h[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(h[2:]))
	if ihl < ipv4Len || total < ihl {
		return ErrLength
	}
	if len(h) < ihl {
		return ErrShort
	}
	end := v.clip(l3 + total)
	if end < 0 {
		return ErrShort
	}
	l4 := l3 + ihl
	v.l3, v.l4, v.pay = uint8(l3), uint16(l4), uint16(l4)
	v.end = uint32(end)
	v.proto = h[9]
	v.state = hasIPv4
	if ihl > ipv4Len {
		v.noteSourceRoute(Options(h[ipv4Len:ihl]), l3+ipv4Len)
	}
	if frag := binary.BigEndian.Uint16(h[6:]); frag&(ipv4MoreBit|ipv4FragMask) != 0 {
		if err := v.setFragment(int(frag&ipv4FragMask)*8, total-ihl, frag&ipv4MoreBit != 0); err != nil {
			return err
		}
	}
	return v.parseTransport(l4, end)
}

// noteSourceRoute finds the address that the checksum's pseudo-header takes for
// the destination while a source route is not at its end: its last one (RFC 791
// section 3.1, RFC 1122 section 3.2.1.8).
func (v *View) noteSourceRoute(o Options, at int) {
	for opt, next := o.Next(0); opt != nil; opt, next = o.Next(next) {
		loose := opt[0] == IPv4OptLooseRoute || opt[0] == IPv4OptStrictRoute
		if loose && len(opt) >= 7 && int(opt[2]) <= len(opt)-3 {
			v.dst = uint16(at + next - 4)
			v.state |= hasAltDst
		}
	}
}

// linkHeader returns where the IP header of an Ethernet frame starts.
func linkHeader(p []byte) (l3 int, version Family, err error) {
	at := ethernetLen
	for tags := 0; len(p) >= at; tags++ {
		switch binary.BigEndian.Uint16(p[at-2:]) {
		case EtherTypeIPv4:
			return at, IPv4, nil
		case EtherTypeIPv6:
			return at, IPv6, nil
		case EtherTypeVLAN, EtherTypeQinQ:
			if tags == maxVLANs {
				return 0, 0, ErrProto
			}
			at += vlanLen
		default:
			return 0, 0, ErrProto
		}
	}
	return 0, 0, ErrShort
}

// clip returns where a packet ends whose own lengths say that it ends at end:
// earlier where it is known to be cut, -1 where bytes are missing.
func (v *View) clip(end int) int {
	switch n := v.Len(); {
	case end <= n:
		return end
	case v.flags&flagCut != 0:
		return n
	}
	return -1
}

// setFragment notes a fragment of n bytes at the offset. One that would end
// beyond the longest datagram is refused: reassembling those has crashed hosts.
func (v *View) setFragment(offset, n int, more bool) error {
	if offset+n > ipMaxLen {
		return ErrTooLong
	}
	if more {
		v.state |= moreFollow
	}
	if offset != 0 {
		v.state |= laterPart
	}
	return nil
}

func (v *View) parseTransport(l4, end int) error {
	if v.state&laterPart != 0 {
		v.state |= parsed
		return nil
	}
	h := v.pkt[l4:min(end, len(v.pkt))]
	switch v.proto {
	case ProtoTCP:
		if len(h) < tcpLen {
			return v.parseCut(h)
		}
		off := int(h[12]>>4) * 4
		if off < tcpLen {
			return ErrLength
		}
		if off > len(h) {
			return v.parseCut(h)
		}
		v.pay = uint16(l4 + off)
		v.state |= hasTCP | hasPorts | parsed
		return nil
	case ProtoUDP:
		if len(h) < udpLen {
			return v.parseCut(h)
		}
		n := int(binary.BigEndian.Uint16(h[4:]))
		if n < udpLen {
			return ErrLength
		}
		if l4+n < end {
			v.payEnd = uint32(l4 + n)
			v.state |= hasTrailer
		} else if l4+n > end && v.state&moreFollow == 0 && v.flags&flagCut == 0 {
			return ErrLength
		}
		v.pay = uint16(l4 + udpLen)
		v.state |= hasUDP | hasPorts | parsed
		return nil
	}
	return v.parseOther(h)
}

// parseOther looks into the transport headers that are neither TCP nor UDP.
func (v *View) parseOther(h []byte) error {
	switch {
	case v.proto == ProtoICMP && v.state&hasIPv4 != 0:
		if len(h) < icmpLen {
			return v.parseCut(nil)
		}
		v.state |= hasICMP
		v.pay += icmpLen
	case v.proto == ProtoICMPv6 && v.state&hasIPv6 != 0:
		// Four bytes are common to all messages; errors and echo have four more.
		if len(h) < icmpv6Len || len(h) < icmpLen && (ICMPv6(h).IsError() || ICMPv6(h).IsEcho()) {
			return v.parseCut(nil)
		}
		v.state |= hasICMPv6
		v.pay += uint16(min(len(h), icmpLen))
	case v.proto == ProtoSCTP:
		if len(h) < sctpLen {
			return v.parseCut(h)
		}
		v.pay += sctpLen
		v.state |= hasSCTP | hasPorts
	}
	v.state |= parsed
	return nil
}

// parseCut accepts a transport header that a cut packet holds in part: ports
// are there in every ICMP quote.
func (v *View) parseCut(h []byte) error {
	if v.flags&flagCut == 0 {
		return ErrShort
	}
	v.state |= parsed
	if len(h) >= 4 {
		v.state |= hasPorts
	}
	return nil
}
