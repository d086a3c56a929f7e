package netns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// natPolicy inspects what goes out, and what a port forward lets in.
const natPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 443
    action: inspect
    steps: [{ sni: denied.example, action: drop }, { action: accept }]
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps:
      - { qname: denied.example, action: drop }
      - { qname: four.sink.example, action: rewrite, answer: 192.0.2.99 }
      - { qname: six.sink.example, action: rewrite, answer: "2001:db8::99" }
      - { action: accept }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
  - name: forwarded
    from: wan
    to: host
    proto: tcp
    dport: 8443
    action: inspect
    steps: [{ sni: denied.example, action: drop }, { action: accept }]
`

// onInterface matches the interface that a packet came in by, or leaves by.
func onInterface(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

// mustNAT adds a chain of NAT, or skips the test where the kernel has none.
func (n *nft) mustNAT(tb testing.TB, chain *nftables.Chain, rules ...[]expr.Any) {
	tb.Helper()
	err := n.add(chain, rules...)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		testnet.SkipUnlessGuest(tb, "NAT in nf_tables")
	}
	if err != nil {
		tb.Fatalf("adding NAT: %v", err)
	}
}

// masquerade hides the client behind the firewall's address.
func (b *bench) masquerade(tb testing.TB) {
	tb.Helper()
	newNFT(b.Firewall, "masquerade").mustNAT(tb, &nftables.Chain{Name: "out", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource},
		append(rule(onInterface(expr.MetaKeyOIFNAME, b.Wan)), &expr.Masq{}))
}

// forwardPort sends what comes for port 8443 of the firewall to the client's
// port 443.
func (b *bench) forwardPort(tb testing.TB) {
	tb.Helper()
	var rules [][]expr.Any
	for _, to := range []struct {
		family byte
		addr   netip.Addr
	}{{unix.NFPROTO_IPV4, testnet.Client4}, {unix.NFPROTO_IPV6, testnet.Client6}} {
		rules = append(rules, append(rule(onInterface(expr.MetaKeyIIFNAME, b.Wan), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{to.family}},
		}, protocol(unix.IPPROTO_TCP), []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(8443)},
		}),
			// Registers 1 to 4 have 16 bytes each.
			&expr.Immediate{Register: 1, Data: to.addr.AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(443)},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(to.family), RegAddrMin: 1, RegProtoMin: 2}))
	}
	newNFT(b.Firewall, "forward").mustNAT(tb, &nftables.Chain{Name: "in", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest}, rules...)
}

func TestMasquerade(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, natPolicy, m.flags()...)
		b.masquerade(t)
		eachFamily(t, func(t *testing.T, fam family) {
			arrived := b.Server.MustCapture(t, "eth0")
			t.Run("plain", func(t *testing.T) {
				before := b.f.status()
				exchange(t, b.Client.MustDial(t, "udp", at(fam.server, 7)), 5)
				if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
					t.Fatal(err)
				}
				echoes(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1<<16)
				expect(t, before, b.f.status(), counts{"queued": 0, "* drop *": 0})
			})
			t.Run("inspected stream", func(t *testing.T) { masqueradedTLS(t, b, fam) })
			t.Run("rewritten answer", func(t *testing.T) { masqueradedDNS(t, b, fam) })
			if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Src.Addr() == fam.client }); n != 0 {
				t.Errorf("%d packets arrived under the client's own address: NAT was passed by", n)
			}
			if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Src.Addr() == fam.wan }); n == 0 {
				t.Error("no packet arrived under the firewall's address")
			}
		})
	})
}

func masqueradedTLS(t *testing.T, b *bench, fam family) {
	server := b.serveTLS(t, fam)
	before := b.f.status()
	conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, conn, 10)
	_ = conn.Close()
	after := b.f.eventually(t, "the hello is judged", func(s status) bool { return s.since(before, "user") >= 1 })
	expect(t, before, after, counts{"queued": 1, "user": 1, "* drop *": 0})

	denied, err := b.Client.Dial(testnet.Patience(t), "tcp", server.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	// Its end is a reset, so that it sends nothing again while others are counted.
	if err := denied.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	before = b.f.status()
	ctx, cancel := context.WithCancel(testnet.Patience(t))
	failed := make(chan error, 1)
	go func() { failed <- tlsClient(denied, "denied.example").HandshakeContext(ctx) }()
	b.f.eventually(t, "the denied hello and what follows is dropped", func(s status) bool {
		return s.User.Dropped == before.User.Dropped+1 && s.since(before, "* drop flow") > 0
	})
	cancel()
	if err := <-failed; err == nil {
		t.Error("the denied handshake succeeded")
	}
	if got := server.Names(); !slices.Equal(got, []string{"good.example"}) {
		t.Errorf("the server was asked for %q", got)
	}
}

func masqueradedDNS(t *testing.T, b *bench, fam family) {
	server := b.serveDNS(t, fam)
	for _, sink := range []struct {
		name, network string
		want          netip.Addr
	}{
		{"good.example.", "ip4", names["good.example"][0]},
		{"four.sink.example.", "ip4", netip.MustParseAddr("192.0.2.99")},
		{"six.sink.example.", "ip6", netip.MustParseAddr("2001:db8::99")},
	} {
		got, err := b.Client.Resolver(server.Addr).LookupNetIP(testnet.Patience(t), sink.network, sink.name)
		if err != nil || len(got) != 1 || got[0].Unmap() != sink.want {
			t.Errorf("%s: got %v, %v; want %v", sink.name, got, err, sink.want)
		}
	}
	before := b.f.status()
	conn := b.Client.MustDial(t, "udp", server.Addr.String())
	if _, err := conn.Write(question(t, 1, "denied.example.", 1)); err != nil {
		t.Fatal(err)
	}
	b.f.eventually(t, "the denied question is dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
	if server.Asked("denied.example") != 0 {
		t.Error("the denied question arrived")
	}
}

// TestPortForward: tc judges what comes to the host's address, the queue sees it
// where it goes.
func TestPortForward(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, natPolicy, m.flags()...)
		b.forwardPort(t)
		eachFamily(t, func(t *testing.T, fam family) {
			inside, err := b.Client.ServeTLS(at(fam.client, 443))
			if err != nil {
				t.Fatal(err)
			}
			t.Run("queued once", func(t *testing.T) {
				before := b.f.status()
				conn, err := b.Server.DialTLS(testnet.Patience(t), at(fam.wan, 8443), inside.ClientConfig("good.example"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				exchange(t, conn, 10)
				after := b.f.eventually(t, "the hello is judged", func(s status) bool { return s.since(before, "user") >= 1 })
				// Debian's kernels hand conntrack entries to the queue, by which
				// the decision reaches the flow that tc knows. Without them its
				// packets are all queued, and all accepted.
				if testnet.InGuest() {
					expect(t, before, after, counts{"queued": 1, "user": 1})
				}
				if n := after.hook("forward").Queued - before.hook("forward").Queued; n == 0 {
					t.Error("nothing was queued in the forward hook")
				}
			})
			t.Run("denied", func(t *testing.T) {
				before := b.f.status()
				conn, err := b.Server.Dial(testnet.Patience(t), "tcp", at(fam.wan, 8443))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithCancel(testnet.Patience(t))
				defer cancel()
				go func() { _ = tlsClient(conn, "denied.example").HandshakeContext(ctx) }()
				b.f.eventually(t, "the hello is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
				if got := inside.Names(); !slices.Equal(got, []string{"good.example"}) {
					t.Errorf("the server behind the forward was asked for %q", got)
				}
			})
		})
	})
}
