package pktbuf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

var (
	other4 = netip.MustParseAddr("203.0.113.77")
	other6 = netip.MustParseAddr("2001:db8:ffff::77")
)

// changes are all that rewrite headers, with what must be seen afterwards.
func changes(v *View) []struct {
	name string
	do   func(*View) error
	seen func(*View) bool
} {
	addr := other4
	if v.Version() == 6 {
		addr = other6
	}
	flow := func(v *View) Flow { f, _ := v.Flow(); return f }
	class := func(v *View) uint8 {
		if h := v.IPv6(); h != nil {
			return h.TrafficClass()
		}
		return v.IPv4().TOS()
	}
	return []struct {
		name string
		do   func(*View) error
		seen func(*View) bool
	}{
		{"SetSrc", func(v *View) error { return v.SetSrc(addr) }, func(v *View) bool { return flow(v).Src().Addr() == addr }},
		{"SetDst", func(v *View) error { return v.SetDst(addr) }, func(v *View) bool { return flow(v).Dst().Addr() == addr }},
		{"SetTTL", func(v *View) error { return v.SetTTL(200) }, func(v *View) bool { return v.TTL() == 200 }},
		{"DecrementTTL", (*View).DecrementTTL, func(v *View) bool { return v.TTL() == 63 }},
		{"SetDSCP", func(v *View) error { return v.SetDSCP(10) }, func(v *View) bool { return class(v) == 10<<2|1 }},
		{"SetECN", func(v *View) error { return v.SetECN(2) }, func(v *View) bool { return class(v) == 0xb8|2 }},
		{"SetSrcPort", func(v *View) error { return v.SetSrcPort(1024) }, func(v *View) bool { return flow(v).SrcPort() == 1024 }},
		{"SetDstPort", func(v *View) error { return v.SetDstPort(65535) }, func(v *View) bool { return flow(v).DstPort() == 65535 }},
	}
}

// TestRewrite makes every change to every shape of packet.
func TestRewrite(t *testing.T) {
	for name, s := range specs() {
		s.payload = pattern(33, 6)
		p := build(s)
		state := slowJudge(mustView(t, family(p), p, 0), p).state
		for _, c := range changes(mustView(t, family(p), p, 0)) {
			t.Run(name+" "+c.name, func(t *testing.T) {
				v := mustView(t, family(p), p, 0)
				err := c.do(v)
				if ports := c.name == "SetSrcPort" || c.name == "SetDstPort"; ports && v.TCP() == nil && v.UDP() == nil {
					if err != ErrProto || v.Changed() || !bytes.Equal(v.Bytes(), p) {
						t.Fatalf("got %v, changed: %v", err, v.Changed())
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if !c.seen(v) || !v.Changed() {
					t.Errorf("the change is not to be seen: %x", v.Bytes())
				}
				mustBeRight(t, v, state)
			})
		}
	}
}

// TestRewriteFragments: the first fragment's transport checksum follows, later
// fragments have none.
func TestRewriteFragments(t *testing.T) {
	s := spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(), payload: pattern(64, 7)}
	whole := build(s)
	first := change(whole, 6, 0x20, 0)
	later := change(whole, 6, 0x00, 8)
	for _, p := range [][]byte{first, later} {
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], ^slowSum(p[:20]))
	}
	v := mustView(t, IPv4, whole, 0)
	if err := v.SetDst(other4); err != nil {
		t.Fatal(err)
	}
	want := v.TCP().Checksum()
	v = mustView(t, IPv4, first, 0)
	if err := v.SetDst(other4); err != nil || v.TCP().Checksum() != want || !v.CheckHeader() {
		t.Errorf("first fragment: %v, checksum %#x, want %#x", err, v.TCP().Checksum(), want)
	}
	v = mustView(t, IPv4, later, 0)
	if err := v.SetDst(other4); err != nil || !bytes.Equal(v.Payload(), later[20:]) || !v.CheckHeader() {
		t.Errorf("later fragment: %v, payload %x", err, v.Payload())
	}
	if err := v.SetDstPort(1); err != ErrProto {
		t.Errorf("port of a later fragment: %v", err)
	}
	for _, p := range [][]byte{first, later} {
		v = mustView(t, IPv4, p, 0)
		if v.TCP() != nil {
			if err := v.Recompute(); err != ErrFragment {
				t.Errorf("recomputing a first fragment: %v", err)
			}
		}
		v.SetUnfinished()
		if err := v.SetTTL(9); err != ErrFragment || !bytes.Equal(v.Bytes(), p) {
			t.Errorf("unfinished fragment: %v", err)
		}
	}
}

func TestRewriteRefused(t *testing.T) {
	four := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader()})
	six := build(spec{ver: 6, proto: ProtoUDP, l4: udpHeader()})
	lite := build(spec{ver: 4, proto: protoUDPLite, l4: udpHeader()})
	tests := []struct {
		name   string
		packet []byte
		do     func(*View) error
		want   error
	}{
		{"IPv6 address in IPv4", four, func(v *View) error { return v.SetSrc(other6) }, ErrProto},
		{"IPv4 address in IPv6", six, func(v *View) error { return v.SetDst(other4) }, ErrProto},
		{"mapped address in IPv4", four, func(v *View) error { return v.SetDst(netip.AddrFrom16(other4.As16())) }, ErrProto},
		{"no address", four, func(v *View) error { return v.SetDst(netip.Addr{}) }, ErrProto},
		{"address with a zone", six, func(v *View) error { return v.SetDst(netip.MustParseAddr("fe80::1%x")) }, ErrProto},
		{"UDP-Lite's checksum is not kept", lite, func(v *View) error { return v.SetDst(other4) }, ErrProto},
		{"TTL 1", change(four, 8, 1), (*View).DecrementTTL, ErrExpired},
		{"TTL 0", change(four, 8, 0), (*View).DecrementTTL, ErrExpired},
		{"hop limit 1", change(six, 7, 1), (*View).DecrementTTL, ErrExpired},
		{"DSCP 64", four, func(v *View) error { return v.SetDSCP(64) }, ErrRange},
		{"ECN 4", six, func(v *View) error { return v.SetECN(4) }, ErrRange},
		{"shared", four, func(v *View) error { v.Clone(new(View), nil); return v.SetTTL(5) }, ErrShared},
		{"MSS of UDP", four, func(v *View) error { return v.ClampMSS(1) }, ErrProto},
		{"option of UDP", four, func(v *View) error { return v.StripTCPOption(2) }, ErrProto},
		{"more option of UDP", four, func(v *View) error { return v.AddTCPOption(2, nil) }, ErrProto},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := mustView(t, family(tt.packet), tt.packet, 0)
			if err := tt.do(v); err != tt.want {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if v.Changed() || !bytes.Equal(v.Bytes(), tt.packet) {
				t.Errorf("the packet has changed: %x", v.Bytes())
			}
		})
	}
}

// unfinish makes a packet as the kernel hands it over before checksums are
// finished: the field holds the sum of the pseudo-header.
func unfinish(tb testing.TB, p []byte, room int) *View {
	tb.Helper()
	v := mustView(tb, family(p), p, room)
	if v.state&hasSCTP != 0 {
		copy(v.pkt[v.csumOffset():], make([]byte, 4))
	} else {
		binary.BigEndian.PutUint16(v.pkt[v.csumOffset():], slowSum(slowPseudo(p[v.l3:], v.proto, v.transportLen())))
	}
	v.SetUnfinished()
	return v
}

// TestUnfinished: whatever is changed, the packet goes out with a whole
// checksum, up to the largest super-packet.
func TestUnfinished(t *testing.T) {
	for name, s := range specs() {
		if s.l4 == nil || s.noSum || s.proto == ProtoICMP {
			continue
		}
		for _, size := range []int{0, 33, 65535 - 200} {
			s.payload = pattern(size, 8)
			p := build(s)
			for _, c := range changes(mustView(t, family(p), p, 0)) {
				v := unfinish(t, p, 0)
				if !v.Unfinished() || v.CheckTransport() != ChecksumUnfinished {
					t.Fatal("not unfinished")
				}
				if err := c.do(v); err == ErrProto {
					continue
				} else if err != nil {
					t.Fatalf("%s, %s: %v", name, c.name, err)
				}
				if v.Unfinished() {
					t.Errorf("%s, %s: still unfinished", name, c.name)
				}
				mustBeRight(t, v, "good")
			}
			v := unfinish(t, p, 10)
			if err := v.Append([]byte("odd")); err != nil {
				t.Fatal(name, err)
			}
			mustBeRight(t, v, "good")
			v = unfinish(t, p, 0)
			if err := v.Complete(); err != nil || !v.Changed() || !bytes.Equal(v.Bytes(), p) {
				t.Errorf("%s: Complete: %v, changed: %v", name, err, v.Changed())
			}
			if err := v.Complete(); err != nil {
				t.Errorf("%s: Complete of a finished one: %v", name, err)
			}
		}
	}
}

// TestUnfinishedElsewhere: where the package cannot see the unfinished sum, as
// behind a tunnel's header, it refuses the change.
func TestUnfinishedElsewhere(t *testing.T) {
	for _, s := range []spec{
		{ver: 4, proto: 47, payload: pattern(50, 1)},
		{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(50, 1), noSum: true},
	} {
		p := build(s)
		v := mustView(t, IPv4, p, 10)
		v.SetUnfinished()
		for _, err := range []error{v.SetTTL(1), v.Append([]byte{1}), v.Complete()} {
			if err != ErrProto || !bytes.Equal(v.Bytes(), p) || v.Changed() {
				t.Errorf("protocol %d: %v", s.proto, err)
			}
		}
	}
}

// TestWritable hands out bytes to write.
func TestWritable(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: []byte("ab")})
	v := mustView(t, IPv4, p, 0)
	if _, err := v.Writable(len(p) + 1); err != ErrRange || v.Changed() {
		t.Errorf("more than there is: %v", err)
	}
	b, err := v.Writable(len(p))
	if err != nil || !v.Changed() {
		t.Fatal(err)
	}
	b[len(p)-1] = 'z'
	if string(v.Payload()) != "az" {
		t.Errorf("payload %q", v.Payload())
	}
	v.Clone(new(View), nil)
	if _, err := v.Writable(1); err != ErrShared {
		t.Errorf("shared: %v", err)
	}
}

func TestChecksum(t *testing.T) {
	for n := range 300 {
		b := pattern(n, n)
		if got, want := word(sum(b, 0), 0), slowSum(b); got != want {
			t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
		}
		if got, want := word(sum(b, 0), 1), slowSum([]byte{0}, b); got != want {
			t.Fatalf("%d bytes at an odd offset: %#x, want %#x", n, got, want)
		}
	}
	ones := bytes.Repeat([]byte{0xff}, 65535)
	if got, want := word(sum(ones, 1<<64-1), 0), slowSum(ones); got != want {
		t.Errorf("64 KiB of ones: %#x, want %#x", got, want)
	}
}

// FuzzChecksum holds the fast sum and its updates against the slow one.
func FuzzChecksum(f *testing.F) {
	f.Add([]byte("some bytes, an odd number"), 3, []byte("xy"))
	f.Add(bytes.Repeat([]byte{0xff}, 70), 8, []byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte, at int, repl []byte) {
		if got, want := word(sum(b, 0), 0), slowSum(b); got != want {
			t.Fatalf("sum %#x, want %#x", got, want)
		}
		if at < 0 || at > len(b) || len(b)-at < len(repl) || len(b) < 2 {
			return
		}
		b[0] |= 1 // no checksum covers zeros only
		csum := ^slowSum(b)
		csum = update(csum, uint32(word(add(sum(repl, 0), ^sum(b[at:at+len(repl)], 0)), at)))
		copy(b[at:], repl)
		if want := ^slowSum(b); csum != want && csum|want != 0xffff {
			t.Fatalf("updated checksum %#x, want %#x", csum, want)
		}
	})
}
