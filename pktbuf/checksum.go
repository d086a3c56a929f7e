package pktbuf

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the bytes of b to a one's complement sum (RFC 1071), b standing at
// an even offset. The result is not folded.
func sum(b []byte, acc uint64) uint64 {
	var c uint64
	for len(b) >= 32 {
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[8:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[16:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[24:]), c)
		acc, c = bits.Add64(acc, 0, c)
		acc += c
		b = b[32:]
	}
	for len(b) >= 8 {
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc += c
		b = b[8:]
	}
	// Fewer than eight bytes are left: read them as one number, zeros behind.
	var last uint64
	shift := 56
	for _, x := range b {
		last |= uint64(x) << shift
		shift -= 8
	}
	acc, c = bits.Add64(acc, last, 0)
	return acc + c
}

// fold brings a sum down to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc)
}

// sumAt is sum for bytes at an offset that may be odd, folded.
func sumAt(b []byte, offset int) uint16 {
	s := fold(sum(b, 0))
	if offset&1 != 0 {
		s = s<<8 | s>>8
	}
	return s
}

// update returns a checksum in whose data words summing up to old were
// replaced by words summing up to repl (RFC 1624, equation 3).
func update(csum, old, repl uint16) uint16 {
	s := uint32(^csum) + uint32(^old) + uint32(repl)
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return ^uint16(s)
}
