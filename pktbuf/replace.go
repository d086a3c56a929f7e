package pktbuf

import "math/bits"

// ReplacePayload replaces n bytes at an offset of the payload by rep, which may
// be shorter or longer and must not lie in the packet's own memory. The payload
// is what Payload returns: that of TCP, UDP, ICMP and SCTP, or of IP itself for
// other protocols. Lengths and checksums are right afterwards; a checksum that
// was wrong stays wrong, and a UDP packet without one stays without. After an
// error the packet is as it was.
//
// In a first fragment the length must stay the same; later fragments are
// refused, their checksum being in the first.
//
// When the length of a TCP payload changes, later sequence numbers of the
// connection have to be adjusted, which is not done here.
func (v *View) ReplacePayload(off, n int, rep []byte) error {
	if v.state&parsed == 0 {
		return ErrProto
	}
	if off < 0 || n < 0 || off > v.PayloadLen()-n {
		return ErrRange
	}
	return v.splice(int(v.pay)+off, n, rep)
}

// Append adds b to the end of the payload, as ReplacePayload does.
func (v *View) Append(b []byte) error {
	return v.ReplacePayload(v.PayloadLen(), 0, b)
}

// Trim takes n bytes off the end of the payload, as ReplacePayload does.
func (v *View) Trim(n int) error {
	return v.ReplacePayload(v.PayloadLen()-n, n, nil)
}

// Replace replaces n bytes at an offset of the packet, whatever they are. It
// follows up neither lengths nor checksums, and Parse has to be called again.
// After an error the packet is as it was.
func (v *View) Replace(off, n int, rep []byte) error {
	size := v.Len()
	if off < 0 || n < 0 || off > size-n {
		return ErrRange
	}
	delta := len(rep) - n
	need := off + n
	if delta != 0 {
		need = size
	}
	if need > v.WritableLen() {
		return ErrShared
	}
	if delta > 0 && !v.makeRoom(size, delta) {
		return ErrNoRoom
	}
	v.shift(off, n, rep, size)
	v.state = 0
	v.flags |= flagChanged
	return nil
}

// splice replaces n bytes at an offset of the packet behind the IP headers.
func (v *View) splice(at, n int, rep []byte) error {
	delta := len(rep) - n
	// Most packets are whole, private, finished, and have no CRC to keep.
	special := v.flags&(flagCut|flagShared|flagUnfinished) != 0 || v.state&(laterPart|moreFollow|hasSCTP) != 0
	if special {
		if err := v.checkSplice(at+n, delta); err != nil {
			return err
		}
	}
	if delta > 0 {
		if v.ipLength()+delta > ipMaxLen {
			return ErrTooLong
		}
		if !v.makeRoom(int(v.end), delta) {
			return ErrNoRoom
		}
	}
	good := false
	if special {
		v.finish()
		good = v.crcGood()
	}
	v.flags |= flagChanged
	end := int(v.end)
	behind := at + n
	odd := at - int(v.l4)
	d := uint32(word(add(sum(rep, 0), ^sum(v.pkt[at:behind], 0)), odd))
	if delta&1 != 0 {
		// Every byte behind changes its place in its word: the sum's bytes swap.
		rest := word(sum(v.pkt[behind:int(v.l4)+v.transportLen()], 0), odd+n)
		d += diff(rest, bits.ReverseBytes16(rest))
	}
	v.shift(at, n, rep, end)
	if delta != 0 {
		d += v.setLengths(delta)
	}
	v.patchTransport(d)
	if good {
		v.complete(v.csumOffset())
	}
	return nil
}

// checkSplice returns why a change of length by delta that ends at an offset is
// not possible, before anything is written.
func (v *View) checkSplice(to, delta int) error {
	switch {
	case v.flags&flagCut != 0:
		return ErrShort
	case v.state&laterPart != 0 || v.state&moreFollow != 0 && (delta != 0 || v.state&hasSCTP != 0):
		return ErrFragment
	}
	if delta != 0 {
		to = v.Len()
	}
	if to > v.WritableLen() {
		return ErrShared
	}
	return v.checkUnfinished()
}

// checkUnfinished returns why an unfinished checksum cannot be completed.
func (v *View) checkUnfinished() error {
	switch at := v.csumOffset(); {
	case v.flags&flagUnfinished == 0:
		return nil
	case v.IsFragment():
		return ErrFragment
	case at == 0 || v.state&hasUDP != 0 && v.UDP().Checksum() == 0:
		// The sum that is not there must be one further in, behind a tunnel's
		// header, and none that the package could find.
		return ErrProto
	}
	return nil
}

// finish completes an unfinished checksum before the first change, so that all
// changes may go on from a right one.
func (v *View) finish() {
	if v.flags&flagUnfinished != 0 {
		v.complete(v.csumOffset())
	}
}

// ipLength returns the length of the IP packet as its header's length field
// counts it.
func (v *View) ipLength() int {
	if v.state&hasIPv4 != 0 {
		return int(v.end) - int(v.l3)
	}
	return int(v.end) - int(v.l3) - ipv6Len
}

// lengthField returns the IP header's length field.
func (v *View) lengthField() int {
	if v.state&hasIPv4 != 0 {
		return v.IPv4().TotalLength()
	}
	return v.IPv6().PayloadLength()
}

// makeRoom sees to it that the packet can grow beyond end: behind it, or in
// room. Padding is overwritten.
func (v *View) makeRoom(end, delta int) bool {
	if end+delta <= cap(v.pkt) {
		return true
	}
	if v.flags&flagRoom == 0 || end+delta > len(v.room) {
		return false
	}
	moved := v.room[:end]
	copy(moved, v.pkt)
	v.pkt = moved
	v.flags &^= flagRoom | flagFront
	return true
}

// shift writes rep over n bytes and moves what follows, up to end. Where the
// length changes, end becomes the end of the packet and padding is gone; the
// caller has checked that nothing of the packet is shared then.
func (v *View) shift(at, n int, rep []byte, end int) {
	if delta := len(rep) - n; delta != 0 {
		p := v.pkt[:max(end, end+delta)]
		copy(p[at+len(rep):], p[at+n:end])
		v.pkt = p[:end+delta]
		v.flags &^= flagShared | flagSplit
	}
	copy(v.pkt[at:], rep)
}

// setLengths changes all length fields by delta, with the IPv4 header checksum,
// and returns what that changes in the transport checksum's sum.
func (v *View) setLengths(delta int) uint32 {
	n := v.transportLen()
	was, is := uint16(n), uint16(n+delta)
	v.end += uint32(delta)
	v.payEnd += uint32(delta)
	length := uint16(v.ipLength())
	if v.state&hasIPv4 != 0 {
		v.patchHeader(v.put16(int(v.l3)+2, length))
	} else {
		v.put16(int(v.l3)+4, length)
	}
	switch {
	case v.state&hasUDP != 0:
		// UDP's length stands in the pseudo-header and in its own.
		v.put16(int(v.l4)+4, is)
		return 2 * diff(was, is)
	case v.state&hasICMP != 0:
		return 0
	}
	return diff(was, is)
}
