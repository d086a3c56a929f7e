package netns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const offloadPolicy = `
version: 1
zones: { lan: [lan0], wan: ["wan*"] }
offload: forward
rules:
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 443
    action: inspect
    steps: [{ sni: denied.example, action: drop }, { action: accept }]
`

// offloaded is the counter of what passed the stack by, in a mode.
func (m mode) offloaded() string {
	if m.xdp == "off" {
		return "tc pass offloaded"
	}
	return "xdp pass offloaded"
}

func newOffloadBench(t *testing.T, m mode) *bench {
	t.Helper()
	// For XDP as on a wire: a frame whose checksum is not finished is tc's.
	b := newBench(t, testnet.RoutedOptions{NoOffload: m.xdp != "off"}, offloadPolicy, m.flags()...)
	for _, h := range []*testnet.Host{b.Client, b.Server} {
		// Or a veth takes no frame that XDP sends to it.
		if err := h.GRO("eth0", true); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestDecidedFlowsPassTheStackBy: a transfer arrives whole, with one hop less, and
// most of it was sent on by the programs; an inspected flow is looked at first.
func TestDecidedFlowsPassTheStackBy(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		if m.xdp != "off" {
			testnet.NeedLinux(t, 6, 3, "the features of XDP that netdev tells")
		}
		b := newOffloadBench(t, m)
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			before := b.f.status()
			conn := b.Client.MustDial(t, "tcp", at(fam.server, 7))
			exchange(t, conn, 5)
			echoes(t, conn, 4<<20)
			arrived := b.Server.MustCapture(t, "eth0") // the transfer would fill it
			datagrams := b.Client.MustDial(t, "udp", at(fam.server, 7))
			exchange(t, datagrams, 100)
			after := b.f.status()
			expect(t, before, after, counts{"* drop *": 0})
			if n := after.since(before, m.offloaded()); n < 1000 {
				t.Errorf("%d packets passed the stack by, want nearly all of 4 MiB both ways: %+v", n, after.Kernel)
			}
			port := netip.MustParseAddrPort(datagrams.LocalAddr().String()).Port()
			if got := headers(arrived, port); len(got) != 1 || got[header{ttl: 63}] != 100 {
				t.Errorf("the server got datagrams with %v, want 100 with ttl 63", got)
			}
			b.expires(t, fam, datagrams)
			server := b.serveTLS(t, fam)
			before = b.f.status()
			secure, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, secure, 50)
			_ = secure.Close()
			after = b.f.status()
			expect(t, before, after, counts{"tc queue *": 1, "* drop *": 0})
			if n := after.since(before, m.offloaded()); n < 50 {
				t.Errorf("%d packets of an inspected flow passed the stack by after the decision, want at least 50", n)
			}
		})
	})
}

// expires sends a datagram whose last hop is the firewall by a flow that passes the
// stack by: the stack says that its time is over.
func (b *bench) expires(t *testing.T, fam family, conn net.Conn) {
	t.Helper()
	told, arrived := b.Client.MustCapture(t, "eth0"), b.Server.MustCapture(t, "eth0")
	// Behind the Ethernet header: where the protocol stands, and the ICMP type.
	protocol, icmp, err := [2]int{14 + 9, unix.IPPROTO_ICMP}, [2]int{14 + 20, 11}, ipv4.NewConn(conn).SetTTL(1)
	if fam.server.Is6() {
		protocol, icmp, err = [2]int{14 + 6, unix.IPPROTO_ICMPV6}, [2]int{14 + 40, 3}, ipv6.NewConn(conn).SetHopLimit(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("one hop")); err != nil {
		t.Fatal(err)
	}
	if _, err := told.Wait(testnet.Patience(t), func(f testnet.Frame) bool {
		return !f.Out && len(f.Data) > icmp[0] && int(f.Data[protocol[0]]) == protocol[1] && int(f.Data[icmp[0]]) == icmp[1]
	}); err != nil {
		t.Errorf("no time exceeded: %v", err)
	}
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	if got := headers(arrived, port); len(got) != 0 {
		t.Errorf("the server got %v of a datagram with hop limit 1, want nothing", got)
	}
}

// TestOffloadedPacketsAreRewritten: a flow whose rule rewrites headers passes the
// stack by with the fields of its rule in every packet, of both hooks.
func TestOffloadedPacketsAreRewritten(t *testing.T) {
	rewriting := strings.Replace(offloadPolicy, "dport: 7, action: accept", "dport: 7, action: accept, rewrite: { ttl: 99, dscp: ef }", 1)
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		if m.xdp != "off" {
			testnet.NeedLinux(t, 6, 3, "the features of XDP that netdev tells")
		}
		b := newOffloadBench(t, m)
		b.f.reload(t, rewriting)
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			atServer, atClient := b.Server.MustCapture(t, "eth0"), b.Client.MustCapture(t, "eth0")
			before := b.f.status()
			datagrams := b.Client.MustDial(t, "udp", at(fam.server, 7))
			exchange(t, datagrams, 100)
			after := b.f.status()
			expect(t, before, after, counts{"* drop *": 0})
			// What XDP cannot rewrite it leaves to tc; answers have nothing set.
			if n := after.since(before, "tc pass offloaded"); n < 90 {
				t.Errorf("%d packets passed the stack by in tc, want nearly all of 100", n)
			}
			if n := after.since(before, m.offloaded()); n < 90 {
				t.Errorf("%d answers passed the stack by, want nearly all of 100", n)
			}
			port := netip.MustParseAddrPort(datagrams.LocalAddr().String()).Port()
			if got := headers(atServer, port); len(got) != 1 || got[header{99, 46, 0}] != 100 {
				t.Errorf("the server got %v, want 100 with ttl 99, dscp 46", got)
			}
			if got := headers(atClient, 7); len(got) != 1 || got[header{63, 0, 0}] != 100 {
				t.Errorf("the client got %v, want 100 with ttl 63", got)
			}
		})
	})
}

// TestOffloadRoutesByTheRewrittenTOS: where the DSCP that a rule sets leads another
// way, the packets that pass the stack by go it too.
func TestOffloadRoutesByTheRewrittenTOS(t *testing.T) {
	m := mode{"clsact", "off"}
	b := newOffloadBench(t, m)
	b.secondLink(t)
	const tos = 4 << 2
	b.f.reload(t, strings.Replace(offloadPolicy, "dport: 7, action: accept", "dport: 7, action: accept, rewrite: { dscp: 4 }", 1))
	b.replaceRoute(t, &netlink.Route{
		Dst: &net.IPNet{IP: testnet.Server4.AsSlice(), Mask: net.CIDRMask(32, 32)},
		Gw:  net.IPv4(203, 0, 113, 2), Tos: tos,
	})
	if _, err := b.Server.ServeTCPEcho(at(testnet.Server4, 7)); err != nil {
		t.Fatal(err)
	}
	first, second := b.Server.MustCapture(t, "eth0"), b.Server.MustCapture(t, "eth1")
	conn := b.Client.MustDial(t, "udp", at(testnet.Server4, 7))
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	before := b.f.status()
	exchange(t, conn, 50)
	if n := b.f.status().since(before, m.offloaded()); n < 90 {
		t.Errorf("%d packets passed the stack by, want nearly all of 100", n)
	}
	if got, other := headers(second, port), headers(first, port); len(got) != 1 || got[header{63, 4, 0}] != 50 || len(other) != 0 {
		t.Errorf("by the route of its TOS came %v, by the other %v, want all 50 with dscp 4 by the first", got, other)
	}
}

// TestOffloadFollowsTheRoutes: while a transfer runs its route moves to another
// link, which goes down, so that it moves back, and is then forbidden.
func TestOffloadFollowsTheRoutes(t *testing.T) {
	m := mode{"clsact", "off"}
	b := newOffloadBench(t, m)
	b.secondLink(t)
	if _, err := b.Server.ServeTCPEcho(at(testnet.Server4, 7)); err != nil {
		t.Fatal(err)
	}
	conn := b.Client.MustDial(t, "tcp", at(testnet.Server4, 7))
	exchange(t, conn, 20)
	before := b.f.status()
	exchange(t, conn, 20)
	if n := b.f.status().since(before, m.offloaded()); n < 40 {
		t.Fatalf("%d packets passed the stack by before the route moved, want at least 40", n)
	}
	first, second := b.Server.MustCapture(t, "eth0"), b.Server.MustCapture(t, "eth1")
	host := netip.PrefixFrom(testnet.Server4, 32)
	if err := b.Firewall.Route(host, netip.MustParseAddr("203.0.113.2")); err != nil {
		t.Fatal(err)
	}
	seen := func(c *testnet.Capture) int {
		return serverSees(c, func(p testnet.Packet) bool { return p.TCP != nil && p.Src.Addr() == testnet.Client4 })
	}
	old := seen(first)
	before = b.f.status()
	exchange(t, conn, 20)
	if n := seen(first) - old; n != 0 || seen(second) < 20 {
		t.Errorf("behind the new route %d packets went the old way, %d the new one", n, seen(second))
	}
	if n := b.f.status().since(before, m.offloaded()); n < 30 {
		t.Errorf("%d packets passed the stack by behind the new route, want it learnt", n)
	}
	b.linkDown(t, "wan1")
	old, gone := seen(first), seen(second)
	before = b.f.status()
	exchange(t, conn, 20)
	if back, n := seen(first)-old, seen(second)-gone; n != 0 || back < 20 {
		t.Errorf("with the link down %d packets went by the link left, want at least 20, and %d by the other", back, n)
	}
	if n := b.f.status().since(before, m.offloaded()); n < 30 {
		t.Errorf("%d packets passed the stack by with the other link down, want it learnt", n)
	}
	b.replaceRoute(t, &netlink.Route{Dst: &net.IPNet{IP: host.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_UNREACHABLE})
	before = b.f.status()
	if _, err := conn.Write([]byte("into the void")); err != nil {
		t.Fatal(err)
	}
	after := b.f.eventually(t, "the stack has refused a packet", func(s status) bool { return s.since(before, "tc pass flow") > 0 })
	expect(t, before, after, counts{"tc pass offloaded": 0})
}

// TestOffloadStaysOffNAT: a masqueraded flow needs the stack for each packet.
func TestOffloadStaysOffNAT(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newOffloadBench(t, m)
		b.masquerade(t)
		eachFamily(t, func(t *testing.T, fam family) {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			before := b.f.status()
			echoes(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1<<20)
			exchange(t, b.Client.MustDial(t, "udp", at(fam.server, 7)), 50)
			expect(t, before, b.f.status(), counts{"* * offloaded": 0, "* drop *": 0})
		})
	})
}

// TestOffloadEndsWithItsPolicy: a reload that takes offload away, or denies, holds
// from the next packet on; a smaller MTU is told to the sender.
func TestOffloadEndsWithItsPolicy(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		if m.xdp != "off" {
			testnet.NeedLinux(t, 6, 3, "the features of XDP that netdev tells")
		}
		b := newOffloadBench(t, m)
		eachFamily(t, func(t *testing.T, fam family) {
			b.f.reload(t, offloadPolicy)
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			conn := b.Client.MustDial(t, "tcp", at(fam.server, 7))
			exchange(t, conn, 10)
			before := b.f.status()
			exchange(t, conn, 10)
			if n := b.f.status().since(before, m.offloaded()); n < 20 {
				t.Errorf("%d packets passed the stack by, want 20", n)
			}
			host := netip.PrefixFrom(fam.server, fam.server.BitLen())
			for _, mtu := range []int{1300, 1500} {
				if err := b.Firewall.RouteMTU(host, b.Wan, mtu); err != nil {
					t.Fatal(err)
				}
				echoes(t, conn, 1<<20) // by path MTU discovery
			}
			b.f.reload(t, strings.Replace(offloadPolicy, "offload: forward", "offload: none", 1))
			before = b.f.status()
			exchange(t, conn, 10)
			expect(t, before, b.f.status(), counts{"* * offloaded": 0, "* drop *": 0})
			b.f.reload(t, offloadPolicy)
			exchange(t, conn, 10)
			b.f.reload(t, strings.Replace(offloadPolicy, "dport: 7, action: accept", "dport: 7, action: drop", 1))
			before = b.f.status()
			if _, err := conn.Write([]byte("denied")); err != nil {
				t.Fatal(err)
			}
			after := b.f.eventually(t, "the denied flow's packet is dropped", func(s status) bool { return s.since(before, "* drop flow") > 0 })
			expect(t, before, after, counts{"* * offloaded": 0})
		})
	})
}

// secondLink joins the firewall and the server once more.
func (b *bench) secondLink(t *testing.T) {
	t.Helper()
	server := testnet.End{Host: b.Server, Name: "eth1", Addrs: []netip.Prefix{netip.MustParsePrefix("203.0.113.2/24")}}
	if err := b.Net.Link(server, testnet.End{Host: b.Firewall, Name: "wan1", Addrs: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/24")}}); err != nil {
		t.Fatal(err)
	}
	b.f.eventually(t, "the new link is guarded", func(s status) bool { return strings.Contains(fmt.Sprint(s.Interfaces), "wan1") })
}

func (b *bench) replaceRoute(tb testing.TB, r *netlink.Route) {
	tb.Helper()
	if err := b.Firewall.Netlink().RouteReplace(r); err != nil {
		tb.Fatal(err)
	}
}

func (b *bench) linkDown(tb testing.TB, name string) {
	tb.Helper()
	h := b.Firewall.Netlink()
	link, err := h.LinkByName(name)
	if err != nil {
		tb.Fatal(err)
	}
	if err := h.LinkSetDown(link); err != nil {
		tb.Fatal(err)
	}
}
