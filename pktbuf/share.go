package pktbuf

// Clone makes dst a second holder of the packet. The payload is shared: neither
// holder may write it any more without MakeWritable.
//
// With memory for the headers, at least HeaderLen bytes, dst gets its own copy
// of them and v keeps its own, so both can go on rewriting headers in place
// (this needs Parse to have succeeded). With nil all bytes are shared, and the
// first write of either holder needs MakeWritable.
//
// A clone has no room, no headroom and its own Changed. Clones may be cloned.
func (v *View) Clone(dst *View, head []byte) error {
	own := 0
	if head != nil {
		if v.state&parsed == 0 {
			return ErrProto
		}
		own = int(v.pay)
		if v.flags&flagSplit != 0 {
			own = len(v.pkt)
		}
		if len(head) < own {
			return ErrNoRoom
		}
	}
	*dst = *v
	dst.flags = dst.flags&^(flagRoom|flagFront) | flagShared
	dst.wlen = uint32(own)
	if head == nil {
		dst.pkt = v.pkt[:len(v.pkt):len(v.pkt)]
	} else {
		dst.pkt = head[:copy(head, v.pkt[:own])]
		if v.flags&flagSplit == 0 {
			dst.tail = v.pkt[own:]
			dst.flags |= flagSplit
		}
	}
	v.wlen = uint32(min(own, v.WritableLen()))
	v.flags |= flagShared
	return nil
}

// WritableLen returns how many bytes from the packet's start may be written
// without another holder seeing it.
func (v *View) WritableLen() int {
	if v.flags&flagShared != 0 {
		return int(v.wlen)
	}
	return len(v.pkt)
}

// MakeWritable makes the first n bytes writable. It does nothing where they are
// already; otherwise it copies them to mem, which then belongs to the view, and
// goes on sharing the rest. Headers are copied to the end of the last one, so
// that they stay in one piece; a packet that has not been parsed is copied
// whole. After an error nothing has changed.
//
// Once all bytes are writable, what is left of mem is room to grow.
func (v *View) MakeWritable(n int, mem []byte) error {
	if n < 0 || n > v.Len() {
		return ErrRange
	}
	if n <= v.WritableLen() {
		return nil
	}
	switch {
	case v.state&parsed == 0:
		n = v.Len()
	case v.flags&flagSplit != 0:
		n = max(n, len(v.pkt))
	default:
		n = max(n, int(v.pay))
	}
	if len(mem) < n {
		return ErrNoRoom
	}
	front := copy(mem[:n], v.pkt)
	if v.flags&flagSplit != 0 {
		copy(mem[front:n], v.tail)
		v.tail = v.tail[n-front:]
	} else {
		v.tail = v.pkt[n:]
	}
	v.pkt = mem[:n]
	v.wlen = uint32(n)
	v.flags = v.flags&^(flagRoom|flagFront) | flagShared | flagSplit
	if len(v.tail) == 0 {
		v.flags &^= flagShared | flagSplit
	}
	return nil
}

// Move copies the packet to mem, behind headroom bytes that stay free for
// Frame, so that the memory it was received in can be used again. What is left
// of mem is room to grow. mem must not overlap the packet, which has not changed
// after an error.
func (v *View) Move(mem []byte, headroom int) error {
	n := v.Len()
	if headroom < 0 || len(mem)-headroom < n {
		return ErrNoRoom
	}
	was := v.flags
	v.flags = was &^ (flagRoom | flagShared | flagSplit | flagFront)
	if headroom != 0 {
		v.front = mem[:headroom]
		v.flags |= flagFront
		mem = mem[headroom:]
	}
	// Copying comes last: then nothing has to be kept across the call.
	p := v.pkt
	v.pkt = mem[:n]
	if was&flagSplit != 0 {
		copy(mem[len(p):n], v.tail)
	}
	copy(mem, p)
	return nil
}

// Writable returns the first n bytes for the caller to write into, and marks
// the packet changed. Neither lengths nor checksums follow; call Parse again
// after writing what it reads.
func (v *View) Writable(n int) ([]byte, error) {
	if n < 0 || n > v.Len() {
		return nil, ErrRange
	}
	if n > v.WritableLen() {
		return nil, ErrShared
	}
	v.flags |= flagChanged
	return v.pkt[:n], nil
}

// Room returns by how many bytes the packet can grow.
func (v *View) Room() int {
	if v.WritableLen() < v.Len() {
		return 0
	}
	room := cap(v.pkt)
	if v.flags&flagRoom != 0 {
		room = max(room, len(v.room))
	}
	return max(0, room-v.ipEnd())
}

// ipEnd returns where the IP packet ends; padding behind it may be written over.
func (v *View) ipEnd() int {
	if v.state&parsed == 0 {
		return v.Len()
	}
	return int(v.end)
}
