package netns

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const limitedPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: syn, from: lan, proto: tcp, flags: syn, limit: { rate: 1/h, burst: 5, per: src }, action: drop }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// TestSynFloodOfOneSourceKeepsNobodyOut: what is over a source's limit is dropped,
// its open connections go on, and another source connects.
func TestSynFloodOfOneSourceKeepsNobodyOut(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, limitedPolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			conn := b.Client.MustDial(t, "tcp", at(fam.server, 7))
			exchange(t, conn, 1)
			syn := testnet.Packet{Dst: b.to(fam, 7), TCP: &testnet.TCP{Flags: 0x02},
				EthSrc: b.Client.MustMAC(t, "eth0"), EthDst: b.Firewall.MustMAC(t, b.Lan)}
			before := b.f.status()
			const sent, barrier = 300, 1 // the barrier is a flow, too
			for i := range sent {
				// The source is the client's own, as far as the limit goes.
				syn.Src = netip.AddrPortFrom(fam.client, uint16(1024+i))
				b.sendFrame(t, syn.Frame())
			}
			b.barrier(t, fam)
			expect(t, before, b.f.status(), counts{"* drop rule": sent - 4, "tc pass rule": 4 + barrier})
			exchange(t, conn, 3)
			other := fam.bot // another address of the client, and another /64
			if other.Is6() {
				other = netip.MustParseAddr("2001:db8:1:1::66")
			}
			syn.Src = netip.AddrPortFrom(other, 4000)
			before = b.f.status()
			b.sendFrame(t, syn.Frame())
			b.barrier(t, fam)
			expect(t, before, b.f.status(), counts{"* drop rule": 0, "tc pass rule": 1 + barrier})
		})
	})
}

const queuePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { overload: closed }
queue: { per_src: { rate: 1/h, burst: 25 } }
rules:
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
  - name: web
    from: lan
    to: wan
    proto: [tcp, udp]
    dport: 443
    action: inspect
    steps:
      - { sni: ads.example, action: drop }
      - { action: accept }
`

// TestUncertainFloodOfOneSourceKeepsTheQueueFree: what one source has looked at is
// bounded, and the names that another asks for are still seen.
func TestUncertainFloodOfOneSourceKeepsTheQueueFree(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, queuePolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveTLS(t, fam)
		flooder := fam.bot // another address of the client, and another /64
		if flooder.Is6() {
			flooder = netip.MustParseAddr("2001:db8:1:1::66")
		}
		before := b.f.status()
		const sent, burst = 300, 25
		for i := range sent {
			b.send(t, testnet.Packet{Src: netip.AddrPortFrom(flooder, uint16(1024+i)), Dst: b.to(fam, 443), Payload: []byte("no QUIC at all")})
		}
		b.barrier(t, fam)
		b.f.eventually(t, "user space has seen what was queued", func(s status) bool { return s.since(before, "user") == burst })
		expect(t, before, b.f.status(), counts{"tc queue *": burst, "tc drop overload": sent - burst})
		conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
		if err != nil {
			t.Fatalf("another client's connection beside the flood: %v", err)
		}
		exchange(t, conn, 3)
		_ = conn.Close()
	})
}
