package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	maxDatagrams  = 64      // that wait for fragments at a time
	maxDatagram   = 1 << 16 // bytes of one
	fragmentUnits = maxDatagram / 8
)

// fragmentID tells a fragmented datagram from others.
type fragmentID struct {
	src, dst netip.Addr
	proto    uint8
	id       uint32
}

// datagram is a fragmented one, as far as it has come.
type datagram struct {
	id     fragmentID
	header []byte // of the first fragment, as if there were no others
	data   []byte
	have   [fragmentUnits / 64]uint64 // units of 8 bytes
	units  int                        // that are there
	length int                        // -1 while the last fragment is missing
}

// fragments puts fragmented datagrams together for a replay, which is in no
// hurry; the firewall itself does not. A new one takes the oldest one's place.
type fragments struct {
	waiting []*datagram
}

// fragment is one that has come.
type fragment struct {
	id     fragmentID
	header []byte
	at     int
	more   bool
	data   []byte
}

// add takes a fragment and returns the whole datagram, headers included, with its
// last one.
func (f *fragments) add(p *fragment) (ip []byte, whole bool) {
	if p.at+len(p.data) > maxDatagram || p.more && len(p.data)%8 != 0 {
		return nil, false
	}
	i := slices.IndexFunc(f.waiting, func(d *datagram) bool { return d.id == p.id })
	if i < 0 {
		if len(f.waiting) == maxDatagrams {
			f.waiting = slices.Delete(f.waiting, 0, 1)
		}
		i = len(f.waiting)
		f.waiting = append(f.waiting, &datagram{id: p.id, length: -1})
	}
	d := f.waiting[i]
	if need := p.at + len(p.data); need > len(d.data) {
		d.data = append(d.data, make([]byte, need-len(d.data))...)
	}
	for unit := p.at / 8; unit*8 < p.at+len(p.data); unit++ {
		if bit := uint64(1) << (unit % 64); d.have[unit/64]&bit == 0 {
			d.have[unit/64] |= bit
			d.units++
			copy(d.data[unit*8:], p.data[unit*8-p.at:min(unit*8-p.at+8, len(p.data))])
		}
	}
	if p.at == 0 {
		d.header = slices.Clone(p.header)
	}
	if !p.more {
		d.length = p.at + len(p.data)
	}
	if d.header == nil || d.length < 0 || d.units*8 < d.length {
		return nil, false
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	ip = append(d.header, d.data[:d.length]...)
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(min(len(ip), maxDatagram-1)))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(min(len(ip)-40, maxDatagram-1)))
	}
	return ip, true
}

// readFragment takes an IP packet apart that is a fragment.
func readFragment(ip []byte) (p fragment, ok bool) {
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4:
		return readFragment4(ip)
	case len(ip) >= 40 && ip[0]>>4 == 6:
		return readFragment6(ip)
	}
	return p, false
}

func readFragment4(ip []byte) (p fragment, ok bool) {
	const moreFragments = 0x2000
	size, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	field := binary.BigEndian.Uint16(ip[6:])
	if size < 20 || total < size || total > len(ip) || field&0x3fff == 0 {
		return p, false
	}
	p.id = fragmentID{netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[9], uint32(binary.BigEndian.Uint16(ip[4:]))}
	p.at, p.more, p.data = int(field&0x1fff)*8, field&moreFragments != 0, ip[size:total]
	p.header = slices.Clone(ip[:size])
	p.header[6], p.header[7] = 0, 0
	return p, true
}

func readFragment6(ip []byte) (p fragment, ok bool) {
	const hopByHop, routing, fragmentHeader, options = 0, 43, 44, 60
	end := 40 + int(binary.BigEndian.Uint16(ip[4:]))
	if end > len(ip) {
		return p, false
	}
	// The byte that says what the fragment header is comes to say what is behind it.
	for named, at := 6, 40; at+8 <= end; named, at = at, at+8+int(ip[at+1])*8 {
		switch ip[named] {
		case fragmentHeader:
			field := binary.BigEndian.Uint16(ip[at+2:])
			p.id = fragmentID{netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), 0, binary.BigEndian.Uint32(ip[at+4:])}
			p.at, p.more, p.data = int(field&^7), field&1 != 0, ip[at+8:end]
			p.header = slices.Clone(ip[:at])
			p.header[named] = ip[at]
			return p, p.at != 0 || p.more
		case hopByHop, routing, options:
		default:
			return p, false
		}
	}
	return p, false
}
