package loader

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// Protocols that the tests name.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoGRE    = 47
	protoESP    = 50
	protoICMPv6 = 58
	protoSCTP   = 132
)

const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10
)

// packet is a packet to be built, told field by field. It is the tests' own
// notion, so that the parser in C is not compared with itself.
type packet struct {
	vlans      []uint16 // control words of the tags, the outer one first
	tos        uint8    // DSCP and ECN
	src, dst   netip.Addr
	proto      uint8
	sport      uint16
	dport      uint16
	flags      uint8 // of TCP
	icmpType   uint8
	icmpCode   uint8
	icmpID     uint16
	hopLimit   uint8
	ipOptions  int     // IPv4: words of options
	extensions []uint8 // IPv6: headers before the transport header
	fragOffset int     // bytes
	moreFrags  bool
	fragID     uint32
	options    []byte // TCP: whole words
	payload    []byte
}

func (p *packet) later() bool { return p.fragOffset > 0 }

func hasPorts(proto uint8) bool {
	return proto == protoTCP || proto == protoUDP || proto == protoSCTP
}

// flow is what the flow table's key is made of.
func (p *packet) flow() pktbuf.Flow {
	var sport, dport uint16
	switch {
	case hasPorts(p.proto):
		sport, dport = p.sport, p.dport
	case p.isEcho():
		sport, dport = p.icmpID, p.icmpID
	}
	return pktbuf.FlowOf(netip.AddrPortFrom(p.src, sport), netip.AddrPortFrom(p.dst, dport), p.proto)
}

func (p *packet) isEcho() bool {
	return p.proto == protoICMP && p.src.Is4() && (p.icmpType == 8 || p.icmpType == 0) ||
		p.proto == protoICMPv6 && p.src.Is6() && (p.icmpType == 128 || p.icmpType == 129)
}

// asPolicy is the packet as the policy's plain meaning sees it.
func (p *packet) asPolicy(from, to policy.ZoneID) *policy.Packet {
	pkt := &policy.Packet{From: from, To: to, Src: p.src, Dst: p.dst, Proto: p.proto}
	if hasPorts(p.proto) && !p.later() {
		pkt.HasPorts = true
		pkt.Sport, pkt.Dport = p.sport, p.dport
		if p.proto == protoTCP {
			pkt.TCPFlags = p.flags
		}
	}
	if p.proto == protoICMP && p.src.Is4() || p.proto == protoICMPv6 && p.src.Is6() {
		pkt.HasICMP, pkt.ICMPType, pkt.ICMPCode = true, p.icmpType, p.icmpCode
	}
	if len(p.vlans) > 0 {
		pkt.VLAN = p.vlans[0] & 0xfff
	}
	pkt.DSCP, pkt.Fragment = p.tos>>2, p.moreFrags || p.later()
	return pkt
}

// frame builds the Ethernet frame. Transport checksums are left 0: the kernel
// half does not look at them.
func (p *packet) frame() []byte {
	b := make([]byte, 12, 256+len(p.payload))
	for i, tci := range p.vlans {
		tpid := uint16(0x8100)
		if i < len(p.vlans)-1 {
			tpid = 0x88a8
		}
		b = binary.BigEndian.AppendUint16(b, tpid)
		b = binary.BigEndian.AppendUint16(b, tci)
	}
	l4 := p.transport()
	if p.src.Is4() {
		b = binary.BigEndian.AppendUint16(b, 0x0800)
		return append(p.ipv4(b, len(l4)), l4...)
	}
	b = binary.BigEndian.AppendUint16(b, 0x86dd)
	return append(p.ipv6(b, len(l4)), l4...)
}

func (p *packet) ipv4(b []byte, n int) []byte {
	h := make([]byte, 20+4*p.ipOptions)
	for i := 20; i < len(h); i++ {
		h[i] = 1 // no operation
	}
	h[0] = 0x40 | uint8(len(h)/4)
	h[1] = p.tos
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
	binary.BigEndian.PutUint16(h[4:], uint16(p.fragID))
	frag := uint16(p.fragOffset / 8)
	if p.moreFrags {
		frag |= 0x2000
	}
	binary.BigEndian.PutUint16(h[6:], frag)
	h[8] = p.hopLimit
	h[9] = p.proto
	copy(h[12:], p.src.AsSlice())
	copy(h[16:], p.dst.AsSlice())
	return append(b, h...)
}

func (p *packet) ipv6(b []byte, n int) []byte {
	chain := append([]uint8(nil), p.extensions...)
	if p.fragOffset > 0 || p.moreFrags {
		chain = append(chain, 44)
	}
	var ext []byte
	for i, kind := range chain {
		next := p.proto
		if i+1 < len(chain) {
			next = chain[i+1]
		}
		ext = append(ext, p.extension(kind, next)...)
	}
	h := make([]byte, 40)
	h[0], h[1] = 0x60|p.tos>>4, p.tos<<4
	binary.BigEndian.PutUint16(h[4:], uint16(len(ext)+n))
	h[6] = p.proto
	if len(chain) > 0 {
		h[6] = chain[0]
	}
	h[7] = p.hopLimit
	copy(h[8:], p.src.AsSlice())
	copy(h[24:], p.dst.AsSlice())
	return append(append(b, h...), ext...)
}

func (p *packet) extension(kind, next uint8) []byte {
	switch kind {
	case 44:
		h := make([]byte, 8)
		h[0] = next
		frag := uint16(p.fragOffset)
		if p.moreFrags {
			frag |= 1
		}
		binary.BigEndian.PutUint16(h[2:], frag)
		binary.BigEndian.PutUint32(h[4:], p.fragID)
		return h
	case 51: // counts in words of 4 bytes: (4+2)*4 = 24
		h := make([]byte, 24)
		h[0], h[1] = next, 4
		return h
	}
	h := make([]byte, 16)
	h[0], h[1] = next, 1
	return h
}

func (p *packet) transport() []byte {
	if p.later() {
		return p.payload
	}
	var h []byte
	switch p.proto {
	case protoTCP:
		h = append(make([]byte, 20), p.options...)
		h[12], h[13] = uint8(len(h)/4)<<4, p.flags
	case protoUDP:
		h = make([]byte, 8)
		binary.BigEndian.PutUint16(h[4:], uint16(8+len(p.payload)))
	case protoSCTP:
		h = make([]byte, 12)
	case protoICMP, protoICMPv6:
		h = make([]byte, 8)
		h[0], h[1] = p.icmpType, p.icmpCode
		binary.BigEndian.PutUint16(h[4:], p.icmpID)
	}
	if hasPorts(p.proto) {
		binary.BigEndian.PutUint16(h, p.sport)
		binary.BigEndian.PutUint16(h[2:], p.dport)
	}
	return append(h, p.payload...)
}

// pick returns one of its arguments.
func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomPacket makes a packet out of few values, so that rules are often met.
func randomPacket(r *rand.Rand) packet {
	p := packet{
		tos:      pick[uint8](r, 0, 0, 0x03, 0xb8, 0xba, 0x28, 0xff, 0x20),
		proto:    pick[uint8](r, protoTCP, protoTCP, protoUDP, protoUDP, protoICMP, protoICMPv6, protoSCTP, protoGRE, protoESP),
		sport:    pick[uint16](r, 0, 53, 443, 1024, 40000, 65535),
		dport:    pick[uint16](r, 0, 22, 53, 80, 443, 8080, 65535),
		flags:    pick[uint8](r, syn, syn, syn|ack, ack, psh|ack, fin|ack, rst, 0xff, 0),
		icmpType: pick[uint8](r, 0, 3, 5, 8, 11, 12, 1, 2, 4, 128, 129, 130, 133, 135, 137, 143, 144),
		icmpCode: uint8(r.IntN(3)),
		icmpID:   uint16(r.IntN(3)),
		hopLimit: pick[uint8](r, 1, 64, 255),
		payload:  make([]byte, pick(r, 0, 0, 1, 40, 300)),
		fragID:   r.Uint32(),
	}
	for range pick(r, 0, 0, 0, 1, 2) {
		p.vlans = append(p.vlans, pick[uint16](r, 10, 20, 0x6000, 0xe00a, 4094, 4095, 1))
	}
	if r.IntN(2) == 0 {
		p.src, p.dst = pick(r, sources4...), pick(r, targets4...)
		p.ipOptions = pick(r, 0, 0, 0, 1, 10)
	} else {
		p.src, p.dst = pick(r, sources6...), pick(r, targets6...)
		for range pick(r, 0, 0, 1, 2, 5) {
			p.extensions = append(p.extensions, pick[uint8](r, 0, 43, 60, 51, 135))
		}
	}
	switch r.IntN(8) {
	case 0:
		p.moreFrags = true
	case 1:
		p.fragOffset = 8 * (1 + r.IntN(100))
		p.moreFrags = r.IntN(2) == 0
	}
	return p
}
