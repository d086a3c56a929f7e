// Package pcap reads capture files of the formats pcap and pcapng as a stream:
// one packet at a time into memory that is used again, whatever the file's size.
package pcap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrFormat says that the stream is neither pcap nor pcapng, or damaged.
var ErrFormat = errors.New("not a capture file, or damaged")

// maxPacket bounds what one packet may claim to need, before memory is taken
// for it. tcpdump's own limit is 256 KiB.
const maxPacket = 1 << 20

// Packet is one captured packet.
type Packet struct {
	Data []byte    // the captured bytes, until the next call of Next
	Time time.Time // when it was captured; zero where the file does not say
	Len  int       // its length on the wire, at least len(Data)
	Link LinkType  // what Data starts with
}

// Reader reads packets from a capture.
type Reader struct {
	in    *bufio.Reader
	order binary.ByteOrder
	next  func(*Reader) (Packet, error)
	buf   []byte
	head  [32]byte

	// pcap
	link LinkType
	unit time.Duration // of the time stamp's fraction

	// pcapng
	ifaces []iface
}

const (
	magicMicro   = 0xa1b2c3d4
	magicNano    = 0xa1b23c4d
	magicSection = 0x0a0d0d0a // the same in both byte orders
)

// NewReader reads the start of a capture and returns a reader for the rest. It
// knows the format by its first bytes.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{in: bufio.NewReaderSize(r, 64<<10)}
	magic, err := p.in.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("reading the file's first bytes: %w", short(err))
	}
	if binary.BigEndian.Uint32(magic) == magicSection {
		p.next = (*Reader).nextBlock
		return p, nil
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic) {
		case magicMicro:
			p.order, p.unit = order, time.Microsecond
		case magicNano:
			p.order, p.unit = order, time.Nanosecond
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("reading the file's first bytes: %w", ErrFormat)
	}
	h := p.head[:24]
	if _, err := io.ReadFull(p.in, h); err != nil {
		return nil, fmt.Errorf("reading the file's header: %w", short(err))
	}
	// The upper bits hold the length of a frame check sequence and flags.
	p.link = LinkType(p.order.Uint32(h[20:]) & 0xffff)
	p.next = (*Reader).nextRecord
	return p, nil
}

// Next returns the next packet, and io.EOF behind the last one. A file that
// ends inside a packet is io.ErrUnexpectedEOF, a damaged one ErrFormat.
func (r *Reader) Next() (Packet, error) { return r.next(r) }

// nextRecord reads a record of the pcap format.
func (r *Reader) nextRecord() (Packet, error) {
	h := r.head[:16]
	if _, err := io.ReadFull(r.in, h); err != nil {
		if err == io.EOF {
			return Packet{}, err
		}
		return Packet{}, fmt.Errorf("reading a record's header: %w", err)
	}
	data, err := r.read(int64(r.order.Uint32(h[8:])))
	if err != nil {
		return Packet{}, fmt.Errorf("reading a record: %w", err)
	}
	fraction := time.Duration(r.order.Uint32(h[4:])) * r.unit
	return Packet{
		Data: data,
		Time: time.Unix(int64(r.order.Uint32(h)), int64(fraction)).UTC(),
		Len:  max(int(r.order.Uint32(h[12:])&0x7fffffff), len(data)),
		Link: r.link,
	}, nil
}

// read reads n bytes into the buffer.
func (r *Reader) read(n int64) ([]byte, error) {
	if n < 0 || n > maxPacket {
		return nil, ErrFormat
	}
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, max(n, 2048))
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.in, b); err != nil {
		return nil, short(err)
	}
	return b, nil
}

// skip throws n bytes away.
func (r *Reader) skip(n int64) error {
	if n < 0 {
		return ErrFormat
	}
	for n > 0 {
		k, err := r.in.Discard(int(min(n, maxPacket)))
		if err != nil {
			return short(err)
		}
		n -= int64(k)
	}
	return nil
}

// short turns the end of the file into one at the wrong place.
func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
