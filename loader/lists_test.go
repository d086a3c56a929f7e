package loader

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

const listsPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists:
  a: { type: cidr, entries: [10.0.0.0/8, "2001:db8:a::/48"] }
  b: { type: cidr, entries: [10.1.0.0/16, 172.16.0.1] }
  c: { type: cidr, entries: [10.1.2.3, 192.168.0.0/16] }
  to: { type: cidr, entries: [198.51.100.0/24, "2001:db8:2::/48"] }
  names: { type: domain, entries: [ads.example] }
rules:
  - { name: several, from: lan, src: ["@b", "@a", 203.0.113.9], proto: udp, action: drop }
  - { name: one, from: lan, src: "@c", dst: ["@to", "@b"], action: drop }
  - { name: not, from: lan, src: "!@a", dst: "@to", action: accept }
  - { name: seen, from: lan, proto: udp, dport: 53, action: inspect, steps: [{ qname: "@names", action: drop }, { action: accept }] }
`

// wantLists compares the packets that rules have judged by each list.
func (f *Firewall) wantLists(t *testing.T, when string, want map[string]uint64) {
	t.Helper()
	lists, err := f.Lists()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for i, l := range lists {
		if l.List != f.policy.Lists[i].Name {
			t.Errorf("%s: list %d is %s, want %s", when, i, l.List, f.policy.Lists[i].Name)
		}
		if (l.Packets != nil) != (l.Type == "cidr") {
			t.Errorf("%s: %+v", when, l)
		}
		if l.Packets != nil && *l.Packets != 0 {
			got[l.List] = *l.Packets
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", when, got, want)
	}
}

// TestListsCountWhatTheyMatch: a packet counts for the list of the rule that judged
// it, whichever other lists hold its address.
func TestListsCountWhatTheyMatch(t *testing.T) {
	addr := netip.MustParseAddr
	on(t, listsPolicy, func(b *bench, f *Firewall) {
		f.wantLists(t, "at first", map[string]uint64{})
		send := func(proto uint8, src, dst string, n int) {
			for i := range n {
				p := packet{src: addr(src), dst: addr(dst), proto: proto, sport: uint16(i), dport: 80, flags: syn, hopLimit: 64}
				frame := p.frame()
				if b.xdp(f, frame, b.lan) != xdpDrop { // the XDP program counts what it drops
					b.arrivesFrame(f, b.lan, frame)
				}
			}
		}
		send(protoUDP, "10.9.9.9", "192.0.2.1", 1)          // several by a
		send(protoUDP, "2001:db8:a::1", "2001:db8:9::1", 2) // several by a
		send(protoUDP, "10.1.9.9", "192.0.2.1", 4)          // several by b, its first
		send(protoUDP, "10.1.2.3", "198.51.100.2", 8)       // likewise, though c has it
		send(protoUDP, "203.0.113.9", "192.0.2.1", 16)      // several by no list
		send(protoTCP, "10.1.2.3", "198.51.100.2", 32)      // one by c, to
		send(protoTCP, "192.168.3.3", "172.16.0.1", 64)     // one by c, b
		send(protoTCP, "172.16.0.1", "198.51.100.2", 128)   // not by to
		send(protoTCP, "10.9.9.9", "203.0.113.1", 256)      // the default's
		want := map[string]uint64{"a": 3, "b": 12 + 64, "c": 96, "to": 32 + 128}
		f.wantLists(t, "then", want)
		if err := f.Apply(mustPolicy(t, listsPolicy+"  - { name: more, from: wan, src: \"@a\", action: drop }\n")); err != nil {
			t.Fatal(err)
		}
		b.enter(f)
		f.wantLists(t, "behind a reload", want)
		send(protoUDP, "10.9.9.9", "192.0.2.1", 1)
		want["a"]++
		f.wantLists(t, "and on", want)
	})
}

// TestSeveralListsAreOneRule: that lists are told apart changes no verdict.
func TestSeveralListsAreOneRule(t *testing.T) {
	p := mustPolicy(t, listsPolicy)
	b := newBench(t)
	b.host.MustDo(t, func() error {
		f := b.load(p)
		for _, prefix := range append(p.Lists[0].Prefixes, append(p.Lists[1].Prefixes, p.Lists[2].Prefixes...)...) {
			for _, src := range around(prefix) {
				for _, proto := range []uint8{protoTCP, protoUDP} {
					pkt := packet{src: src, dst: server4, proto: proto, sport: 1, dport: 80, flags: syn, hopLimit: 64}
					if src.Is6() {
						pkt.dst = server6
					}
					want := uint32(xdpPass)
					if wantDrop(p, &pkt, policy.ZoneID(1)) {
						want = xdpDrop
					}
					if got := b.xdp(f, pkt.frame(), b.lan); got != want {
						t.Errorf("%v %d: %d, want %d", src, proto, got, want)
					}
				}
			}
		}
		return nil
	})
}
