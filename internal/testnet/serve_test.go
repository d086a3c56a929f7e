package testnet_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"golang.org/x/net/dns/dnsmessage"
)

func TestResolverGetsTheServersAnswers(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	want := map[string][]netip.Addr{
		"both.example": {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8:7::7")},
		"four.example": {netip.MustParseAddr("203.0.113.8"), netip.MustParseAddr("203.0.113.9")},
	}
	s, err := r.Server.ServeDNS("[::]:53", want)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		resolver := r.Client.Resolver(netip.AddrPortFrom(f.server, 53))
		for name, addrs := range want {
			got, err := resolver.LookupNetIP(testnet.Patience(t), "ip", name+".")
			if err != nil {
				t.Fatalf("%s: %s: %v", f.name, name, err)
			}
			slices.SortFunc(got, netip.Addr.Compare)
			if !slices.Equal(got, addrs) {
				t.Errorf("%s: %s is %v, want %v", f.name, name, got, addrs)
			}
		}
		_, err := resolver.LookupNetIP(testnet.Patience(t), "ip4", "nobody.example.")
		if dnsErr, ok := errors.AsType[*net.DNSError](err); !ok || !dnsErr.IsNotFound {
			t.Errorf("%s: unknown name: %v, want not found", f.name, err)
		}
	}
	for name, n := range map[string]int{"both.example": 4, "four.example": 4, "nobody.example": 2, "other.example": 0} {
		if got := s.Asked(name); got != n {
			t.Errorf("%s was asked for %d times, want %d", name, got, n)
		}
	}
}

func TestServerNotesWhoAskedForWhat(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	s, err := r.Server.ServeDNS(netip.AddrPortFrom(testnet.Server6, 0).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Client.Resolver(s.Addr).LookupNetIP(testnet.Patience(t), "ip6", "UPPER.example.")
	if err == nil {
		t.Error("a name that does not exist was found")
	}
	queries := s.Queries()
	if len(queries) != 1 {
		t.Fatalf("queries %v, want one", queries)
	}
	q := queries[0]
	if q.Name != "upper.example" || q.Type != dnsmessage.TypeAAAA || q.From.Addr() != testnet.Client6 {
		t.Errorf("query %+v", q)
	}
}

func TestGarbageToTheDNSServerIsReported(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	s, err := r.Server.ServeDNS("[::]:53", nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := r.Client.MustDial(t, "udp", netip.AddrPortFrom(testnet.Server4, 53).String())
	if _, err := conn.Write([]byte("garbage")); err != nil {
		t.Fatal(err)
	}
	// The query behind it shows that the server goes on.
	if _, err := r.Client.Resolver(netip.AddrPortFrom(testnet.Server4, 53)).LookupHost(testnet.Patience(t), "x."); err == nil {
		t.Error("a name that does not exist was found")
	}
	if err := s.Close(); err == nil {
		t.Error("the server did not report what it could not read")
	}
}

func TestTLSEchoesUnderEveryName(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	s, err := r.Server.ServeTLS("[::]:443")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"one.example", "two.example", ""}
	for _, f := range families {
		for _, name := range names {
			address := netip.AddrPortFrom(f.server, 443).String()
			conn, err := r.Client.DialTLS(testnet.Patience(t), address, s.ClientConfig(name))
			if err != nil {
				t.Fatalf("%s, %q: %v", f.name, name, err)
			}
			defer conn.Close()
			if heard := exchange(t, conn, "secret"); heard != "secret" {
				t.Errorf("%s, %q: heard %q", f.name, name, heard)
			}
		}
	}
	if got, want := s.Names(), append(names, names...); !slices.Equal(got, want) {
		t.Errorf("names %q arrived, want %q", got, want)
	}
}

func TestTLSClientTrustsOnlyItsServer(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	s, err := r.Server.ServeTLS("[::]:443")
	if err != nil {
		t.Fatal(err)
	}
	config := s.ClientConfig("one.example")
	config.RootCAs = x509.NewCertPool()
	_, err = r.Client.DialTLS(testnet.Patience(t), netip.AddrPortFrom(testnet.Server4, 443).String(), config)
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Errorf("error %v, want an unknown authority", err)
	}
}

func TestClientHelloFitsOneSegment(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{NoOffload: true})
	s, err := r.Server.ServeTLS("[::]:443")
	if err != nil {
		t.Fatal(err)
	}
	client := r.Client.MustCapture(t, "eth0")
	conn, err := r.Client.DialTLS(testnet.Patience(t), netip.AddrPortFrom(testnet.Server6, 443).String(), s.ClientConfig("one.example"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello, err := client.Wait(testnet.Patience(t), func(fr testnet.Frame) bool { return fr.Out && carries(fr, "one.example") })
	if err != nil {
		t.Fatal(err)
	}
	p, ok := testnet.Dissect(hello.Data)
	if !ok || len(p.Payload) < 5 {
		t.Fatalf("not a TCP segment with a TLS record: %x", hello.Data)
	}
	record := int(p.Payload[3])<<8 | int(p.Payload[4])
	if p.Payload[0] != 22 || len(p.Payload) != 5+record {
		t.Errorf("the segment carries %d bytes of a record of %d", len(p.Payload), 5+record)
	}
}

func TestClosedServerCutsItsConnections(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	s, err := r.Server.ServeTCPEcho("[::]:7")
	if err != nil {
		t.Fatal(err)
	}
	conn := r.Client.MustDial(t, "tcp", netip.AddrPortFrom(testnet.Server4, 7).String())
	exchange(t, conn, "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a closed server", n)
	}
	_, err = r.Client.Dial(testnet.Patience(t), "tcp", netip.AddrPortFrom(testnet.Server4, 7).String())
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialling a closed server: %v, want it refused", err)
	}
}

func TestAddressInUseIsAnErrorThatNamesTheHost(t *testing.T) {
	h := testnet.MustNew(t).MustHost(t, "busy")
	if _, err := h.ServeUDPEcho("127.0.0.1:53"); err != nil {
		t.Fatal(err)
	}
	_, err := h.ServeDNS("127.0.0.1:53", nil)
	if err == nil || !carries(testnet.Frame{Data: []byte(err.Error())}, "host busy") {
		t.Errorf("error %v, want one that names the host", err)
	}
}
