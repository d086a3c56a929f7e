package netns

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const dynamicPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists:
  cdn: { type: dynamic, from: .cdn.example, ttl: true }
rules:
  - name: dns
    from: lan
    to: wan
    proto: [udp, tcp]
    dport: 53
    action: inspect
    steps: [{ action: accept }]
  - { name: cdn, from: lan, to: wan, dst: "@cdn", proto: tcp, dport: 7, action: accept }
`

// TestNamesOpenTheWayToTheirAddresses: a client reaches a server by a port of which no
// name can be seen, once it has asked for a name of the list. That outlives a reload
// and the process.
func TestNamesOpenTheWayToTheirAddresses(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, dynamicPolicy, m.flags()...)
		for _, fam := range families {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			names := map[string][]netip.Addr{"www.cdn.example": {fam.server}, "www.other.example": {fam.server}}
			server, err := b.Server.ServeDNS(at(fam.server, 53), names)
			if err != nil {
				t.Fatal(err)
			}
			closed := func() {
				t.Helper()
				before := b.f.status()
				ctx, cancel := context.WithCancel(testnet.Patience(t))
				failed := make(chan error, 1)
				go func() {
					conn, err := b.Client.Dial(ctx, "tcp", at(fam.server, 7))
					if err == nil {
						conn.Close()
					}
					failed <- err
				}()
				b.f.eventually(t, "the connection is dropped", func(s status) bool { return s.since(before, "tc drop default") > 0 })
				cancel()
				if <-failed == nil {
					t.Error("the server was reached")
				}
			}
			closed()
			resolve := func(name string) {
				t.Helper()
				got, err := b.Client.Resolver(server.Addr).LookupNetIP(testnet.Patience(t), "ip", name)
				if err != nil || len(got) != 1 || got[0].Unmap() != fam.server {
					t.Fatalf("%s has the addresses %v, %v", name, got, err)
				}
			}
			resolve("www.other.example.")
			closed()
			resolve("www.cdn.example.")
			exchange(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1)
		}
		learned := func() {
			t.Helper()
			for _, l := range b.f.status().Lists {
				if l.List != "cdn" || l.Entries != len(families) || l.Packets == nil || *l.Packets == 0 {
					t.Errorf("list %+v", l)
				}
			}
			for _, fam := range families {
				exchange(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1)
			}
		}
		learned()
		b.f.reload(t, strings.Replace(dynamicPolicy, "name: cdn", "name: content", 1))
		learned()
		b.f.kill()
		b.f.start(m.flags()...)
		for _, fam := range families {
			exchange(t, b.Client.MustDial(t, "tcp", at(fam.server, 7)), 1)
		}
	})
}
