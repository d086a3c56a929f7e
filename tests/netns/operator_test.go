package netns

import (
	"os"
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
