package pktbuf

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// crcTable is for SCTP, whose checksum is the CRC32c (RFC 9260 appendix A).
var crcTable = crc32.MakeTable(crc32.Castagnoli)

// crcZero stands for the checksum field; a local one would escape to the heap.
var crcZero [4]byte

// Checksum is the state of a packet's transport checksum.
type Checksum uint8

const (
	ChecksumUnknown    Checksum = iota // not covered here, or not all bytes are in the packet
	ChecksumGood                       // right
	ChecksumBad                        // wrong
	ChecksumNone                       // UDP sent without one
	ChecksumUnfinished                 // said to be so by SetUnfinished
)

// CheckHeader reports whether the IPv4 header checksum is right; IPv6 has none,
// which is right too.
func (v *View) CheckHeader() bool {
	switch {
	case v.state&hasIPv4 != 0:
		return fold(sum(v.IPv4(), 0)) == 0xffff
	case v.state&hasIPv6 != 0:
		return true
	}
	return false
}

// CheckTransport returns the state of the transport checksum.
func (v *View) CheckTransport() Checksum {
	at := v.csumOffset()
	switch {
	case v.flags&flagUnfinished != 0:
		return ChecksumUnfinished
	case at == 0 || v.IsFragment() || v.cutShort():
		return ChecksumUnknown
	case v.state&hasSCTP != 0:
		if v.crcGood() {
			return ChecksumGood
		}
		return ChecksumBad
	case v.state&hasUDP != 0 && v.UDP().Checksum() == 0:
		return ChecksumNone
	case v.transportSum() != 0xffff:
		return ChecksumBad
	}
	return ChecksumGood
}

// Recompute writes the IPv4 header checksum and the whole transport checksum,
// whatever they were. UDP over IPv4 without a checksum stays without.
func (v *View) Recompute() error {
	if err := v.checkHeaders(); err != nil {
		return err
	}
	at := v.csumOffset()
	if at != 0 && v.IsFragment() {
		return ErrFragment
	}
	if v.state&hasIPv4 != 0 {
		h := v.IPv4()
		binary.BigEndian.PutUint16(h[10:], 0)
		binary.BigEndian.PutUint16(h[10:], ^word(sum(h, 0), 0))
	}
	v.flags |= flagChanged
	if at == 0 || v.state&(hasUDP|hasIPv4) == hasUDP|hasIPv4 && v.UDP().Checksum() == 0 {
		return nil
	}
	v.complete(at)
	return nil
}

// cutShort reports whether bytes that the transport checksum covers are not in
// memory.
func (v *View) cutShort() bool {
	if v.flags&flagCut == 0 {
		return false
	}
	if v.state&hasUDP != 0 {
		return int(v.l4)+v.UDP().Length() > v.Len()
	}
	return v.ipLength() != v.lengthField()
}

// csumOffset returns the offset of the transport checksum in the packet, 0 if
// the protocol has none that the package knows or the packet does not hold it.
func (v *View) csumOffset() int {
	switch {
	case v.state&hasTCP != 0:
		return int(v.l4) + 16
	case v.state&hasUDP != 0:
		return int(v.l4) + 6
	case v.state&(hasICMP|hasICMPv6) != 0:
		return int(v.l4) + 2
	case v.state&hasSCTP != 0:
		return int(v.l4) + 8
	}
	return 0
}

// pseudoSum returns the sum of the pseudo-header for a transport length.
func (v *View) pseudoSum(n int) uint64 {
	if v.state&hasICMP != 0 {
		return 0
	}
	size, src, dst := 4, int(v.l3)+12, int(v.l3)+16
	if v.state&hasIPv6 != 0 {
		size, src, dst = 16, int(v.l3)+8, int(v.l3)+24
	}
	if v.state&hasAltSrc != 0 {
		src = int(v.src)
	}
	if v.state&hasAltDst != 0 {
		dst = int(v.dst)
	}
	acc := sum(v.pkt[src:src+size], 0)
	acc = sum(v.pkt[dst:dst+size], acc)
	return add(acc, uint64(bits.ReverseBytes16(uint16(n)))+uint64(v.proto)<<8)
}

// transportLen returns the length that the transport checksum covers.
func (v *View) transportLen() int {
	if v.state&hasUDP != 0 {
		return v.payloadEnd() - int(v.l4)
	}
	return int(v.end) - int(v.l4)
}

// transportSum returns the folded sum over pseudo-header, transport header and
// payload, checksum field included, in the byte order of sum. It is 0xffff where
// the checksum is right.
func (v *View) transportSum() uint16 {
	n := v.transportLen()
	acc := v.pseudoSum(n)
	end := int(v.l4) + n
	if end <= len(v.pkt) {
		return fold(sum(v.pkt[v.l4:end], acc))
	}
	acc = sum(v.pkt[v.l4:], acc)
	rest := fold(sum(v.tail[:end-len(v.pkt)], 0))
	if (len(v.pkt)-int(v.l4))&1 != 0 {
		rest = bits.ReverseBytes16(rest)
	}
	return fold(add(acc, uint64(rest)))
}

// crc returns the CRC32c of an SCTP packet, its checksum field taken as 0.
func (v *View) crc() uint32 {
	at := int(v.l4) + 8
	c := crc32.Update(0, crcTable, v.pkt[v.l4:at])
	c = crc32.Update(c, crcTable, crcZero[:])
	end := int(v.end)
	c = crc32.Update(c, crcTable, v.pkt[at+4:min(end, len(v.pkt))])
	if end > len(v.pkt) {
		c = crc32.Update(c, crcTable, v.tail[:end-len(v.pkt)])
	}
	return c
}

// crcGood reports whether this is an SCTP packet whose checksum is right.
func (v *View) crcGood() bool {
	return v.state&hasSCTP != 0 && binary.LittleEndian.Uint32(v.pkt[v.csumOffset():]) == v.crc()
}

// putChecksum writes a transport checksum. A UDP checksum of 0 would say that
// there is none, so its other form is sent (RFC 768, RFC 8200 section 8.1).
func (v *View) putChecksum(at int, csum uint16) {
	if csum == 0 && v.state&hasUDP != 0 {
		csum = 0xffff
	}
	binary.BigEndian.PutUint16(v.pkt[at:], csum)
}

// complete writes the whole transport checksum. The caller has checked that the
// field is writable and that the packet is whole.
func (v *View) complete(at int) {
	v.flags = v.flags&^flagUnfinished | flagChanged
	if v.state&hasSCTP != 0 {
		binary.LittleEndian.PutUint32(v.pkt[at:], v.crc())
		return
	}
	binary.BigEndian.PutUint16(v.pkt[at:], 0)
	v.putChecksum(at, ^bits.ReverseBytes16(v.transportSum()))
}

// patchTransport updates the transport checksum after changes to what it covers.
// Packets without a checksum stay without: RFC 768 allows that in IPv4, RFC 6935
// in IPv6 tunnels. SCTP's checksum is no sum.
func (v *View) patchTransport(diff uint32) {
	at := v.csumOffset()
	if at == 0 || v.state&hasSCTP != 0 {
		return
	}
	csum := binary.BigEndian.Uint16(v.pkt[at:])
	if csum == 0 && v.state&hasUDP != 0 {
		return
	}
	csum = update(csum, diff)
	v.putChecksum(at, csum)
	// Without a pseudo-header, what ICMP's checksum covers can be all zeros. Only
	// then is the sum 0 and not 0xffff, which an update cannot tell apart.
	if csum == 0 && v.state&(hasICMP|moreFollow) == hasICMP && v.transportSum() == 0 {
		v.putChecksum(at, 0xffff)
	}
}
