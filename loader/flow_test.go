package loader

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

const basePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
defaults: { input: drop, forward: drop, output: accept }
failure: { malformed: drop, midstream: inspect }
rules:
  - { name: blocked, from: lan, proto: [tcp, udp], dport: 23, action: drop }
  - name: web
    from: lan
    proto: tcp
    dport: 443
    action: inspect
    steps: [{ action: accept }]
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ qname: "ads.example", action: rewrite, answer: 0.0.0.0 }, { action: accept }]
  - { name: out, from: lan, action: accept }
`

func mustPolicy(tb testing.TB, text string) *policy.Policy {
	tb.Helper()
	p, err := policy.ParseBytes("test.yaml", []byte(text), "")
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// on runs a test on the bench's host with a policy loaded.
func on(t *testing.T, text string, run func(*bench, *Firewall)) {
	t.Helper()
	b := newBench(t)
	b.host.MustDo(t, func() error {
		run(b, b.load(mustPolicy(t, text)))
		return nil
	})
}

// Verdicts as the tests name them.
const (
	passes = "pass"
	drops  = "drop"
	queues = "queue"
)

// arrives judges a packet that comes in on an interface.
func (b *bench) arrives(f *Firewall, ifindex uint32, p packet) string {
	b.tb.Helper()
	return b.arrivesFrame(f, ifindex, p.frame())
}

func (b *bench) arrivesFrame(f *Firewall, ifindex uint32, frame []byte) string {
	b.tb.Helper()
	code, out := b.tc(f.objs.FwTc, frame, skb{Ifindex: ifindex})
	switch {
	case code == tcDrop:
		return drops
	case code != tcNext:
		b.tb.Fatalf("fw_tc returned %d", code)
	case out.Mark != 0:
		return queues
	}
	return passes
}

// leaves judges a packet that goes out on an interface, having come in on
// another or (0) from the host itself.
func (b *bench) leaves(f *Firewall, ifindex, from uint32, p packet) string {
	b.tb.Helper()
	if code, _ := b.tc(f.objs.FwTcOut, p.frame(), skb{Ifindex: ifindex, IngressIfindex: from}); code == tcDrop {
		return drops
	}
	return passes
}

func expect(tb testing.TB, what, got, want string) {
	tb.Helper()
	if got != want {
		tb.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// both runs a test for a client in lan and a server in wan of each family.
func both(t *testing.T, run func(t *testing.T, client, server netip.Addr)) {
	t.Helper()
	for name, pair := range map[string][2]string{
		"IPv4": {"192.0.2.2", "198.51.100.2"},
		"IPv6": {"2001:db8:1::2", "2001:db8:2::2"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1]))
		})
	}
}

func tcp(src, dst netip.Addr, sport, dport uint16, flags uint8) packet {
	return packet{src: src, dst: dst, proto: protoTCP, sport: sport, dport: dport, flags: flags, hopLimit: 64}
}

func udp(src, dst netip.Addr, sport, dport uint16) packet {
	return packet{src: src, dst: dst, proto: protoUDP, sport: sport, dport: dport, hopLimit: 64, payload: make([]byte, 30)}
}

func (p packet) with(payload int) packet {
	p.payload = make([]byte, payload)
	return p
}

func (p packet) reply() packet {
	p.src, p.dst, p.sport, p.dport = p.dst, p.src, p.dport, p.sport
	return p
}

func TestRepliesOfAKnownFlowPass(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			request := tcp(client, server, 40000, 80, syn)
			answer := tcp(server, client, 80, 40000, syn|ack)
			expect(t, "an answer without a request", b.arrives(f, b.wan, answer), drops)
			expect(t, "the request", b.arrives(f, b.lan, request), passes)
			expect(t, "its answer", b.arrives(f, b.wan, answer), passes)
			expect(t, "an answer to another port", b.arrives(f, b.wan, tcp(server, client, 80, 40001, syn|ack)), drops)
			e, ok := f.entry(t, request.flow())
			if !ok || e.Packets[0]+e.Packets[1] != 2 || e.Packets[0] != 1 {
				t.Errorf("entry %+v (there: %v), want a packet each way", e, ok)
			}
		})
	})
}

func TestOnlyPayloadOfTheOriginatorIsQueued(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			c := tcp(client, server, 40000, 443, syn)
			expect(t, "SYN", b.arrives(f, b.lan, c), passes)
			expect(t, "SYN-ACK", b.arrives(f, b.wan, tcp(server, client, 443, 40000, syn|ack)), passes)
			expect(t, "ACK", b.arrives(f, b.lan, tcp(client, server, 40000, 443, ack)), passes)
			expect(t, "hello", b.arrives(f, b.lan, tcp(client, server, 40000, 443, psh|ack).with(500)), queues)
			expect(t, "server's data", b.arrives(f, b.wan, tcp(server, client, 443, 40000, ack).with(1000)), passes)
		})
	})
}

func TestRepliesAreQueuedWhereTheRuleRewrites(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			query := udp(client, server, 40000, 53)
			expect(t, "query", b.arrives(f, b.lan, query), queues)
			expect(t, "response", b.arrives(f, b.wan, query.reply()), queues)
			expect(t, "second query", b.arrives(f, b.lan, query), queues)
		})
	})
}

func TestDecisionKeepsTheFlowInTheKernel(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			hello := tcp(client, server, 40000, 443, psh|ack).with(500)
			b.arrives(f, b.lan, tcp(client, server, 40000, 443, syn))
			expect(t, "hello", b.arrives(f, b.lan, hello), queues)
			if err := f.Decide(hello.flow(), policy.ActionAccept, 1); err != nil {
				t.Fatal(err)
			}
			expect(t, "after accept", b.arrives(f, b.lan, hello), passes)
			if err := f.Decide(hello.flow(), policy.ActionDrop, 1); err != nil {
				t.Fatal(err)
			}
			expect(t, "after drop", b.arrives(f, b.lan, hello), drops)
			expect(t, "after drop, replies", b.arrives(f, b.wan, hello.reply()), drops)
			if code := b.xdp(f, hello.frame(), b.lan); code != xdpDrop {
				t.Errorf("fw_xdp returned %d for a dropped flow, want %d", code, xdpDrop)
			}
			expect(t, "after drop, leaving", b.leaves(f, b.wan, b.lan, hello), drops)

			expect(t, "a new SYN from the same ports", b.arrives(f, b.lan, tcp(client, server, 40000, 443, syn)), passes)
			expect(t, "its hello", b.arrives(f, b.lan, hello), queues)
			e, _ := f.entry(t, hello.flow())
			if got := e.Packets[0] + e.Packets[1]; got != 2 {
				t.Errorf("%d packets in the entry, want the 2 of the new connection", got)
			}
		})
	})
}

func TestDecisionWithoutAnEntryMakesOne(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			hello := tcp(client, server, 40000, 443, psh|ack).with(500)
			if err := f.Decide(hello.flow(), policy.ActionDrop, 1); err != nil {
				t.Fatal(err)
			}
			expect(t, "hello", b.arrives(f, b.lan, hello), drops)
		})
	})
}

func TestMidstreamIsWhatThePolicySays(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		for setting, want := range map[string]string{"inspect": queues, "accept": passes, "drop": drops} {
			text := replace(t, basePolicy, "midstream: inspect", "midstream: "+setting)
			on(t, text, func(b *bench, f *Firewall) {
				expect(t, setting, b.arrives(f, b.lan, tcp(client, server, 40000, 443, psh|ack).with(500)), want)
			})
		}
	})
}

func TestFragmentsFollowTheirFirst(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			first := func(id uint32, dport uint16) packet {
				p := udp(client, server, 40000, dport).with(96)
				p.fragID, p.moreFrags = id, true
				return p
			}
			// A later fragment whose data looks like ports that are allowed.
			later := func(id uint32, offset int) packet {
				p := udp(client, server, 0, 0).with(1000)
				p.fragID, p.fragOffset = id, offset
				binary.BigEndian.PutUint16(p.payload[2:], 80)
				return p
			}
			expect(t, "a later fragment alone", b.arrives(f, b.lan, later(1, 104)), drops)
			expect(t, "first, allowed", b.arrives(f, b.lan, first(2, 80)), passes)
			for _, offset := range []int{104, 640, 8} {
				expect(t, "later, allowed", b.arrives(f, b.lan, later(2, offset)), passes)
			}
			expect(t, "first, blocked", b.arrives(f, b.lan, first(3, 23)), drops)
			expect(t, "later, blocked", b.arrives(f, b.lan, later(3, 104)), drops)
			expect(t, "later of another datagram", b.arrives(f, b.lan, later(4, 104)), drops)
			if got := f.sum(t, "tc", "", "fragment"); got != 6 {
				t.Errorf("%d packets counted as fragments, want 6", got)
			}
		})
	})
}

// icmpError is an error about a packet, sent by a router in wan.
func icmpError(about packet, quoteLen int) packet {
	quote := about.frame()[14:]
	p := packet{src: netip.MustParseAddr("198.51.100.9"), dst: about.src, proto: protoICMP, icmpType: 3, icmpCode: 4, hopLimit: 60}
	header := 20
	if about.src.Is6() {
		p.src, p.proto, p.icmpType, p.icmpCode = netip.MustParseAddr("2001:db8:2::9"), protoICMPv6, 1, 1
		header = 40
	}
	p.payload = quote[:header+quoteLen]
	return p
}

func TestICMPErrorsBelongToTheFlowTheyQuote(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			known := tcp(client, server, 40000, 80, syn)
			b.arrives(f, b.lan, known)
			for _, quoted := range []int{8, 20} {
				expect(t, "about a known flow", b.arrives(f, b.wan, icmpError(known, quoted)), passes)
			}
			unknown := icmpError(tcp(client, server, 1, 80, syn), 8)
			if client.Is4() {
				expect(t, "about no flow", b.arrives(f, b.wan, unknown), drops)
			} else {
				expect(t, "about no flow, on RFC 4890's list", b.arrives(f, b.wan, unknown), passes)
			}
			if err := f.Decide(known.flow(), policy.ActionDrop, 3); err != nil {
				t.Fatal(err)
			}
			expect(t, "about a dropped flow", b.arrives(f, b.wan, icmpError(known, 8)), drops)
		})
	})
}

func TestHostsOwnFlowsAreKnown(t *testing.T) {
	both(t, func(t *testing.T, _, server netip.Addr) {
		host := netip.MustParseAddr("198.51.100.1")
		if server.Is6() {
			host = netip.MustParseAddr("2001:db8:2::1")
		}
		on(t, basePolicy, func(b *bench, f *Firewall) {
			query := udp(host, server, 40000, 123)
			expect(t, "an unasked answer", b.arrives(f, b.wan, query.reply()), drops)
			expect(t, "the host's query", b.leaves(f, b.wan, 0, query), passes)
			expect(t, "its answer", b.arrives(f, b.wan, query.reply()), passes)
		})
	})
}

func TestTranslatedFlowsReturn(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			translated := client.Next()
			inside, outside := udp(client, server, 40000, 123), udp(translated, server, 61000, 123)
			expect(t, "coming in", b.arrives(f, b.lan, inside), passes)
			expect(t, "leaving under another address", b.leaves(f, b.wan, b.lan, outside), passes)
			expect(t, "its answer", b.arrives(f, b.wan, outside.reply()), passes)
			expect(t, "an answer to another port", b.arrives(f, b.wan, udp(server, translated, 123, 61001)), drops)
		})
	})
}

func TestPacketsFromUnguardedInterfacesAreJudgedWhenTheyLeave(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		p := udp(netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("198.51.100.2"), 40000, 80)
		expect(t, "forwarded from outside all zones", b.leaves(f, b.wan, b.foreign, p), drops)
	})
}
