package pktbuf

import "encoding/binary"

// Extension headers that Parse walks: those that Linux walks too
// (ipv6_ext_hdr in net/ipv6/exthdrs_core.c). Every other number is the
// packet's protocol.
const (
	extHopByHop     = 0
	extRouting      = 43
	extFragment     = 44
	extAuth         = 51
	extNone         = 59
	extDestination  = 60
	optionPad1      = 0
	optionJumbo     = 0xc2
	optionHomeAddr  = 0xc9
	maxExtensions   = 8
	routingSource   = 0 // RFC 2460, deprecated by RFC 5095
	routingHome     = 2 // RFC 6275
	routingSegments = 4 // RFC 8754
)

func (v *View) parseIPv6(l3 int) error {
	p := v.pkt
	if len(p)-l3 < ipv6Len {
		return ErrShort
	}
	h := p[l3:]
	if h[0]>>4 != 6 {
		return ErrProto
	}
	plen := int(binary.BigEndian.Uint16(h[4:]))
	l4 := l3 + ipv6Len
	end := v.clip(l4 + plen)
	if end < 0 {
		return ErrShort
	}
	v.l3, v.l4, v.pay = uint8(l3), uint16(l4), uint16(l4)
	v.end = uint32(end)
	v.proto = h[6]
	v.state = hasIPv6
	switch h[6] {
	case ProtoTCP, ProtoUDP, ProtoICMPv6:
		return v.parseTransport(l4, end)
	case extHopByHop:
		// RFC 2675 sends the length of a jumbogram in an option and 0 here.
		if plen == 0 {
			return ErrTooLong
		}
	}
	return v.parseExtensions(l4, end)
}

// parseExtensions walks from the first extension header to the transport header.
func (v *View) parseExtensions(at, end int) error {
	whole := end
	end = min(end, len(v.pkt))
	for n := 0; v.state&laterPart == 0; n++ {
		next := v.proto
		size, err := v.extension(next, at, end)
		if err != nil {
			return err
		}
		if size == 0 {
			break
		}
		if n == maxExtensions || next == extHopByHop && n != 0 {
			return ErrHeaders
		}
		v.proto = v.pkt[at]
		at += size
		v.l4, v.pay = uint16(at), uint16(at)
	}
	return v.parseTransport(at, whole)
}

// extension returns the length of the extension header of a type at an offset,
// 0 if the type is none, and notes what later stages need of it.
func (v *View) extension(typ uint8, at, end int) (int, error) {
	switch typ {
	case extHopByHop, extDestination, extRouting, extFragment, extAuth:
	default:
		return 0, nil
	}
	if end-at < 8 {
		return 0, ErrShort
	}
	h := v.pkt[at:end]
	size := extensionLen(typ, h)
	if size > len(h) {
		return 0, ErrShort
	}
	h = h[:size]
	switch typ {
	case extFragment:
		if v.state&hasFrag != 0 {
			return 0, ErrHeaders
		}
		v.frag = uint16(at)
		v.state |= hasFrag
		f := IPv6Fragment(h)
		return size, v.setFragment(f.Offset(), int(v.end)-at-size, f.More())
	case extRouting:
		v.noteRouting(h, at)
	case extHopByHop, extDestination:
		return size, v.noteOptions(h, at)
	}
	return size, nil
}

// noteRouting finds the address that the checksum's pseudo-header takes for the
// destination while segments are left (RFC 8200 section 8.1): the last one.
func (v *View) noteRouting(h []byte, at int) {
	if len(h) < 24 || h[3] == 0 {
		return
	}
	switch h[2] {
	case routingSource, routingHome:
		v.dst = uint16(at + len(h) - 16)
	case routingSegments:
		v.dst = uint16(at + 8)
	default:
		return
	}
	v.state |= hasAltDst
}

// noteOptions walks the options of a hop-by-hop or destination header. The home
// address stands for the source in the pseudo-header (RFC 6275 section 6.3).
func (v *View) noteOptions(h []byte, at int) error {
	for i := 2; i < len(h); {
		if h[i] == optionPad1 {
			i++
			continue
		}
		if i+2 > len(h) || i+2+int(h[i+1]) > len(h) {
			return ErrLength
		}
		switch {
		case h[i] == optionJumbo:
			return ErrTooLong
		case h[i] == optionHomeAddr && h[i+1] == 16:
			v.src = uint16(at + i + 2)
			v.state |= hasAltSrc
		}
		i += 2 + int(h[i+1])
	}
	return nil
}

// Extension is an IPv6 extension header.
type Extension []byte

// NextHeader returns the type of the header that follows.
func (e Extension) NextHeader() uint8 { return e[0] }

// Extension returns extension header i of an IPv6 packet and its type, nil if
// there are not so many.
func (v *View) Extension(i int) (typ uint8, e Extension) {
	h := v.IPv6()
	if h == nil || i < 0 || i > maxExtensions {
		return 0, nil
	}
	typ = h.NextHeader()
	for at := int(v.l3) + ipv6Len; at < int(v.l4); i-- {
		size := extensionLen(typ, v.pkt[at:])
		if i == 0 {
			return typ, Extension(v.pkt[at : at+size])
		}
		typ = v.pkt[at]
		at += size
	}
	return 0, nil
}

// extensionLen returns the length of an extension header of which eight bytes
// are there. Two types do not count in units of eight bytes (RFC 8200 section
// 4.5, RFC 4302 section 2.2).
func extensionLen(typ uint8, h []byte) int {
	switch typ {
	case extFragment:
		return ipv6FragmentLen
	case extAuth:
		return (int(h[1]) + 2) * 4
	}
	return (int(h[1]) + 1) * 8
}
