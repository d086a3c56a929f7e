package userspace

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Attributes of packet and verdict messages, include/uapi/linux/netfilter/nfnetlink_queue.h.
const (
	nfqaPacketHdr  = 1
	nfqaVerdictHdr = 2
	nfqaMark       = 3
	nfqaTimestamp  = 4
	nfqaInDev      = 5
	nfqaOutDev     = 6
	nfqaPhysInDev  = 7
	nfqaPhysOutDev = 8
	nfqaHWAddr     = 9
	nfqaPayload    = 10
	nfqaCT         = 11
	nfqaCTInfo     = 12
	nfqaCapLen     = 13
	nfqaSkbInfo    = 14
	nfqaUID        = 16
	nfqaGID        = 17
	nfqaSecCtx     = 18
	nfqaVLAN       = 19
	nfqaL2Hdr      = 20
	nfqaPriority   = 21

	vlanProto = 1 // nested in nfqaVLAN
	vlanTCI   = 2
)

// hookLocalIn is the input hook (NF_INET_LOCAL_IN).
const hookLocalIn = 1

// Bits of NFQA_SKB_INFO.
const (
	skbUnfinished = 1 << 0 // NFQA_SKB_CSUMNOTREADY
	skbGSO        = 1 << 1 // NFQA_SKB_GSO
	skbUnverified = 1 << 2 // NFQA_SKB_CSUM_NOTVERIFIED
)

const (
	nlHeaderLen  = 16 // struct nlmsghdr
	nfHeaderLen  = 4  // struct nfgenmsg
	attrHeader   = 4  // struct nlattr
	attrTypeMask = 0x3fff
)

// message is one netlink message of the kernel, in the memory it was received in.
type message struct {
	kind uint16
	seq  uint32
	body []byte // what follows the netlink header
}

var (
	errCutMessage = errors.New("userspace: netlink message is cut short")
	errAttributes = errors.New("userspace: netlink attributes contradict each other")
)

// nextMessage splits the first message off b. A message that claims more bytes
// than there are is returned as far as it goes, with errCutMessage.
func nextMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < nlHeaderLen {
		return m, nil, errCutMessage
	}
	n := int(binary.NativeEndian.Uint32(b))
	m.kind = binary.NativeEndian.Uint16(b[4:])
	m.seq = binary.NativeEndian.Uint32(b[8:])
	if n < nlHeaderLen || n > len(b) {
		m.body = b[nlHeaderLen:]
		return m, nil, errCutMessage
	}
	m.body = b[nlHeaderLen:n]
	return m, b[min(align4(n), len(b)):], nil
}

// errno returns the error number of an NLMSG_ERROR message, 0 for an
// acknowledgement.
func (m *message) errno() (unix.Errno, error) {
	if len(m.body) < 4 {
		return 0, errCutMessage
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body))), nil
}

// packet is a queued packet as the kernel describes it.
type packet struct {
	id      uint32
	hasID   bool // without it there can be no verdict
	proto   uint16
	hook    uint8
	mark    uint32
	inDev   uint32
	outDev  uint32
	capLen  uint32 // the packet's length where payload is only its start, else 0
	skbInfo uint32
	seconds uint64 // of the timestamp, 0 where there is none
	micros  uint64
	ctInfo  uint32 // the packet's state in its conntrack entry
	ct      []byte // the entry's attributes, nil where there is none
	payload []byte // inside the received message

	// What only readers of their own look at. Slices are inside the message.
	physIn, physOut uint32
	priority        uint32
	uid, gid        uint32
	hasUser         bool // uid is set
	hwAddr          []byte
	link            []byte
	secCtx          []byte
	vlan            []byte // nested attributes
}

// parse reads the attributes of a packet message where they lie. After an error
// the packet still has what stood in front of the fault, its id above all.
func (p *packet) parse(body []byte) error {
	*p = packet{}
	if len(body) < nfHeaderLen {
		return errCutMessage
	}
	// struct nfgenmsg repeats the queue's number and the family; both are known.
	for b := body[nfHeaderLen:]; len(b) > 0; {
		if len(b) < attrHeader {
			return errCutMessage
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrHeader {
			return errAttributes
		}
		if n > len(b) {
			return errCutMessage
		}
		if err := p.attribute(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[attrHeader:n]); err != nil {
			return err
		}
		// The kernel leaves the padding behind the last attribute out.
		b = b[min(align4(n), len(b)):]
	}
	if !p.hasID {
		return errAttributes
	}
	return nil
}

// attribute reads one attribute. All numbers in them are big-endian; the
// attributes themselves, as all of netlink, are in the host's order.
func (p *packet) attribute(typ uint16, v []byte) error {
	switch typ {
	case nfqaPacketHdr:
		// struct nfqnl_msg_packet_hdr is packed: id, protocol, hook.
		if len(v) < 7 {
			return errAttributes
		}
		id := binary.BigEndian.Uint32(v)
		if p.hasID && p.id != id {
			return errAttributes
		}
		p.id, p.hasID = id, true
		p.proto = binary.BigEndian.Uint16(v[4:])
		p.hook = v[6]
		return nil
	case nfqaPayload:
		// Of two payloads one would be judged and the other meant.
		if p.payload != nil {
			return errAttributes
		}
		p.payload = v
		return nil
	case nfqaCT:
		p.ct = v
		return nil
	case nfqaHWAddr, nfqaSecCtx, nfqaVLAN, nfqaL2Hdr:
		return p.text(typ, v)
	case nfqaTimestamp:
		if len(v) < 16 {
			return errAttributes
		}
		p.seconds = binary.BigEndian.Uint64(v)
		p.micros = binary.BigEndian.Uint64(v[8:])
		return nil
	}
	var to *uint32
	switch typ {
	case nfqaMark:
		to = &p.mark
	case nfqaInDev:
		to = &p.inDev
	case nfqaOutDev:
		to = &p.outDev
	case nfqaCapLen:
		to = &p.capLen
	case nfqaCTInfo:
		to = &p.ctInfo
	case nfqaSkbInfo:
		to = &p.skbInfo
	case nfqaPhysInDev:
		to = &p.physIn
	case nfqaPhysOutDev:
		to = &p.physOut
	case nfqaPriority:
		to = &p.priority
	case nfqaUID:
		to, p.hasUser = &p.uid, true
	case nfqaGID:
		to = &p.gid
	default:
		// One that is not needed, or that a newer kernel has.
		return nil
	}
	if len(v) < 4 {
		return errAttributes
	}
	*to = binary.BigEndian.Uint32(v)
	return nil
}

// text reads an attribute that is not a number.
func (p *packet) text(typ uint16, v []byte) error {
	switch typ {
	case nfqaHWAddr:
		// struct nfqnl_msg_packet_hw: length, padding, 8 bytes.
		if len(v) < 4 || int(binary.BigEndian.Uint16(v)) > len(v)-4 {
			return errAttributes
		}
		p.hwAddr = v[4 : 4+binary.BigEndian.Uint16(v)]
	case nfqaSecCtx:
		p.secCtx = v
	case nfqaVLAN:
		p.vlan = v
	case nfqaL2Hdr:
		p.link = v
	}
	return nil
}

// cut reports whether payload is only the start of the packet.
func (p *packet) cut() bool { return int64(p.capLen) > int64(len(p.payload)) }

func align4(n int) int { return (n + 3) &^ 3 }
