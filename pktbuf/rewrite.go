package pktbuf

import (
	"encoding/binary"
	"net/netip"
)

// Protocols whose checksum covers the addresses but is not kept up here.
const (
	protoDCCP    = 33
	protoUDPLite = 136
)

// SetSrc sets the source address, which must be of the packet's IP version.
// Checksums are right afterwards; after an error the packet is as it was. The
// same holds for all of these setters.
func (v *View) SetSrc(a netip.Addr) error { return v.setAddr(a, 12, 8, hasAltSrc) }

// SetDst sets the destination address.
func (v *View) SetDst(a netip.Addr) error { return v.setAddr(a, 16, 24, hasAltDst) }

// setAddr sets an address at its offset in an IPv4 or IPv6 header. alt is the
// bit that says that the pseudo-header takes another address for it.
func (v *View) setAddr(a netip.Addr, at4, at6 int, alt uint16) error {
	if err := v.checkChange(); err != nil {
		return err
	}
	if v.proto == protoDCCP || v.proto == protoUDPLite {
		return ErrProto
	}
	at, size := int(v.l3)+at4, 4
	b := a.As16() // an IPv4 address stands at its end
	switch {
	case v.state&hasIPv4 != 0 && a.Is4():
	case v.state&hasIPv6 != 0 && a.Is6() && a.Zone() == "":
		at, size = int(v.l3)+at6, 16
	default:
		return ErrProto
	}
	v.finish()
	d := v.put(at, b[16-size:])
	if size == 4 {
		v.patchHeader(d)
	}
	if v.state&(alt|hasICMP) == 0 {
		v.patchTransport(d)
	}
	return nil
}

// SetSrcPort sets the source port of TCP and UDP.
func (v *View) SetSrcPort(port uint16) error { return v.setPort(port, 0) }

// SetDstPort sets the destination port of TCP and UDP.
func (v *View) SetDstPort(port uint16) error { return v.setPort(port, 2) }

func (v *View) setPort(port uint16, at int) error {
	if v.state&(hasTCP|hasUDP) == 0 {
		return ErrProto
	}
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	v.patchTransport(v.put16(int(v.l4)+at, port))
	return nil
}

// SetTTL sets the TTL of IPv4 or the hop limit of IPv6.
func (v *View) SetTTL(ttl uint8) error {
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	if v.state&hasIPv6 != 0 {
		v.pkt[v.l3+7] = ttl
		v.flags |= flagChanged
		return nil
	}
	at := int(v.l3) + 8
	word := uint16(ttl)<<8 | uint16(v.pkt[at+1])
	v.patchHeader(v.put16(at, word))
	return nil
}

// TTL returns the TTL of IPv4 or the hop limit of IPv6, 0 before Parse.
func (v *View) TTL() uint8 {
	switch {
	case v.state&hasIPv4 != 0:
		return v.IPv4().TTL()
	case v.state&hasIPv6 != 0:
		return v.IPv6().HopLimit()
	}
	return 0
}

// DecrementTTL takes one off the TTL or hop limit as a router does: a packet
// that arrived with 1 or 0 must not go on and gets ErrExpired (RFC 1812 section
// 5.3.1, RFC 8200 section 3).
func (v *View) DecrementTTL() error {
	if v.state&parsed == 0 {
		return ErrProto
	}
	ttl := v.TTL()
	if ttl <= 1 {
		return ErrExpired
	}
	return v.SetTTL(ttl - 1)
}

// SetDSCP sets the differentiated services code point, 0 to 63.
func (v *View) SetDSCP(dscp uint8) error { return v.setClass(dscp, 2, 0x3f) }

// SetECN sets the congestion notification bits, 0 to 3.
func (v *View) SetECN(ecn uint8) error { return v.setClass(ecn, 0, 3) }

func (v *View) setClass(value uint8, shift int, limit uint8) error {
	if value > limit {
		return ErrRange
	}
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	at, up := int(v.l3), 0
	if v.state&hasIPv6 != 0 {
		up = 4 // the traffic class stands across two bytes
	}
	word := binary.BigEndian.Uint16(v.pkt[at:])
	word &^= uint16(limit) << (shift + up)
	word |= uint16(value) << (shift + up)
	if d := v.put16(at, word); v.state&hasIPv4 != 0 {
		v.patchHeader(d)
	}
	return nil
}

// Complete completes an unfinished checksum, and does nothing where it is
// finished. Every change does this by itself.
func (v *View) Complete() error {
	if v.flags&flagUnfinished == 0 {
		return nil
	}
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	return nil
}

// checkHeaders returns why the headers cannot be changed.
func (v *View) checkHeaders() error {
	switch {
	case v.state&parsed == 0:
		return ErrProto
	case v.flags&flagCut != 0:
		return ErrShort
	case int(v.pay) > v.WritableLen():
		return ErrShared
	}
	return nil
}

// checkChange is checkHeaders with the unfinished checksum's conditions.
func (v *View) checkChange() error {
	if err := v.checkHeaders(); err != nil {
		return err
	}
	return v.checkUnfinished()
}

// put writes b at an even offset of a header and returns what that changes in
// sums.
func (v *View) put(at int, b []byte) uint32 {
	p := v.pkt[at : at+len(b)]
	d := diff(word(sum(p, 0), 0), word(sum(b, 0), 0))
	copy(p, b)
	v.flags |= flagChanged
	return d
}

// put16 is put for one word.
func (v *View) put16(at int, word uint16) uint32 {
	p := v.pkt[at : at+2]
	old := binary.BigEndian.Uint16(p)
	binary.BigEndian.PutUint16(p, word)
	v.flags |= flagChanged
	return diff(old, word)
}

// patchHeader updates the IPv4 header checksum.
func (v *View) patchHeader(diff uint32) {
	p := v.pkt[v.l3+10 : v.l3+12]
	binary.BigEndian.PutUint16(p, update(binary.BigEndian.Uint16(p), diff))
}
