package testnet

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet describes an Ethernet frame to be built by hand, for what no ordinary
// socket sends: VLAN tags, foreign sources, single TCP segments.
type Packet struct {
	EthSrc, EthDst net.HardwareAddr
	VLANs          []uint16       // tag control information, the outer tag first
	Src, Dst       netip.AddrPort // of one family
	TCP            *TCP           // nil for UDP
	Payload        []byte
}

// TCP holds the fields of a TCP header that a Packet can choose.
type TCP struct {
	Seq, Ack uint32
	Flags    uint8 // FIN 1, SYN 2, RST 4, PSH 8, ACK 16 (RFC 9293, section 3.1)
}

// Frame builds the frame with correct lengths and checksums.
func (p Packet) Frame() []byte {
	frame := append([]byte(nil), p.EthDst...)
	frame = append(frame, p.EthSrc...)
	for i, tci := range p.VLANs {
		tpid := uint16(unix.ETH_P_8021Q)
		if i < len(p.VLANs)-1 {
			tpid = unix.ETH_P_8021AD
		}
		frame = binary.BigEndian.AppendUint16(frame, tpid)
		frame = binary.BigEndian.AppendUint16(frame, tci)
	}
	segment, proto := p.segment()
	if p.Src.Addr().Is4() {
		frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
		frame = append(frame, p.header4(proto, len(segment))...)
	} else {
		frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IPV6)
		frame = append(frame, p.header6(proto, len(segment))...)
	}
	return append(frame, segment...)
}

func (p Packet) header4(proto uint8, payload int) []byte {
	h := make([]byte, 20)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(20+payload))
	h[6] = 0x40 // do not fragment
	h[8] = 64
	h[9] = proto
	copy(h[12:], p.Src.Addr().AsSlice())
	copy(h[16:], p.Dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^fold(sum(0, h)))
	return h
}

func (p Packet) header6(proto uint8, payload int) []byte {
	h := make([]byte, 40)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6] = proto
	h[7] = 64
	copy(h[8:], p.Src.Addr().AsSlice())
	copy(h[24:], p.Dst.Addr().AsSlice())
	return h
}

// segment builds the layer 4 header and payload.
func (p Packet) segment() (segment []byte, proto uint8) {
	var ports [4]byte
	binary.BigEndian.PutUint16(ports[0:], p.Src.Port())
	binary.BigEndian.PutUint16(ports[2:], p.Dst.Port())
	at := 6 // of the checksum
	if p.TCP == nil {
		proto = unix.IPPROTO_UDP
		segment = make([]byte, 8, 8+len(p.Payload))
		binary.BigEndian.PutUint16(segment[4:], uint16(8+len(p.Payload)))
	} else {
		proto, at = unix.IPPROTO_TCP, 16
		segment = make([]byte, 20, 20+len(p.Payload))
		binary.BigEndian.PutUint32(segment[4:], p.TCP.Seq)
		binary.BigEndian.PutUint32(segment[8:], p.TCP.Ack)
		segment[12] = 5 << 4
		segment[13] = p.TCP.Flags
		binary.BigEndian.PutUint16(segment[14:], 65535) // window
	}
	copy(segment, ports[:])
	segment = append(segment, p.Payload...)
	check := ^fold(p.pseudo(proto, segment))
	if check == 0 && p.TCP == nil {
		check = 0xffff // 0 would say that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(segment[at:], check)
	return segment, proto
}

// pseudo sums a segment together with its pseudo-header.
func (p Packet) pseudo(proto uint8, segment []byte) uint32 {
	s := sum(0, p.Src.Addr().AsSlice())
	s = sum(s, p.Dst.Addr().AsSlice())
	return sum(s+uint32(proto)+uint32(len(segment)), segment)
}

// sum adds up 16-bit words; frames are too short for it to overflow.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// ChecksumsOK reports whether a captured IPv4 or IPv6 frame without options or
// extension headers carries correct IP and UDP or TCP checksums. A UDP checksum
// of 0 counts as correct over IPv4 only.
func ChecksumsOK(frame []byte) bool {
	p, segment, ok := dissect(frame)
	if !ok {
		return false
	}
	proto, at := uint8(unix.IPPROTO_UDP), 6
	if p.TCP != nil {
		proto, at = unix.IPPROTO_TCP, 16
	}
	if binary.BigEndian.Uint16(segment[at:]) == 0 && p.TCP == nil {
		return p.Src.Addr().Is4()
	}
	return fold(p.pseudo(proto, segment)) == 0xffff
}

// Dissect is the inverse of Packet.Frame, for captured frames. It reports false
// for everything that Frame would not build.
func Dissect(frame []byte) (Packet, bool) {
	p, _, ok := dissect(frame)
	return p, ok
}

func dissect(frame []byte) (p Packet, segment []byte, ok bool) {
	if len(frame) < 14 {
		return p, nil, false
	}
	p.EthDst, p.EthSrc = frame[:6:6], frame[6:12:12]
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	for (kind == unix.ETH_P_8021Q || kind == unix.ETH_P_8021AD) && len(rest) >= 4 {
		p.VLANs = append(p.VLANs, binary.BigEndian.Uint16(rest))
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	var proto uint8
	var src, dst netip.Addr
	switch {
	case kind == unix.ETH_P_IP && len(rest) >= 20 && rest[0] == 0x45 && fold(sum(0, rest[:20])) == 0xffff:
		total := int(binary.BigEndian.Uint16(rest[2:]))
		if total < 20 || total > len(rest) {
			return p, nil, false
		}
		proto, segment = rest[9], rest[20:total]
		src, dst = netip.AddrFrom4([4]byte(rest[12:16])), netip.AddrFrom4([4]byte(rest[16:20]))
	case kind == unix.ETH_P_IPV6 && len(rest) >= 40 && rest[0]>>4 == 6:
		total := int(binary.BigEndian.Uint16(rest[4:]))
		if 40+total > len(rest) {
			return p, nil, false
		}
		proto, segment = rest[6], rest[40:40+total]
		src, dst = netip.AddrFrom16([16]byte(rest[8:24])), netip.AddrFrom16([16]byte(rest[24:40]))
	default:
		return p, nil, false
	}
	return p, segment, p.transport(proto, segment, [2]netip.Addr{src, dst})
}

func (p *Packet) transport(proto uint8, segment []byte, addrs [2]netip.Addr) bool {
	switch {
	case proto == unix.IPPROTO_UDP && len(segment) >= 8:
		p.Payload = segment[8:]
	case proto == unix.IPPROTO_TCP && len(segment) >= 20:
		header := int(segment[12]>>4) * 4
		if header < 20 || header > len(segment) {
			return false
		}
		p.TCP = &TCP{
			Seq:   binary.BigEndian.Uint32(segment[4:]),
			Ack:   binary.BigEndian.Uint32(segment[8:]),
			Flags: segment[13],
		}
		p.Payload = segment[header:]
	default:
		return false
	}
	p.Src = netip.AddrPortFrom(addrs[0], binary.BigEndian.Uint16(segment[0:]))
	p.Dst = netip.AddrPortFrom(addrs[1], binary.BigEndian.Uint16(segment[2:]))
	return true
}
