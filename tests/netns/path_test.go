package netns

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const smokePolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists:
  ads: { type: domain, entries: [".ads.example"] }
rules:
  - { name: banned, from: lan, proto: tcp, dport: 23, action: drop }
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 443
    action: inspect
    steps: [{ sni: "@ads", action: drop, log: true }, { action: accept }]
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ qname: "blocked.example", action: drop, log: true }, { qname: "@ads", action: rewrite, answer: 0.0.0.0 }, { action: accept }]
  - { name: out, from: lan, to: wan, action: accept }
`

func TestSmoke(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
	server, err := r.Server.ServeTLS("198.51.100.2:443")
	if err != nil {
		t.Fatal(err)
	}
	dns, err := r.Server.ServeDNS("198.51.100.2:53", map[string][]netip.Addr{"good.example": {netip.MustParseAddr("203.0.113.7")}, "x.ads.example": {netip.MustParseAddr("203.0.113.8")}, "blocked.example": {netip.MustParseAddr("203.0.113.9")}})
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, r.Firewall, smokePolicy, "--xdp", "native")
	conn, err := r.Client.DialTLS(testnet.Patience(t), "198.51.100.2:443", server.ClientConfig("good.example"))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		conn.Write([]byte("hello"))
		buf := make([]byte, 5)
		conn.Read(buf)
	}
	res := r.Client.Resolver(dns.Addr)
	a, err := res.LookupHost(testnet.Patience(t), "good.example.")
	t.Log(a, err)
	a, err = res.LookupHost(testnet.Patience(t), "x.ads.example.")
	t.Log(a, err)
	out, _, _ := f.run(append([]string{"status"}, f.places()...)...)
	t.Log("\n" + out)
	f.stop()
	t.Log(f.log.String())
}
