package pktbuf

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
	"testing"
)

// What is here is written a second time, in the plainest way and from the RFCs:
// packets made byte by byte, and a judge of lengths and checksums that shares
// nothing with the package.

// slowSum is the Internet checksum's sum of RFC 1071, word by word.
func slowSum(parts ...[]byte) uint16 {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if len(all)%2 != 0 {
		all = append(all, 0)
	}
	var s uint32
	for i := 0; i < len(all); i += 2 {
		s += uint32(all[i])<<8 | uint32(all[i+1])
		if s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

// mustHex reads annotated hexadecimal: a # starts a comment.
func mustHex(tb testing.TB, s string) []byte {
	tb.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for f := range strings.FieldsSeq(line) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		tb.Fatalf("decoding test data: %v", err)
	}
	return b
}

// spec describes a packet to make.
type spec struct {
	ver     int
	proto   uint8
	opts    []byte // IPv4 options
	ext     []byte // IPv6 extension headers, the last one's next header filled in here
	first   uint8  // type of the first of them
	l4      []byte // transport header, checksum and lengths filled in here
	payload []byte
	noSum   bool // UDP without a checksum
}

func tcpHeader(opts ...byte) []byte {
	h := []byte{
		0x13, 0xc4, 0x00, 0x50, // 5060 > 80
		0x01, 0x02, 0x03, 0x04, // sequence number
		0x05, 0x06, 0x07, 0x08, // acknowledgement
		byte(20+len(opts)) / 4 << 4, 0x12, 0xff, 0xff, // SYN ACK, window
		0, 0, 0, 0, // checksum, urgent pointer
	}
	return append(h, opts...)
}

func udpHeader() []byte { return []byte{0x13, 0xc4, 0x00, 0x35, 0, 0, 0, 0} }

func sctpHeader() []byte { return []byte{0x13, 0xc4, 0x0b, 0x59, 1, 2, 3, 4, 0, 0, 0, 0} }

// build makes a packet with right lengths and checksums.
func build(s spec) []byte {
	body := append(append([]byte(nil), s.l4...), s.payload...)
	if s.proto == ProtoUDP {
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
	}
	var p []byte
	if s.ver == 4 {
		p = []byte{
			0x45, 0xb9, 0, 0, // DSCP EF, ECN 1
			0x12, 0x34, 0x40, 0, // identification, DF
			64, s.proto, 0, 0,
			192, 0, 2, 1, 198, 51, 100, 2,
		}
		p = append(p, s.opts...)
		p[0] = 0x40 | byte(len(p)/4)
		p = append(p, body...)
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		hdr := p[:20+len(s.opts)]
		binary.BigEndian.PutUint16(p[10:], ^slowSum(hdr))
	} else {
		p = []byte{0x6b, 0x91, 0x23, 0x45, 0, 0, s.proto, 64} // class b9, label 12345
		p = append(p, mustAddr("2001:db8::1")...)
		p = append(p, mustAddr("2001:db8:1::2")...)
		if len(s.ext) != 0 {
			p[6] = s.first
			p = append(p, s.ext...)
		}
		p = append(p, body...)
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	}
	at := len(p) - len(body)
	slowFinish(p, at, s)
	return p
}

func mustAddr(s string) []byte {
	switch s {
	case "2001:db8::1":
		return []byte{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	case "2001:db8:1::2":
		return []byte{0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}
	}
	panic(s)
}

// slowFinish fills in the transport checksum.
func slowFinish(p []byte, at int, s spec) {
	field := map[uint8]int{ProtoTCP: 16, ProtoUDP: 6, ProtoICMP: 2, ProtoICMPv6: 2}[s.proto]
	switch {
	case s.proto == ProtoSCTP && len(s.l4) >= 12:
		binary.LittleEndian.PutUint32(p[at+8:], crc32.Checksum(p[at:], crc32.MakeTable(crc32.Castagnoli)))
	case field != 0 && len(s.l4) > field && !s.noSum:
		sum := ^slowSum(slowPseudo(p, s.proto, len(p)-at), p[at:])
		if sum == 0 && s.proto == ProtoUDP {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(p[at+field:], sum)
	}
}

// slowPseudo makes the pseudo-header of an IP packet.
func slowPseudo(p []byte, proto uint8, n int) []byte {
	if proto == ProtoICMP {
		return nil
	}
	tail := []byte{0, 0, byte(n >> 8), byte(n), 0, 0, 0, proto}
	if p[0]>>4 == 4 {
		src, dst := p[12:16], p[16:20]
		hdr := int(p[0]&15) * 4
		for i := 20; i < hdr && p[i] != 0; {
			if p[i] == 1 {
				i++
				continue
			}
			if i+1 >= hdr || p[i+1] < 2 || i+int(p[i+1]) > hdr {
				break
			}
			o := p[i : i+int(p[i+1])]
			if (o[0] == 131 || o[0] == 137) && len(o) >= 7 && int(o[2]) <= len(o)-3 {
				dst = o[len(o)-4:]
			}
			i += len(o)
		}
		return append(append(append([]byte(nil), src...), dst...), tail...)
	}
	src, dst := p[8:24], p[24:40]
	next, at := p[6], 40
	for {
		if next != 0 && next != 43 && next != 44 && next != 51 && next != 60 {
			break
		}
		size := int(p[at+1])*8 + 8
		switch next {
		case 44:
			size = 8
		case 51:
			size = int(p[at+1])*4 + 8
		case 43:
			if p[at+3] != 0 && size >= 24 {
				switch p[at+2] {
				case 0, 2:
					dst = p[at+size-16 : at+size]
				case 4:
					dst = p[at+8 : at+24]
				}
			}
		case 0, 60:
			for i := at + 2; i < at+size; {
				if p[i] == 0 {
					i++
					continue
				}
				if p[i] == 0xc9 && p[i+1] == 16 {
					src = p[i+2 : i+18]
				}
				i += 2 + int(p[i+1])
			}
		}
		next, at = p[at], at+size
	}
	return append(append(append([]byte(nil), src...), dst...), tail...)
}

// verdict is what slowJudge says about a packet.
type verdict struct {
	lengths bool   // all length fields agree with each other and the bytes
	header  bool   // the IPv4 header checksum is right
	state   string // of the transport checksum: good, bad, none, unknown
}

// slowJudge judges an IP packet that a parsed view of the package shows. Only
// the place of the transport header is taken from the view.
func slowJudge(v *View, p []byte) verdict {
	j := verdict{lengths: true, header: true, state: "unknown"}
	p = p[v.l3:]
	at := int(v.l4) - int(v.l3)
	total := int(binary.BigEndian.Uint16(p[2:]))
	if p[0]>>4 == 6 {
		total = 40 + int(binary.BigEndian.Uint16(p[4:]))
	} else {
		j.header = slowSum(p[:int(p[0]&15)*4]) == 0xffff
	}
	j.lengths = total <= len(p)
	if !j.lengths || v.IsFragment() {
		return j
	}
	p = p[:total]
	l4, field := p[at:], 0
	switch {
	case v.TCP() != nil:
		field = 16
	case v.UDP() != nil:
		n := int(binary.BigEndian.Uint16(l4[4:]))
		if j.lengths = n >= 8 && n <= len(l4); !j.lengths {
			return j
		}
		l4, field = l4[:n], 6
	case v.ICMP() != nil, v.ICMPv6() != nil:
		field = 2
	case v.Proto() == ProtoSCTP && len(l4) >= 12:
		c := append([]byte(nil), l4...)
		copy(c[8:12], make([]byte, 4))
		j.state = "bad"
		if binary.LittleEndian.Uint32(l4[8:]) == crc32.Checksum(c, crc32.MakeTable(crc32.Castagnoli)) {
			j.state = "good"
		}
		return j
	default:
		return j
	}
	switch {
	case field == 6 && binary.BigEndian.Uint16(l4[6:]) == 0:
		j.state = "none"
	case slowSum(slowPseudo(p, v.Proto(), len(l4)), l4) == 0xffff:
		j.state = "good"
	default:
		j.state = "bad"
	}
	return j
}

// mustView makes a parsed view of a packet with n bytes of room behind it.
func mustView(tb testing.TB, family Family, packet []byte, n int) *View {
	tb.Helper()
	var v View
	if err := v.Init(family, append(make([]byte, 0, len(packet)+n), packet...), nil); err != nil {
		tb.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		tb.Fatalf("parsing %x: %v", packet, err)
	}
	return &v
}

// mustBeRight fails the test where lengths or checksums of the view are wrong.
func mustBeRight(tb testing.TB, v *View, state string) {
	tb.Helper()
	j := slowJudge(v, flat(v))
	if !j.lengths || !j.header || j.state != state {
		tb.Errorf("lengths right: %v, header checksum right: %v, transport checksum %s, want %s: %x", j.lengths, j.header, j.state, state, flat(v))
	}
	again := *v
	if err := again.Parse(); err != nil {
		tb.Errorf("parsing once more: %v", err)
	}
	if again.proto != v.proto || again.l4 != v.l4 || again.pay != v.pay || again.end != v.end || again.payloadEnd() != v.payloadEnd() || again.state != v.state {
		tb.Errorf("parsed once more, the packet has other offsets: %+v, was %+v", again, *v)
	}
}

// flat returns the packet in one piece.
func flat(v *View) []byte {
	var p []byte
	for _, piece := range v.AppendPieces(nil, nil) {
		p = append(p, piece...)
	}
	return p
}

// family returns the family of an IP packet.
func family(p []byte) Family {
	if p[0]>>4 == 4 {
		return IPv4
	}
	return IPv6
}
