package pktbuf

import (
	"bytes"
	"fmt"
	"testing"
)

// specs are one packet of every shape whose payload can be replaced.
func specs() map[string]spec {
	hop := []byte{60, 0, 5, 2, 0, 0, 1, 0} // router alert, then destination options
	segments := append([]byte{0, 4, 4, 1, 1, 0, 0, 0}, append(mustAddr("2001:db8::1"), mustAddr("2001:db8:1::2")...)...)
	home := append([]byte{0, 2, 1, 2, 0, 0, 0xc9, 16}, mustAddr("2001:db8:1::2")...)
	last := func(ext []byte, at int, proto uint8) []byte {
		ext[at] = proto
		return ext
	}
	mss := []byte{2, 4, 0x05, 0xb4, 1, 3, 3, 7}
	return map[string]spec{
		"TCP4":             {ver: 4, proto: ProtoTCP, l4: tcpHeader()},
		"TCP4 options":     {ver: 4, proto: ProtoTCP, l4: tcpHeader(mss...), opts: []byte{148, 4, 0, 0}},
		"TCP4 route":       {ver: 4, proto: ProtoTCP, l4: tcpHeader(), opts: []byte{131, 7, 4, 203, 0, 113, 9, 0}},
		"UDP4":             {ver: 4, proto: ProtoUDP, l4: udpHeader()},
		"UDP4 no checksum": {ver: 4, proto: ProtoUDP, l4: udpHeader(), noSum: true},
		"ICMP4":            {ver: 4, proto: ProtoICMP, l4: []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}},
		"SCTP4":            {ver: 4, proto: ProtoSCTP, l4: sctpHeader()},
		"GRE4":             {ver: 4, proto: 47},
		"TCP6":             {ver: 6, proto: ProtoTCP, l4: tcpHeader(mss...)},
		"UDP6":             {ver: 6, proto: ProtoUDP, l4: udpHeader()},
		"UDP6 no checksum": {ver: 6, proto: ProtoUDP, l4: udpHeader(), noSum: true},
		"UDP6 options":     {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 0, ext: append(hop, 17, 0, 1, 4, 0, 0, 0, 0)},
		"TCP6 segments":    {ver: 6, proto: ProtoTCP, l4: tcpHeader(), first: 43, ext: last(segments, 0, ProtoTCP)},
		"UDP6 home":        {ver: 6, proto: ProtoUDP, l4: udpHeader(), first: 60, ext: last(home, 0, ProtoUDP)},
		"ICMP6":            {ver: 6, proto: ProtoICMPv6, l4: []byte{128, 0, 0, 0, 0x12, 0x34, 0, 1}},
		"ESP6":             {ver: 6, proto: 50},
	}
}

// pattern returns n bytes that are not all alike.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*13 + i>>8)
	}
	return b
}

// TestReplacePayload holds every replacement against a packet that was made
// with the new payload from the start.
func TestReplacePayload(t *testing.T) {
	for name, s := range specs() {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{0, 1, 2, 7, 64, 1399} {
				s.payload = pattern(size, 1)
				was := build(s)
				for _, off := range []int{0, 1, 2, size / 2, size} {
					for _, n := range []int{0, 1, 2, 5, size - off} {
						for _, m := range []int{0, 1, 2, 5, 30, 257} {
							if n < 0 || off+n > size {
								continue
							}
							rep := pattern(m, 2)
							s.payload = bytes.Join([][]byte{pattern(size, 1)[:off], rep, pattern(size, 1)[off+n:]}, nil)
							v := mustView(t, family(was), was, 300)
							if err := v.ReplacePayload(off, n, rep); err != nil {
								t.Fatalf("%d bytes at %d of %d by %d: %v", n, off, size, m, err)
							}
							if want := build(s); !bytes.Equal(v.Bytes(), want) {
								t.Fatalf("%d bytes at %d of %d by %d:\ngot  %x\nwant %x", n, off, size, m, v.Bytes(), want)
							}
							if !v.Changed() || !bytes.Equal(v.Payload(), s.payload) {
								t.Fatalf("changed: %v, payload %x", v.Changed(), v.Payload())
							}
						}
					}
				}
			}
		})
	}
}

// TestReplaceInFrame does the same behind an Ethernet header with tags, and with
// padding behind the packet, which goes when the length changes.
func TestReplaceInFrame(t *testing.T) {
	link := mustHex(t, `
		02 00 00 00 00 01  02 00 00 00 00 02  # destination, source
		88 a8 60 64  81 00 00 0a  08 00       # 802.1ad tag 100, priority 3; VLAN 10; IPv4`)
	s := spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("abc")}
	padded := bytes.Join([][]byte{link, build(s), make([]byte, 15)}, nil)
	for _, rep := range []string{"", "x", "yz", "longer than what was there"} {
		v := mustView(t, Bridge, padded, 40)
		if err := v.ReplacePayload(1, 2, []byte(rep)); err != nil {
			t.Fatal(err)
		}
		s.payload = []byte("a" + rep)
		want := append(append([]byte(nil), link...), build(s)...)
		if len(rep) == 2 {
			want = append(want, make([]byte, 15)...)
		}
		if !bytes.Equal(v.Bytes(), want) {
			t.Errorf("%q:\ngot  %x\nwant %x", rep, v.Bytes(), want)
		}
	}
}

// TestReplaceTrailer keeps bytes that stand behind UDP's own length where they are.
func TestReplaceTrailer(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("abcdTRAIL")})
	p[25] -= 5
	v := mustView(t, IPv4, p, 10)
	if err := v.Recompute(); err != nil {
		t.Fatal(err)
	}
	for _, rep := range []string{"xyz", "x", "", "12345678"} {
		if err := v.ReplacePayload(1, v.PayloadLen()-1, []byte(rep)); err != nil {
			t.Fatal(err)
		}
		mustBeRight(t, v, "good")
		if got := string(v.Bytes()[28:]); got != "a"+rep+"TRAIL" {
			t.Errorf("%q: payload and trailer are %q", rep, got)
		}
	}
}

// TestReplaceRefused: after an error every byte is as it was.
func TestReplaceRefused(t *testing.T) {
	udp := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(100, 3)})
	first := append([]byte(nil), udp...)
	first[6] = 0x20
	later := append([]byte(nil), udp...)
	later[6], later[7] = 0x20, 5
	long := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(65000, 3)})
	tests := []struct {
		name     string
		packet   []byte
		prepare  func(*View)
		off, n   int
		rep      int
		want     error
		capacity int
	}{
		{name: "before the payload", packet: udp, off: -1, n: 1, want: ErrRange},
		{name: "behind the payload", packet: udp, off: 101, want: ErrRange},
		{name: "beyond the end", packet: udp, off: 99, n: 2, want: ErrRange},
		{name: "negative length", packet: udp, off: 5, n: -1, want: ErrRange},
		{name: "largest length", packet: udp, off: 5, n: int(^uint(0) >> 1), want: ErrRange},
		{name: "one byte too much", packet: udp, rep: 11, capacity: 10, want: ErrNoRoom},
		// The C library's growth in this range went beyond the buffer.
		{name: "half as much again", packet: udp, rep: 15, capacity: 10, want: ErrNoRoom},
		{name: "65536 bytes", packet: long, rep: 508, capacity: 2000, want: ErrTooLong},
		{name: "first fragment grows", packet: first, rep: 1, capacity: 100, want: ErrFragment},
		{name: "later fragment", packet: later, off: 1, n: 1, rep: 1, want: ErrFragment},
		{name: "cut", packet: udp, prepare: (*View).SetCut, off: 1, n: 1, rep: 1, want: ErrShort},
		{name: "unfinished first fragment", packet: first, prepare: (*View).SetUnfinished, off: 1, n: 1, rep: 1, want: ErrFragment},
		{name: "not parsed", packet: udp, prepare: func(v *View) { v.Init(IPv4, v.Bytes(), nil) }, want: ErrProto},
		{name: "shared", packet: udp, prepare: func(v *View) { v.Clone(new(View), nil) }, off: 1, n: 1, rep: 1, want: ErrShared},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := mustView(t, IPv4, tt.packet, tt.capacity)
			if tt.prepare != nil {
				tt.prepare(v)
			}
			before := *v
			if err := v.ReplacePayload(tt.off, tt.n, pattern(tt.rep, 9)); err != tt.want {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if !bytes.Equal(v.Bytes(), tt.packet) || v.state != before.state || v.flags != before.flags || v.end != before.end {
				t.Errorf("the packet has changed: %x", v.Bytes())
			}
			if room := v.Bytes()[len(v.Bytes()):cap(v.Bytes())]; !bytes.Equal(room, make([]byte, len(room))) {
				t.Errorf("bytes behind the packet have changed: %x", room)
			}
		})
	}
}

// TestReplaceToTheLimit grows a packet to the longest there is.
func TestReplaceToTheLimit(t *testing.T) {
	for _, name := range []string{"UDP4", "TCP4", "TCP6"} {
		s := specs()[name]
		s.payload = pattern(65000, 3)
		p := build(s)
		limit := 65535
		if s.ver == 6 {
			limit += 40
		}
		v := mustView(t, family(p), p, 2000)
		if err := v.Append(pattern(limit-len(p), 1)); err != nil || v.Len() != limit {
			t.Fatalf("%s: %v, %d bytes", name, err, v.Len())
		}
		mustBeRight(t, v, "good")
		if err := v.Append([]byte{1}); err != ErrTooLong {
			t.Errorf("%s: one byte more: %v", name, err)
		}
	}
}

// TestReplaceFirstFragment patches the checksum, which covers bytes that are in
// other fragments.
func TestReplaceFirstFragment(t *testing.T) {
	s := spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(101, 3)}
	was := build(s)
	copy(s.payload[3:], "new")
	want := build(s)
	for _, p := range [][]byte{was, want} {
		p[6], p[10], p[11] = 0x20, 0, 0
		c := ^slowSum(p[:20])
		p[10], p[11] = byte(c>>8), byte(c)
	}
	// The rest of the datagram is elsewhere.
	was, want = was[:60], want[:60]
	for _, p := range [][]byte{was, want} {
		p[2], p[3], p[10], p[11] = 0, 60, 0, 0
		c := ^slowSum(p[:20])
		p[10], p[11] = byte(c>>8), byte(c)
	}
	v := mustView(t, IPv4, was, 0)
	if err := v.ReplacePayload(3, 3, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(v.Bytes(), want) {
		t.Errorf("got  %x\nwant %x", v.Bytes(), want)
	}
}

// TestWrongChecksumStaysWrong: a packet that was damaged on its way must not
// come out of here looking whole.
func TestWrongChecksumStaysWrong(t *testing.T) {
	for name, s := range specs() {
		if s.l4 == nil || s.noSum {
			continue
		}
		s.payload = pattern(50, 4)
		p := build(s)
		p[len(p)-1] ^= 0x40
		v := mustView(t, family(p), p, 100)
		if err := v.ReplacePayload(3, 2, []byte("abcde")); err != nil {
			t.Fatal(err)
		}
		if got := v.CheckTransport(); got != ChecksumBad {
			t.Errorf("%s: checksum state %d, want bad", name, got)
		}
		mustBeRight(t, v, "bad")
		if err := v.Recompute(); err != nil {
			t.Fatal(err)
		}
		mustBeRight(t, v, "good")
	}
}

// TestUDPZero finds payloads whose checksum folds to 0, which UDP sends as ffff.
func TestUDPZero(t *testing.T) {
	for _, ver := range []int{4, 6} {
		s := spec{ver: ver, proto: ProtoUDP, l4: udpHeader(), payload: []byte{0, 0, 'x', 'y'}}
		p := build(s)
		v := mustView(t, family(p), p, 0)
		sum := v.UDP().Checksum()
		// Adding the checksum to the data leaves all ones: a checksum of 0.
		if err := v.ReplacePayload(0, 2, []byte{byte(sum >> 8), byte(sum)}); err != nil {
			t.Fatal(err)
		}
		if got := v.UDP().Checksum(); got != 0xffff {
			t.Errorf("IPv%d: checksum %#04x, want 0xffff", ver, got)
		}
		mustBeRight(t, v, "good")
		v.Recompute()
		mustBeRight(t, v, "good")
	}
}

// TestICMPZero: an echo reply of zeros has the sum 0, whose checksum is ffff.
func TestICMPZero(t *testing.T) {
	for _, payload := range []string{"", "\x00", "\x00\x00", "x", "\xff\xff"} {
		s := spec{ver: 4, proto: ProtoICMP, l4: make([]byte, 8), payload: []byte(payload)}
		for _, rep := range []string{"", "\x00", "\x00\x00\x00", "x", "xy", "\xff\xff"} {
			v := mustView(t, IPv4, build(s), 10)
			if err := v.ReplacePayload(0, len(payload), []byte(rep)); err != nil {
				t.Fatal(err)
			}
			want := s
			want.payload = []byte(rep)
			if !bytes.Equal(v.Bytes(), build(want)) {
				t.Errorf("%q by %q:\ngot  %x\nwant %x", payload, rep, v.Bytes(), build(want))
			}
		}
	}
}

func TestAppendTrim(t *testing.T) {
	for name, s := range specs() {
		s.payload = pattern(20, 5)
		v := mustView(t, family(build(s)), build(s), 7)
		if err := v.Append([]byte("1234567")); err != nil {
			t.Fatal(name, err)
		}
		s.payload = append(pattern(20, 5), "1234567"...)
		if !bytes.Equal(v.Bytes(), build(s)) {
			t.Errorf("%s: after Append: %x", name, v.Bytes())
		}
		if err := v.Append([]byte("8")); err != ErrNoRoom {
			t.Errorf("%s: Append without room: %v", name, err)
		}
		if err := v.Trim(28); err != ErrRange {
			t.Errorf("%s: Trim of more than there is: %v", name, err)
		}
		if err := v.Trim(25); err != nil {
			t.Fatal(name, err)
		}
		s.payload = pattern(2, 5)
		if !bytes.Equal(v.Bytes(), build(s)) {
			t.Errorf("%s: after Trim: %x", name, v.Bytes())
		}
	}
}

// TestReplaceRaw is Replace: bytes only, from the link header on.
func TestReplaceRaw(t *testing.T) {
	v := mustView(t, IPv4, build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("abcdef")}), 4)
	want := append([]byte(nil), v.Bytes()...)
	if err := v.Replace(30, 2, []byte("XYZ")); err != nil {
		t.Fatal(err)
	}
	want = append(want[:30], append([]byte("XYZ"), want[32:]...)...)
	if !bytes.Equal(v.Bytes(), want) || !v.Changed() || v.Version() != 0 {
		t.Errorf("got %x, want %x; version %d", v.Bytes(), want, v.Version())
	}
	for _, bad := range [][2]int{{-1, 1}, {36, 0}, {0, 36}, {3, -1}} {
		if err := v.Replace(bad[0], bad[1], nil); err != ErrRange {
			t.Errorf("Replace(%d, %d): %v", bad[0], bad[1], err)
		}
	}
	if err := v.Replace(0, 0, []byte("1234")); err != ErrNoRoom || !bytes.Equal(v.Bytes(), want) {
		t.Errorf("without room: %v, %x", err, v.Bytes())
	}
	if err := v.Replace(0, 35, nil); err != nil || v.Len() != 0 {
		t.Errorf("all of it: %v, %d bytes", err, v.Len())
	}
}

func ExampleView_ReplacePayload() {
	// A datagram as it was received, with free memory behind it.
	buf := make([]byte, 2048)
	n := copy(buf, build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("hello world")}))

	var v View
	if err := v.Init(IPv4, buf[:n], nil); err != nil {
		fmt.Println(err)
	}
	if err := v.Parse(); err != nil {
		fmt.Println(err)
	}
	if err := v.ReplacePayload(6, 5, []byte("everybody")); err != nil {
		fmt.Println(err)
	}
	fmt.Println(string(v.AppendLog(nil)))
	fmt.Printf("%s, changed: %v\n", v.Payload(), v.Changed())
	// Output:
	// SRC=192.0.2.1 DST=198.51.100.2 LEN=43 TOS=0xB9 TTL=64 ID=4660 DF PROTO=UDP SPT=5060 DPT=53 LEN=23
	// hello everybody, changed: true
}
