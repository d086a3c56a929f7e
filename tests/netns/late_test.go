package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// TestInterfaceThatAppearsLater: globs stand for interfaces to come.
func TestInterfaceThatAppearsLater(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, strings.Replace(basePolicy, "lan: [lan0]", `lan: [lan0, "late*"]`, 1), m.flags()...)
		late := b.MustHost(t, "late")
		prefixes := [2][2]netip.Prefix{
			{netip.MustParsePrefix("203.0.113.2/24"), netip.MustParsePrefix("203.0.113.1/24")},
			{netip.MustParsePrefix("2001:db8:3::2/64"), netip.MustParsePrefix("2001:db8:3::1/64")},
		}
		err := b.Link(testnet.End{Host: late, Name: "eth0", Addrs: []netip.Prefix{prefixes[0][0], prefixes[1][0]}},
			testnet.End{Host: b.Firewall, Name: "late0", Addrs: []netip.Prefix{prefixes[0][1], prefixes[1][1]}})
		if err != nil {
			t.Fatal(err)
		}
		guards := func(s status) bool {
			for _, i := range s.Interfaces {
				if i.Name == "late0" {
					return i.Zone == "lan" && i.XDP == m.xdp && i.TC == m.tc
				}
			}
			return false
		}
		b.f.eventually(t, "late0 is guarded", guards)
		arrived := b.Server.MustCapture(t, "eth0")
		for i, fam := range families {
			t.Run(fam.name, func(t *testing.T) {
				everything := netip.PrefixFrom(prefixes[i][0].Addr(), 0).Masked()
				if err := late.Route(everything, prefixes[i][1].Addr()); err != nil {
					t.Fatal(err)
				}
				before := b.f.status()
				denied := late.MustDial(t, "udp", at(fam.server, 9))
				if _, err := denied.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				exchange(t, late.MustDial(t, "udp", at(fam.server, 7)), 3)
				expect(t, before, b.f.status(), counts{"tc drop rule": 1, "* drop *": 1, "tc pass rule": 1, "tc pass flow": 5})
				if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Dst.Port() == 9 }); n != 0 {
					t.Errorf("%d denied packets arrived", n)
				}
			})
		}
		b.Firewall.MustDo(t, func() error {
			l, err := netlink.LinkByName("late0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
		b.f.eventually(t, "late0 is forgotten", func(s status) bool { return !guards(s) })
		b.barrier(t, families[0])
		b.f.stop()
		if left := b.f.outside(t); slices.ContainsFunc(left, func(s string) bool { return strings.Contains(s, "late0") }) {
			t.Errorf("seen from outside: %v", left)
		}
	})
}

// TestInterfaceFromTheCommandLine joins a zone as if the policy named it.
func TestInterfaceFromTheCommandLine(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, strings.Replace(basePolicy, "lan: [lan0]", "lan: [other*]", 1), "--iface", "lan=lan0")
	eachFamily(t, func(t *testing.T, fam family) {
		before := b.f.status()
		b.send(t, testnet.Packet{Src: b.from(fam.bot), Dst: b.to(fam, 7)})
		b.barrier(t, fam)
		expect(t, before, b.f.status(), counts{"tc drop rule": 1, "* drop *": 1})
	})
}
