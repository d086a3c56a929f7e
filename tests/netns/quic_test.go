package netns

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const quicPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: web
    from: lan
    to: wan
    proto: [tcp, udp]
    dport: 443
    action: inspect
    steps: [{ sni: "*.ads.example", action: drop, log: true }, { action: accept }]
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// serveQUIC echoes one stream a connection.
func (b *bench) serveQUIC(tb testing.TB, fam family, seen chan<- string) (address string) {
	tb.Helper()
	certificate := b.serveTLS(tb, fam) // for its certificates
	config := &tls.Config{
		NextProtos: []string{"echo"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			seen <- hello.ServerName
			return certificate.Certificate(hello)
		},
	}
	l, err := quic.Listen(b.Server.MustListenPacket(tb, "udp", at(fam.server, 443)), config, nil)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(func() { cancel(); _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept(ctx)
			if err != nil {
				return
			}
			go func() {
				stream, err := conn.AcceptStream(ctx)
				if err != nil {
					return
				}
				buf := make([]byte, 100)
				for {
					n, err := stream.Read(buf)
					if _, failed := stream.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
		}
	}()
	return at(fam.server, 443)
}

func (b *bench) dialQUIC(ctx context.Context, tb testing.TB, address, name string) (*quic.Conn, error) {
	tb.Helper()
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		tb.Fatal(err)
	}
	config := &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"echo"}}
	bind := "0.0.0.0:0"
	if to.IP.To4() == nil {
		bind = "[::]:0"
	}
	return quic.Dial(ctx, b.Client.MustListenPacket(tb, "udp", bind), to, config, nil)
}

// TestNamesInRealQUIC: a client of today, whose hello needs two packets.
func TestNamesInRealQUIC(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, quicPolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		seen := make(chan string, 100)
		address := b.serveQUIC(t, fam, seen)
		before := b.f.status()
		conn, err := b.dialQUIC(testnet.Patience(t), t, address, "good.example")
		if err != nil {
			t.Fatal(err)
		}
		stream, err := conn.OpenStreamSync(testnet.Patience(t))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			buf := []byte("through the firewall")
			if _, err := stream.Write(buf); err != nil {
				t.Fatal(err)
			}
			if n, err := stream.Read(buf); err != nil || n == 0 {
				t.Fatal(err)
			}
		}
		after := b.f.eventually(t, "the hello is judged", func(s status) bool { return s.User.Step > before.User.Step })
		if queued := after.since(before, "user"); queued < 2 || queued > 6 {
			t.Errorf("%d datagrams were queued, want those of the hello", queued)
		}
		_ = conn.CloseWithError(0, "")

		before = after
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		failed := make(chan error, 1)
		go func() {
			_, err := b.dialQUIC(ctx, t, address, "x.ads.example")
			failed <- err
		}()
		b.f.eventually(t, "the denied hello is dropped, and what comes behind it", func(s status) bool {
			return s.User.Dropped > before.User.Dropped && s.since(before, "tc drop flow")+s.since(before, "xdp drop flow") >= 1
		})
		cancel()
		if err := <-failed; err == nil {
			t.Error("a denied handshake succeeded")
		}
		var names []string
		for len(seen) > 0 {
			names = append(names, <-seen)
		}
		if !slices.Equal(names, []string{"good.example"}) {
			t.Errorf("the server was asked for %q", names)
		}
	})
}
