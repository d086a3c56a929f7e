package netns

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// family is one IP version on the routed network.
type family struct {
	name                     string
	client, lan, wan, server netip.Addr
	bot                      netip.Addr // a neighbour of the client, on the list of basePolicy
}

var families = []family{
	{"IPv4", testnet.Client4, testnet.Lan4, testnet.Wan4, testnet.Server4, netip.MustParseAddr("192.0.2.66")},
	{"IPv6", testnet.Client6, testnet.Lan6, testnet.Wan6, testnet.Server6, netip.MustParseAddr("2001:db8:1::66")},
}

func eachFamily(t *testing.T, run func(t *testing.T, fam family)) {
	t.Helper()
	for _, fam := range families {
		t.Run(fam.name, func(t *testing.T) { run(t, fam) })
	}
}

// at writes an address with a port.
func at(addr netip.Addr, port uint16) string { return netip.AddrPortFrom(addr, port).String() }

// mode is a way of attaching the kernel half.
type mode struct{ tc, xdp string }

func (m mode) flags() []string { return []string{"--tc", m.tc, "--xdp", m.xdp} }

// Ways of attaching: all, and two that have nothing in common.
var (
	allModes = []mode{
		{"tcx", "native"}, {"tcx", "generic"}, {"tcx", "off"},
		{"clsact", "native"}, {"clsact", "generic"}, {"clsact", "off"},
	}
	twoModes = []mode{{"tcx", "off"}, {"clsact", "native"}}
)

// eachMode runs a test for each way of attaching that the kernel has.
func eachMode(t *testing.T, modes []mode, run func(t *testing.T, m mode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.tc+" "+m.xdp, func(t *testing.T) {
			if m.tc == "tcx" {
				testnet.NeedLinux(t, 6, 6, "TCX")
			}
			run(t, m)
		})
	}
}

// basePolicy has a rule of each kind. Names on the wire decide about ports 53
// and 443, everything else is for the kernel half alone.
const basePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists:
  bots: { type: cidr, entries: [192.0.2.66, "2001:db8:1::66"] }
  ads: { type: domain, entries: [".ads.example"] }
rules:
  - { name: bots, from: lan, src: "@bots", action: drop }
  - { name: telnet, from: lan, proto: tcp, dport: 23, action: drop }
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 443
    action: inspect
    steps: [{ sni: "@ads", action: drop, log: true }, { sni: "denied.example", action: drop }, { action: accept }]
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ qname: "@ads", action: drop, log: true }, { qname: "denied.example", action: drop }, { action: accept }]
  - { name: discard, from: lan, to: wan, proto: udp, dport: 9, action: drop }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// counts are packets by "hook verdict reason", where * stands for all.
type counts map[string]uint64

// expect compares what was counted between two snapshots, exactly.
func expect(tb testing.TB, before, after status, want counts) {
	tb.Helper()
	for what, n := range want {
		if got := after.since(before, what); got != n {
			tb.Errorf("%d packets counted as %q, want %d; all counts before: %+v, after: %+v",
				got, what, n, before.Kernel, after.Kernel)
		}
	}
}

// since is what was counted after another snapshot: packets of the kernel half
// as in counts, or "queued", "bypassed", "user".
func (s status) since(before status, what string) uint64 {
	total := func(s status) (n uint64) {
		switch what {
		case "judged":
			return s.judged()
		case "user":
			return s.User.Received
		case "queued", "bypassed":
			for _, h := range s.Hooks {
				if what == "queued" {
					n += h.Queued
				} else {
					n += h.Past
				}
			}
			return n
		}
		f := strings.Fields(strings.ReplaceAll(what, "*", "-"))
		for i := range f {
			f[i] = strings.Trim(f[i], "-")
		}
		return s.Kernel.Sum(f[0], f[1], f[2])
	}
	return total(s) - total(before)
}

// exchange sends n messages and waits for the echo of each.
func exchange(tb testing.TB, conn net.Conn, n int) {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	message := []byte("a message that comes back")
	buf := make([]byte, len(message))
	for i := range n {
		if _, err := conn.Write(message); err != nil {
			tb.Fatalf("sending message %d: %v", i, err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			tb.Fatalf("waiting for the echo of message %d: %v", i, err)
		}
	}
}

// bench is the routed network with servers that echo on port 7, in both
// families, and a firewall that guards it.
type bench struct {
	*testnet.Routed
	f    *firewall
	raw  int    // packet socket of the client, 0 until it is needed
	port uint16 // ports given out
}

func newBench(tb testing.TB, o testnet.RoutedOptions, policy string, flags ...string) *bench {
	tb.Helper()
	o.StaticNeighbours = true
	b := &bench{Routed: testnet.MustRouted(tb, o)}
	for _, fam := range families {
		if _, err := b.Server.ServeUDPEcho(at(fam.server, 7)); err != nil {
			tb.Fatal(err)
		}
	}
	b.f = start(tb, b.Firewall, policy, flags...)
	return b
}

// from gives an address a port; each call another one, so that each packet is
// of a new flow.
func (b *bench) from(addr netip.Addr) netip.AddrPort {
	b.port++
	return netip.AddrPortFrom(addr, 20000+b.port)
}

func (b *bench) to(fam family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(fam.server, port)
}

func (b *bench) toHost(fam family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(fam.lan, port)
}

// barrier returns when everything that the client has sent before has been
// judged: one packet of a new flow passes after it, and its echo.
func (b *bench) barrier(tb testing.TB, fam family) {
	tb.Helper()
	conn := b.Client.MustDial(tb, "udp", at(fam.server, 7))
	exchange(tb, conn, 1)
	_ = conn.Close()
}

// barrierPackets are what one barrier adds to "judged".
const barrierPackets = 2

// send sends a packet from the client to the firewall, as a frame.
func (b *bench) send(tb testing.TB, p testnet.Packet) {
	tb.Helper()
	p.EthSrc, p.EthDst = b.Client.MustMAC(tb, "eth0"), b.Firewall.MustMAC(tb, b.Lan)
	b.sendFrame(tb, p.Frame())
}

// sendFrame sends a frame from the client. One socket sends all of them: closing
// one takes the kernel some milliseconds.
func (b *bench) sendFrame(tb testing.TB, frame []byte) {
	tb.Helper()
	if b.raw == 0 {
		index, err := b.Client.Index("eth0")
		if err != nil {
			tb.Fatal(err)
		}
		b.Client.MustDo(tb, func() (err error) {
			b.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			return err
		})
		b.f.tb.Cleanup(func() { _ = unix.Close(b.raw) })
		if err := unix.Bind(b.raw, &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := unix.Write(b.raw, frame); err != nil {
		tb.Fatalf("sending a frame of %d bytes: %v", len(frame), err)
	}
}

// serverSees counts packets that arrive at the server.
func serverSees(c *testnet.Capture, match func(testnet.Packet) bool) int {
	return c.Count(func(f testnet.Frame) bool {
		p, ok := testnet.Dissect(f.Data)
		return ok && !f.Out && match(p)
	})
}

// quiet waits until nothing is under way any more, such as the end of a
// connection of the test before, and returns the status then.
func (b *bench) quiet(tb testing.TB) status {
	tb.Helper()
	ctx := testnet.Patience(tb)
	last := b.f.status()
	for {
		select {
		case <-ctx.Done():
			tb.Fatalf("there is always something under way: %+v", last.Kernel)
		case <-time.After(50 * time.Millisecond):
		}
		s := b.f.status()
		if slices.Equal(s.Kernel, last.Kernel) && slices.Equal(s.Hooks, last.Hooks) {
			return s
		}
		last = s
	}
}

func (b *bench) serveTLS(tb testing.TB, fam family) *testnet.TLSServer {
	tb.Helper()
	s, err := b.Server.ServeTLS(at(fam.server, 443))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// names are the addresses that the DNS server of these tests knows.
var names = map[string][]netip.Addr{
	"good.example":      {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8:ff::7")},
	"denied.example":    {netip.MustParseAddr("203.0.113.8"), netip.MustParseAddr("2001:db8:ff::8")},
	"x.ads.example":     {netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:ff::9")},
	"four.sink.example": {netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:ff::10")},
	"six.sink.example":  {netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("2001:db8:ff::11")},
}

func (b *bench) serveDNS(tb testing.TB, fam family) *testnet.DNSServer {
	tb.Helper()
	s, err := b.Server.ServeDNS(at(fam.server, 53), names)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}
