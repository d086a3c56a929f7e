package testnet_test

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// randomPacket makes packets of both families, both protocols, up to two tags
// and odd and even lengths.
func randomPacket(r *rand.Rand) testnet.Packet {
	some := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	addr := func(size int) netip.Addr {
		a, _ := netip.AddrFromSlice(some(size))
		return a
	}
	size := 4 + 12*r.IntN(2)
	p := testnet.Packet{
		EthSrc:  some(6),
		EthDst:  some(6),
		Src:     netip.AddrPortFrom(addr(size), uint16(r.Uint32())),
		Dst:     netip.AddrPortFrom(addr(size), uint16(r.Uint32())),
		Payload: some(r.IntN(40)),
	}
	for range r.IntN(3) {
		p.VLANs = append(p.VLANs, uint16(r.Uint32()))
	}
	if r.IntN(2) == 0 {
		p.TCP = &testnet.TCP{Seq: r.Uint32(), Ack: r.Uint32(), Flags: uint8(r.Uint32())}
	}
	return p
}

func TestDissectIsTheInverseOfFrame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		want := randomPacket(r)
		frame := want.Frame()
		got, ok := testnet.Dissect(frame)
		if !ok || !reflect.DeepEqual(got, want) {
			t.Fatalf("dissected %v\n%+v\nwant\n%+v", ok, got, want)
		}
		if !testnet.ChecksumsOK(frame) {
			t.Fatalf("checksums of a fresh frame are wrong:\n%s", hex.Dump(frame))
		}
		if !testnet.ChecksumsOK(append(frame, "padding"...)) {
			t.Fatalf("padding counts for the checksum:\n%s", hex.Dump(frame))
		}
	}
}

func TestChecksumsNoticeEveryFlippedBit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		p := randomPacket(r)
		p.VLANs = nil
		frame := p.Frame()
		segment := 14 + 20
		if p.Src.Addr().Is6() {
			segment = 14 + 40
		}
		for bit := segment * 8; bit < len(frame)*8; bit++ {
			frame[bit/8] ^= 1 << (bit % 8)
			if testnet.ChecksumsOK(frame) {
				t.Fatalf("bit %d of byte %d flipped and not noticed:\n%s", bit%8, bit/8, hex.Dump(frame))
			}
			frame[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestUDPChecksumOfZeroIsWrittenAsOnes(t *testing.T) {
	for _, f := range families {
		p := testnet.Packet{
			EthSrc: make([]byte, 6), EthDst: make([]byte, 6),
			Src: netip.AddrPortFrom(f.client, 1), Dst: netip.AddrPortFrom(f.server, 2),
			Payload: make([]byte, 2),
		}
		at := 14 + 20 + 6
		if f.client.Is6() {
			at += 20
		}
		frame := p.Frame()
		// With its own checksum as payload the sum of the packet is all ones.
		copy(p.Payload, frame[at:at+2])
		frame = p.Frame()
		if frame[at] != 0xff || frame[at+1] != 0xff {
			t.Errorf("%s: checksum %x, want ffff", f.name, frame[at:at+2])
		}
		if !testnet.ChecksumsOK(frame) {
			t.Errorf("%s: ffff is not accepted", f.name)
		}
		frame[at], frame[at+1] = 0, 0
		if ok := testnet.ChecksumsOK(frame); ok != f.client.Is4() {
			t.Errorf("%s: no checksum accepted %v", f.name, ok)
		}
	}
}

func TestDissectRefusesEveryCutFrame(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		p := randomPacket(r)
		frame := p.Frame()
		for n := range len(frame) {
			if got, ok := testnet.Dissect(frame[:n]); ok {
				t.Fatalf("%d of %d bytes dissected as %+v", n, len(frame), got)
			}
			if testnet.ChecksumsOK(frame[:n]) {
				t.Fatalf("checksums of %d of %d bytes are said to be correct", n, len(frame))
			}
		}
	}
}
