package pktbuf

import "errors"

// The errors of this package. They are compared with errors.Is or ==; none is
// ever wrapped, because they are returned on the packet path.
var (
	// ErrShort says that bytes are missing: the packet ends before a header or
	// a length in it does.
	ErrShort = errors.New("pktbuf: packet is cut short")
	// ErrLength says that lengths in the packet contradict each other or are
	// below the least their protocol allows.
	ErrLength = errors.New("pktbuf: lengths contradict each other")
	// ErrProto says that the packet is not of a protocol that the call is for.
	ErrProto = errors.New("pktbuf: protocol does not fit")
	// ErrFragment says that a fragment does not allow the change.
	ErrFragment = errors.New("pktbuf: not possible in a fragment")
	// ErrTooLong says that a length field cannot hold the packet's length.
	ErrTooLong = errors.New("pktbuf: packet too long")
	// ErrRange says that an offset, a length or a value is out of its range.
	ErrRange = errors.New("pktbuf: out of range")
	// ErrNoRoom says that the packet, grown or copied, does not fit its memory.
	ErrNoRoom = errors.New("pktbuf: no room")
	// ErrShared says that bytes which other holders see would be written; make
	// them writable first.
	ErrShared = errors.New("pktbuf: bytes are shared")
	// ErrHeaders says that the IPv6 extension headers are more than the budget
	// or stand in an order that RFC 8200 forbids.
	ErrHeaders = errors.New("pktbuf: extension headers refused")
	// ErrExpired says that a TTL or hop limit is used up.
	ErrExpired = errors.New("pktbuf: hop limit is used up")
)
