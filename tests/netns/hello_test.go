package netns

import (
	"context"
	"crypto/tls"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// postQuantum is how a client of today asks for a name: with a key share that
// makes its hello longer than a segment.
func postQuantum(name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}}
}

// TestHelloOfSeveralSegmentsIsJudgedByItsName: its segments pass until the one
// that completes it.
func TestHelloOfSeveralSegmentsIsJudgedByItsName(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{NoOffload: true}, basePolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			server := b.serveTLS(t, fam)
			before := b.f.status()
			conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), postQuantum("good.example"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			exchange(t, conn, 20)
			// A slow machine sends a segment again before its verdict is there.
			after := b.f.eventually(t, "both segments are judged", func(s status) bool { return s.since(before, "user") >= 2 })
			more, decided := after.User.More-before.User.More, after.User.Decided-before.User.Decided
			if more < 1 || decided != 1 {
				t.Errorf("%d segments passed in front of the deciding one, %d decisions, want 1", more, decided)
			}
			expect(t, before, after, counts{"queued": after.since(before, "user"), "* drop *": 0})

			before = after
			ctx, cancel := context.WithCancel(testnet.Patience(t))
			defer cancel()
			denied := b.Client.MustDial(t, "tcp", server.Addr.String())
			failed := make(chan error, 1)
			go func() { failed <- tls.Client(denied, postQuantum("x.ads.example")).HandshakeContext(ctx) }()
			b.f.eventually(t, "the denied hello's end is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
			b.f.eventually(t, "its repetitions stay in the kernel", func(s status) bool {
				return s.since(before, "tc drop flow")+s.since(before, "xdp drop flow") >= 2
			})
			cancel()
			if err := <-failed; err == nil {
				t.Error("a denied handshake succeeded")
			}
			if got := server.Names(); !slices.Equal(got, []string{"good.example"}) {
				t.Errorf("the server was asked for %q", got)
			}
		})
	})
}

// TestHellosOfOtherClients: those that the machine has.
func TestHellosOfOtherClients(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, basePolicy)
	fam := families[0]
	server := b.serveTLS(t, fam)
	// So many protocols that the hello does not fit one segment.
	alpn := strings.Repeat("a-protocol-with-a-long-name,", 60) + "http/1.1"
	var want []string
	for program, args := range map[string]func(name string) []string{
		"openssl": func(name string) []string {
			return []string{"s_client", "-connect", server.Addr.String(), "-servername", name, "-alpn", alpn}
		},
		"curl": func(name string) []string {
			return []string{"--insecure", "--silent", "--max-time", "3", "--resolve", name + ":443:" + fam.server.String(), "https://" + name + "/"}
		},
	} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is not here: %v", program, err)
			continue
		}
		for _, name := range []string{"good." + program + ".example", "denied.example"} {
			before := b.f.status()
			cmd := b.Client.Command(program, args(name)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			dropped := before.User.Dropped
			if name == "denied.example" {
				dropped++
			} else {
				want = append(want, name)
			}
			b.f.eventually(t, program+" is judged", func(s status) bool {
				return s.User.Step == before.User.Step+1 && s.User.Dropped == dropped
			})
			if name != "denied.example" {
				b.f.eventually(t, program+" gets through", func(status) bool { return slices.Contains(server.Names(), name) })
			}
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()
		}
	}
	if got := server.Names(); len(got) != len(want) {
		t.Errorf("the server was asked for %q, want %q", got, want)
	}
}
