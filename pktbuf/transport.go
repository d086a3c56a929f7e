package pktbuf

import (
	"encoding/binary"
	"math/bits"
)

// csumOffset returns the offset of the transport checksum in the packet, 0 if
// the protocol has none that the package knows or the packet does not hold it.
func (v *View) csumOffset() int {
	switch v.kind {
	case kindTCP:
		return int(v.l4) + 16
	case kindUDP:
		return int(v.l4) + 6
	case kindICMP, kindICMPv6:
		return int(v.l4) + 2
	}
	return 0
}

// pseudoSum returns the sum of the pseudo-header for a transport length.
func (v *View) pseudoSum(n int) uint64 {
	var acc uint64
	switch {
	case v.kind == kindICMP:
		return 0
	case v.ver == 4:
		acc = sum(v.pkt[v.l3+12:v.l3+20], 0)
	default:
		src, dst := v.l3+8, v.l3+24
		if v.src != 0 {
			src = v.src
		}
		if v.dst != 0 {
			dst = v.dst
		}
		acc = sum(v.pkt[src:src+16], 0)
		acc = sum(v.pkt[dst:dst+16], acc)
	}
	// Length and protocol are two words: at most 17 bits, added with carry.
	acc, carry := bits.Add64(acc, uint64(n)+uint64(v.proto), 0)
	return acc + carry
}

// transportLen returns the length that the transport checksum covers.
func (v *View) transportLen() int {
	if v.kind == kindUDP {
		return int(v.payEnd - v.l4)
	}
	return int(v.end - v.l4)
}

// transportSum returns the folded sum over pseudo-header, transport header and
// payload, checksum field included. It is 0xffff where the checksum is right.
func (v *View) transportSum() uint16 {
	n := v.transportLen()
	acc := v.pseudoSum(n)
	end := int(v.l4) + n
	if end <= len(v.pkt) {
		return fold(sum(v.pkt[v.l4:end], acc))
	}
	acc = uint64(fold(sum(v.pkt[v.l4:], acc)))
	rest := sumAt(v.tail[:end-len(v.pkt)], len(v.pkt)-int(v.l4))
	return fold(acc + uint64(rest))
}

// putChecksum writes a transport checksum. A UDP checksum of 0 would say that
// there is none, so its other form is sent (RFC 768, RFC 8200 section 8.1).
func (v *View) putChecksum(at int, csum uint16) {
	if csum == 0 && v.kind == kindUDP {
		csum = 0xffff
	}
	binary.BigEndian.PutUint16(v.pkt[at:], csum)
}

// complete writes the whole transport checksum of an unfinished packet. The
// caller has checked that the field is writable and the packet not a fragment.
func (v *View) complete() {
	at := v.csumOffset()
	binary.BigEndian.PutUint16(v.pkt[at:], 0)
	v.putChecksum(at, ^v.transportSum())
	v.flags = v.flags&^flagUnfinished | flagChanged
}

// patchTransport updates the transport checksum for covered bytes whose sum
// was old and is now repl. Packets without a checksum stay without.
func (v *View) patchTransport(old, repl uint16) {
	at := v.csumOffset()
	if at == 0 {
		return
	}
	csum := binary.BigEndian.Uint16(v.pkt[at:])
	if csum == 0 && v.kind == kindUDP {
		return
	}
	v.putChecksum(at, update(csum, old, repl))
}
