package userspace

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

func mustSteer(tb testing.TB, o Options) *Steering {
	tb.Helper()
	testnet.Need(tb)
	s, err := NewSteering(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Remove(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func mustInstalled(tb testing.TB, s *Steering, want bool) {
	tb.Helper()
	if got, err := s.Installed(); err != nil || got != want {
		tb.Fatalf("installed %v, %v, want %v", got, err, want)
	}
}

func TestInstallAndRemoveAgainAndAgain(t *testing.T) {
	s := mustSteer(t, Options{Policy: mustPolicy(t, "", acceptAll), Queue: testQueue, Queues: 2})
	mustInstalled(t, s, false)
	for range 3 {
		if err := s.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		for range 3 {
			if err := s.Install(); err != nil {
				t.Fatal(err)
			}
			mustInstalled(t, s, true)
			if n := countRules(t); n != 6 {
				t.Fatalf("%d rules, want one in each of 6 chains", n)
			}
		}
		// As hybridfw detach does: without a policy.
		if err := new(Steering).Remove(); err != nil {
			t.Fatal(err)
		}
		mustInstalled(t, s, false)
	}
}

func countRules(tb testing.TB) int {
	tb.Helper()
	return len(rules(tb))
}

// rules are all rules of our table.
func rules(tb testing.TB) []*nftables.Rule {
	tb.Helper()
	c, err := nftables.New()
	if err != nil {
		tb.Fatal(err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		tb.Fatal(err)
	}
	var all []*nftables.Rule
	for _, chain := range chains {
		if chain.Table.Name != TableName {
			continue
		}
		if chain.Priority == nil || chain.Type != nftables.ChainTypeFilter || *chain.Policy != nftables.ChainPolicyAccept {
			tb.Errorf("chain %+v", chain)
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, rules...)
	}
	return all
}

// The rule says the queues and the bypass, natively or by the xt target.
func TestQueueRule(t *testing.T) {
	for setting, bypass := range map[string]bool{"no_listener: open, malformed: accept": true, "no_listener: closed": false} {
		s := mustSteer(t, Options{Policy: mustPolicy(t, setting, acceptAll), Queue: 300, Queues: 3})
		if err := s.Install(); err != nil {
			t.Fatal(err)
		}
		queues := 0
		for _, r := range rules(t) {
			for _, e := range r.Exprs {
				switch e := e.(type) {
				case *expr.Queue:
					queues++
					if e.Num != 300 || e.Total != 3 || (e.Flag&expr.QueueFlagBypass != 0) != bypass || e.Flag&expr.QueueFlagFanout != 0 {
						t.Errorf("%s: %+v", setting, e)
					}
				case *expr.Target:
					queues++
					if testnet.InGuest() {
						t.Error("this kernel has the queue expression, and the xt target is used")
					}
					flags := byte(0)
					if bypass {
						flags = 1
					}
					want := binary.NativeEndian.AppendUint16(nil, 300)
					want = binary.NativeEndian.AppendUint16(want, 3)
					want = binary.NativeEndian.AppendUint16(want, uint16(flags))
					info, ok := e.Info.(*xt.Unknown)
					if e.Name != "NFQUEUE" || e.Rev != 3 || !ok || !bytes.Equal([]byte(*info)[:6], want) {
						t.Errorf("%s: %+v", setting, e)
					}
				}
			}
		}
		if queues != 3 {
			t.Errorf("%s: %d rules hand over to queues, want 3", setting, queues)
		}
		if err := s.Remove(); err != nil {
			t.Fatal(err)
		}
	}
}

// Queued packets survive that the rules are replaced, by us or by the next
// process, which may have other settings.
func TestInstallKeepsQueuedPackets(t *testing.T) {
	r, run := mustWait(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(0))
	for range 20 {
		mustWrite(t, c, []byte("x"))
	}
	next := mustSteer(t, Options{Policy: mustPolicy(t, "no_listener: open, malformed: accept", acceptAll), Queue: 500, Queues: 4})
	for range 3 {
		if err := next.Install(); err != nil {
			t.Fatal(err)
		}
		if err := r.steer.Install(); err != nil {
			t.Fatal(err)
		}
	}
	if k := r.Stats().Queues[0].Kernel; k.Waiting != 20 {
		t.Errorf("%d packets are still queued, want 20", k.Waiting)
	}
	run()
	for i := range 20 {
		if _, _, ok := s.next(t, 5*time.Second); !ok {
			t.Fatalf("%d of 20 arrived", i)
		}
	}
}

// Tables of others, of the same name too, are not touched.
func TestOtherTablesStay(t *testing.T) {
	s := mustSteer(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	others := []*nftables.Table{
		{Name: "other", Family: nftables.TableFamilyINet},
		{Name: TableName, Family: nftables.TableFamilyIPv4},
	}
	for _, o := range others {
		c.AddTable(o)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil || len(tables) != 2 {
		t.Errorf("%d tables are left, %v, want 2", len(tables), err)
	}
	for _, o := range others {
		c.DelTable(o)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A table of our name with chains that do not fit is not taken over silently.
func TestForeignChainsAreSaid(t *testing.T) {
	s := mustSteer(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyINet})
	c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	contains(t, s.Install(), "inet hybridfw", "hybridfw detach")
	if n := countRules(t); n != 0 {
		t.Errorf("%d rules of a transaction that failed", n)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(); err != nil {
		t.Fatal(err)
	}
}
