package loader

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/gen"
)

// conntrackText is what the kernel writes, each kind of line.
const conntrackText = `ipv4     2 tcp      6 431999 ESTABLISHED src=192.0.2.2 dst=198.51.100.2 sport=40000 dport=80 src=198.51.100.2 dst=192.0.2.2 sport=80 dport=40000 [ASSURED] mark=0 zone=0 use=2
ipv4     2 tcp      6 117 SYN_SENT src=192.0.2.2 dst=198.51.100.2 sport=40001 dport=80 [UNREPLIED] src=198.51.100.2 dst=192.0.2.2 sport=80 dport=40001 mark=0 zone=0 use=2
ipv4     2 tcp      6 59 TIME_WAIT src=192.0.2.2 dst=198.51.100.2 sport=40002 dport=80 src=198.51.100.2 dst=192.0.2.2 sport=80 dport=40002 mark=0 use=2
ipv4     2 udp      17 29 src=192.0.2.2 dst=198.51.100.2 sport=40003 dport=53 packets=1 bytes=60 src=198.51.100.2 dst=198.51.100.1 sport=53 dport=1024 packets=1 bytes=60 mark=0 use=2
ipv4     2 icmp     1 29 src=192.0.2.2 dst=198.51.100.2 type=8 code=0 id=7 src=198.51.100.2 dst=192.0.2.2 type=0 code=0 id=7 mark=0 use=2
ipv6     10 tcp      6 300 ESTABLISHED src=2001:0db8:0001:0000:0000:0000:0000:0002 dst=2001:0db8:0002:0000:0000:0000:0000:0002 sport=40004 dport=443 src=2001:0db8:0002:0000:0000:0000:0000:0002 dst=2001:0db8:0001:0000:0000:0000:0000:0002 sport=443 dport=40004 [ASSURED] mark=0 use=2
ipv4     2 tcp      6 300 ESTABLISHED src=127.0.0.1 dst=127.0.0.1 sport=1 dport=2 src=127.0.0.1 dst=127.0.0.1 sport=2 dport=1 [ASSURED] use=2
ipv4     2 unknown  89 599 src=192.0.2.2 dst=224.0.0.5 [UNREPLIED] src=224.0.0.5 dst=192.0.2.2 use=2
`

func TestConntrackFileIsRead(t *testing.T) {
	list, err := parseConntrack(strings.NewReader(conntrackText))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		text := c.flow.String()
		if c.reply.Reverse() != c.flow {
			text += " leaves as " + c.reply.Reverse().String()
		}
		got = append(got, text)
	}
	want := []string{
		"6 192.0.2.2:40000 > 198.51.100.2:80", "6 192.0.2.2:40001 > 198.51.100.2:80", "6 192.0.2.2:40002 > 198.51.100.2:80",
		"17 192.0.2.2:40003 > 198.51.100.2:53 leaves as 17 198.51.100.1:1024 > 198.51.100.2:53",
		"6 [2001:db8:1::2]:40004 > [2001:db8:2::2]:443",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("read:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i, state := range []int{int(gen.FWFlowStateSTATE_ESTABLISHED), int(gen.FWFlowStateSTATE_MIDSTREAM),
		int(gen.FWFlowStateSTATE_FIN_WAIT), int(gen.FWFlowStateSTATE_UDP_REPLIED), int(gen.FWFlowStateSTATE_ESTABLISHED)} {
		if i < len(list) && int(list[i].state) != state {
			t.Errorf("%s: state %d, want %d", got[i], list[i].state, state)
		}
	}
	if _, err := parseConntrack(strings.NewReader("ipv4 2 tcp x 1 ESTABLISHED src=192.0.2.2\n")); err == nil {
		t.Error("a line without a protocol was read")
	}
	if _, err := readConntrackFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, errNoConntrack) {
		t.Errorf("a kernel without the file: %v", err)
	}
	if _, err := readConntrackFile(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder: %v", err)
	}
}

// TestTakenConnectionsAreJudgedAsKnownFlows enters connections as a first start
// does.
func TestTakenConnectionsAreJudgedAsKnownFlows(t *testing.T) {
	const policy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { midstream: drop }
rules:
  - { name: web, from: lan, proto: tcp, dport: 443, action: inspect, steps: [{ action: accept }] }
  - { name: out, from: lan, to: wan, proto: tcp, dport: 80, flags: syn, action: accept }
  - { name: dns, from: lan, to: wan, proto: udp, dport: 53, action: accept }
  - { name: in, from: wan, to: host, proto: tcp, dport: 22, flags: syn, action: accept }
`
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, policy, func(b *bench, f *Firewall) {
			public := netip.MustParseAddr("198.51.100.1")
			if server.Is6() {
				public = netip.MustParseAddr("2001:db8:2::1")
			}
			now, err := monotonic()
			if err != nil {
				t.Fatal(err)
			}
			enter := func(first, leaves packet) {
				t.Helper()
				c, ok := newTracked(first.flow(), leaves.flow().Reverse(), ctEstablished)
				if !ok {
					t.Fatalf("%v is not taken", first.flow())
				}
				if err := f.enter(c, originOf(first.src), now); err != nil {
					t.Fatal(err)
				}
			}
			plain, denied := tcp(client, server, 40000, 80, ack), tcp(client, server, 40000, 81, ack)
			hello := tcp(client, server, 40000, 443, psh|ack).with(50)
			ssh := tcp(server, public, 40000, 22, ack)
			own := tcp(public, server, 40000, 25, ack)
			for _, p := range []packet{plain, denied, hello, ssh, own} {
				enter(p, p)
			}
			inner, outer := udp(client, server, 40000, 53), udp(public, server, 50000, 53)
			enter(inner, outer)

			expect(t, "reply", b.arrives(f, b.wan, plain.reply()), passes)
			expect(t, "data", b.arrives(f, b.lan, plain), passes)
			expect(t, "reply of a denied one", b.arrives(f, b.wan, denied.reply()), drops)
			expect(t, "denied", b.arrives(f, b.lan, denied), drops)
			expect(t, "to be inspected, without its start", b.arrives(f, b.lan, hello), drops)
			expect(t, "the host's answer", b.leaves(f, b.wan, 0, ssh.reply()), passes)
			expect(t, "to the host", b.arrives(f, b.wan, ssh), passes)
			expect(t, "to the host's own", b.arrives(f, b.wan, own.reply()), passes)
			expect(t, "behind NAT: reply", b.arrives(f, b.wan, outer.reply()), passes)
			expect(t, "behind NAT: reply leaves", b.leaves(f, b.lan, b.wan, inner.reply()), passes)
			expect(t, "a stranger", b.arrives(f, b.lan, tcp(client, server, 40009, 80, ack)), drops)
		})
	})
}
