package pktbuf

import "encoding/binary"

// ReplacePayload replaces n bytes at an offset of the TCP or UDP payload by rep,
// which may be shorter or longer and must not lie in the packet's own memory.
// Lengths and checksums are right afterwards; a UDP packet without a checksum
// stays without. After an error the packet is as it was.
//
// When the length of a TCP payload changes, later sequence numbers of the
// connection have to be adjusted, which is not done here.
func (v *View) ReplacePayload(off, n int, rep []byte) error {
	if v.kind != kindTCP && v.kind != kindUDP {
		return ErrProto
	}
	if off < 0 || n < 0 || off > v.PayloadLen()-n {
		return ErrRange
	}
	return v.splice(int(v.pay)+off, n, rep)
}

// splice replaces n bytes at an offset of the packet behind the IP headers.
func (v *View) splice(at, n int, rep []byte) error {
	delta := len(rep) - n
	if err := v.checkSplice(at+n, delta); err != nil {
		return err
	}
	if delta > 0 && !v.makeRoom(delta) {
		return ErrNoRoom
	}
	if v.flags&flagUnfinished != 0 && v.csumOffset() != 0 {
		v.complete()
	}
	v.moveTail(at, n, rep)
	v.flags |= flagChanged
	return nil
}

// checkSplice returns why a change of length by delta that ends at an offset is
// not possible, before anything is written.
func (v *View) checkSplice(to, delta int) error {
	switch {
	case v.flags&flagCut != 0:
		return ErrShort
	case v.flags&(flagMore|flagLater) != 0 && (delta != 0 || v.flags&flagUnfinished != 0):
		return ErrFragment
	case v.ipLength()+delta > ipMaxLen:
		return ErrTooLong
	}
	if delta != 0 {
		to = int(v.end)
	}
	if to > v.WritableLen() {
		return ErrShared
	}
	return nil
}

// ipLength returns the value of the IP header's length field.
func (v *View) ipLength() int {
	if v.ver == 4 {
		return int(v.end - v.l3)
	}
	return int(v.end-v.l3) - ipv6Len
}

// WritableLen returns how many bytes from the packet's start may be written
// without another holder seeing it.
func (v *View) WritableLen() int {
	if v.flags&flagShared != 0 {
		return int(v.wlen)
	}
	return len(v.pkt)
}

// makeRoom sees to it that the packet can grow: behind it, or in room. Padding
// is overwritten.
func (v *View) makeRoom(delta int) bool {
	want := int(v.end) + delta
	if want <= cap(v.pkt) {
		return true
	}
	if want > cap(v.room) {
		return false
	}
	moved := v.room[:v.end]
	copy(moved, v.pkt)
	v.pkt, v.room, v.front = moved, nil, nil
	return true
}

// moveTail does what splice has checked.
func (v *View) moveTail(at, n int, rep []byte) {
	delta := len(rep) - n
	end := int(v.end)
	behind := at + n
	covered := int(v.l4) + v.transportLen()
	odd := at - int(v.l4)
	old := uint64(sumAt(v.pkt[at:behind], odd))
	repl := uint64(sumAt(rep, odd))
	if delta&1 != 0 {
		// Every byte behind changes its place in its 16-bit word.
		rest := v.pkt[behind:covered]
		old += uint64(sumAt(rest, odd+n))
		repl += uint64(sumAt(rest, odd+len(rep)))
	}
	if delta != 0 {
		v.pkt = v.pkt[:end+max(delta, 0)]
		copy(v.pkt[behind+delta:], v.pkt[behind:end])
		v.pkt = v.pkt[:end+delta]
		o, r := v.setLengths(delta)
		old, repl = old+o, repl+r
	}
	copy(v.pkt[at:], rep)
	v.patchTransport(fold(old), fold(repl))
}

// setLengths changes all length fields by delta, with the IPv4 header checksum,
// and returns the sums of the words that the transport checksum covers, before
// and after.
func (v *View) setLengths(delta int) (old, repl uint64) {
	was := uint64(v.transportLen())
	v.end += int32(delta)
	v.payEnd += int32(delta)
	h := v.pkt[v.l3:]
	length := uint16(v.ipLength())
	if v.ver == 4 {
		csum := update(binary.BigEndian.Uint16(h[10:]), binary.BigEndian.Uint16(h[2:]), length)
		binary.BigEndian.PutUint16(h[2:], length)
		binary.BigEndian.PutUint16(h[10:], csum)
	} else {
		binary.BigEndian.PutUint16(h[4:], length)
	}
	if v.kind == kindICMP {
		return 0, 0
	}
	is := uint64(v.transportLen())
	if v.kind != kindUDP {
		return was, is
	}
	// UDP's length stands in the pseudo-header and in its own.
	binary.BigEndian.PutUint16(v.pkt[v.l4+4:], uint16(is))
	return 2 * was, 2 * is
}
