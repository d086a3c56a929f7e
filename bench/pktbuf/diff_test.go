package pktbuf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// shapes are the packets that both libraries know: no extension headers, which
// the C library of Debian 12 walks wrongly, and no fragments.
func shapes(tb testing.TB, payload []byte) map[string][]byte {
	tb.Helper()
	all := map[string][]byte{}
	for _, version := range []int{4, 6} {
		for proto, name := range map[uint8]string{pktbuf.ProtoTCP: "TCP", pktbuf.ProtoUDP: "UDP"} {
			for _, options := range []bool{false, true} {
				all[fmt.Sprintf("%s over IPv%d, options %v", name, version, options)] = ipPacket(tb, shape{version, proto, options}, payload)
			}
		}
	}
	return all
}

// TestSameBytes: the changes that both can make give the same bytes.
func TestSameBytes(t *testing.T) {
	p := mustPeer(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	compared := 0
	for range 150 {
		payload := randomBytes(rnd, rnd.IntN(1400))
		for name, packet := range shapes(t, payload) {
			off := rnd.IntN(len(payload) + 1)
			n := rnd.IntN(min(len(payload)-off, 40) + 1)
			rep := randomBytes(rnd, rnd.IntN(60))
			v := mustView(t, packet, 200)
			if err := v.ReplacePayload(off, n, rep); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if u := v.UDP(); u != nil && u.Checksum() == 0xffff {
				continue // the C library sends 0 then: no checksum at all
			}
			op := uint32(opTCPMangle)
			if v.UDP() != nil {
				op = opUDPMangle
			}
			// Room for twice the growth: with less the C library writes beyond it.
			a, want := p.ask(t, request{Op: op, Offset: uint32(off), MatchLen: uint32(n), Extra: 200}, rep, packet)
			if a.Ret != 1 {
				t.Fatalf("%s: the C library refuses %d bytes at %d by %d of %d", name, n, off, len(rep), len(payload))
			}
			if !bytes.Equal(v.Bytes(), want) {
				t.Fatalf("%s: %d bytes at %d by %d of %d:\nGo %x\nC  %x", name, n, off, len(rep), len(payload), v.Bytes(), want)
			}
			compared++
		}
	}
	t.Logf("%d changes gave the same bytes", compared)
}

// TestSameRaw holds Replace against pktb_mangle, and the change of a payload
// that neither looks into against nfq_ip_mangle and nfq_ip6_mangle.
func TestSameRaw(t *testing.T) {
	p := mustPeer(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		payload := randomBytes(rnd, rnd.IntN(200))
		packet := ipPacket(t, shape{4 + 2*rnd.IntN(2), pktbuf.ProtoUDP, false}, payload)
		off := rnd.IntN(len(packet) + 1)
		n := rnd.IntN(min(len(packet)-off, 40) + 1)
		rep := randomBytes(rnd, rnd.IntN(60))
		v := mustView(t, packet, 200)
		if err := v.Replace(off, n, rep); err != nil {
			t.Fatal(err)
		}
		r := request{Op: opMangle, Offset: uint32(off), MatchLen: uint32(n), Extra: 200}
		if a, want := p.ask(t, r, rep, packet); a.Ret != 1 || !bytes.Equal(v.Bytes(), want) {
			t.Fatalf("pktb_mangle: %d bytes at %d by %d: returned %d\nGo %x\nC  %x", n, off, len(rep), a.Ret, v.Bytes(), want)
		}
		// The same packet as one of a protocol without a header known here.
		at := 9
		if packet[0]>>4 == 6 {
			at = 6
		}
		packet[at] = 253
		v = mustView(t, packet, 200)
		if v.Version() == 4 {
			if err := v.Recompute(); err != nil {
				t.Fatal(err)
			}
			copy(packet, v.Bytes())
		}
		off = rnd.IntN(v.PayloadLen() + 1)
		n = min(n, v.PayloadLen()-off)
		if err := v.ReplacePayload(off, n, rep); err != nil {
			t.Fatal(err)
		}
		r = request{Op: opIPMangle, Offset: uint32(off), MatchLen: uint32(n), Extra: 200}
		if a, want := p.ask(t, r, rep, packet); a.Ret != 1 || !bytes.Equal(v.Bytes(), want) {
			t.Fatalf("nfq_ip_mangle: %d bytes at %d by %d: returned %d\nGo %x\nC  %x", n, off, len(rep), a.Ret, v.Bytes(), want)
		}
	}
}

// TestSameChecksums holds Recompute against the library's functions for whole
// checksums, from wrong ones.
func TestSameChecksums(t *testing.T) {
	p := mustPeer(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		for name, packet := range shapes(t, randomBytes(rnd, rnd.IntN(1400))) {
			v := mustView(t, packet, 0)
			b, err := v.Writable(v.HeaderLen())
			if err != nil {
				t.Fatal(err)
			}
			at := v.HeaderLen() - 2
			if v.TCP() != nil {
				at = v.HeaderLen() - v.TCP().Len() + 16
			}
			binary.BigEndian.PutUint16(b[at:], 0x1234)
			if v.Version() == 4 {
				binary.BigEndian.PutUint16(b[10:], 0x5678)
			}
			_, want := p.ask(t, request{Op: opChecksum}, nil, v.Bytes())
			if err := v.Recompute(); err != nil {
				t.Fatal(err)
			}
			if u := v.UDP(); u != nil && u.Checksum() == 0xffff {
				continue
			}
			if !bytes.Equal(v.Bytes(), want) {
				t.Fatalf("%s:\nGo %x\nC  %x", name, v.Bytes(), want)
			}
		}
	}
}

// TestSameLayout: both find the payload at the same place.
func TestSameLayout(t *testing.T) {
	p := mustPeer(t)
	for _, size := range []int{0, 1, 500} {
		for name, packet := range shapes(t, make([]byte, size)) {
			v := mustView(t, packet, 0)
			a, _ := p.ask(t, request{Op: opLayout}, nil, packet)
			if size == 0 && a.Ret == -1 {
				continue // the C library has no empty payload
			}
			if int(a.Ret) != v.HeaderLen() || int(a.NS) != v.PayloadLen() {
				t.Errorf("%s: payload of %d bytes at %d, in C of %d at %d", name, v.PayloadLen(), v.HeaderLen(), a.NS, a.Ret)
			}
		}
	}
}

// TestFaults shows faults of the C library that can be shown without harm to
// its memory, and that this package has none of them. A version of the library
// that has mended one fails its line, to be taken out here.
func TestFaults(t *testing.T) {
	p := mustPeer(t)
	plain := ipPacket(t, udp4, make([]byte, 72))
	noSum := bytes.Clone(plain)
	noSum[26], noSum[27] = 0, 0
	padded := append(bytes.Clone(plain), make([]byte, 14)...)
	sum := func(b []byte) uint16 { return binary.BigEndian.Uint16(b[26:]) }
	for _, tt := range []struct {
		name        string
		packet      []byte
		off, n, rep int
		extra       uint32
		fault       func(a answer, after []byte) bool
		want        error
		right       func(after []byte) bool
	}{
		{
			"a change that fails leaves its mark", plain, 0, 0, 40, 4,
			func(a answer, after []byte) bool { return a.Ret == 0 && !bytes.Equal(after, plain) },
			pktbuf.ErrNoRoom, func(after []byte) bool { return bytes.Equal(after, plain) },
		},
		{
			"a match beyond the packet is fine", plain, 70, 10, 10, 64,
			func(a answer, _ []byte) bool { return a.Ret == 1 },
			pktbuf.ErrRange, func(after []byte) bool { return bytes.Equal(after, plain) },
		},
		{
			"a datagram without a checksum gets one", noSum, 0, 4, 4, 0,
			func(_ answer, after []byte) bool { return sum(after) != 0 },
			nil, func(after []byte) bool { return sum(after) == 0 },
		},
		{
			"padding becomes payload", padded, 0, 4, 4, 0,
			func(_ answer, after []byte) bool { return binary.BigEndian.Uint16(after[2:]) == uint16(len(padded)) },
			nil, func(after []byte) bool { return binary.BigEndian.Uint16(after[2:]) == uint16(len(plain)) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request{Op: opUDPMangle, Offset: uint32(tt.off), MatchLen: uint32(tt.n), Extra: tt.extra}
			if a, after := p.ask(t, r, make([]byte, tt.rep), tt.packet); !tt.fault(a, after) {
				t.Errorf("the C library has mended this: returned %d, %x", a.Ret, after)
			}
			v := mustView(t, tt.packet, int(tt.extra))
			if err := v.ReplacePayload(tt.off, tt.n, make([]byte, tt.rep)); err != tt.want || !tt.right(v.Bytes()) {
				t.Errorf("got %v, want %v: %x", err, tt.want, v.Bytes())
			}
		})
	}
}

func randomBytes(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}
