package loader

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

const (
	tcRedirect  = 7
	xdpRedirect = 4
)

const offloadPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
offload: forward
rules:
  - { name: stack, from: lan, dport: 81, proto: tcp, action: accept, offload: none }
  - { name: all, from: lan, action: accept }
`

// forwarded lets a flow begin, and its packets leave by the other interface, which
// they do under other addresses where nat says so.
func (b *bench) forwarded(f *Firewall, open packet, nat bool) {
	b.tb.Helper()
	answer, done := open.reply(), open
	answer.flags, done.flags = syn|ack, ack
	steps := []struct {
		p       packet
		in, out uint32
	}{{open, b.lan, b.wan}, {answer, b.wan, b.lan}, {done, b.lan, b.wan}, {answer, b.wan, b.lan}}
	for i, s := range steps {
		if s.p.flags == syn|ack && i == 3 {
			s.p.flags = ack
		}
		frame := s.p.frame()
		if s.p.proto == protoTCP {
			frame = s.p.acking(0, 1)
		}
		if got := b.arrivesFrame(f, s.in, frame); got != passes {
			b.tb.Fatalf("packet %d of a flow: %s", i, got)
		}
		if nat {
			s.p.sport, s.p.dport = s.p.sport+1, s.p.dport+1
		}
		b.leaves(f, s.out, s.in, s.p)
	}
}

// addressed puts hardware addresses into a frame.
func (b *bench) addressed(frame []byte, to string) []byte {
	b.tb.Helper()
	mac, err := b.host.MAC(to)
	if err != nil {
		b.tb.Fatal(err)
	}
	copy(frame, mac)
	return frame
}

// TestOffloadedPacketsAreThoseOfARouter: a packet of a forwarded flow is sent on with
// one hop less and the hardware addresses of its next hop, byte by byte as a router
// would have it; what is in doubt is not.
func TestOffloadedPacketsAreThoseOfARouter(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, offloadPolicy, func(b *bench, f *Firewall) {
			f.settlePorts()
			data := tcp(client, server, 40000, 80, ack|psh).with(100)
			first := data
			first.flags, first.payload = syn, nil
			b.forwarded(f, first, false)
			datagram := udp(client, server, 40000, 80)
			b.forwarded(f, datagram, false)
			for name, p := range map[string]packet{"TCP": data, "UDP": datagram, "an answer": data.reply()} {
				in, from := b.lan, "lan0"
				if name == "an answer" {
					in, from = b.wan, "wan0"
				}
				frame := b.addressed(p.checked(t), from)
				want := routed(t, b, frame, in)
				code, got := b.through(f.objs.FwTc, frame, skb{Ifindex: in})
				if code != tcRedirect || !bytes.Equal(got, want) {
					t.Errorf("%s: verdict %d\n   % x\ngot % x\nwant% x", name, code, frame, got, want)
				}
			}
			if n := f.sum(t, "tc", "pass", "offloaded"); n != 3 {
				t.Errorf("%d packets counted as offloaded, want 3", n)
			}
			b.notOffloaded(f, data)
			// A reload has taken the interface out of its zone.
			if err := f.objs.Ports.Delete(b.wan); err != nil {
				t.Fatal(err)
			}
			if code, _ := b.through(f.objs.FwTc, b.addressed(data.checked(t), "lan0"), skb{Ifindex: b.lan}); code != tcNext {
				t.Errorf("to an interface that is not guarded any more: verdict %d", code)
			}
		})
	})
}

// routed is a frame as a router sends it on.
func routed(tb testing.TB, b *bench, frame []byte, in uint32) []byte {
	tb.Helper()
	want := slices.Clone(frame)
	var v pktbuf.View
	if err := v.Init(pktbuf.Bridge, want, nil); err != nil {
		tb.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		tb.Fatal(err)
	}
	if err := v.DecrementTTL(); err != nil {
		tb.Fatal(err)
	}
	out, peer := "wan0", b.net.Server
	if in == b.wan {
		out, peer = "lan0", b.net.Client
	}
	mac, err := peer.MAC("eth0")
	if err != nil {
		tb.Fatal(err)
	}
	copy(want[0:], mac)
	copy(b.addressed(want[6:12], out), want[6:12])
	return want
}

// notOffloaded sends what must go the ordinary way.
func (b *bench) notOffloaded(f *Firewall, data packet) {
	b.tb.Helper()
	big := data.with(1461)
	last, expired, tagged, fragment := data, data, data, data
	last.flags = ack | fin
	expired.hopLimit = 1
	tagged.vlans = []uint16{10}
	fragment.moreFrags = true
	options := data
	options.ipOptions, options.extensions = 1, []uint8{60}
	if data.src.Is4() {
		options.extensions = nil
	} else {
		options.ipOptions = 0
	}
	other := data
	other.dport = 81
	first := other
	first.flags, first.payload = syn, nil
	b.forwarded(f, first, false)
	translated := data
	translated.sport = 50000
	first = translated
	first.flags, first.payload = syn, nil
	b.forwarded(f, first, true)
	for name, frame := range map[string][]byte{
		"larger than the route's MTU": b.addressed(big.checked(b.tb), "lan0"),
		"its last segment":            b.addressed(last.checked(b.tb), "lan0"),
		"hop limit 1":                 b.addressed(expired.checked(b.tb), "lan0"),
		"with a VLAN tag":             b.addressed(tagged.checked(b.tb), "lan0"),
		"a fragment":                  b.addressed(fragment.frame(), "lan0"),
		"options":                     b.addressed(options.checked(b.tb), "lan0"),
		"a rule with offload: none":   b.addressed(other.checked(b.tb), "lan0"),
		"behind NAT":                  b.addressed(translated.checked(b.tb), "lan0"),
		"for another host's MAC":      data.checked(b.tb),
	} {
		if code, got := b.through(f.objs.FwTc, frame, skb{Ifindex: b.lan}); code != tcNext || !bytes.Equal(got, frame) {
			b.tb.Errorf("%s: verdict %d, changed: %v", name, code, !bytes.Equal(got, frame))
		}
	}
}
