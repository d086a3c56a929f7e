package pktbuf

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the bytes of b to a one's complement sum (RFC 1071), b standing at
// an even offset. The result is not folded, and its 16-bit words are those of b
// read in little-endian order, which spares a swap for each of them; the sum is
// then the same but for the order of its bytes (RFC 1071 section 2).
func sum(b []byte, acc uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[8:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[16:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[24:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[32:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[40:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[48:]), c)
		acc, c = bits.Add64(acc, binary.LittleEndian.Uint64(b[56:]), c)
		acc += c // loses no carry: with one, the sum is below its largest value
		b = b[64:]
	}
	for len(b) >= 8 {
		acc = add(acc, binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	// At most seven bytes are left, which make a number of 56 bits.
	var last uint64
	if len(b) >= 4 {
		last = uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		last += uint64(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		last += uint64(b[0])
	}
	return add(acc, last)
}

// add adds in one's complement.
func add(a, b uint64) uint64 {
	s, c := bits.Add64(a, b, 0)
	return s + c
}

// fold brings a sum down to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc)
}

// word turns a sum into a word in network byte order, for bytes that stand at an
// offset from where the checksum begins to count.
func word(acc uint64, offset int) uint16 {
	w := fold(acc)
	if offset&1 == 0 {
		w = bits.ReverseBytes16(w)
	}
	return w
}

// diff returns by how much a sum changes where a word is replaced by another.
// Several such numbers, of the same or of other words, may be added up.
func diff(old, repl uint16) uint32 { return uint32(^old) + uint32(repl) }

// update returns a checksum after changes to what it covers (RFC 1624,
// equation 3).
func update(csum uint16, diff uint32) uint16 {
	s := uint32(^csum) + diff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return ^uint16(s)
}
