package netns

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/pion/dtls/v3"
	"github.com/pion/dtls/v3/pkg/crypto/selfsign"
	"golang.org/x/crypto/ssh"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const kindsPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: shell
    from: lan
    to: wan
    proto: tcp
    dport: 22
    action: inspect
    steps: [{ proto_l7: ssh, action: accept }, { action: drop }]
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 80
    action: inspect
    steps:
      - { proto_l7: http, action: drop }
      - { host: .ads.example, action: drop }
      - { proto_l7: http2, action: accept }
  - name: calls
    from: lan
    to: wan
    proto: udp
    dport: 5349
    action: inspect
    until: { packets: 8 }
    steps:
      - { sni: .ads.example, action: drop }
      - { proto_l7: wireguard, action: drop }
      - { proto_l7: dtls, action: accept }
      - { proto_l7: unknown, action: accept }
`

// TestProtocolsAreJudgedByTheirFirstBytes, of real clients and servers.
func TestProtocolsAreJudgedByTheirFirstBytes(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, kindsPolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		t.Run("ssh", func(t *testing.T) { b.shell(t, fam) })
		t.Run("http2", func(t *testing.T) { b.http2(t, fam) })
		t.Run("dtls", func(t *testing.T) { b.dtls(t, fam) })
		t.Run("wireguard", func(t *testing.T) { b.wireguard(t, fam) })
	})
}

// shell logs in by SSH, which passes, and says something else, which does not.
func (b *bench) shell(t *testing.T, fam family) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	l, err := b.Server.Listen("tcp", at(fam.server, 22))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				server, _, requests, err := ssh.NewServerConn(conn, config)
				if err != nil {
					return
				}
				go ssh.DiscardRequests(requests)
				_ = server.Wait()
			}()
		}
	}()
	conn := b.Client.MustDial(t, "tcp", at(fam.server, 22))
	client, _, _, err := ssh.NewClientConn(conn, "server", &ssh.ClientConfig{User: "alice", HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.SendRequest("keepalive", true, nil); err != nil {
		t.Errorf("a request in the session: %v", err)
	}
	client.Close()

	before := b.f.status()
	other := b.Client.MustDial(t, "tcp", at(fam.server, 22))
	defer other.Close()
	if _, err := other.Write([]byte("EHLO a.example\r\n")); err != nil {
		t.Fatal(err)
	}
	b.f.eventually(t, "what is not SSH is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
}

// http2 asks by HTTP/2 with prior knowledge, and by HTTP/1.
func (b *bench) http2(t *testing.T, fam family) {
	l, err := b.Server.Listen("tcp", at(fam.server, 80))
	if err != nil {
		t.Fatal(err)
	}
	handler := &webServer{}
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, Protocols: both}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	ask := func(ctx context.Context, url string, two bool) error {
		how := new(http.Protocols)
		how.SetUnencryptedHTTP2(two)
		how.SetHTTP1(!two)
		client := &http.Client{Transport: &http.Transport{Protocols: how, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return b.Client.Dial(ctx, "tcp", at(fam.server, 80))
			}}}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if two && answer.ProtoMajor != 2 {
			t.Errorf("%s was answered by %s", url, answer.Proto)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	if err := ask(testnet.Patience(t), "http://good.example/x", true); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		url string
		two bool
	}{{"http://x.ads.example/", true}, {"http://good.example/", false}} {
		before := b.f.status()
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		failed := make(chan error, 1)
		go func() { failed <- ask(ctx, c.url, c.two) }()
		b.f.eventually(t, c.url+" is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", c.url, err)
		}
	}
	handler.mu.Lock()
	defer handler.mu.Unlock()
	if !slices.Equal(handler.asked, []string{"good.example/x"}) {
		t.Errorf("the server was asked for %q", handler.asked)
	}
}

// dtls makes a DTLS connection to an allowed name, and not to a denied one.
func (b *bench) dtls(t *testing.T, fam family) {
	cert, err := selfsign.GenerateSelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	// Each dial has its own server: a socket that answers one client.
	handshake := func(ctx context.Context, name string) error {
		listen, err := b.Server.ListenPacket("udp", at(fam.server, 5349))
		if err != nil {
			t.Fatal(err)
		}
		defer listen.Close()
		from, err := b.Client.ListenPacket("udp", at(fam.client, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(fam.server, 5349))
		client, err := dtls.ClientWithOptions(from, to, dtls.WithServerName(name), dtls.WithInsecureSkipVerify(true))
		if err != nil {
			return err
		}
		defer client.Close()
		back := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from.LocalAddr().String()))
		server, err := dtls.ServerWithOptions(listen, back, dtls.WithCertificates(cert))
		if err != nil {
			return err
		}
		defer server.Close()
		served := make(chan error, 1)
		go func() { served <- server.HandshakeContext(ctx) }()
		if err := client.HandshakeContext(ctx); err != nil {
			return err
		}
		if err := <-served; err != nil {
			return err
		}
		if _, err := client.Write([]byte("hello")); err != nil {
			return err
		}
		got := make([]byte, 5)
		_, err = io.ReadFull(server, got)
		return err
	}
	if err := handshake(testnet.Patience(t), "good.example"); err != nil {
		t.Error(err)
	}
	before := b.f.status()
	ctx, cancel := context.WithCancel(testnet.Patience(t))
	failed := make(chan error, 1)
	go func() { failed <- handshake(ctx, "turn.ads.example") }()
	b.f.eventually(t, "the denied hello is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
	cancel()
	if err := <-failed; err == nil {
		t.Error("a denied handshake succeeded")
	}
}

// wireguard sends a handshake's first message behind a datagram of something else.
func (b *bench) wireguard(t *testing.T, fam family) {
	if _, err := b.Server.ServeUDPEcho(at(fam.server, 5349)); err != nil {
		t.Fatal(err)
	}
	conn := b.Client.MustDial(t, "udp", at(fam.server, 5349))
	defer conn.Close()
	exchange(t, conn, 1)
	before := b.f.status()
	initiation := make([]byte, 148)
	if _, err := rand.Read(initiation[4:]); err != nil {
		t.Fatal(err)
	}
	initiation[0] = 1
	if _, err := conn.Write(initiation); err != nil {
		t.Fatal(err)
	}
	b.f.eventually(t, "the handshake is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
}
