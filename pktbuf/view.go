package pktbuf

// Family says what a packet's memory starts with.
type Family uint8

const (
	IPv4   Family = iota + 1 // an IPv4 header
	IPv6                     // an IPv6 header
	Bridge                   // an Ethernet header with up to two VLAN tags
)

// Protocol numbers that the package looks into.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// What Parse has found, in View.state.
const (
	hasIPv4 = 1 << iota // proto, l3, l4, pay and end are set
	hasIPv6             // the same
	hasTCP              // the whole header, as with the others
	hasUDP
	hasICMP
	hasICMPv6
	hasSCTP
	hasPorts   // ports stand at l4
	hasFrag    // an IPv6 fragment header stands at frag
	hasAltSrc  // the pseudo-header takes the source from src
	hasAltDst  // the pseudo-header takes the destination from dst
	moreFollow // a fragment, and not the last
	laterPart  // a fragment without the transport header
	hasTrailer // the payload ends at payEnd, before the packet does
	parsed     // Parse has succeeded
)

// What the caller has said or done, in View.flags.
const (
	flagChanged    = 1 << iota // bytes differ from what was received
	flagUnfinished             // the transport checksum holds the pseudo-header sum only
	flagCut                    // memory ends before the packet does, and that is known
	flagShared                 // only wlen bytes may be written
	flagSplit                  // the packet goes on in tail
	flagRoom                   // there is room
	flagFront                  // front ends where pkt starts
)

// View is a packet in memory that the caller owns. The value too is the
// caller's: it has no pointers to itself and may be copied, but only one copy
// may go on to be changed (Clone makes independent ones). The zero View is
// empty; Init fills it, Parse looks into it.
//
// A view never allocates and never keeps anything but the slices it was given.
// It is for one goroutine at a time.
type View struct {
	pkt    []byte // the packet, or its front where it is split
	family Family
	flags  uint8
	state  uint16

	// Init leaves alone what is below: it holds nothing unless a bit of state
	// or flags says so. Clearing it would cost more than all the rest of Init.
	// What Parse finds stands side by side, so that constants become one store.
	proto  uint8
	l3     uint8  // offsets from the packet's start
	l4     uint16 // headers end below 64 KiB: the budget of Parse sees to that
	pay    uint16
	frag   uint16
	end    uint32 // of the IP packet, padding may follow
	payEnd uint32
	src    uint16
	dst    uint16
	wlen   uint32
	room   []byte // where the packet moves when pkt has no capacity left
	tail   []byte // never written
	front  []byte
}

// Init makes v a view over data, which holds one packet of the family from its
// first byte. Nothing is copied or looked at.
//
// The spare capacity of data is room for the packet to grow into; limit it with
// data[:n:n] where the bytes behind the packet are in use. When that is not
// enough, a growing packet moves to room, if it fits there; nil is no room. All
// three belong to the view until the caller is done with it.
func (v *View) Init(family Family, data, room []byte) error {
	if family-1 > Bridge-1 {
		return ErrProto
	}
	v.pkt = data
	v.family, v.flags, v.state = family, 0, 0
	if room != nil {
		v.room, v.flags = room, flagRoom
	}
	return nil
}

// InitCopy is Init over a copy of the packet in mem, so that the memory it was
// received in can be used again at once. What is left of mem is room to grow.
// It is ErrNoRoom when the packet does not fit.
func (v *View) InitCopy(family Family, data, mem []byte) error {
	if family-1 > Bridge-1 {
		return ErrProto
	}
	if len(mem) < len(data) {
		return ErrNoRoom
	}
	v.pkt = mem[:len(data)]
	v.family, v.flags, v.state = family, 0, 0
	copy(mem, data) // last: then nothing has to be kept across the call
	return nil
}

// SetUnfinished says that the transport checksum holds the sum of the
// pseudo-header only, as in packets made on this host and in super-packets
// (NFQA_SKB_INFO with CSUMNOTREADY). The first change completes it.
func (v *View) SetUnfinished() { v.flags |= flagUnfinished }

// SetCut says that the memory holds only the packet's start, as with a copy
// range or a capture length. Parse then accepts a length beyond the memory;
// what needs the missing bytes returns ErrShort.
func (v *View) SetCut() { v.flags |= flagCut }

// Family returns the family given to Init.
func (v *View) Family() Family { return v.family }

// Len returns the packet's length in bytes, with link header and padding.
func (v *View) Len() int {
	if v.flags&flagSplit != 0 {
		return len(v.pkt) + len(v.tail)
	}
	return len(v.pkt)
}

// Bytes returns the packet. Of a view whose rest is shared it is the front
// only, see AppendPieces.
func (v *View) Bytes() []byte { return v.pkt }

// Changed reports whether the packet differs from what Init was given, so that
// its bytes have to go back with the verdict.
func (v *View) Changed() bool { return v.flags&flagChanged != 0 }

// Unfinished reports whether the transport checksum still has to be completed.
func (v *View) Unfinished() bool { return v.flags&flagUnfinished != 0 }

// Cut reports whether SetCut was called.
func (v *View) Cut() bool { return v.flags&flagCut != 0 }

// Version returns the version of the IP header, 4 or 6, and 0 before Parse.
func (v *View) Version() int {
	switch {
	case v.state&hasIPv4 != 0:
		return 4
	case v.state&hasIPv6 != 0:
		return 6
	}
	return 0
}

// Proto returns the protocol behind the IP header and, in IPv6, behind the
// extension headers.
func (v *View) Proto() uint8 {
	if v.state&(hasIPv4|hasIPv6) == 0 {
		return 0
	}
	return v.proto
}

// HeaderLen returns the length of all headers in front of the payload.
func (v *View) HeaderLen() int {
	if v.state&(hasIPv4|hasIPv6) == 0 {
		return 0
	}
	return int(v.pay)
}

// Payload returns what follows the transport header, without padding; for
// protocols without a transport header known here, what follows the IP headers.
// Of a view that is split inside the payload it is the front only, see
// PayloadRest.
func (v *View) Payload() []byte {
	if v.state&parsed == 0 {
		return nil
	}
	return v.pkt[v.pay:min(v.payloadEnd(), len(v.pkt))]
}

// PayloadLen returns the payload's length in bytes.
func (v *View) PayloadLen() int {
	if v.state&parsed == 0 {
		return 0
	}
	return v.payloadEnd() - int(v.pay)
}

func (v *View) payloadEnd() int {
	if v.state&hasTrailer != 0 {
		return int(v.payEnd)
	}
	return int(v.end)
}

// Ethernet returns the link header of a Bridge view, nil in others.
func (v *View) Ethernet() Ethernet {
	if v.family != Bridge || v.state&(hasIPv4|hasIPv6) == 0 {
		return nil
	}
	return Ethernet(v.pkt[:v.l3])
}

// IPv4 returns the IPv4 header with its options, nil if there is none.
func (v *View) IPv4() IPv4Header {
	if v.state&hasIPv4 == 0 {
		return nil
	}
	return IPv4Header(v.pkt[v.l3:v.l4])
}

// IPv6 returns the IPv6 header without extension headers, nil if there is none.
func (v *View) IPv6() IPv6Header {
	if v.state&hasIPv6 == 0 {
		return nil
	}
	return IPv6Header(v.pkt[v.l3 : int(v.l3)+ipv6Len])
}

// TCP returns the TCP header with its options, nil if there is none.
func (v *View) TCP() TCP {
	if v.state&hasTCP == 0 {
		return nil
	}
	return TCP(v.pkt[v.l4:v.pay])
}

// UDP returns the UDP header, nil if there is none.
func (v *View) UDP() UDP {
	if v.state&hasUDP == 0 {
		return nil
	}
	return UDP(v.pkt[v.l4:v.pay])
}

// Transport returns the transport header and all that follows it in the IP
// packet, or what there is of both in one piece.
func (v *View) Transport() []byte {
	if v.state&parsed == 0 {
		return nil
	}
	return v.pkt[v.l4:min(int(v.end), len(v.pkt))]
}

// Fragment returns the place of this packet in a fragmented datagram: the
// offset in bytes and whether more follow. A whole packet has 0 and false.
func (v *View) Fragment() (offset int, more bool) {
	switch {
	case v.state&hasIPv4 != 0:
		offset = v.IPv4().FragmentOffset()
	case v.state&hasFrag != 0:
		offset = v.IPv6Fragment().Offset()
	}
	return offset, v.state&moreFollow != 0
}

// IsFragment reports whether the packet is a fragment of a datagram.
func (v *View) IsFragment() bool { return v.state&(moreFollow|laterPart) != 0 }

// IPv6Fragment returns the IPv6 fragment header, nil if there is none.
func (v *View) IPv6Fragment() IPv6Fragment {
	if v.state&hasFrag == 0 {
		return nil
	}
	return IPv6Fragment(v.pkt[v.frag : v.frag+ipv6FragmentLen])
}
