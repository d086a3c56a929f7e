package pktbuf

// Reserve says that front is free memory which ends where the packet starts, as
// the bytes of the message do that the packet was received in. It is ErrRange
// when the two do not meet. The packet keeps its headroom until it moves.
func (v *View) Reserve(front []byte) error {
	n := len(front)
	if n == cap(front) || len(v.pkt) == 0 || &front[:n+1][n] != &v.pkt[0] {
		return ErrRange
	}
	v.front = front
	v.flags |= flagFront
	return nil
}

// Headroom returns how many bytes in front of the packet Frame can give.
func (v *View) Headroom() int {
	if v.flags&flagFront == 0 {
		return 0
	}
	return len(v.front)
}

// Frame returns n bytes of headroom and the packet behind them as one slice, so
// that a message can be laid around the packet in place. The packet must be in
// one piece; ErrNoRoom where it is not, or the headroom is less than n.
func (v *View) Frame(n int) ([]byte, error) {
	if n < 0 || n > v.Headroom() || v.flags&flagSplit != 0 {
		return nil, ErrNoRoom
	}
	end := len(v.front) + len(v.pkt)
	if end > cap(v.front) {
		return nil, ErrNoRoom
	}
	return v.front[len(v.front)-n : end], nil
}

// AppendPieces appends the packet to an iovec: header, where it is not empty,
// the view's own bytes, and the shared rest where there is one. It allocates
// only where dst has no capacity for three.
func (v *View) AppendPieces(dst [][]byte, header []byte) [][]byte {
	if len(header) != 0 {
		dst = append(dst, header)
	}
	dst = append(dst, v.pkt)
	if v.flags&flagSplit != 0 {
		dst = append(dst, v.tail)
	}
	return dst
}

// PayloadRest returns what Payload lacks in a view that is split: the payload's
// shared rest, which must not be written.
func (v *View) PayloadRest() []byte {
	if v.flags&flagSplit == 0 || v.state&parsed == 0 {
		return nil
	}
	front := len(v.pkt)
	from := max(0, int(v.pay)-front)
	to := max(from, v.payloadEnd()-front)
	return v.tail[from:to]
}
