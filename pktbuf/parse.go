package pktbuf

import "encoding/binary"

// Parse walks the headers to the payload, once, and checks every length on the
// way. After an error the headers in front of the one at fault can still be
// read.
func (v *View) Parse() error {
	v.l3, v.l4, v.pay, v.payEnd, v.end = 0, 0, 0, 0, 0
	v.frag, v.dst, v.src = 0, 0, 0
	v.ver, v.proto, v.kind = 0, 0, kindNone
	v.flags &^= flagParsed | flagMore | flagLater | flagPorts
	err := ErrProto
	switch v.family {
	case IPv4:
		err = v.parseIPv4(0)
	case IPv6:
		err = v.parseIPv6(0)
	case Bridge:
		err = v.parseEthernet()
	}
	if err == nil {
		v.flags |= flagParsed
	}
	return err
}

func (v *View) parseEthernet() error {
	p := v.pkt
	at := ethernetLen
	for tags := 0; ; tags++ {
		if len(p) < at {
			return ErrShort
		}
		switch binary.BigEndian.Uint16(p[at-2:]) {
		case EtherTypeIPv4:
			return v.parseIPv4(at)
		case EtherTypeIPv6:
			return v.parseIPv6(at)
		case EtherTypeVLAN, EtherTypeQinQ:
			if tags == maxVLANs {
				return ErrProto
			}
			at += vlanLen
		default:
			return ErrProto
		}
	}
}

func (v *View) parseIPv4(l3 int) error {
	if len(v.pkt) < l3+ipv4Len {
		return ErrShort
	}
	h := v.pkt[l3:]
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
	end := l3 + total
	if end > v.Len() {
		if v.flags&flagCut == 0 {
			return ErrShort
		}
		end = v.Len()
	}
	l4 := l3 + ihl
	v.l3, v.l4, v.pay = int32(l3), int32(l4), int32(l4)
	v.payEnd, v.end = int32(end), int32(end)
	v.ver, v.proto = 4, h[9]
	if frag := binary.BigEndian.Uint16(h[6:]); frag&(ipv4MoreBit|ipv4FragMask) != 0 {
		if err := v.setFragment(int(frag&ipv4FragMask)*8, total-ihl, frag&ipv4MoreBit != 0); err != nil {
			return err
		}
	}
	return v.parseTransport(l4, end)
}

// setFragment notes a fragment of n bytes at the offset. One that would end
// beyond the longest datagram is refused: reassembling those has crashed hosts.
func (v *View) setFragment(offset, n int, more bool) error {
	if offset+n > ipMaxLen {
		return ErrTooLong
	}
	if more {
		v.flags |= flagMore
	}
	if offset != 0 {
		v.flags |= flagLater
	}
	return nil
}

func (v *View) parseTransport(l4, end int) error {
	if v.flags&flagLater != 0 {
		return nil
	}
	h := v.pkt[l4:min(end, len(v.pkt))]
	switch v.proto {
	case ProtoTCP:
		return v.parseTCP(h)
	case ProtoUDP:
		return v.parseUDP(h)
	case ProtoICMP:
		return v.parseICMP(h)
	case ProtoICMPv6:
		return v.parseICMPv6(h)
	case ProtoSCTP:
		if len(h) < sctpLen {
			return v.parseCut(h)
		}
		v.flags |= flagPorts
	}
	return nil
}

// parseCut accepts a transport header that a cut packet holds in part: ports
// are there in every ICMP quote.
func (v *View) parseCut(h []byte) error {
	if v.flags&flagCut == 0 {
		return ErrShort
	}
	if len(h) >= 4 {
		v.flags |= flagPorts
	}
	return nil
}

func (v *View) parseTCP(h []byte) error {
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
	v.kind = kindTCP
	v.flags |= flagPorts
	v.pay += int32(off)
	return nil
}

func (v *View) parseUDP(h []byte) error {
	if len(h) < udpLen {
		return v.parseCut(h)
	}
	n := int32(binary.BigEndian.Uint16(h[4:]))
	if n < udpLen {
		return ErrLength
	}
	if v.l4+n < v.end {
		v.payEnd = v.l4 + n
	} else if v.l4+n > v.end && v.flags&(flagMore|flagCut) == 0 {
		return ErrLength
	}
	v.kind = kindUDP
	v.flags |= flagPorts
	v.pay += udpLen
	return nil
}

const (
	icmpLen   = 8
	icmpv6Len = 4
	sctpLen   = 12
)

func (v *View) parseICMP(h []byte) error {
	if v.ver != 4 {
		return nil
	}
	if len(h) < icmpLen {
		return v.parseCut(nil)
	}
	v.kind = kindICMP
	v.pay += icmpLen
	return nil
}

func (v *View) parseICMPv6(h []byte) error {
	if v.ver != 6 {
		return nil
	}
	// Four bytes are common to all messages; errors and echo have four more.
	if len(h) < icmpv6Len || len(h) < icmpLen && (ICMPv6(h).IsError() || ICMPv6(h).IsEcho()) {
		return v.parseCut(nil)
	}
	v.kind = kindICMPv6
	v.pay += int32(min(len(h), icmpLen))
	return nil
}
