package userspace

import (
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// QUIC's long headers, RFC 9000 section 17.2.
const (
	quicLong    = 0x80 // first byte: a long header
	quicIDMax   = 20   // of a connection id, in the versions known here
	quicPackets = 16   // looked at in one datagram

	quicVersion1 = 0x00000001
	quicVersion2 = 0x6b3343cf // RFC 9369
)

// Types of long headers, as version 1 numbers them.
const (
	quicInitial = iota
	quic0RTT
	quicHandshake
	quicRetry
)

// quicPeer is what the keys of a client's Initial packets are made of: the
// connection id that it chose for the server in its first packet, or got by a
// Retry (RFC 9001 section 5.2).
type quicPeer struct {
	version uint32 // 0 while not known
	idLen   uint8
	id      [quicIDMax]byte
}

// quicInspector finds the server name in a ClientHello that comes in QUIC's
// CRYPTO frames. What it is shown is the stream that those frames make.
type quicInspector struct {
	helloNames
	keys   quicKeys
	frames []byte // of the packet that was opened last, as far as they are not read
	plain  [1 << 16]byte
	header [1 << 16]byte
}

// inspect looks at the start of a CRYPTO stream.
func (q *quicInspector) inspect(b []byte) outcome {
	q.left = false
	switch n := messageLen(b); {
	case len(b) > 0 && b[0] != tlsClientHello || n > tlsHelloMax:
		return sawMalformed
	case n == 0 || n > len(b):
		return sawMore
	default:
		return q.read(b[tlsMessageHeader:n], policy.L7QUIC)
	}
}

// isQUIC reports whether a datagram begins with a long header of a version whose
// names can be read. Nothing in DNS looks like that: it would have at least 256
// questions.
func isQUIC(b []byte) bool {
	return len(b) > 5 && b[0]&quicLong != 0 && quicSalt(binary.BigEndian.Uint32(b[1:])) != nil
}

// quicPacket is one packet of a datagram, up to where its protection begins.
type quicPacket struct {
	peer   quicPeer // version and destination id
	typ    int
	packet []byte // the whole packet
	number int    // offset of its packet number
}

// next splits the first packet off a datagram. It returns sawMore where what
// follows is not to be read by its lengths: a short header, a Retry, an unknown
// version, or padding.
func (p *quicPacket) next(b []byte) (rest []byte, got outcome) {
	if len(b) < 7 || b[0]&quicLong == 0 {
		return nil, sawMore
	}
	p.peer.version = binary.BigEndian.Uint32(b[1:])
	if quicSalt(p.peer.version) == nil {
		return nil, sawMore
	}
	p.typ = int(b[0] >> 4 & 3)
	if p.peer.version == quicVersion2 {
		p.typ = (p.typ + 3) & 3 // RFC 9369 section 3.2 counts from Retry
	}
	r := tlsReader{b: b[5:]}
	id := r.vector8()
	scid := r.vector8()
	if r.bad || len(id) > quicIDMax || len(scid) > quicIDMax {
		return nil, sawMalformed
	}
	p.peer.idLen = uint8(len(id))
	p.peer.id = [quicIDMax]byte{}
	copy(p.peer.id[:], id)
	if p.typ == quicRetry {
		return nil, sawMore
	}
	if p.typ == quicInitial {
		r.take(r.varint()) // token
	}
	n := r.varint()
	if r.bad || n > len(r.b) {
		return nil, sawMalformed
	}
	p.number = len(b) - len(r.b)
	p.packet = b[:p.number+n]
	return b[p.number+n:], sawNames
}

// varint reads a variable-length integer (RFC 9000 section 16). One that no
// datagram has room for is bad.
func (r *tlsReader) varint() int {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	b := r.take(1 << (r.b[0] >> 6))
	if r.bad {
		return 0
	}
	v := uint64(b[0] & 0x3f)
	for _, c := range b[1:] {
		v = v<<8 | uint64(c)
	}
	if v >= 1<<30 {
		r.bad = true
		return 0
	}
	return int(v)
}

// crypto returns the next CRYPTO frame of the packet that was opened last, with
// its place in the stream. It is sawNone behind the last one.
func (q *quicInspector) crypto() (at int, data []byte, got outcome) {
	r := tlsReader{b: q.frames}
	defer func() { q.frames = r.b }()
	for len(r.b) > 0 {
		switch typ := r.uint8(); typ {
		case 0, 1: // PADDING, PING
		case 2, 3: // ACK
			r.varint()
			r.varint()
			ranges := r.varint()
			r.varint()
			for ; ranges > 0 && !r.bad; ranges-- {
				r.varint()
				r.varint()
			}
			if typ == 3 {
				r.varint()
				r.varint()
				r.varint()
			}
		case 6:
			at = r.varint()
			data = r.take(r.varint())
			if !r.bad {
				return at, data, sawNames
			}
		case 0x1c: // CONNECTION_CLOSE
			r.varint()
			r.varint()
			r.take(r.varint())
		default:
			return 0, nil, sawMalformed // RFC 9000 section 12.4 allows no other here
		}
		if r.bad {
			return 0, nil, sawMalformed
		}
	}
	return 0, nil, sawNone
}
