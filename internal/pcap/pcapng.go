package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Block types and options of draft-ietf-opsawg-pcapng.
const (
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6

	byteOrderMagic = 0x1a2b3c4d

	optEnd        = 0
	optResolution = 9
	optOffset     = 14

	maxInterfaces     = 4096
	maxInterfaceBlock = 64 << 10
)

// iface is what an interface description block says.
type iface struct {
	link    LinkType
	snaplen uint32
	perSec  uint64 // time stamp units in a second
	offset  int64  // seconds to add
}

// nextBlock reads blocks up to the next one with a packet.
func (r *Reader) nextBlock() (Packet, error) {
	for {
		h := r.head[:8]
		if _, err := io.ReadFull(r.in, h); err != nil {
			if err == io.EOF {
				return Packet{}, err
			}
			return Packet{}, fmt.Errorf("reading a block's header: %w", err)
		}
		if binary.BigEndian.Uint32(h) == magicSection {
			if err := r.section(h[4:8]); err != nil {
				return Packet{}, fmt.Errorf("reading a section header: %w", err)
			}
			continue
		}
		if r.order == nil {
			return Packet{}, fmt.Errorf("reading a block's header: %w", ErrFormat)
		}
		typ, size := r.order.Uint32(h), int64(r.order.Uint32(h[4:]))
		// Type and length in front, the length again behind.
		body := size - 12
		if body < 0 || size%4 != 0 {
			return Packet{}, fmt.Errorf("reading a block's length: %w", ErrFormat)
		}
		p, found, err := r.block(typ, body)
		if err == nil {
			err = r.trailer(size)
		}
		if err != nil {
			return Packet{}, fmt.Errorf("reading a block of type %d: %w", typ, err)
		}
		if found {
			return p, nil
		}
	}
}

// trailer reads the length at a block's end, which must be the one in front.
func (r *Reader) trailer(size int64) error {
	h := r.head[:4]
	if _, err := io.ReadFull(r.in, h); err != nil {
		return short(err)
	}
	if int64(r.order.Uint32(h)) != size {
		return ErrFormat
	}
	return nil
}

// section reads the rest of a section header block. Each section has its own
// byte order and its own interfaces.
func (r *Reader) section(size []byte) error {
	magic := r.head[8:12]
	if _, err := io.ReadFull(r.in, magic); err != nil {
		return short(err)
	}
	switch {
	case binary.LittleEndian.Uint32(magic) == byteOrderMagic:
		r.order = binary.LittleEndian
	case binary.BigEndian.Uint32(magic) == byteOrderMagic:
		r.order = binary.BigEndian
	default:
		return ErrFormat
	}
	n := int64(r.order.Uint32(size))
	if n < 28 || n%4 != 0 {
		return ErrFormat
	}
	r.ifaces = r.ifaces[:0]
	if err := r.skip(n - 16); err != nil {
		return err
	}
	return r.trailer(n)
}

// block reads a block's body, except for its last four bytes.
func (r *Reader) block(typ uint32, body int64) (p Packet, found bool, err error) {
	switch typ {
	case blockInterface:
		return p, false, r.describe(body)
	case blockEnhanced, blockPacket:
		p, err = r.packet(typ, body)
		return p, err == nil, err
	case blockSimple:
		p, err = r.simple(body)
		return p, err == nil, err
	}
	return p, false, r.skip(body)
}

// describe reads an interface description block.
func (r *Reader) describe(body int64) error {
	if body < 8 || body > maxInterfaceBlock || len(r.ifaces) == maxInterfaces {
		return ErrFormat
	}
	b, err := r.read(body)
	if err != nil {
		return err
	}
	i := iface{link: LinkType(r.order.Uint16(b)), snaplen: r.order.Uint32(b[4:]), perSec: 1e6}
	for o := b[8:]; len(o) >= 4; {
		code, n := r.order.Uint16(o), int(r.order.Uint16(o[2:]))
		padded := 4 + (n+3)&^3
		if code == optEnd {
			break
		}
		if padded > len(o) {
			return ErrFormat
		}
		switch {
		case code == optResolution && n == 1:
			if i.perSec, err = resolution(o[4]); err != nil {
				return err
			}
		case code == optOffset && n == 8:
			i.offset = int64(r.order.Uint64(o[4:]))
		}
		o = o[padded:]
	}
	r.ifaces = append(r.ifaces, i)
	return nil
}

// resolution returns the time stamp units in a second: a negative power of 2
// with the highest bit set, otherwise of 10.
func resolution(b uint8) (uint64, error) {
	exp := b & 0x7f
	if b&0x80 != 0 {
		if exp > 63 {
			return 0, ErrFormat
		}
		return 1 << exp, nil
	}
	if exp > 19 {
		return 0, ErrFormat
	}
	n := uint64(1)
	for range exp {
		n *= 10
	}
	return n, nil
}

// packet reads an enhanced or an obsolete packet block. They differ in the
// interface number: the obsolete one has 16 bits for it and a drop count.
func (r *Reader) packet(typ uint32, body int64) (Packet, error) {
	h := r.head[:20]
	if body < int64(len(h)) {
		return Packet{}, ErrFormat
	}
	if _, err := io.ReadFull(r.in, h); err != nil {
		return Packet{}, short(err)
	}
	id := r.order.Uint32(h)
	if typ == blockPacket {
		id = uint32(r.order.Uint16(h))
	}
	if id >= uint32(len(r.ifaces)) {
		return Packet{}, ErrFormat
	}
	i := &r.ifaces[id]
	stamp := uint64(r.order.Uint32(h[4:]))<<32 | uint64(r.order.Uint32(h[8:]))
	n := int64(r.order.Uint32(h[12:]))
	wire := int(r.order.Uint32(h[16:]) & 0x7fffffff)
	rest := body - int64(len(h)) - n
	if rest < 0 {
		return Packet{}, ErrFormat
	}
	data, err := r.read(n)
	if err != nil {
		return Packet{}, err
	}
	return Packet{Data: data, Time: i.time(stamp), Len: max(wire, len(data)), Link: i.link}, r.skip(rest)
}

func (i *iface) time(stamp uint64) time.Time {
	sec, fraction := stamp/i.perSec, stamp%i.perSec
	ns := int64(float64(fraction) / float64(i.perSec) * 1e9)
	if i.perSec <= 1e9 && 1e9%i.perSec == 0 {
		ns = int64(fraction * (1e9 / i.perSec))
	}
	return time.Unix(int64(sec)+i.offset, ns).UTC()
}

// simple reads a simple packet block, which has no time and belongs to the
// first interface.
func (r *Reader) simple(body int64) (Packet, error) {
	h := r.head[:4]
	if body < int64(len(h)) || len(r.ifaces) == 0 {
		return Packet{}, ErrFormat
	}
	if _, err := io.ReadFull(r.in, h); err != nil {
		return Packet{}, short(err)
	}
	i := &r.ifaces[0]
	wire := int64(r.order.Uint32(h))
	body -= int64(len(h))
	n := min(wire, body)
	if i.snaplen != 0 {
		n = min(n, int64(i.snaplen))
	}
	data, err := r.read(n)
	if err != nil {
		return Packet{}, err
	}
	return Packet{Data: data, Len: max(int(wire), len(data)), Link: i.link}, r.skip(body - n)
}
