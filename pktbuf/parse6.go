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
	if len(v.pkt) < l3+ipv6Len {
		return ErrShort
	}
	h := v.pkt[l3:]
	if h[0]>>4 != 6 {
		return ErrProto
	}
	plen := int(binary.BigEndian.Uint16(h[4:]))
	end := l3 + ipv6Len + plen
	if end > v.Len() {
		if v.flags&flagCut == 0 {
			return ErrShort
		}
		end = v.Len()
	}
	l4 := l3 + ipv6Len
	v.l3, v.l4, v.pay = int32(l3), int32(l4), int32(l4)
	v.payEnd, v.end = int32(end), int32(end)
	v.ver, v.proto = 6, h[6]
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
	end = min(end, len(v.pkt))
	next := v.proto
	for n := 0; ; n++ {
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
		next = v.pkt[at]
		at += size
		v.proto, v.l4, v.pay = next, int32(at), int32(at)
		if v.flags&flagLater != 0 {
			break
		}
	}
	if next == extNone {
		return nil
	}
	return v.parseTransport(at, int(v.end))
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
	size := (int(h[1]) + 1) * 8
	switch typ {
	case extAuth:
		size = (int(h[1]) + 2) * 4
	case extFragment:
		size = ipv6FragmentLen
	}
	if size > len(h) {
		return 0, ErrShort
	}
	h = h[:size]
	switch typ {
	case extFragment:
		if v.frag != 0 {
			return 0, ErrHeaders
		}
		v.frag = int32(at)
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
		v.dst = int32(at + len(h) - 16)
	case routingSegments:
		v.dst = int32(at + 8)
	}
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
			v.src = int32(at + i + 2)
		}
		i += 2 + int(h[i+1])
	}
	return nil
}
