package netns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// guardedBy is a policy that lets echoes in from one interface and nothing else.
func guardedBy(lan string) string {
	return `
version: 1
zones: { lan: ["` + lan + `"], wan: [wan0] }
rules:
  - { name: telnet, from: lan, proto: tcp, dport: 23, action: drop }
  - { name: echo, from: lan, proto: [tcp, udp], dport: 7, action: accept }
`
}

// edge is a firewall with a server behind it, and hosts on the other side of it
// that a test links as it likes.
type edge struct {
	*testnet.Net
	firewall, server *testnet.Host
	f                *firewall
}

func newEdge(tb testing.TB) *edge {
	tb.Helper()
	n := testnet.MustNew(tb)
	e := &edge{Net: n, firewall: n.MustHost(tb, "edge"), server: n.MustHost(tb, "behind")}
	if err := e.firewall.Forward(); err != nil {
		tb.Fatal(err)
	}
	e.link(tb, testnet.End{Host: e.server, Name: "eth0", Addrs: addrs("198.51.100.2/24", "2001:db8:2::2/64")},
		testnet.End{Host: e.firewall, Name: "wan0", Addrs: addrs("198.51.100.1/24", "2001:db8:2::1/64")})
	e.routes(tb, e.server, "198.51.100.1", "2001:db8:2::1")
	return e
}

func addrs(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func (e *edge) link(tb testing.TB, a, b testnet.End) {
	tb.Helper()
	if err := e.Link(a, b); err != nil {
		tb.Fatal(err)
	}
}

// routes sends everything by way of gateways.
func (e *edge) routes(tb testing.TB, h *testnet.Host, gateways ...string) {
	tb.Helper()
	for _, g := range gateways {
		gw := netip.MustParseAddr(g)
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gw.Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := h.Route(everything, gw); err != nil {
			tb.Fatal(err)
		}
	}
}

// add makes an interface on a host, up and with addresses.
func add(tb testing.TB, h *testnet.Host, l netlink.Link, prefixes ...netip.Prefix) {
	tb.Helper()
	if err := h.Netlink().LinkAdd(l); err != nil {
		tb.Fatalf("adding %s to host %s: %v", l.Attrs().Name, h.Name, err)
	}
	if err := h.Netlink().LinkSetUp(l); err != nil {
		tb.Fatal(err)
	}
	for _, p := range prefixes {
		if err := h.Addr(l.Attrs().Name, p); err != nil {
			tb.Fatal(err)
		}
	}
}

func index(tb testing.TB, h *testnet.Host, ifname string) int {
	tb.Helper()
	i, err := h.Index(ifname)
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

// guards shows that what comes from a host to another by way of the firewall is
// judged: echoes pass, and telnet is dropped by its rule.
func (e *edge) guards(t *testing.T, from, to *testnet.Host, targets ...string) {
	t.Helper()
	for _, target := range targets {
		addr := netip.MustParseAddr(target)
		for _, serve := range []func(string) error{
			func(a string) error { _, err := to.ServeUDPEcho(a); return err },
			func(a string) error { _, err := to.ServeTCPEcho(a); return err },
		} {
			if err := serve(at(addr, 7)); err != nil && !strings.Contains(err.Error(), "in use") {
				t.Fatal(err)
			}
		}
		before := e.f.status()
		exchange(t, from.MustDial(t, "udp", at(addr, 7)), 3)
		exchange(t, from.MustDial(t, "tcp", at(addr, 7)), 3)
		after := e.f.status()
		expect(t, before, after, counts{"* drop *": 0})
		if n := after.since(before, "tc pass rule"); n != 2 {
			t.Errorf("%d packets passed by their rule to %s, want 2 flows", n, target)
		}
		brief, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if _, err := from.Dial(brief, "tcp", at(addr, 23)); err == nil {
			t.Errorf("telnet to %s is open", target)
		}
		cancel()
		if n := e.f.status().since(before, "tc drop rule"); n == 0 {
			t.Errorf("no packet to telnet of %s was dropped by its rule", target)
		}
	}
}

func TestBridgeIsGuarded(t *testing.T) {
	e := newEdge(t)
	client, neighbour := e.MustHost(t, "client"), e.MustHost(t, "neighbour")
	e.link(t, testnet.End{Host: client, Name: "eth0", Addrs: addrs("192.0.2.2/24", "2001:db8:1::2/64")}, testnet.End{Host: e.firewall, Name: "port0"})
	e.link(t, testnet.End{Host: neighbour, Name: "eth0", Addrs: addrs("192.0.2.3/24", "2001:db8:1::3/64")}, testnet.End{Host: e.firewall, Name: "port1"})
	if err := e.firewall.Bridge("br0", "port0", "port1"); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs("192.0.2.1/24", "2001:db8:1::1/64") {
		if err := e.firewall.Addr("br0", a); err != nil {
			t.Fatal(err)
		}
	}
	e.routes(t, client, "192.0.2.1", "2001:db8:1::1")
	for _, guarded := range []string{"br0", "port0"} {
		t.Run(guarded, func(t *testing.T) {
			e.f = start(t, e.firewall, guardedBy(guarded))
			e.guards(t, client, e.server, "198.51.100.2", "2001:db8:2::2")
			e.guards(t, client, e.firewall, "192.0.2.1", "2001:db8:1::1")
			if guarded == "port0" { // what the bridge passes on goes by the port, too
				e.guards(t, client, neighbour, "192.0.2.3", "2001:db8:1::3")
			}
			e.f.stop()
		})
	}
}

func TestMacvlanIsGuarded(t *testing.T) {
	e := newEdge(t)
	client := e.MustHost(t, "client")
	e.link(t, testnet.End{Host: client, Name: "eth0", Addrs: addrs("192.0.2.2/24", "2001:db8:1::2/64")}, testnet.End{Host: e.firewall, Name: "below0"})
	add(t, e.firewall, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: index(t, e.firewall, "below0")}, Mode: netlink.MACVLAN_MODE_BRIDGE},
		addrs("192.0.2.1/24", "2001:db8:1::1/64")...)
	// The interface below would answer for the address, too.
	if err := e.firewall.Sysctl("net/ipv4/conf/all/arp_ignore", "1"); err != nil {
		t.Fatal(err)
	}
	e.routes(t, client, "192.0.2.1", "2001:db8:1::1")
	e.f = start(t, e.firewall, guardedBy("mv*"))
	e.guards(t, client, e.server, "198.51.100.2", "2001:db8:2::2")
	e.guards(t, client, e.firewall, "192.0.2.1", "2001:db8:1::1")
}

// TestVLANInterfaceIsGuarded needs a kernel that has VLAN devices.
func TestVLANInterfaceIsGuarded(t *testing.T) {
	if !testnet.InGuest() {
		t.Skip("VLAN devices are in the kernels of make test-kernels")
	}
	e := newEdge(t)
	client := e.MustHost(t, "client")
	e.link(t, testnet.End{Host: client, Name: "eth0"}, testnet.End{Host: e.firewall, Name: "trunk0"})
	add(t, client, &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth0.10", ParentIndex: index(t, client, "eth0")}, VlanId: 10},
		addrs("192.0.2.2/24", "2001:db8:1::2/64")...)
	add(t, e.firewall, &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "trunk0.10", ParentIndex: index(t, e.firewall, "trunk0")}, VlanId: 10},
		addrs("192.0.2.1/24", "2001:db8:1::1/64")...)
	e.routes(t, client, "192.0.2.1", "2001:db8:1::1")
	for _, guarded := range []string{"trunk0.10", "trunk0"} {
		t.Run(guarded, func(t *testing.T) {
			e.f = start(t, e.firewall, guardedBy(guarded))
			e.guards(t, client, e.server, "198.51.100.2", "2001:db8:2::2")
			e.guards(t, client, e.firewall, "192.0.2.1", "2001:db8:1::1")
			e.f.stop()
		})
	}
}

// TestLoopbackAlwaysPasses: a policy that denies everything leaves the host's talk
// with itself alone, by lo and by its other addresses.
func TestLoopbackAlwaysPasses(t *testing.T) {
	e := newEdge(t)
	e.f = start(t, e.firewall, "version: 1\nzones: { wan: [wan0] }\ndefaults: { output: drop }\n")
	for _, own := range []string{"127.0.0.1", "::1", "198.51.100.1", "2001:db8:2::1"} {
		addr := at(netip.MustParseAddr(own), 7)
		if _, err := e.firewall.ServeTCPEcho(addr); err != nil {
			t.Fatal(err)
		}
		exchange(t, e.firewall.MustDial(t, "tcp", addr), 3)
	}
}

// TestInterfacesComeAndGo: what a glob matches is guarded from when it appears, and
// forgotten when it goes, however often.
func TestInterfacesComeAndGo(t *testing.T) {
	e := newEdge(t)
	e.f = start(t, e.firewall, guardedBy("dyn*"))
	guarded := func(s status) int {
		n := 0
		for _, i := range s.Interfaces {
			if strings.HasPrefix(i.Name, "dyn") {
				n++
			}
		}
		return n
	}
	for round := range 3 {
		client := e.MustHost(t, fmt.Sprint("client", round))
		name := fmt.Sprint("dyn", round%2)
		e.link(t, testnet.End{Host: client, Name: "eth0", Addrs: addrs("192.0.2.2/24")}, testnet.End{Host: e.firewall, Name: name, Addrs: addrs("192.0.2.1/24")})
		e.routes(t, client, "192.0.2.1")
		e.f.eventually(t, "the new interface is guarded", func(s status) bool { return guarded(s) == 1 })
		e.guards(t, client, e.server, "198.51.100.2")
		l, err := e.firewall.Netlink().LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.firewall.Netlink().LinkDel(l); err != nil {
			t.Fatal(err)
		}
		e.f.eventually(t, "the interface that is gone is forgotten", func(s status) bool { return guarded(s) == 0 })
	}
}
