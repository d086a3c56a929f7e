package netns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// logTo starts a firewall whose log goes into a pipe that nobody reads, and
// returns the pipe's end to read from.
func logTo(t *testing.T) (*bench, *os.File) {
	t.Helper()
	b := &bench{Routed: testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})}
	for _, fam := range families {
		if _, err := b.Server.ServeUDPEcho(at(fam.server, 7)); err != nil {
			t.Fatal(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	b.f = prepare(t, b.Firewall, basePolicy)
	b.f.stderr = w
	b.f.start()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b, r
}

// askForAds asks for names that are logged.
func (b *bench) askForAds(t *testing.T, n uint64) {
	t.Helper()
	before := b.f.status()
	conn := b.Client.MustDial(t, "udp", at(families[0].server, 53))
	for i := range n {
		if _, err := conn.Write(question(t, uint16(i), "x.ads.example.", 1)); err != nil {
			t.Fatal(err)
		}
	}
	b.f.eventually(t, "all are dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+n })
}

// TestFullLogBlocksNothing: neither packets, nor the status, nor the stop.
func TestFullLogBlocksNothing(t *testing.T) {
	b, _ := logTo(t)
	before := b.f.outside(t)
	b.Server.MustListenPacket(t, "udp", at(families[0].server, 53)) // else ICMP errors come back
	for range 20 {
		b.askForAds(t, 200)
	}
	b.f.eventually(t, "names are lost", func(s status) bool { return s.NamesLost > 0 })
	b.barrier(t, families[0])
	b.f.stop()
	if after := b.f.outside(t); len(after) >= len(before) {
		t.Errorf("after the stop there is %v", after)
	}
}

// TestLostLogAndTerminalEndNothing: the reader of the log dies, and the terminal
// hangs up.
func TestLostLogAndTerminalEndNothing(t *testing.T) {
	b, r := logTo(t)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	b.Server.MustListenPacket(t, "udp", at(families[0].server, 53))
	b.askForAds(t, 5)
	b.f.signal(syscall.SIGHUP)
	b.askForAds(t, 5)
	b.barrier(t, families[0])
	b.f.stop()
}

// TestRemovedTableIsMadeAgain: rule files of others often begin with the removal
// of everything.
func TestRemovedTableIsMadeAgain(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	b.Firewall.MustDo(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.FlushRuleset()
		return c.Flush()
	})
	there := func() (found bool) {
		b.Firewall.MustDo(t, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			tables, err := c.ListTables()
			for _, table := range tables {
				found = found || table.Name == "hybridfw"
			}
			return err
		})
		return found
	}
	for deadline := time.Now().Add(patience); !there(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the table is not made again")
		}
	}
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		before := b.f.status()
		conn := b.Client.MustDial(t, "udp", server.Addr.String())
		if _, err := conn.Write(question(t, 1, "denied.example.", 1)); err != nil {
			t.Fatal(err)
		}
		b.f.eventually(t, "the question is judged", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
		if n := len(server.Queries()); n != 0 {
			t.Errorf("%d denied questions arrived", n)
		}
	})
	b.f.stop()
	if there() {
		t.Error("the table is there after the stop")
	}
}

// TestListRulesShowsWhatEachHasJudged, in the policy's order, also of rules that
// no packet met.
func TestListRulesShowsWhatEachHasJudged(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	fam := families[0]
	conn := b.Client.MustDial(t, "udp", at(fam.server, 7))
	exchange(t, conn, 3)
	telnet := testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 23), TCP: &testnet.TCP{Flags: 0x02},
		EthSrc: b.Client.MustMAC(t, "eth0"), EthDst: b.Firewall.MustMAC(t, b.Lan)}
	b.sendFrame(t, telnet.Frame())
	b.sendFrame(t, telnet.Frame())
	exchange(t, conn, 1) // all before it are judged
	stdout, stderr, code := b.f.run("list", "rules", "--run-dir", b.f.runDir(), "--json")
	var rules []struct {
		Rule    string
		Line    int
		Action  string
		Packets uint64
	}
	if err := json.Unmarshal([]byte(stdout), &rules); err != nil || code != 0 {
		t.Fatalf("%v, status %d, %s", err, code, stderr)
	}
	var got []string
	for _, r := range rules {
		got = append(got, fmt.Sprint(r.Rule, " ", r.Action, " ", r.Packets))
	}
	want := []string{"bots drop 0", "telnet drop 2", "web inspect 0", "dns inspect 0", "discard drop 0", "echo accept 1"}
	if !slices.Equal(got, want) || rules[0].Line != 8 {
		t.Errorf("got %q, want %q; the first is at line %d, want 8", got, want, rules[0].Line)
	}
	stdout, _, code = b.f.run("list", "rules", "--run-dir", b.f.runDir())
	if code != 0 || !strings.Contains(stdout, "telnet   drop     2 ") {
		t.Errorf("status %d, printed:\n%s", code, stdout)
	}
	b.f.stop()
	if _, stderr, code := b.f.run("list", "rules", "--run-dir", b.f.runDir()); code != 1 || !strings.Contains(stderr, "not running") {
		t.Errorf("after the stop: status %d, %s", code, stderr)
	}
	if _, stderr, code := b.f.run("list", "flows"); code != 2 || !strings.Contains(stderr, "expected what to list: rules or lists") {
		t.Errorf("of what is not built: status %d, %s", code, stderr)
	}
}

// TestListListsShowsWhatEachHasMatched in all modes: at XDP and behind it.
func TestListListsShowsWhatEachHasMatched(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		for _, fam := range families {
			for range 3 {
				b.send(t, testnet.Packet{Src: netip.AddrPortFrom(fam.bot, 4000), Dst: b.to(fam, 7), Payload: []byte("bot")})
			}
			b.barrier(t, fam)
		}
		stdout, stderr, code := b.f.run("list", "lists", "--run-dir", b.f.runDir(), "--json")
		var lists []struct {
			List, Type string
			Line       int
			Entries    int
			Packets    *uint64
		}
		if err := json.Unmarshal([]byte(stdout), &lists); err != nil || code != 0 {
			t.Fatalf("%v, status %d, %s", err, code, stderr)
		}
		if len(lists) != 2 || lists[0].List != "bots" || lists[0].Entries != 2 || lists[0].Line != 5 ||
			lists[0].Packets == nil || *lists[0].Packets != 6 || lists[1].Type != "domain" || lists[1].Packets != nil {
			t.Errorf("got %s", stdout)
		}
		stdout, _, code = b.f.run("list", "lists", "--run-dir", b.f.runDir())
		if code != 0 || !strings.Contains(stdout, "bots  cidr    2        6 ") || !strings.Contains(stdout, "ads   domain  1        - ") {
			t.Errorf("status %d, printed:\n%s", code, stdout)
		}
	})
}
