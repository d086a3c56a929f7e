package pktbuf

import (
	"bytes"
	"net/netip"
	"testing"
)

const (
	frameHex = `
		02 00 00 00 00 01        # destination
		02 00 00 00 00 02        # source
		88 a8 b0 64              # 802.1ad tag: priority 5, drop eligible, VLAN 100
		81 00 00 0a              # 802.1Q tag: VLAN 10
		08 00                    # IPv4
		47 b9 00 4b              # version 4, IHL 7, DSCP EF, ECN 1, total length 75
		12 34 40 00              # identification, DF
		3f 06 6b 8c              # TTL 63, TCP, header checksum
		c0 00 02 01              # 192.0.2.1
		c6 33 64 02              # 198.51.100.2
		94 04 00 00  01 01 01 00 # router alert, padding
		13 c4 00 50              # 5060 > 80
		01 02 03 04  05 06 07 08 # sequence, acknowledgement
		bb 12 ff fe              # data offset 11, reserved b, SYN ACK, window
		66 77 00 07              # checksum (wrong), urgent pointer
		02 04 05 b4  01          # MSS 1460, no-operation
		03 03 07                 # window scale 7
		04 02                    # SACK permitted
		08 0a 00 00 00 11 00 00 00 22 # timestamps
		00 00 00 00              # end of options
		61 62 63` //  payload
	v6Hex = `
		6b 91 23 45 00 30 00 40  # version 6, class b9, flow label 12345, length 48, hop-by-hop, hop limit 64
		20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 # 2001:db8::1
		20 01 0d b8 00 01 00 00 00 00 00 00 00 00 00 02 # 2001:db8:1::2
		3c 00 05 02 00 00 01 00  # hop-by-hop: router alert; destination options follow
		33 00 01 04 00 00 00 00  # destination options: padding; authentication follows
		2c 02 00 00 00 00 00 01  # authentication: 16 bytes; fragment follows
		00 00 00 02 aa bb cc dd
		11 00 00 00 de ad be ef  # fragment: offset 0, no more; UDP follows
		13 c4 00 35 00 08 00 00` // 5060 > 53, no payload
)

func TestFrame(t *testing.T) {
	v := mustView(t, Bridge, mustHex(t, frameHex), 0)
	e, h, tcp := v.Ethernet(), v.IPv4(), v.TCP()
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("destination", [6]byte(e.Dst()), [6]byte{2, 0, 0, 0, 0, 1})
	check("source", [6]byte(e.Src()), [6]byte{2, 0, 0, 0, 0, 2})
	check("EtherType", e.EtherType(), uint16(EtherTypeIPv4))
	check("tags", e.VLANs(), 2)
	check("outer TPID", e.VLAN(0).TPID(), uint16(EtherTypeQinQ))
	check("outer priority", e.VLAN(0).Priority(), uint8(5))
	check("outer drop eligible", e.VLAN(0).DropEligible(), true)
	check("outer VLAN", e.VLAN(0).ID(), uint16(100))
	check("inner TPID", e.VLAN(1).TPID(), uint16(EtherTypeVLAN))
	check("inner drop eligible", e.VLAN(1).DropEligible(), false)
	check("inner VLAN", e.VLAN(1).ID(), uint16(10))
	check("IHL", h.Len(), 28)
	check("TOS", h.TOS(), uint8(0xb9))
	check("DSCP", h.DSCP(), uint8(46))
	check("ECN", h.ECN(), uint8(1))
	check("total length", h.TotalLength(), 75)
	check("identification", h.ID(), uint16(0x1234))
	check("DF", h.DontFragment(), true)
	check("MF", h.MoreFragments(), false)
	check("fragment offset", h.FragmentOffset(), 0)
	check("TTL", h.TTL(), uint8(63))
	check("protocol", h.Protocol(), uint8(ProtoTCP))
	check("header checksum", h.Checksum(), uint16(0x6b8c))
	check("IP options", bytes.Equal(h.Options().Find(IPv4OptRouterAlert), []byte{0x94, 4, 0, 0}), true)
	check("TCP length", tcp.Len(), 44)
	check("sequence", tcp.Seq(), uint32(0x01020304))
	check("acknowledgement", tcp.Ack(), uint32(0x05060708))
	check("reserved", tcp.Reserved(), uint8(0xb))
	check("flags", tcp.Flags(), uint8(FlagSYN|FlagACK))
	check("window", tcp.Window(), uint16(0xfffe))
	check("checksum", tcp.Checksum(), uint16(0x6677))
	check("urgent", tcp.Urgent(), uint16(7))
	mss, ok := tcp.MSS()
	check("MSS", mss, uint16(1460))
	check("MSS there", ok, true)
	scale, _ := tcp.WindowScale()
	check("window scale", scale, uint8(7))
	check("SACK permitted", tcp.SACKPermitted(), true)
	value, echo, _ := tcp.Timestamps()
	check("timestamp", value, uint32(0x11))
	check("timestamp echo", echo, uint32(0x22))
	check("payload", string(v.Payload()), "abc")
	check("payload length", v.PayloadLen(), 3)
	check("header length", v.HeaderLen(), 22+28+44)
	check("transport", len(v.Transport()), 47)
	f, ok := v.Flow()
	check("flow known", ok, true)
	check("flow", f, FlowOf(netip.MustParseAddrPort("192.0.2.1:5060"), netip.MustParseAddrPort("198.51.100.2:80"), ProtoTCP))
	check("state of the checksum", v.CheckTransport(), ChecksumBad)
	check("family", v.Family(), Bridge)
	check("version", v.Version(), 4)
}

func TestIPv6(t *testing.T) {
	v := mustView(t, IPv6, mustHex(t, v6Hex), 0)
	h, fr := v.IPv6(), v.IPv6Fragment()
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("class", h.TrafficClass(), uint8(0xb9))
	check("DSCP", h.DSCP(), uint8(46))
	check("ECN", h.ECN(), uint8(1))
	check("flow label", h.FlowLabel(), uint32(0x12345))
	check("payload length", h.PayloadLength(), 48)
	check("next header", h.NextHeader(), uint8(0))
	check("hop limit", h.HopLimit(), uint8(64))
	check("protocol", v.Proto(), uint8(ProtoUDP))
	check("header length", v.HeaderLen(), 88)
	for i, want := range []struct{ typ, next uint8 }{{0, 60}, {60, 51}, {51, 44}, {44, 17}} {
		typ, e := v.Extension(i)
		if e == nil || typ != want.typ || e.NextHeader() != want.next {
			t.Errorf("extension header %d: type %d, %x", i, typ, e)
		}
	}
	for _, i := range []int{-1, 4, 100} {
		if _, e := v.Extension(i); e != nil {
			t.Errorf("extension header %d: %x, want none", i, e)
		}
	}
	check("fragment's next header", fr.NextHeader(), uint8(17))
	check("fragment's offset", fr.Offset(), 0)
	check("fragment's more", fr.More(), false)
	check("fragment's identification", fr.ID(), uint32(0xdeadbeef))
	// An atomic fragment is a whole packet (RFC 6946).
	check("is a fragment", v.IsFragment(), false)
	check("UDP length", v.UDP().Length(), 8)
	check("state of the checksum", v.CheckTransport(), ChecksumNone)
	f, _ := v.Flow()
	check("flow", f, FlowOf(netip.MustParseAddrPort("[2001:db8::1]:5060"), netip.MustParseAddrPort("[2001:db8:1::2]:53"), ProtoUDP))
}

// TestShortRoutes: source routes and routing headers without an address in them
// name no other destination.
func TestShortRoutes(t *testing.T) {
	for name, s := range map[string]spec{
		"option of 2 bytes":   {ver: 4, proto: ProtoUDP, l4: udpHeader(), opts: []byte{1, 1, 131, 2}},
		"option of 3 bytes":   {ver: 4, proto: ProtoUDP, l4: udpHeader(), opts: []byte{137, 3, 4, 0}},
		"route at its end":    {ver: 4, proto: ProtoUDP, l4: udpHeader(), opts: []byte{131, 7, 8, 203, 0, 113, 9, 0}},
		"header of 8 bytes":   {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 43, ext: []byte{17, 0, 0, 1, 0, 0, 0, 0}},
		"segments of 8 bytes": {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 43, ext: []byte{17, 0, 4, 1, 0, 0, 0, 0}},
		"unknown type":        {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 43, ext: append([]byte{17, 2, 9, 1}, make([]byte, 20)...)},
		"no segments left":    {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 43, ext: append([]byte{17, 2, 0, 0}, make([]byte, 20)...)},
	} {
		p := build(s)
		v := mustView(t, family(p), p, 0)
		if v.state&hasAltDst != 0 || v.CheckTransport() != ChecksumGood {
			t.Errorf("%s: another destination: %v, checksum %d", name, v.state&hasAltDst != 0, v.CheckTransport())
		}
	}
}

// change returns a copy of p with bytes from an offset on replaced.
func change(p []byte, at int, b ...byte) []byte {
	p = append([]byte(nil), p...)
	copy(p[at:], b)
	return p
}

// refusedPacket is a packet that must not be parsed, and the error it must get.
type refusedPacket struct {
	name   string
	family Family
	packet []byte
	want   error
}

func refusedPackets(t *testing.T) []refusedPacket {
	t.Helper()
	frame := mustHex(t, frameHex)
	v6 := mustHex(t, v6Hex)
	udp := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("abcd")})
	tcp := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader()})
	icmp := build(spec{ver: 4, proto: ProtoICMP, l4: []byte{8, 0, 0, 0, 0, 1, 0, 1}})
	echo6 := build(spec{ver: 6, proto: ProtoICMPv6, l4: []byte{128, 0, 0, 0, 0, 1, 0, 1}})
	sctp := build(spec{ver: 4, proto: ProtoSCTP, l4: sctpHeader()})
	return []refusedPacket{
		{"no bytes", IPv4, nil, ErrShort},
		{"19 bytes", IPv4, udp[:19], ErrShort},
		{"version 6 as IPv4", IPv4, v6, ErrProto},
		{"version 4 as IPv6", IPv6, append(udp, make([]byte, 20)...), ErrProto},
		{"IHL 4", IPv4, change(udp, 0, 0x44), ErrLength},
		{"IHL beyond the bytes", IPv4, change(udp, 0, 0x4f, 0, 0, 60)[:24], ErrShort},
		{"total length below IHL", IPv4, change(udp, 2, 0, 19), ErrLength},
		{"total length beyond the bytes", IPv4, change(udp, 2, 0, 33), ErrShort},
		{"total length 0", IPv4, change(udp, 2, 0, 0), ErrLength},
		{"UDP header cut", IPv4, change(udp, 2, 0, 27), ErrShort},
		{"UDP length 7", IPv4, change(udp, 24, 0, 7), ErrLength},
		{"UDP length beyond the packet", IPv4, change(udp, 24, 0, 13), ErrLength},
		{"UDP of 7 bytes, padded", IPv4, append(change(change(udp, 2, 0, 27), 24, 0, 7), make([]byte, 20)...), ErrShort},
		{"TCP of 19 bytes, padded", IPv4, append(change(tcp, 2, 0, 39), make([]byte, 20)...), ErrShort},
		{"TCP header cut", IPv4, change(tcp, 2, 0, 39), ErrShort},
		{"TCP offset 4", IPv4, change(tcp, 32, 0x40), ErrLength},
		{"TCP offset beyond the packet", IPv4, change(tcp, 32, 0x60), ErrShort},
		{"tiny first fragment", IPv4, change(tcp, 2, 0, 28, 0, 0, 0x20, 0), ErrShort},
		{"fragment beyond 65535", IPv4, change(udp, 6, 0x1f, 0xff), ErrTooLong},
		{"ICMP cut", IPv4, change(icmp, 2, 0, 27), ErrShort},
		{"SCTP cut", IPv4, change(sctp, 2, 0, 31), ErrShort},
		{"13 bytes", Bridge, frame[:13], ErrShort},
		{"tag cut", Bridge, frame[:17], ErrShort},
		{"ARP", Bridge, change(frame, 20, 8, 6), ErrProto},
		{"three tags", Bridge, change(frame, 20, 0x81, 0), ErrProto},
		{"length instead of a type", Bridge, change(frame, 12, 0, 40), ErrProto},
		// The C library compares the type in the wrong byte order.
		{"swapped type", Bridge, change(frame, 20, 0, 8), ErrProto},
		{"IPv6 type, IPv4 packet", Bridge, change(frame, 20, 0x86, 0xdd), ErrProto},
		{"no IP header", Bridge, frame[:22], ErrShort},
		{"39 bytes", IPv6, v6[:39], ErrShort},
		{"payload length beyond the bytes", IPv6, change(v6, 4, 0, 49), ErrShort},
		{"jumbogram", IPv6, change(v6, 4, 0, 0), ErrTooLong},
		{"jumbo option", IPv6, change(v6, 40, 60, 0, 0xc2, 4), ErrTooLong},
		{"option beyond its header", IPv6, change(v6, 42, 5, 5), ErrLength},
		{"option without a length", IPv6, change(v6, 42, 1, 3, 0, 0, 0, 9), ErrLength},
		{"hop-by-hop second", IPv6, change(v6, 40, 0), ErrHeaders},
		{"two fragment headers", IPv6, change(v6, 48, 44, 0, 0, 0, 0, 0, 0, 0, 44), ErrHeaders},
		{"extension header beyond the packet", IPv6, change(v6, 41, 6), ErrShort},
		{"extension header cut", IPv6, change(v6, 4, 0, 4), ErrShort},
		{"nine extension headers", IPv6, nested(9), ErrHeaders},
		{"echo cut", IPv6, change(echo6, 4, 0, 7), ErrShort},
		{"no family", 0, udp, ErrProto},
	}
}

// nested is a packet with n destination option headers.
func nested(n int) []byte {
	ext := bytes.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, n)
	ext[8*n-8] = ProtoUDP
	return build(spec{ver: 6, proto: ProtoUDP, first: 60, ext: ext, l4: udpHeader()})
}

func TestRefused(t *testing.T) {
	for _, tt := range refusedPackets(t) {
		t.Run(tt.name, func(t *testing.T) {
			v := View{pkt: tt.packet, family: tt.family}
			if err := v.Parse(); err != tt.want {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if _, ok := v.Flow(); ok {
				t.Error("the flow of a refused packet is known")
			}
			if v.Payload() != nil || v.TCP() != nil || v.UDP() != nil || v.ICMP() != nil || v.ICMPv6() != nil || v.PayloadLen() != 0 {
				t.Error("a refused packet has a transport header or a payload")
			}
		})
	}
	if v := mustView(t, IPv6, nested(8), 0); v.Proto() != ProtoUDP {
		t.Errorf("eight extension headers: protocol %d", v.Proto())
	}
	udp := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("abcd")})
	if err := new(View).Init(Bridge+1, udp, nil); err != ErrProto {
		t.Errorf("Init with an unknown family: %v", err)
	}
}

// TestUnparsed: before Parse every accessor says that there is nothing.
func TestUnparsed(t *testing.T) {
	stale := mustView(t, Bridge, mustHex(t, frameHex), 0)
	stale.Init(IPv4, []byte{1, 2, 3}, nil) // used before: nothing of it may show
	for _, v := range []*View{{}, stale} {
		f, ok := v.Flow()
		if ok || f != (Flow{}) || v.Version() != 0 || v.Proto() != 0 || v.HeaderLen() != 0 || v.TTL() != 0 {
			t.Errorf("flow %v %v, version %d, protocol %d, %d bytes of headers", f, ok, v.Version(), v.Proto(), v.HeaderLen())
		}
		if v.Ethernet() != nil || v.IPv4() != nil || v.IPv6() != nil || v.Transport() != nil || v.IPv6Fragment() != nil {
			t.Error("there is a header")
		}
		if offset, more := v.Fragment(); offset != 0 || more || v.IsFragment() {
			t.Error("it is a fragment")
		}
		if v.CheckHeader() || v.CheckTransport() != ChecksumUnknown || len(v.AppendLog(nil)) != 0 {
			t.Error("it has checksums or a log line")
		}
		if v.Changed() || v.Unfinished() || v.Cut() {
			t.Error("it is changed, unfinished or cut")
		}
		for _, err := range []error{v.SetTTL(1), v.DecrementTTL(), v.SetDSCP(1), v.SetSrcPort(1), v.Recompute(),
			v.SetSrc(netip.IPv4Unspecified()), v.Append([]byte{1}), v.Trim(0), v.ClampMSS(1), v.StripTCPOption(2),
			v.AddTCPOption(2, nil), v.Quoted(new(View)), v.Clone(new(View), make([]byte, 100))} {
			if err != ErrProto {
				t.Errorf("change of an unparsed packet: %v, want %v", err, ErrProto)
			}
		}
	}
}

// TestFragments: ports are never read out of later fragments.
func TestFragments(t *testing.T) {
	udp := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(100, 0)})
	v := mustView(t, IPv4, change(udp, 6, 0x20, 3), 0)
	f, ok := v.Flow()
	if offset, more := v.Fragment(); offset != 24 || !more || !v.IsFragment() {
		t.Errorf("offset %d, more %v", offset, more)
	}
	if ok || f.SrcPort() != 0 || f.Src().Addr() != netip.MustParseAddr("192.0.2.1") || f.Proto() != ProtoUDP || v.UDP() != nil {
		t.Errorf("flow %v, known: %v", f, ok)
	}
	if v.PayloadLen() != 108 || v.CheckTransport() != ChecksumUnknown {
		t.Errorf("payload %d bytes, checksum %d", v.PayloadLen(), v.CheckTransport())
	}
	// The first one, whose UDP length counts the others in.
	v = mustView(t, IPv4, change(udp, 2, 0, 60, 0, 0, 0x20, 0), 0)
	if f, ok := v.Flow(); !ok || f.DstPort() != 53 || v.PayloadLen() != 32 {
		t.Errorf("first fragment: %v %v, payload %d bytes", f, ok, v.PayloadLen())
	}
	six := mustHex(t, v6Hex)
	v = mustView(t, IPv6, change(six, 74, 0, 0x29), 0)
	if offset, more := v.Fragment(); offset != 40 || !more || v.UDP() != nil || v.Proto() != ProtoUDP {
		t.Errorf("IPv6: offset %d, more %v, protocol %d", offset, more, v.Proto())
	}
}

// TestCut: a packet whose start only is here can be looked at.
func TestCut(t *testing.T) {
	tcp := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(2, 4, 5, 0xb4), payload: pattern(100, 0)})
	for n, ports := range map[int]bool{60: true, 44: true, 43: true, 24: true, 23: false} {
		v := View{pkt: tcp[:n], family: IPv4}
		v.SetCut()
		if err := v.Parse(); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		f, _ := v.Flow()
		if (f.DstPort() == 80) != ports || (v.TCP() != nil) != (n >= 44) {
			t.Errorf("%d bytes: flow %v, TCP %x", n, f, v.TCP())
		}
		if v.CheckTransport() != ChecksumUnknown || v.SetTTL(3) != ErrShort || v.Append(nil) != ErrShort {
			t.Errorf("%d bytes: a cut packet has a checksum or can be changed", n)
		}
	}
	// Cut it may be, but all of it is here.
	v := View{pkt: tcp, family: IPv4}
	v.SetCut()
	if err := v.Parse(); err != nil || v.CheckTransport() != ChecksumGood {
		t.Errorf("whole packet: %v, checksum %d", err, v.CheckTransport())
	}
}
