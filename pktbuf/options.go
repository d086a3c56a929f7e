package pktbuf

import "encoding/binary"

// TCP option kinds (IANA, RFC 9293, RFC 7323, RFC 2018).
const (
	TCPOptEnd           = 0
	TCPOptNop           = 1
	TCPOptMSS           = 2
	TCPOptWindowScale   = 3
	TCPOptSACKPermitted = 4
	TCPOptSACK          = 5
	TCPOptTimestamps    = 8
)

// Options is the options part of an IPv4 or TCP header.
type Options []byte

// Next returns the option at an offset, with kind and length in front of its
// data, and the offset of the one behind it. It skips padding, and returns nil
// at the end of the options and at one whose length is wrong.
func (o Options) Next(at int) (opt []byte, next int) {
	for at >= 0 && at < len(o) {
		switch o[at] {
		case TCPOptEnd:
			return nil, len(o)
		case TCPOptNop:
			at++
			continue
		}
		if at+2 > len(o) || o[at+1] < 2 || at+int(o[at+1]) > len(o) {
			return nil, len(o)
		}
		next = at + int(o[at+1])
		return o[at:next], next
	}
	return nil, len(o)
}

// Find returns the first option of a kind, kind and length included, or nil.
func (o Options) Find(kind uint8) []byte {
	for opt, next := o.Next(0); opt != nil; opt, next = o.Next(next) {
		if opt[0] == kind {
			return opt
		}
	}
	return nil
}

// Valid reports whether the options can be walked to their end.
func (o Options) Valid() bool {
	for at := 0; at < len(o); {
		switch {
		case o[at] == TCPOptEnd:
			return true
		case o[at] == TCPOptNop:
			at++
		case at+2 > len(o) || o[at+1] < 2 || at+int(o[at+1]) > len(o):
			return false
		default:
			at += int(o[at+1])
		}
	}
	return true
}

// used returns the length without the padding at the end.
func (o Options) used() int {
	end := 0
	for opt, next := o.Next(0); opt != nil; opt, next = o.Next(next) {
		end = next
	}
	return end
}

// MSS returns the maximum segment size option.
func (t TCP) MSS() (mss uint16, ok bool) {
	if o := t.Options().Find(TCPOptMSS); len(o) == 4 {
		return binary.BigEndian.Uint16(o[2:]), true
	}
	return 0, false
}

// WindowScale returns the shift count of the window scale option.
func (t TCP) WindowScale() (shift uint8, ok bool) {
	if o := t.Options().Find(TCPOptWindowScale); len(o) == 3 {
		return o[2], true
	}
	return 0, false
}

// SACKPermitted reports whether the option of that name is there.
func (t TCP) SACKPermitted() bool { return len(t.Options().Find(TCPOptSACKPermitted)) == 2 }

// SACK returns block i of the selective acknowledgement option: the first
// sequence number in it and the first behind it.
func (t TCP) SACK(i int) (left, right uint32, ok bool) {
	o := t.Options().Find(TCPOptSACK)
	if i < 0 || i > 3 || len(o) < 2+8*(i+1) {
		return 0, 0, false
	}
	o = o[2+8*i:]
	return binary.BigEndian.Uint32(o), binary.BigEndian.Uint32(o[4:]), true
}

// Timestamps returns the value and the echo reply of the timestamps option.
func (t TCP) Timestamps() (value, echo uint32, ok bool) {
	if o := t.Options().Find(TCPOptTimestamps); len(o) == 10 {
		return binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:]), true
	}
	return 0, 0, false
}

// ClampMSS lowers the maximum segment size of a TCP SYN to limit. Packets that
// are none, have none, or have a lower one are left as they are.
func (v *View) ClampMSS(limit uint16) error {
	t := v.TCP()
	if t == nil {
		return ErrProto
	}
	o := t.Options().Find(TCPOptMSS)
	if t.Flags()&FlagSYN == 0 || len(o) != 4 || binary.BigEndian.Uint16(o[2:]) <= limit {
		return nil
	}
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	// The option may stand at an odd offset: the sum over all of the header
	// costs less than minding that.
	old := word(sum(t, 0), 0)
	binary.BigEndian.PutUint16(o[2:], limit)
	v.flags |= flagChanged
	v.patchTransport(diff(old, word(sum(t, 0), 0)))
	return nil
}

// StripTCPOption overwrites every option of a kind with no-operations; the
// header keeps its length. ErrRange for the kinds that are padding.
func (v *View) StripTCPOption(kind uint8) error {
	t := v.TCP()
	switch {
	case t == nil:
		return ErrProto
	case kind == TCPOptEnd || kind == TCPOptNop:
		return ErrRange
	case t.Options().Find(kind) == nil:
		return nil
	}
	if err := v.checkChange(); err != nil {
		return err
	}
	v.finish()
	old := word(sum(t, 0), 0)
	o := t.Options()
	for opt := o.Find(kind); opt != nil; opt = o.Find(kind) {
		for i := range opt {
			opt[i] = TCPOptNop
		}
	}
	v.flags |= flagChanged
	v.patchTransport(diff(old, word(sum(t, 0), 0)))
	return nil
}

const maxTCPOptions = 40

// AddTCPOption adds an option behind those there are, padded to four bytes. The
// header grows where its padding does not suffice, which needs room like any
// growth. ErrTooLong where the header would exceed 60 bytes.
func (v *View) AddTCPOption(kind uint8, data []byte) error {
	t := v.TCP()
	switch {
	case t == nil:
		return ErrProto
	case kind == TCPOptEnd || kind == TCPOptNop || !t.Options().Valid():
		return ErrRange
	}
	used := t.Options().used()
	size := (used + 2 + len(data) + 3) &^ 3
	if size > maxTCPOptions {
		return ErrTooLong
	}
	size = max(size, len(t.Options()))
	var tail [maxTCPOptions]byte // zeros: end of options
	tail[0], tail[1] = kind, uint8(2+len(data))
	copy(tail[2:], data)
	at := int(v.l4) + tcpLen + used
	if err := v.splice(at, len(t)-tcpLen-used, tail[:size-used]); err != nil {
		return err
	}
	v.pay = v.l4 + tcpLen + uint16(size)
	word := uint16(tcpLen+size)<<10 | binary.BigEndian.Uint16(v.pkt[v.l4+12:])&0x0fff
	v.patchTransport(v.put16(int(v.l4)+12, word))
	return nil
}
