package netns

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// reload has the firewall read its policy again, which must succeed, and returns
// the names of the pinned rules that were kept.
func (f *firewall) reload(tb testing.TB, policy string, flags ...string) (pinned []string) {
	tb.Helper()
	f.write(policy)
	out, errs, code := f.run(append([]string{"reload", "--json", "--run-dir", f.runDir()}, flags...)...)
	if code != 0 || errs != "" {
		tb.Fatalf("reload: exit status %d, %s", code, errs)
	}
	var done struct {
		Rules  int
		Pinned []string
	}
	if err := json.Unmarshal([]byte(out), &done); err != nil {
		tb.Fatalf("reload printed %q: %v", out, err)
	}
	if got := f.status().Rules; got != done.Rules || got == 0 {
		tb.Errorf("%d rules are in force, the reload says %d", got, done.Rules)
	}
	return done.Pinned
}

// silent tells that nothing comes back any more.
func silent(tb testing.TB, conn net.Conn) {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		tb.Fatal(err)
	}
	_, _ = conn.Write([]byte("denied"))
	if n, err := conn.Read(make([]byte, 16)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Errorf("%d bytes came back over a denied connection, %v", n, err)
	}
}

// withoutEcho denies what basePolicy lets through to port 7.
func withoutEcho(tb testing.TB) string {
	tb.Helper()
	text := strings.Replace(basePolicy, "dport: 7, action: accept", "dport: 77, action: accept", 1)
	if text == basePolicy {
		tb.Fatal("basePolicy has no echo rule")
	}
	return text
}

// TestConnectionsLiveThroughReloads keeps a plain connection and an inspected one
// over policies that accept them, and ends the plain one by one that does not.
func TestConnectionsLiveThroughReloads(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		for _, fam := range families {
			b.f.reload(t, basePolicy)
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			server := b.serveTLS(t, fam)
			plain := b.Client.MustDial(t, "tcp", at(fam.server, 7))
			conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			before := b.f.eventually(t, "the hello is decided", func(s status) bool { return s.User.Decided > 0 })
			for _, policy := range []string{
				basePolicy,
				strings.Replace(basePolicy, "rules:\n", "rules:\n  - { name: first, from: wan, to: lan, proto: tcp, dport: 1, action: inspect, steps: [{ action: accept }] }\n", 1),
				strings.Replace(basePolicy, "echo, from", "other-name, from", 1),
			} {
				b.f.reload(t, policy)
				echoes(t, plain, 1<<16)
				exchange(t, conn, 10)
			}
			expect(t, before, b.f.status(), counts{"user": 0, "queued": 0, "* drop *": 0})
			b.f.reload(t, withoutEcho(t))
			silent(t, plain)
			exchange(t, conn, 10)
			b.f.reload(t, basePolicy)
			// The sender tries again by itself, and nothing was lost for good.
			if err := plain.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if n, err := plain.Read(make([]byte, 16)); n == 0 {
				t.Errorf("an accepted connection is dead: %v", err)
			}
		}
	})
}

// TestReloadsLoseNoPacket reloads while every packet of one stream goes through the
// queue, by a rule that changes each time, and those of another stay in the kernel.
func TestReloadsLoseNoPacket(t *testing.T) {
	const base = basePolicy + "  - { name: stream, from: lan, to: wan, proto: udp, dport: 5000, action: accept }\n"
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, base, m.flags()...)
		other := strings.Replace(base, `{ qname: "denied.example", action: drop }`, `{ qname: "other.example", action: drop }, { qname: "denied.example", action: drop }`, 1)
		var streams []*numbers
		var allowed, direct, denied []*collector
		for _, fam := range families {
			direct = append(direct, b.collect(t, at(fam.server, 5000), number))
			allowed = append(allowed, b.collect(t, at(fam.server, 53), id))
			denied = append(denied, b.collect(t, at(fam.server, 9), number))
			streams = append(streams, b.sendNumbers(t, at(fam.server, 53), 200*time.Microsecond, func(i int) []byte {
				return question(t, uint16(i), "good.example.", 1)
			}), b.sendNumbers(t, at(fam.server, 9), 200*time.Microsecond, numbered),
				b.sendNumbers(t, at(fam.server, 5000), 200*time.Microsecond, numbered))
		}
		b.f.eventually(t, "packets are on their way through the queue", func(s status) bool { return s.User.Received > 100 })
		for i := range 10 {
			b.f.reload(t, []string{other, base}[i%2])
		}
		for i, fam := range families {
			n, m := streams[3*i].stop(), streams[3*i+1].stop()
			if n > 1<<16 || m < 100 {
				t.Fatalf("%d questions and %d others sent", n, m)
			}
			allowed[i].expectAll(t, n)
			direct[i].expectAll(t, streams[3*i+2].stop())
			b.barrier(t, fam)
			denied[i].expectNone(t)
		}
		s := b.f.status()
		if s.User.Unmarked != 0 || s.User.Malformed != 0 {
			t.Errorf("user space: %+v, want that every mark was understood", s.User.Counters)
		}
	})
}

// TestTransfersLiveThroughReloads reloads while connections transfer. Not beside the
// numbers: they fill the buffers of the links.
func TestTransfersLiveThroughReloads(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		var transfers sync.WaitGroup
		ended := make(chan struct{})
		for _, fam := range families {
			if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
				t.Fatal(err)
			}
			conn := b.Client.MustDial(t, "tcp", at(fam.server, 7))
			transfers.Go(func() {
				for {
					echoes(t, conn, 1<<18)
					select {
					case <-ended:
						return
					default:
					}
				}
			})
		}
		for range 5 {
			b.f.reload(t, strings.Replace(basePolicy, "echo, from", "other-name, from", 1))
			b.f.reload(t, basePolicy)
		}
		close(ended)
		transfers.Wait()
	})
}

// TestBadReloadChangesNothing tries what cannot be applied.
func TestBadReloadChangesNothing(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	conn := b.Client.MustDial(t, "udp", at(families[0].server, 7))
	exchange(t, conn, 3)
	outside := b.f.outside(t)
	for _, c := range []struct {
		policy, want string
		code         int
	}{
		{strings.Replace(basePolicy, "action: accept", "action: perhaps", 1), b.f.policy() + ":", 2},
		{"version: 1\n", b.f.policy() + ":1:1: zones is missing", 2},
		{strings.Replace(basePolicy, "wan0", "eth7", 1), "eth7", 1},
		{basePolicy + "marks: { mask: 0x7f }\n", "restart", 1},
	} {
		b.f.write(c.policy)
		_, errs, code := b.f.run("reload", "--run-dir", b.f.runDir())
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("exit status %d, %q; want %d and %q", code, errs, c.code, c.want)
		}
	}
	exchange(t, conn, 3)
	b.f.expectOutside(t, outside)
	b.f.signal(syscall.SIGHUP)
	b.f.logs(t, "not reloaded")
	b.f.write(withoutEcho(t))
	b.f.signal(syscall.SIGHUP)
	b.f.logs(t, "policy reloaded")
	silent(t, conn)
}

// logs waits until the process has logged something.
func (f *firewall) logs(tb testing.TB, text string) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(f.log.String(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("the log never says %q:\n%s", text, f.log.String())
		}
	}
}

// TestPinnedRuleOutlivesAReloadThatForgetsIt keeps a way in.
func TestPinnedRuleOutlivesAReloadThatForgetsIt(t *testing.T) {
	const pinned = "  - { name: mgmt, from: lan, to: wan, proto: udp, dport: 7, action: accept, pin: true }\n"
	b := newBench(t, testnet.RoutedOptions{}, withoutEcho(t)+pinned)
	conn := b.Client.MustDial(t, "udp", at(families[0].server, 7))
	exchange(t, conn, 3)
	for range 2 {
		if got := b.f.reload(t, withoutEcho(t)); len(got) != 1 || got[0] != "mgmt" {
			t.Errorf("kept %v, want the pinned rule", got)
		}
		exchange(t, conn, 3)
	}
	if got := b.f.reload(t, withoutEcho(t), "--drop-pinned"); len(got) != 0 {
		t.Errorf("kept %v", got)
	}
	silent(t, conn)
}

func TestReloadWithNobodyThere(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	_, errs, code := f.run("reload", "--run-dir", f.runDir())
	if code != 1 || !strings.Contains(errs, "no process is running") {
		t.Errorf("exit status %d, %q", code, errs)
	}
}

// TestNoListenerMayChange replaces the queue's rule.
func TestNoListenerMayChange(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	b.f.reload(t, basePolicy+"failure: { no_listener: open }\n")
	for _, fam := range families {
		b.serveDNS(t, fam)
	}
	b.f.kill()
	conn := b.Client.MustDial(t, "udp", at(families[0].server, 53))
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(question(t, 1, "denied.example.", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 512)); err != nil {
		t.Errorf("a question past a queue without a listener: %v", err)
	}
}
