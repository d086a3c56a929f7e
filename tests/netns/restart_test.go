package netns

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// restarts are ways in which one process follows another.
var restarts = []struct {
	name  string
	flags []string // of the first
	end   func(f *firewall)
	next  []string // flags of the second, as of another version
}{
	{"SIGKILL", nil, (*firewall).kill, nil},
	{"restart", []string{"--keep"}, (*firewall).stop, []string{"--keep"}},
	{"upgrade", []string{"--keep", "--flows", "5000", "--half-open", "3000"}, (*firewall).stop, []string{"--flows", "20000", "--half-open", "5000"}},
}

// TestConnectionsLiveThroughRestarts sends over a plain connection all the time,
// and over an inspected one before and after: neither is cut, and the inspected
// one is not inspected again.
func TestConnectionsLiveThroughRestarts(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		for _, way := range restarts {
			t.Run(way.name, func(t *testing.T) {
				// A stranger's packets in midstream would be dropped.
				policy := basePolicy + "failure: { midstream: drop }\n"
				policy = strings.Replace(policy, "proto: [tcp, udp], dport: 7, action: accept", "proto: tcp, dport: 7, flags: syn, action: accept", 1)
				b := newBench(t, testnet.RoutedOptions{}, policy, append(m.flags(), way.flags...)...)
				var transfers sync.WaitGroup
				stop := make(chan struct{})
				for _, fam := range families {
					if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
						t.Fatal(err)
					}
					plain := b.Client.MustDial(t, "tcp", at(fam.server, 7))
					transfers.Go(func() {
						for {
							echoes(t, plain, 1<<18)
							select {
							case <-stop:
								return
							default:
							}
						}
					})
				}
				var inspected []net.Conn
				for _, fam := range families {
					server := b.serveTLS(t, fam)
					conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					exchange(t, conn, 3)
					inspected = append(inspected, conn)
				}
				b.f.eventually(t, "the hellos are decided", func(s status) bool { return s.User.Decided >= 2 })
				way.end(b.f)
				b.f.start(append(m.flags(), way.next...)...)
				for _, conn := range inspected {
					exchange(t, conn, 10)
				}
				close(stop)
				transfers.Wait()
				if s := b.f.status(); s.User.Received != 0 || s.Kernel.Sum("tc", "drop", "") != 0 || s.Kernel.Sum("tc_out", "drop", "") != 0 {
					t.Errorf("%d packets were inspected again, dropped: %+v", s.User.Received, s.Kernel)
				}
			})
		}
	})
}

// TestKeptStopGuardsOn stops a process that leaves its kernel half.
func TestKeptStopGuardsOn(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, append(m.flags(), "--keep")...)
		atWork := b.f.outside(t)
		b.f.stop()
		left := b.f.outside(t)
		if len(left) == 0 || len(left) >= len(atWork) {
			t.Errorf("left behind: %v, of %v", left, atWork)
		}
		denied := b.collect(t, at(families[0].server, 9), number)
		b.sendNumbers(t, at(families[0].server, 9), time.Millisecond, numbered).stop()
		exchange(t, b.Client.MustDial(t, "udp", at(families[0].server, 7)), 3)
		denied.expectNone(t)
		b.f.mustDetach(t)
		if rest := b.f.outside(t); len(rest) >= len(left) {
			t.Errorf("after detach: %v", rest)
		}
	})
}

// TestFailedStartLeavesWhatGuards starts over a killed process, in vain.
func TestFailedStartLeavesWhatGuards(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		questions := b.collect(t, at(families[0].server, 53), id)
		b.f.kill()
		left := b.f.outside(t)
		b.f.write(strings.Replace(basePolicy, "wan0", "eth7", 1))
		_, errs, code := b.f.run(append([]string{"run", "--policy", b.f.policy()}, b.f.places()...)...)
		if code == 0 || !strings.Contains(errs, "eth7") {
			t.Fatalf("exit status %d, %s", code, errs)
		}
		now := slices.DeleteFunc(b.f.outside(t), func(line string) bool { return !slices.Contains(left, line) })
		for _, line := range left {
			if !slices.Contains(now, line) && !strings.Contains(line, b.f.runDir()) {
				t.Errorf("the failed start has removed %s", line)
			}
		}
		b.sendNumbers(t, at(families[0].server, 53), time.Millisecond, func(i int) []byte {
			return question(t, uint16(i), "denied.example.", 1)
		}).stop()
		exchange(t, b.Client.MustDial(t, "udp", at(families[0].server, 7)), 3)
		questions.expectNone(t)
	})
}
