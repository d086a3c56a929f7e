package loader

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func replace(tb testing.TB, text, old, new string) string {
	tb.Helper()
	if !strings.Contains(text, old) {
		tb.Fatalf("no %q in the policy", old)
	}
	return strings.Replace(text, old, new, 1)
}

var (
	client4, server4 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2")
	client6, server6 = netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("2001:db8:2::2")
)

// patched is a frame with bytes overwritten from an offset on.
func patched(p packet, at int, bytes ...byte) []byte {
	f := p.frame()
	copy(f[at:], bytes)
	return f
}

// malformedFrames would all be accepted if they were what they pretend to be.
func malformedFrames() map[string][]byte {
	v4, v6 := udp(client4, server4, 40000, 80), udp(client6, server6, 40000, 80)
	t4 := tcp(client4, server4, 40000, 80, syn)
	tags := func(n int) []byte {
		p := v4
		p.vlans = make([]uint16, n)
		return p.frame()
	}
	chain := v6
	chain.extensions = slices.Repeat([]uint8{60}, 9)
	tiny := v4
	tiny.moreFrags, tiny.fragID = true, 7
	tinyFrame := tiny.frame()[:14+20+4]
	binary.BigEndian.PutUint16(tinyFrame[16:], 24)
	twice := v6
	twice.extensions = []uint8{44}
	twice.moreFrags = true
	mapped := v6
	mapped.src = netip.MustParseAddr("::ffff:192.0.2.2")
	return map[string][]byte{
		"IPv4 version":                 patched(v4, 14, 0x55),
		"IPv4 header length 4":         patched(v4, 14, 0x44),
		"IPv4 header beyond total":     patched(v4, 14, 0x4f, 0, 0, 28),
		"IPv4 total below header":      patched(v4, 16, 0, 19),
		"IPv4 total 0":                 patched(v4, 16, 0, 0),
		"IPv4 total beyond the frame":  patched(v4, 16, 0xff, 0xff),
		"tagged, cut in the IP header": tags(1)[:18+12],
		"UDP length 7":                 patched(v4, 14+20+4, 0, 7),
		"UDP length beyond the IP's":   patched(v4, 14+20+4, 0xff, 0xff),
		"TCP header length 4":          patched(t4, 14+20+12, 0x40),
		"TCP header beyond the IP's":   patched(t4, 14+20+12, 0xf0),
		"first fragment too short":     tinyFrame,
		"IPv6 version":                 patched(v6, 14, 0x50),
		"IPv6 length beyond frame":     patched(v6, 18, 0xff, 0xff),
		"IPv6 jumbo":                   patched(v6, 18, 0, 0),
		"IPv6 source IPv4-mapped":      asIPv6(mapped),
		"extension beyond the packet":  patched(withExt(v6, 60), 14+40+1, 200),
		"nine extension headers":       chain.frame(),
		"two fragment headers":         twice.frame(),
		"three VLAN tags":              tags(3),
		"five VLAN tags":               tags(5),
	}
}

func withExt(p packet, kinds ...uint8) packet {
	p.extensions = kinds
	return p
}

// asIPv6 builds an IPv6 frame though the source is an IPv4-mapped address.
func asIPv6(p packet) []byte {
	src := p.src.As16()
	p.src = server6
	f := p.frame()
	copy(f[14+8:], src[:])
	return f
}

func TestMalformedIsWhatThePolicySays(t *testing.T) {
	for setting, want := range map[string]string{"drop": drops, "accept": passes} {
		on(t, replace(t, basePolicy, "malformed: drop", "malformed: "+setting), func(b *bench, f *Firewall) {
			frames := malformedFrames()
			for name, frame := range frames {
				expect(t, name, b.arrivesFrame(f, b.lan, frame), want)
				if code := b.xdp(f, frame, b.lan); code != xdpPass {
					t.Errorf("%s: fw_xdp returned %d, want to leave it to fw_tc", name, code)
				}
			}
			if got := f.sum(t, "tc", want, "malformed"); got != uint64(len(frames)) {
				t.Errorf("%d of %d packets counted as malformed", got, len(frames))
			}
		})
	}
}

// TestCutFramesNeverPass cuts good frames at every length.
func TestCutFramesNeverPass(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		for _, p := range []packet{
			tcp(client4, server4, 40000, 80, syn),
			udp(client6, server6, 40000, 80),
			withExt(udp(client6, server6, 40000, 80), 0, 43, 51),
			{src: client4, dst: server4, proto: protoICMP, icmpType: 8, hopLimit: 64, vlans: []uint16{10, 11}},
		} {
			frame := p.frame()
			expect(t, "whole", b.arrivesFrame(f, b.lan, frame), passes)
			// Test runs take no untagged frame that ends in its IP header.
			least := 18
			if len(p.vlans) == 0 {
				least = 14 + 20
				if p.src.Is6() {
					least = 14 + 40
				}
			}
			for n := least; n < len(frame); n++ {
				if got := b.arrivesFrame(f, b.lan, frame[:n]); got != drops {
					t.Fatalf("%d of %d bytes: got %s, want drop", n, len(frame), got)
				}
			}
		}
	})
}

func TestPaddingIsNotPayload(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		bare := tcp(client4, server4, 40000, 443, ack)
		frame := append(bare.frame(), make([]byte, 6)...)
		expect(t, "a padded ACK of an inspected flow", b.arrivesFrame(f, b.lan, frame), passes)
	})
}

func TestExtensionHeadersDoNotHidePorts(t *testing.T) {
	long := func(hdrlen uint8) []byte {
		p := tcp(client6, server6, 40000, 23, syn)
		f := p.frame()
		ext := make([]byte, (int(hdrlen)+1)*8)
		ext[0], ext[1] = protoTCP, hdrlen
		// Where a length that wrapped at 8 bits would look: an allowed port.
		binary.BigEndian.PutUint16(ext[2:], 80)
		f = slices.Concat(f[:54], ext, f[54:])
		f[14+6] = 60
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
		return f
	}
	on(t, basePolicy, func(b *bench, f *Firewall) {
		expect(t, "control", b.arrives(f, b.lan, tcp(client6, server6, 40000, 80, syn)), passes)
		for _, hdrlen := range []uint8{0, 31, 255} {
			expect(t, "destination options", b.arrivesFrame(f, b.lan, long(hdrlen)), drops)
		}
		for _, chain := range [][]uint8{{51, 60}, {0, 60, 43, 60}, {135}, {139}, {140}} {
			expect(t, "a chain", b.arrives(f, b.lan, withExt(tcp(client6, server6, 40000, 23, syn), chain...)), drops)
		}
		if got := f.sum(t, "tc", "drop", "rule"); got != 8 {
			t.Errorf("%d packets met the rule, want 8", got)
		}
	})
}

func TestTaggedFramesMeetTheRules(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		for tags := range 3 {
			blocked, allowed := tcp(client4, server4, 40000, 23, syn), tcp(client4, server4, 40000, 80, syn)
			blocked.vlans, allowed.vlans = make([]uint16, tags), make([]uint16, tags)
			expect(t, "blocked", b.arrives(f, b.lan, blocked), drops)
			expect(t, "allowed", b.arrives(f, b.lan, allowed), passes)
			if code := b.xdp(f, blocked.frame(), b.lan); code != xdpDrop {
				t.Errorf("fw_xdp returned %d with %d tags, want %d", code, tags, xdpDrop)
			}
		}
	})
}

func TestNonIPPasses(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		arp := make([]byte, 60)
		copy(arp[12:], []byte{0x08, 0x06})
		expect(t, "ARP", b.arrivesFrame(f, b.lan, arp), passes)
		if got := f.sum(t, "tc", "pass", "non_ip"); got != 1 {
			t.Errorf("%d packets counted as non_ip, want 1", got)
		}
	})
}

// TestEveryPacketIsCountedOnce runs all kinds of frames and compares the sum of
// the counters with what was run.
func TestEveryPacketIsCountedOnce(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		frames := malformedFrames()
		for i, p := range []packet{
			tcp(client4, server4, 1, 443, syn), tcp(client4, server4, 1, 443, ack).with(9), tcp(client4, server4, 1, 23, syn),
			udp(client6, server6, 1, 53), udp(server6, client6, 53, 1), udp(client6, server6, 1, 80),
		} {
			frames[string(rune('a'+i))] = p.frame()
		}
		var bytes int
		for _, frame := range frames {
			b.arrivesFrame(f, b.lan, frame)
			b.xdp(f, frame, b.lan)
			bytes += len(frame)
		}
		stats, err := f.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, hook := range []string{"tc", "xdp"} {
			if got := stats.Sum(hook, "", ""); got != uint64(len(frames)) {
				t.Errorf("%s counted %d packets, %d ran", hook, got, len(frames))
			}
		}
		var counted uint64
		for _, c := range stats {
			if c.Hook == "tc" {
				counted += c.Bytes
			}
		}
		if counted != uint64(bytes) {
			t.Errorf("tc counted %d bytes, %d ran", counted, bytes)
		}
	})
}
