package netns

import (
	"context"
	wire "encoding/binary" // binary is the program under test
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const requestPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: web
    from: lan
    to: wan
    proto: tcp
    dport: 80
    action: inspect
    steps:
      - { host: "*.ads.example", action: drop }
      - { host: good.example, path: "/private/*", action: drop }
      - { action: accept }
  - name: dns
    from: lan
    to: wan
    proto: [tcp, udp]
    dport: 53
    action: inspect
    steps: [{ qname: denied.example, action: drop }, { action: accept }]
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// webServer notes what it is asked for.
type webServer struct {
	mu    sync.Mutex
	asked []string
}

func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Host+r.URL.Path)
	_, _ = io.WriteString(w, "hello")
}

// TestRequestsAreJudgedByHostAndPath, of a real client, also where a long field
// makes the request longer than a segment.
func TestRequestsAreJudgedByHostAndPath(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, requestPolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		l, err := b.Server.Listen("tcp", at(fam.server, 80))
		if err != nil {
			t.Fatal(err)
		}
		handler := &webServer{}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return b.Client.Dial(ctx, "tcp", at(fam.server, 80))
			},
		}}
		ask := func(ctx context.Context, url, cookie string) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Cookie", cookie)
			answer, err := client.Do(r)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			_, err = io.Copy(io.Discard, answer.Body)
			return err
		}
		for _, cookie := range []string{"short", strings.Repeat("long", 1000)} {
			for _, url := range []string{"http://good.example/public", "http://other.example/private/x"} {
				if err := ask(testnet.Patience(t), url, cookie); err != nil {
					t.Errorf("%s: %v", url, err)
				}
			}
			for _, url := range []string{"http://x.ads.example/", "http://good.example/private/x", "http://good.example/public/../private/%78"} {
				before := b.f.status()
				ctx, cancel := context.WithCancel(testnet.Patience(t))
				failed := make(chan error, 1)
				go func() { failed <- ask(ctx, url, cookie) }()
				b.f.eventually(t, url+" is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
				cancel()
				if err := <-failed; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", url, err)
				}
			}
		}
		handler.mu.Lock()
		defer handler.mu.Unlock()
		want := []string{"good.example/public", "other.example/private/x"}
		if !slices.Equal(handler.asked, slices.Concat(want, want)) {
			t.Errorf("the server was asked for %q", handler.asked)
		}
	})
}

// TestQuestionsOverTCPAreJudgedOneByOne on one connection, until a denied one.
func TestQuestionsOverTCPAreJudgedOneByOne(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, requestPolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		s := b.connect(t, fam, 53)
		framed := func(name string) []byte {
			q := question(t, 1, name, dnsmessage.TypeA)
			return append(wire.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
		}
		good, bad := framed("good.example."), framed("denied.example.")
		before := b.f.status()
		for _, part := range [][]byte{good, good[:1], good[1:20], slices.Concat(good[20:], good, good[:30]), good[30:]} {
			if _, err := s.client.Write(part); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // so that parts are segments, mostly
		}
		expectBytes(t, s.server, slices.Concat(good, good, good, good))
		if _, err := s.client.Write(bad); err != nil {
			t.Fatal(err)
		}
		b.f.eventually(t, "the denied question is dropped", func(now status) bool {
			return now.User.Dropped == before.User.Dropped+1 && now.since(before, "tc drop flow") >= 1
		})
		expectSilence(t, s.server)
	})
}
