package netns

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

func TestAllowedFlowStaysInTheKernel(t *testing.T) {
	eachMode(t, allModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			conn := b.Client.MustDial(t, "udp", at(fam.server, 7))
			before := b.f.status()
			exchange(t, conn, 10)
			after := b.f.status()
			expect(t, before, after, counts{
				"tc pass rule": 1, "tc pass flow": 19, "judged": 20, "tc_out pass forwarded": 20,
				"* drop *": 0, "* queue *": 0, "queued": 0, "bypassed": 0, "user": 0,
			})
			if m.xdp == "off" {
				expect(t, before, after, counts{"xdp * *": 0})
				return
			}
			b.f.eventually(t, "fw_xdp has passed on what fw_tc has judged", func(s status) bool {
				return s.since(before, "xdp pass next") == s.since(before, "tc * *") && s.since(before, "tc * *") >= 20
			})
		})
		if s := b.f.status(); s.hook("forward").Queued != 0 || s.User.Received != 0 {
			t.Errorf("queued %d, received %d, want none at all", s.hook("forward").Queued, s.User.Received)
		}
	})
}

// TestAllowedStreamIsNeverQueued sends more than a segment can hold, so that
// super-packets go through the programs too.
func TestAllowedStreamIsNeverQueued(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
			t.Fatal(err)
		}
		before := b.f.status()
		echoes(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1<<20)
		after := b.f.status()
		expect(t, before, after, counts{"tc pass rule": 1, "* drop *": 0, "* queue *": 0, "queued": 0, "user": 0})
		if n := after.since(before, "tc pass flow"); n < 1<<20/1500*2 {
			t.Errorf("%d segments counted for two times 1 MiB, want at least %d", n, 1<<20/1500*2)
		}
	})
}

func TestDroppedSourceStopsAtTheFirstHook(t *testing.T) {
	eachMode(t, allModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		arrived := b.Server.MustCapture(t, "eth0")
		eachFamily(t, func(t *testing.T, fam family) {
			before := b.f.status()
			for i := range uint16(10) {
				from := netip.AddrPortFrom(fam.bot, 1000+i)
				b.send(t, testnet.Packet{Src: from, Dst: netip.AddrPortFrom(fam.server, 7), Payload: []byte("x")})
				b.send(t, testnet.Packet{Src: from, Dst: netip.AddrPortFrom(fam.server, 7), TCP: &testnet.TCP{Flags: 2}})
			}
			b.barrier(t, fam)
			want := counts{"xdp drop rule": 20, "xdp drop *": 20, "judged": barrierPackets, "tc drop *": 0, "queued": 0}
			if m.xdp == "off" {
				want = counts{"xdp * *": 0, "tc drop rule": 20, "tc drop *": 20, "judged": 20 + barrierPackets, "queued": 0}
			}
			expect(t, before, b.f.status(), want)
			if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Src.Addr() == fam.bot }); n != 0 {
				t.Errorf("%d packets of the dropped source arrived", n)
			}
			if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Src.Addr() == fam.client }); n != 1 {
				t.Errorf("%d packets of the allowed source arrived, want the barrier's 1", n)
			}
		})
	})
}

func TestDeniedPortIsDroppedAndCounted(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		arrived := b.Server.MustCapture(t, "eth0")
		eachFamily(t, func(t *testing.T, fam family) {
			before := b.f.status()
			for i := range uint16(5) {
				b.send(t, testnet.Packet{Src: netip.AddrPortFrom(fam.client, 1000+i), Dst: netip.AddrPortFrom(fam.server, 9)})
				b.send(t, testnet.Packet{Src: netip.AddrPortFrom(fam.client, 1000+i), Dst: netip.AddrPortFrom(fam.server, 8)})
			}
			b.barrier(t, fam)
			// Both hang on the zone out, which only tc knows: port 9 meets a rule,
			// port 8 the default.
			expect(t, before, b.f.status(), counts{
				"tc drop rule": 5, "tc drop default": 5, "xdp drop *": 0, "tc_out drop *": 0, "judged": 10 + barrierPackets,
			})
			denied := func(p testnet.Packet) bool { return p.Dst.Port() != 7 }
			if n := serverSees(arrived, denied); n != 0 {
				t.Errorf("%d denied packets arrived", n)
			}
		})
	})
}
