package pktbuf

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestOptionsWalk(t *testing.T) {
	tests := []struct {
		name  string
		opts  Options
		kinds []byte
		valid bool
		used  int
	}{
		{"none", nil, nil, true, 0},
		{"padding only", Options{1, 1, 0, 9}, nil, true, 0},
		{"MSS, scale", Options{2, 4, 1, 2, 1, 3, 3, 7}, []byte{2, 3}, true, 8},
		{"end before the end", Options{4, 2, 0, 0, 2, 4, 1, 2}, []byte{4}, true, 2},
		{"length 0", Options{4, 2, 8, 0}, []byte{4}, false, 2},
		{"length 1", Options{8, 1, 1, 1}, nil, false, 0},
		{"length beyond", Options{1, 1, 2, 4}, nil, false, 0},
		{"no length", Options{1, 1, 1, 2}, nil, false, 0},
	}
	for _, tt := range tests {
		var kinds []byte
		for opt, next := tt.opts.Next(0); opt != nil; opt, next = tt.opts.Next(next) {
			kinds = append(kinds, opt[0])
		}
		if !bytes.Equal(kinds, tt.kinds) || tt.opts.Valid() != tt.valid || tt.opts.used() != tt.used {
			t.Errorf("%s: kinds %v, valid %v, %d bytes used", tt.name, kinds, tt.opts.Valid(), tt.opts.used())
		}
	}
	if opt, _ := (Options{2, 4, 1, 2}).Next(-1); opt != nil {
		t.Errorf("at -1: %x", opt)
	}
}

func TestSACK(t *testing.T) {
	tcp := TCP(tcpHeader(1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4))
	for i, want := range [][2]uint32{{1, 2}, {3, 4}} {
		if left, right, ok := tcp.SACK(i); !ok || left != want[0] || right != want[1] {
			t.Errorf("block %d: %d-%d %v", i, left, right, ok)
		}
	}
	for _, i := range []int{-1, 2, 1 << 30} {
		if _, _, ok := tcp.SACK(i); ok {
			t.Errorf("block %d is there", i)
		}
	}
	if _, _, ok := tcp.Timestamps(); ok {
		t.Error("there are timestamps")
	}
	if _, ok := tcp.WindowScale(); ok || tcp.SACKPermitted() {
		t.Error("there is a window scale or SACK is permitted")
	}
}

func TestClampMSS(t *testing.T) {
	for name, opts := range map[string][]byte{
		"even": {2, 4, 0x05, 0xb4, 1, 3, 3, 7},
		"odd":  {1, 2, 4, 0x05, 0xb4, 3, 3, 7},
	} {
		p := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(opts...), payload: pattern(5, 0)})
		v := mustView(t, IPv4, p, 0)
		if err := v.ClampMSS(1460); err != nil || v.Changed() {
			t.Errorf("%s: at the limit: %v, changed: %v", name, err, v.Changed())
		}
		if err := v.ClampMSS(1200); err != nil || !v.Changed() {
			t.Errorf("%s: %v, changed: %v", name, err, v.Changed())
		}
		if mss, _ := v.TCP().MSS(); mss != 1200 {
			t.Errorf("%s: MSS %d", name, mss)
		}
		mustBeRight(t, v, "good")
		// Only a SYN says what the MSS is.
		p[33] = FlagACK
		v = mustView(t, IPv4, p, 0)
		if err := v.ClampMSS(1); err != nil || v.Changed() {
			t.Errorf("%s: without SYN: %v, changed: %v", name, err, v.Changed())
		}
	}
	v := mustView(t, IPv4, build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader()}), 0)
	if err := v.ClampMSS(1); err != nil || v.Changed() {
		t.Errorf("without the option: %v, changed: %v", err, v.Changed())
	}
}

func TestStripTCPOption(t *testing.T) {
	opts := []byte{2, 4, 5, 0xb4, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 4, 2, 8, 2, 3, 3}
	opts = append(opts, 7, 0, 0, 0)
	for ver, proto := range map[int]uint8{4: ProtoTCP, 6: ProtoTCP} {
		p := build(spec{ver: ver, proto: proto, l4: tcpHeader(opts...), payload: pattern(9, 0)})
		v := mustView(t, family(p), p, 0)
		if err := v.StripTCPOption(TCPOptTimestamps); err != nil || !v.Changed() {
			t.Fatal(err)
		}
		want := append([]byte(nil), opts...)
		for _, span := range [][2]int{{4, 14}, {16, 18}} {
			for i := span[0]; i < span[1]; i++ {
				want[i] = 1
			}
		}
		if !bytes.Equal(v.TCP().Options(), want) {
			t.Errorf("options %x, want %x", v.TCP().Options(), want)
		}
		mustBeRight(t, v, "good")
		v = mustView(t, family(p), p, 0)
		if err := v.StripTCPOption(30); err != nil || v.Changed() {
			t.Errorf("an option that is not there: %v, changed: %v", err, v.Changed())
		}
		if err := v.StripTCPOption(TCPOptNop); err != ErrRange {
			t.Errorf("padding: %v", err)
		}
	}
}

func TestAddTCPOption(t *testing.T) {
	tests := []struct {
		name       string
		opts, data []byte
		want       []byte
	}{
		{"into nothing", nil, []byte{9}, []byte{30, 3, 9, 0}},
		{"four bytes", nil, []byte{9, 8}, []byte{30, 4, 9, 8}},
		{"into the padding", []byte{4, 2, 1, 1, 1, 1, 1, 1}, []byte{9, 8, 7}, []byte{4, 2, 30, 5, 9, 8, 7, 0}},
		{"beyond the padding", []byte{3, 3, 7, 0}, []byte{9, 8, 7}, []byte{3, 3, 7, 30, 5, 9, 8, 7}},
		{"odd place", []byte{3, 3, 7, 1}, []byte{9}, []byte{3, 3, 7, 30, 3, 9, 0, 0}},
		{"the last place", bytes.Repeat([]byte{4, 2}, 18), []byte{1, 2}, append(bytes.Repeat([]byte{4, 2}, 18), 30, 4, 1, 2)},
	}
	for _, tt := range tests {
		for _, ver := range []int{4, 6} {
			s := spec{ver: ver, proto: ProtoTCP, l4: tcpHeader(tt.opts...), payload: pattern(21, 0)}
			p := build(s)
			v := mustView(t, family(p), p, 40)
			if err := v.AddTCPOption(30, tt.data); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			s.l4 = tcpHeader(tt.want...)
			if want := build(s); !bytes.Equal(v.Bytes(), want) {
				t.Errorf("%s, IPv%d:\ngot  %x\nwant %x", tt.name, ver, v.Bytes(), want)
			}
			mustBeRight(t, v, "good")
		}
	}
}

func TestAddTCPOptionRefused(t *testing.T) {
	full := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(bytes.Repeat([]byte{4, 2}, 20)...)})
	broken := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(2, 0, 1, 1)})
	plain := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(), payload: pattern(4, 0)})
	shared := mustView(t, IPv4, plain, 20)
	shared.Clone(new(View), make([]byte, 64))
	for name, tt := range map[string]struct {
		v    *View
		kind uint8
		data []byte
		want error
	}{
		"no place":            {mustView(t, IPv4, full, 20), 30, nil, ErrTooLong},
		"longer than any":     {mustView(t, IPv4, plain, 99), 30, make([]byte, 300), ErrTooLong},
		"broken options":      {mustView(t, IPv4, broken, 20), 30, nil, ErrRange},
		"padding":             {mustView(t, IPv4, plain, 20), 1, nil, ErrRange},
		"no room":             {mustView(t, IPv4, plain, 3), 30, nil, ErrNoRoom},
		"payload is shared":   {shared, 30, nil, ErrShared},
		"a fragment's header": {mustView(t, IPv4, change(plain, 6, 0x20), 20), 30, nil, ErrFragment},
	} {
		before := append([]byte(nil), tt.v.Bytes()...)
		if err := tt.v.AddTCPOption(tt.kind, tt.data); err != tt.want {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if !bytes.Equal(tt.v.Bytes(), before) || tt.v.Changed() {
			t.Errorf("%s: the packet has changed", name)
		}
	}
}

// TestQuoted reads the packet in ICMP errors, whole and with eight bytes only.
func TestQuoted(t *testing.T) {
	for _, ver := range []int{4, 6} {
		inner := spec{ver: ver, proto: ProtoTCP, l4: tcpHeader(), payload: pattern(30, 0)}
		outer := spec{ver: ver, proto: ProtoICMP, l4: []byte{3, 4, 0, 0, 0, 0, 0x05, 0xdc}}
		if ver == 6 {
			outer = spec{ver: ver, proto: ProtoICMPv6, l4: []byte{2, 0, 0, 0, 0, 0, 0x05, 0xdc}}
		}
		quoted := build(inner)
		sent := mustView(t, family(quoted), quoted, 0)
		want, _ := sent.Flow()
		for _, n := range []int{len(quoted), sent.HeaderLen(), int(sent.l4) + 8} {
			outer.payload = quoted[:n]
			v := mustView(t, family(quoted), build(outer), 0)
			var q View
			if err := v.Quoted(&q); err != nil {
				t.Fatalf("IPv%d, %d bytes: %v", ver, n, err)
			}
			if f, ok := q.Flow(); !ok || f != want {
				t.Errorf("IPv%d, %d bytes: flow %v, want %v", ver, n, f, want)
			}
			_, err := q.Writable(1)
			if err != ErrShared || q.Replace(0, 1, []byte{1}) != ErrShared || q.SetTTL(1) != ErrShort {
				t.Error("the quote can be changed")
			}
			if (q.TCP() != nil) != (n >= sent.HeaderLen()) {
				t.Errorf("IPv%d, %d bytes: TCP header %x", ver, n, q.TCP())
			}
		}
		outer.payload = quoted[:12]
		if err := mustView(t, family(quoted), build(outer), 0).Quoted(new(View)); err != ErrShort {
			t.Errorf("IPv%d, quote without a header: %v", ver, err)
		}
	}
	echo := mustView(t, IPv4, build(spec{ver: 4, proto: ProtoICMP, l4: []byte{8, 0, 0, 0, 0x12, 0x34, 0, 7}}), 0)
	if err := echo.Quoted(new(View)); err != ErrProto {
		t.Errorf("an echo quotes nothing: %v", err)
	}
	m := echo.ICMP()
	f, _ := echo.Flow()
	if !m.IsEcho() || m.ID() != 0x1234 || m.Seq() != 7 || m.Type() != 8 || m.Code() != 0 || f.SrcPort() != 0x1234 || f.DstPort() != 0x1234 {
		t.Errorf("echo %x, flow %v", m, f)
	}
	if binary.BigEndian.Uint16(m[2:]) != m.Checksum() {
		t.Error("checksum")
	}
}

func TestICMPv6(t *testing.T) {
	big := mustView(t, IPv6, build(spec{ver: 6, proto: ProtoICMPv6, l4: []byte{2, 0, 0, 0, 0, 0, 5, 0}, payload: pattern(40, 0)}), 0)
	m := big.ICMPv6()
	if m.Type() != ICMPv6PacketTooBig || m.MTU() != 1280 || !m.IsError() || m.IsEcho() || m.Code() != 0 || m.Checksum() == 0 {
		t.Errorf("packet too big: %x", m)
	}
	echo := mustView(t, IPv6, build(spec{ver: 6, proto: ProtoICMPv6, l4: []byte{129, 0, 0, 0, 0, 9, 0, 8}}), 0)
	if f, ok := echo.Flow(); !ok || f.SrcPort() != 9 || echo.ICMPv6().ID() != 9 || echo.ICMPv6().Seq() != 8 {
		t.Errorf("echo: flow %v", f)
	}
	// Four bytes are enough for a message of another type.
	tiny := mustView(t, IPv6, build(spec{ver: 6, proto: ProtoICMPv6, l4: []byte{155, 0, 0, 0}}), 0)
	if len(tiny.ICMPv6()) != 4 || tiny.PayloadLen() != 0 {
		t.Errorf("four bytes: %x", tiny.ICMPv6())
	}
	// The protocols of the other version are nothing but protocols.
	if v := mustView(t, IPv4, build(spec{ver: 4, proto: ProtoICMPv6, payload: pattern(8, 0)}), 0); v.ICMPv6() != nil || v.ICMP() != nil {
		t.Error("ICMPv6 over IPv4")
	}
	icmp := mustView(t, IPv4, build(spec{ver: 4, proto: ProtoICMP, l4: []byte{3, 4, 0, 0, 0, 0, 5, 0}, payload: pattern(28, 0)}), 0)
	if icmp.ICMP().MTU() != 1280 {
		t.Errorf("MTU %d", icmp.ICMP().MTU())
	}
}

func TestAppendLog(t *testing.T) {
	for name, want := range map[string]string{
		"TCP4": "SRC=192.0.2.1 DST=198.51.100.2 LEN=40 TOS=0xB9 TTL=64 ID=4660 DF PROTO=TCP SPT=5060 DPT=80 " +
			"SEQ=16909060 ACK=84281096 WINDOW=65535 SYN ACK",
		"UDP6":  "SRC=2001:db8::1 DST=2001:db8:1::2 LEN=48 TC=0xB9 HOPLIMIT=64 FLOWLBL=74565 PROTO=UDP SPT=5060 DPT=53 LEN=8",
		"ICMP4": "SRC=192.0.2.1 DST=198.51.100.2 LEN=28 TOS=0xB9 TTL=64 ID=4660 DF PROTO=ICMP TYPE=8 CODE=0",
		"ICMP6": "SRC=2001:db8::1 DST=2001:db8:1::2 LEN=48 TC=0xB9 HOPLIMIT=64 FLOWLBL=74565 PROTO=ICMPv6 TYPE=128 CODE=0",
		"GRE4":  "SRC=192.0.2.1 DST=198.51.100.2 LEN=20 TOS=0xB9 TTL=64 ID=4660 DF PROTO=47",
	} {
		p := build(specs()[name])
		if got := string(mustView(t, family(p), p, 0).AppendLog(nil)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
	later := change(build(specs()["TCP4"]), 6, 0x00, 2)
	if got := string(mustView(t, IPv4, later, 0).AppendLog([]byte("x "))); got != "x SRC=192.0.2.1 DST=198.51.100.2 LEN=40 TOS=0xB9 TTL=64 ID=4660 FRAG:16 PROTO=6" {
		t.Errorf("fragment: %s", got)
	}
}
