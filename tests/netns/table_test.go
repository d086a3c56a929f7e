package netns

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// withoutInspection is a policy that needs no user space.
const withoutInspection = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: dns, from: lan, to: wan, proto: udp, dport: 53, action: accept }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// hasTable tells whether the host has hybridfw's nft table, which costs each packet
// of the host something.
func (f *firewall) hasTable(tb testing.TB) (there bool) {
	tb.Helper()
	f.host.MustDo(tb, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := c.ListTables()
		there = slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == "hybridfw" })
		return err
	})
	return there
}

// TestTableComesWithInspection: only a policy that inspects has the nft table. A
// reload makes it before anything is marked, and none takes it away, which would
// drop what is queued.
func TestTableComesWithInspection(t *testing.T) {
	for _, then := range []string{"", "failure: { no_listener: open }\n"} {
		b := newBench(t, testnet.RoutedOptions{}, withoutInspection)
		table := func(want bool) {
			t.Helper()
			if got := b.f.hasTable(t); got != want {
				t.Errorf("there is a table: %v, want %v", got, want)
			}
		}
		server := b.serveDNS(t, families[0])
		asks := func(name string) int {
			t.Helper()
			conn := b.Client.MustDial(t, "udp", server.Addr.String())
			return len(ask(t, conn, question(t, 1, name, 1)).Answers)
		}
		table(false)
		if n := asks("denied.example."); n != 1 {
			t.Errorf("%d answers without inspection, want 1", n)
		}
		if s, _, code := b.f.printedStatus(t); code != 0 || len(s.Hooks) != 0 {
			t.Errorf("status: exit status %d, hooks %+v", code, s.Hooks)
		}
		// What is said of listeners while nobody inspects holds later.
		b.f.reload(t, withoutInspection+then)
		table(false)
		b.f.reload(t, basePolicy+then)
		table(true)
		before := b.f.status()
		if n := asks("good.example."); n != 1 {
			t.Errorf("%d answers for an allowed name, want 1", n)
		}
		denied := b.Client.MustDial(t, "udp", server.Addr.String())
		if _, err := denied.Write(question(t, 2, "denied.example.", 1)); err != nil {
			t.Fatal(err)
		}
		b.f.eventually(t, "a question is denied", func(s status) bool { return s.User.Dropped == before.User.Dropped+1 })
		b.f.reload(t, withoutInspection+then)
		table(true)
		if n := asks("denied.example."); n != 1 {
			t.Errorf("%d answers without inspection, want 1", n)
		}
		b.f.reload(t, basePolicy+then)
		b.f.kill()
		if then != "" { // then the rule lets packets pass by the queue
			if n := asks("denied.example."); n != 1 {
				t.Errorf("%d answers with no listener, want 1", n)
			}
		}
		// The programs of the killed process mark until they are replaced.
		b.f.write(withoutInspection)
		b.f.start()
		table(true)
		b.f.stop()
		table(false)
	}
}

// TestTableIsMadeForWhatMarks: where a killed process's programs mark and its table
// is gone, the next start makes it, whatever its policy.
func TestTableIsMadeForWhatMarks(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	b.f.kill()
	b.Firewall.MustDo(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(&nftables.Table{Name: "hybridfw", Family: nftables.TableFamilyINet})
		return c.Flush()
	})
	b.f.write(strings.Replace(withoutInspection, "name: dns", "name: other", 1))
	b.f.start()
	if !b.f.hasTable(t) {
		t.Error("there is no table behind programs that mark")
	}
}
