package netns

import (
	wire "encoding/binary" // binary is the program under test
	"fmt"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const rewritePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: tcp, from: lan, to: wan, proto: tcp, dport: [7, 443], action: accept, rewrite: { mss: pmtu, dscp: ef, ttl: 99 } }
  - { name: udp, from: lan, to: wan, proto: udp, dport: 7, action: accept, rewrite: { dscp: af11, ttl: 7 } }
  - { name: forward, from: wan, proto: tcp, dport: 8443, action: accept, rewrite: { dscp: cs1, mss: 900 } }
`

// header is what a captured frame says that rewrites change.
type header struct {
	ttl, dscp uint8
	mss       uint16 // 0: no SYN, or none announced
}

func (h header) String() string { return fmt.Sprintf("ttl %d dscp %d mss %d", h.ttl, h.dscp, h.mss) }

// headerOf reads a frame of TCP or UDP without tags, IP options or extension
// headers; ok is false for others.
func headerOf(frame []byte) (h header, sport uint16, ok bool) {
	if len(frame) < 14+40+8 && (len(frame) < 14+20+8 || frame[14]>>4 != 4) {
		return h, 0, false
	}
	ip := frame[14:]
	l4, proto := ip[20:], ip[9]
	h.ttl, h.dscp = ip[8], ip[1]>>2
	if ip[0]>>4 == 6 {
		l4, proto = ip[40:], ip[6]
		h.ttl, h.dscp = ip[7], uint8(wire.BigEndian.Uint16(ip)>>6)&0x3f
	}
	sport = wire.BigEndian.Uint16(l4)
	if proto != 6 {
		return h, sport, proto == 17
	}
	const syn = 2
	if l4[13]&syn == 0 {
		return h, sport, true
	}
	for o := l4[20 : l4[12]>>4*4]; len(o) >= 4 && o[0] != 0; {
		switch o[0] {
		case 1:
			o = o[1:]
			continue
		case 2:
			h.mss = wire.BigEndian.Uint16(o[2:])
		}
		o = o[o[1]:]
	}
	return h, sport, true
}

// headers counts what a host received from a port, by kinds.
func headers(c *testnet.Capture, from uint16) map[header]int {
	seen := map[header]int{}
	for _, f := range c.Frames() {
		if h, sport, ok := headerOf(f.Data); ok && !f.Out && sport == from {
			seen[h]++
		}
	}
	return seen
}

// TestRewritesReachThePeer: connections through the host, under its own address
// and with, arrive with the fields that their rule sets, and work.
func TestRewritesReachThePeer(t *testing.T) {
	for _, nat := range []bool{false, true} {
		t.Run(fmt.Sprint("masquerade ", nat), func(t *testing.T) {
			eachMode(t, twoModes, func(t *testing.T, m mode) {
				b := newBench(t, testnet.RoutedOptions{}, rewritePolicy, m.flags()...)
				if nat {
					b.masquerade(t)
				}
				b.smallerWan(t, 1400)
				eachFamily(t, func(t *testing.T, fam family) { arriveRewritten(t, b, fam) })
			})
		})
	}
}

// smallerWan lowers the MTU of the firewall's interface alone: the server does not
// know.
func (b *bench) smallerWan(tb testing.TB, mtu int) {
	tb.Helper()
	l, err := b.Firewall.Netlink().LinkByName(b.Wan)
	if err == nil {
		err = b.Firewall.Netlink().LinkSetMTU(l, mtu)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func arriveRewritten(t *testing.T, b *bench, fam family) {
	mss := uint16(1360)
	if fam.client.Is6() {
		mss = 1340
	}
	if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
		t.Fatal(err)
	}
	atServer, atClient := b.Server.MustCapture(t, "eth0"), b.Client.MustCapture(t, "eth0")
	conn := b.Client.MustDial(t, "tcp", at(fam.server, 7))
	echoes(t, conn, 1<<18)
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	got := headers(atServer, port)
	if len(got) != 2 || got[header{99, 46, mss}] != 1 || got[header{99, 46, 0}] < 3 {
		t.Errorf("the server got from the client %v, want ttl 99, dscp 46, and in the SYN mss %d", got, mss)
	}
	got = headers(atClient, 7)
	if len(got) != 2 || got[header{63, 0, mss}] != 1 || got[header{63, 0, 0}] < 3 {
		t.Errorf("the client got from the server %v, want its own ttl less one, and in the SYN-ACK mss %d", got, mss)
	}
	datagrams := b.Client.MustDial(t, "udp", at(fam.server, 7))
	exchange(t, datagrams, 3)
	port = netip.MustParseAddrPort(datagrams.LocalAddr().String()).Port()
	if got := headers(atServer, port); len(got) != 1 || got[header{7, 10, 0}] != 3 {
		t.Errorf("the server got datagrams with %v, want 3 with ttl 7, dscp 10", got)
	}
}

// TestRewritesOfAForwardedPort: the rule of a port that NAT forwards is known by the
// addresses that the packets came with.
func TestRewritesOfAForwardedPort(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, rewritePolicy)
	b.forwardPort(t)
	eachFamily(t, func(t *testing.T, fam family) {
		inside, err := b.Client.ServeTLS(at(fam.client, 443))
		if err != nil {
			t.Fatal(err)
		}
		atClient, atServer := b.Client.MustCapture(t, "eth0"), b.Server.MustCapture(t, "eth0")
		conn, err := b.Server.DialTLS(testnet.Patience(t), at(fam.wan, 8443), inside.ClientConfig("good.example"))
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, conn, 3)
		port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
		if got := headers(atClient, port); got[header{63, 8, 900}] != 1 || len(got) != 2 {
			t.Errorf("the server inside got %v, want dscp 8 and in the SYN mss 900", got)
		}
		if got := headers(atServer, 8443); got[header{63, 0, 900}] != 1 || len(got) != 2 {
			t.Errorf("the client outside got %v, want in the SYN-ACK mss 900", got)
		}
		_ = conn.Close()
	})
}

// TestRewritesOnABridge: from port to port of a bridge, which takes no hop away,
// packets leave with the hop limit of their rule.
func TestRewritesOnABridge(t *testing.T) {
	e := newEdge(t)
	client, neighbour := e.MustHost(t, "client"), e.MustHost(t, "neighbour")
	e.link(t, testnet.End{Host: client, Name: "eth0", Addrs: addrs("192.0.2.2/24", "2001:db8:1::2/64")}, testnet.End{Host: e.firewall, Name: "port0"})
	e.link(t, testnet.End{Host: neighbour, Name: "eth0", Addrs: addrs("192.0.2.3/24", "2001:db8:1::3/64")}, testnet.End{Host: e.firewall, Name: "port1"})
	if err := e.firewall.Bridge("br0", "port0", "port1"); err != nil {
		t.Fatal(err)
	}
	e.f = start(t, e.firewall, `
version: 1
zones: { lan: ["port*"] }
rules:
  - { name: echo, from: lan, proto: udp, dport: 7, action: accept, rewrite: { dscp: ef, ttl: 99 } }
`)
	for _, target := range []string{"192.0.2.3", "2001:db8:1::3"} {
		addr := netip.MustParseAddr(target)
		if _, err := neighbour.ServeUDPEcho(at(addr, 7)); err != nil {
			t.Fatal(err)
		}
		there, back := neighbour.MustCapture(t, "eth0"), client.MustCapture(t, "eth0")
		conn := client.MustDial(t, "udp", at(addr, 7))
		exchange(t, conn, 3)
		port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
		if got := headers(there, port); len(got) != 1 || got[header{99, 46, 0}] != 3 {
			t.Errorf("%s got %v, want 3 with ttl 99, dscp 46", target, got)
		}
		if got := headers(back, 7); len(got) != 1 || got[header{64, 0, 0}] != 3 {
			t.Errorf("the client got from %s %v, want 3 as they were sent", target, got)
		}
	}
}
