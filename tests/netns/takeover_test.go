package netns

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// track has the kernel of a host track connections: any rule that asks about them
// switches that on.
func track(tb testing.TB, host *testnet.Host) {
	tb.Helper()
	newNFT(host, "track").mustNAT(tb, &nftables.Chain{Name: "all", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter},
		[]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Counter{}})
}

const takeoverPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { midstream: drop }
rules:
  - { name: web, from: lan, to: wan, proto: tcp, dport: 443, action: inspect, steps: [{ action: accept }] }
  - { name: echo, from: lan, to: wan, proto: tcp, dport: 7, flags: syn, action: accept }
`

// TestFirstStartCutsNobodyOff begins connections before the firewall starts: those
// that its policy accepts go on, though the rule asks for their first packet.
func TestFirstStartCutsNobodyOff(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		for _, nat := range []bool{false, true} {
			t.Run(map[bool]string{false: "routed", true: "behind NAT"}[nat], func(t *testing.T) {
				r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
				b := &bench{Routed: r, f: prepare(t, r.Firewall, takeoverPolicy)}
				if nat {
					b.masquerade(t)
				} else {
					track(t, r.Firewall)
				}
				for _, fam := range families {
					for _, port := range []uint16{7, 77, 443} {
						if _, err := b.Server.ServeTCPEcho(at(fam.server, port)); err != nil {
							t.Fatal(err)
						}
					}
				}
				fam := families[0]
				accepted := b.Client.MustDial(t, "tcp", at(fam.server, 7))
				denied := b.Client.MustDial(t, "tcp", at(fam.server, 77))
				midstream := b.Client.MustDial(t, "tcp", at(fam.server, 443))
				six := b.Client.MustDial(t, "tcp", at(families[1].server, 7))
				for _, conn := range []interface {
					Read([]byte) (int, error)
					Write([]byte) (int, error)
				}{accepted, denied, midstream, six} {
					if _, err := conn.Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
					if _, err := conn.Read(make([]byte, 1)); err != nil {
						t.Fatal(err)
					}
				}
				b.f.start(m.flags()...)
				b.f.logs(t, "connections that exist already are taken over")
				echoes(t, accepted, 1<<18)
				echoes(t, six, 1<<18)
				silent(t, denied)
				silent(t, midstream)
				b.f.stop()
			})
		}
	})
}
