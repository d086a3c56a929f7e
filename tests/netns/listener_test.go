package netns

import (
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// TestNoListener kills the process: its kernel half goes on and the packets that
// it would queue do as failure.no_listener says.
func TestNoListener(t *testing.T) {
	for _, setting := range []string{"closed", "open"} {
		t.Run(setting, func(t *testing.T) {
			eachMode(t, twoModes, func(t *testing.T, m mode) {
				b := newBench(t, testnet.RoutedOptions{}, basePolicy+"failure: { no_listener: "+setting+" }\n", m.flags()...)
				arrived := b.Server.MustCapture(t, "eth0")
				b.f.kill()
				asked := uint64(0)
				eachFamily(t, func(t *testing.T, fam family) {
					server := b.serveDNS(t, fam)
					before := b.gone(t)
					for i, name := range []string{"good.example.", "denied.example."} {
						conn := b.Client.MustDial(t, "udp", server.Addr.String())
						query := question(t, uint16(i), name, 1)
						if setting == "open" {
							if m := ask(t, conn, query); len(m.Answers) != 1 {
								t.Errorf("the response for %s: %+v", name, m)
							}
						} else if _, err := conn.Write(query); err != nil {
							t.Fatal(err)
						}
						asked++
					}
					b.send(t, testnet.Packet{Src: b.from(fam.bot), Dst: b.to(fam, 7)}) // dropped all the same
					b.barrier(t, fam)                                                  // allowed all the same
					after := b.gone(t)
					want := counts{"tc queue *": 2, "queued": 2, "bypassed": 0}
					if setting == "open" {
						want["bypassed"] = 2
					}
					expect(t, before, after, want)
					expect(t, before, after, counts{"* drop rule": 1, "* drop *": 1})
					questions := 0
					if setting == "open" {
						questions = 2
					}
					if got := len(server.Queries()); got != questions {
						t.Errorf("%d questions arrived, want %d", got, questions)
					}
					if n := serverSees(arrived, func(p testnet.Packet) bool { return p.Src.Addr() == fam.bot }); n != 0 {
						t.Errorf("%d packets of the dropped source arrived", n)
					}
				})
			})
		})
	}
}

// gone is the status of a firewall whose process has been killed.
func (b *bench) gone(tb testing.TB) status {
	tb.Helper()
	s, stderr, code := b.f.printedStatus(tb)
	if code != 1 || s.Running || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "the process is gone") ||
		!strings.Contains(stderr, "hybridfw detach") {
		tb.Errorf("status of a killed process: exit status %d, running %v, says %q", code, s.Running, stderr)
	}
	return s
}

// TestStatusCommand compares what is printed for people and for programs.
func TestStatusCommand(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy, "--xdp", "native")
	b.barrier(t, families[0])
	s, stderr, code := b.f.printedStatus(t)
	if code != 0 || stderr != "" || !s.Running || s.PID != b.f.cmd.Process.Pid || s.Rules != 6 {
		t.Errorf("exit status %d, %q, status %+v", code, stderr, s)
	}
	if len(s.Interfaces) != 2 || s.Interfaces[0].Name != "lan0" || s.Interfaces[0].Zone != "lan" || s.Interfaces[0].XDP != "native" {
		t.Errorf("interfaces: %+v", s.Interfaces)
	}
	out, stderr, code := b.f.run(append([]string{"status"}, b.f.places()...)...)
	for _, line := range []string{"running: process", "INTERFACE", "lan0  ", "wan0  ", "PATH", "xdp ", "tc_out "} {
		if !strings.Contains(out, line) {
			t.Errorf("status prints no %q: %s", line, out)
		}
	}
	if code != 0 || stderr != "" {
		t.Errorf("exit status %d, %q", code, stderr)
	}
	b.f.stop()
	if _, stderr, code = b.f.printedStatus(t); code != 1 || !strings.Contains(stderr, "not running") {
		t.Errorf("where nothing runs: exit status %d, %q", code, stderr)
	}
}
