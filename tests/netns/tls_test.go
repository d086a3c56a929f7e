package netns

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// echoes sends n random bytes and expects them back.
func echoes(tb testing.TB, conn net.Conn, n int) {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	sent, got := make([]byte, n), make([]byte, n)
	_, _ = rand.Read(sent) // never fails
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- err
	}()
	if _, err := io.ReadFull(conn, got); err != nil {
		tb.Fatalf("waiting for the echo: %v", err)
	}
	if err := <-failed; err != nil {
		tb.Fatalf("sending: %v", err)
	}
	if !bytes.Equal(sent, got) {
		tb.Error("the echo differs from what was sent")
	}
}

// TestInspectedStreamIsQueuedOnce compares the counters with what captures on
// both of the firewall's interfaces have seen of the flow.
func TestInspectedStreamIsQueuedOnce(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{NoOffload: true}, basePolicy, m.flags()...)
		lan, wan := b.Firewall.MustCapture(t, b.Lan), b.Firewall.MustCapture(t, b.Wan)
		eachFamily(t, func(t *testing.T, fam family) {
			server := b.serveTLS(t, fam)
			before := b.quiet(t)
			conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			exchange(t, conn, 20)
			captured := func() (n uint64) {
				for _, c := range []*testnet.Capture{lan, wan} {
					n += uint64(serverSees(c, func(p testnet.Packet) bool {
						return p.TCP != nil && (p.Src.Addr() == fam.client || p.Dst.Addr() == fam.client)
					}))
				}
				return n
			}
			after := b.f.eventually(t, "every packet captured is counted", func(s status) bool {
				return s.since(before, "judged") == captured() && s.since(before, "user") == 1
			})
			packets := after.since(before, "judged")
			if packets < 45 {
				t.Fatalf("%d packets counted, want at least those of the handshakes and of 20 exchanges", packets)
			}
			// The handshake passes, the hello is queued, the rest is decided.
			expect(t, before, after, counts{
				"tc pass undecided": 3, "tc queue *": 1, "tc pass flow": packets - 4,
				"* drop *": 0, "queued": 1, "bypassed": 0, "user": 1,
			})
			if u := after.User; u.Accepted != u.Received || u.Step != u.Received || u.Decided != u.Received {
				t.Errorf("user space: %+v, want every packet accepted by a step and decided", u.Counters)
			}
			if got := server.Names(); !slices.Equal(got, []string{"good.example"}) {
				t.Errorf("the server was asked for %q", got)
			}
		})
	})
}

// hello is how a client that trusts everybody asks for a name, in one segment.
func hello(name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}
}

// deniedStream is a connection through the firewall whose server side the test
// holds, to see that nothing passes in either direction.
type deniedStream struct {
	client, server net.Conn
}

func (b *bench) connect(tb testing.TB, fam family, port uint16) deniedStream {
	tb.Helper()
	l, err := b.Server.Listen("tcp", at(fam.server, port))
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			accepted <- conn
		}
		close(accepted)
	}()
	s := deniedStream{client: b.Client.MustDial(tb, "tcp", at(fam.server, port))}
	s.server = <-accepted
	if s.server == nil {
		tb.Fatal("the server has not accepted")
	}
	tb.Cleanup(func() { _ = s.server.Close() })
	return s
}

func TestDeniedServerNameIsStopped(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		arrived, returned := b.Server.MustCapture(t, "eth0"), b.Client.MustCapture(t, "eth0")
		names := []string{"denied.example", "Deep.X.ADS.example"}
		if m.xdp == "off" {
			names = append(names, "DeNied.Example", "x.ads.example", "ads.example")
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				eachFamily(t, func(t *testing.T, fam family) {
					s := b.connect(t, fam, 443)
					before := b.f.status()
					ctx, cancel := context.WithCancel(testnet.Patience(t))
					failed := make(chan error, 1)
					go func() { failed <- tlsClient(s.client, name).HandshakeContext(ctx) }()
					b.f.eventually(t, "the hello is dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
					if _, err := s.server.Write([]byte("from the server")); err != nil {
						t.Fatal(err)
					}
					// Both sides send again and again; all of that stays in the kernel.
					after := b.f.eventually(t, "both sides are stopped in the kernel", func(s status) bool {
						tc, xdp := s.since(before, "tc drop flow"), s.since(before, "xdp drop flow")
						return tc+xdp >= 4
					})
					cancel()
					if err := <-failed; err == nil {
						t.Error("the handshake succeeded")
					}
					expect(t, before, after, counts{"queued": 1, "user": 1})
					if m.xdp == "off" {
						expect(t, before, after, counts{"xdp * *": 0})
					}
					isPayload := func(p testnet.Packet) bool { return p.TCP != nil && len(p.Payload) > 0 }
					if n := serverSees(arrived, isPayload); n != 0 {
						t.Errorf("the server received %d packets with payload", n)
					}
					if n := serverSees(returned, isPayload); n != 0 {
						t.Errorf("the client received %d packets with payload", n)
					}
				})
			})
		}
	})
}

// TestHelloWithoutNameMeetsNoNamedStep: that there is no name is an answer of
// its own.
func TestHelloWithoutNameMeetsNoNamedStep(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { undecided: drop }
rules:
  - { name: named, from: lan, to: wan, proto: tcp, dport: 443, action: inspect, steps: [{ sni: ".example", action: drop }, { action: accept }] }
  - { name: only-named, from: lan, to: wan, proto: tcp, dport: 444, action: inspect, steps: [{ sni: "good.example", action: accept }] }
`)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveTLS(t, fam)
		conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), hello(""))
		if err != nil {
			t.Fatalf("a hello without a name: %v", err)
		}
		_ = conn.Close()
		if got := server.Names(); !slices.Equal(got, []string{""}) {
			t.Errorf("the server was asked for %q, want one hello without a name", got)
		}
		s := b.connect(t, fam, 444)
		before := b.f.status()
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		defer cancel()
		go func() { _ = tlsClient(s.client, "").HandshakeContext(ctx) }()
		b.f.eventually(t, "without a name no step matches: failure.undecided", func(s status) bool {
			return s.User.Undecided == before.User.Undecided+1 && s.User.Dropped == before.User.Dropped+1
		})
	})
}

// TestPortReuseIsJudgedAnew: a connection with the ports of an old one does not
// inherit its verdict.
func TestPortReuseIsJudgedAnew(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveTLS(t, fam)
		from := netip.AddrPortFrom(fam.client, 40000)
		first, err := b.Client.DialFrom(testnet.Patience(t), "tcp", from, server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := tls.Client(first, server.ClientConfig("good.example")).HandshakeContext(testnet.Patience(t)); err != nil {
			t.Fatal(err)
		}
		if err := first.(*net.TCPConn).SetLinger(0); err != nil { // a reset frees the port at once
			t.Fatal(err)
		}
		_ = first.Close()
		second, err := b.Client.DialFrom(testnet.Patience(t), "tcp", from, server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		before := b.f.status()
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		defer cancel()
		go func() { _ = tlsClient(second, "denied.example").HandshakeContext(ctx) }()
		b.f.eventually(t, "the second hello is dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
	})
}

// TestPortsOfADeniedConnectionAreFree: a connection from the same ports is judged
// by its own name.
func TestPortsOfADeniedConnectionAreFree(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveTLS(t, fam)
		from := netip.AddrPortFrom(fam.client, 40001)
		before := b.f.status()
		first, err := b.Client.DialFrom(testnet.Patience(t), "tcp", from, server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		defer cancel()
		go func() { _ = tlsClient(first, "denied.example").HandshakeContext(ctx) }()
		b.f.eventually(t, "the denied hello is dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
		if err := first.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		second, err := b.Client.DialFrom(testnet.Patience(t), "tcp", from, server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if err := tls.Client(second, server.ClientConfig("good.example")).HandshakeContext(testnet.Patience(t)); err != nil {
			t.Errorf("after a denied connection from the same port: %v", err)
		}
	})
}

func tlsClient(conn net.Conn, name string) *tls.Conn { return tls.Client(conn, hello(name)) }
