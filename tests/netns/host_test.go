package netns

import (
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const hostPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
defaults: { input: drop, forward: drop, output: accept }
rules:
  - { name: echo, from: lan, to: host, proto: [tcp, udp], dport: 7, action: accept }
  - { name: dns, from: lan, to: host, proto: udp, dport: 53, action: inspect, steps: [{ qname: denied.example, action: drop }, { action: accept }] }
  - { name: web, from: lan, to: host, proto: tcp, dport: 443, action: inspect, steps: [{ sni: denied.example, action: drop }, { action: accept }] }
  - { name: telnet, from: lan, proto: tcp, dport: 23, action: drop }
  - { name: through, from: lan, to: wan, proto: udp, dport: 7, action: accept }
`

// TestInput: packets to the firewall's own host.
func TestInput(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, hostPolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Firewall.ServeUDPEcho(at(fam.lan, 7)); err != nil {
				t.Fatal(err)
			}
			dns, err := b.Firewall.ServeDNS(at(fam.lan, 53), names)
			if err != nil {
				t.Fatal(err)
			}
			web, err := b.Firewall.ServeTLS(at(fam.lan, 443))
			if err != nil {
				t.Fatal(err)
			}
			before := b.f.status()
			exchange(t, b.Client.MustDial(t, "udp", at(fam.lan, 7)), 5)
			b.send(t, testnet.Packet{Src: b.from(fam.client), Dst: b.toHost(fam, 9)})
			b.barrier(t, fam)
			expect(t, before, b.f.status(), counts{
				"tc pass rule": 2, "tc pass flow": 5, "tc_out pass flow": 5, "tc drop default": 1, "* drop *": 1, "queued": 0,
			})

			before = b.f.status()
			conn := b.Client.MustDial(t, "udp", dns.Addr.String())
			if _, err := conn.Write(question(t, 1, "denied.example.", 1)); err != nil {
				t.Fatal(err)
			}
			if m := ask(t, conn, question(t, 2, "good.example.", 1)); m.ID != 2 || len(m.Answers) != 1 {
				t.Errorf("the response: %+v", m)
			}
			if secure, err := b.Client.DialTLS(testnet.Patience(t), web.Addr.String(), web.ClientConfig("good.example")); err != nil {
				t.Errorf("TLS to the firewall's host: %v", err)
			} else {
				exchange(t, secure, 5)
				_ = secure.Close()
			}
			after := b.f.eventually(t, "two questions and a hello are judged", func(s status) bool { return s.since(before, "user") == 3 })
			if in := after.hook("input").Queued - before.hook("input").Queued; in != 3 || after.hook("forward").Queued != 0 {
				t.Errorf("%d queued on input and %d on forward, want 3 and 0", in, after.hook("forward").Queued)
			}
			if dns.Asked("denied.example") != 0 || !slices.Equal(web.Names(), []string{"good.example"}) {
				t.Errorf("questions: %+v, hellos: %q", dns.Queries(), web.Names())
			}
		})
	})
}

// TestOutput: connections that the firewall's host begins itself.
func TestOutput(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, hostPolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			before := b.quiet(t)
			exchange(t, b.Firewall.MustDial(t, "udp", at(fam.server, 7)), 5)
			expect(t, before, b.f.status(), counts{
				"tc_out pass default": 1, "tc_out pass flow": 4, "tc pass flow": 5, "* drop *": 0, "queued": 0,
			})
			// What nobody asked for is not let in on its account.
			server := b.Server.MustDial(t, "udp", at(fam.wan, 9))
			before = b.f.status()
			if _, err := server.Write([]byte("unasked")); err != nil {
				t.Fatal(err)
			}
			b.f.eventually(t, "it is dropped", func(s status) bool { return s.since(before, "tc drop default") == 1 })

			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			echoes(t, b.Firewall.MustDial(t, "tcp", at(fam.server, 7)), 1<<16)
		})
	})
}

// TestOutputDropped: with another default only what a rule allows gets out.
func TestOutputDropped(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
defaults: { input: drop, forward: drop, output: drop }
rules:
  - { name: own, from: host, to: wan, proto: udp, dport: 7, action: accept }
  - { name: echo, from: lan, to: host, proto: udp, dport: 7, action: accept }
`, m.flags()...)
		arrived := b.Server.MustCapture(t, "eth0")
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Firewall.ServeUDPEcho(at(fam.lan, 7)); err != nil {
				t.Fatal(err)
			}
			before := b.f.status()
			denied := b.Firewall.MustDial(t, "udp", at(fam.server, 9))
			for range 5 {
				_, _ = denied.Write([]byte("x")) // the kernel may report the drop
			}
			exchange(t, b.Firewall.MustDial(t, "udp", at(fam.server, 7)), 3)
			// Replies of the host to what it let in are not its own beginnings.
			exchange(t, b.Client.MustDial(t, "udp", at(fam.lan, 7)), 3)
			expect(t, before, b.f.status(), counts{
				"tc_out drop default": 5, "* drop *": 5, "tc_out pass rule": 1, "tc_out pass flow": 2 + 3,
				"tc pass rule": 1, "tc pass flow": 3 + 2,
			})
			if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Dst.Port() == 9 }); n != 0 {
				t.Errorf("%d packets arrived that the default drops", n)
			}
		})
	})
}

// TestTaggedFrames: a VLAN tag hides nothing, and tags that are too many are
// malformed.
func TestTaggedFrames(t *testing.T) {
	eachMode(t, allModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, hostPolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			syn := testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 23), TCP: &testnet.TCP{Flags: 2}}
			for _, tags := range [][]uint16{nil, {100}, {200, 100}} {
				before := b.f.status()
				syn.VLANs = tags
				for range 3 {
					b.send(t, syn)
				}
				b.barrier(t, fam)
				want := counts{"xdp drop rule": 3, "* drop *": 3, "judged": barrierPackets}
				if m.xdp == "off" {
					want = counts{"tc drop rule": 3, "* drop *": 3, "judged": 3 + barrierPackets}
				}
				expect(t, before, b.f.status(), want)
			}
			for _, tags := range [][]uint16{{300, 200, 100}, {400, 300, 200, 100}, {500, 400, 300, 200, 100}} {
				before := b.f.status()
				syn.VLANs = tags
				b.send(t, syn)
				b.barrier(t, fam)
				expect(t, before, b.f.status(), counts{"tc drop malformed": 1, "* drop *": 1, "judged": 1 + barrierPackets})
			}
			// An allowed one passes the programs; there is no VLAN interface to
			// receive it.
			before := b.f.status()
			b.send(t, testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 7), VLANs: []uint16{100}})
			b.barrier(t, fam)
			expect(t, before, b.f.status(), counts{"tc pass rule": 2, "* drop *": 0, "judged": 1 + barrierPackets})
		})
	})
}
