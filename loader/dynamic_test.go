package loader

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// randomDynamic are dynamic lists that random rules name, each with the addresses that
// it holds.
var randomDynamic, randomMembers = func() (lists []*policy.List, members map[*policy.List][]netip.Addr) {
	members = make(map[*policy.List][]netip.Addr)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 3 {
		l := &policy.List{Name: "dynamic" + strconv.Itoa(i), Type: policy.ListDynamic, Dynamic: policy.Dynamic{ID: uint64(i + 1)}}
		for _, a := range slices.Concat(sources4, sources6, targets4, targets6) {
			if r.IntN(3) == 0 {
				members[l] = append(members[l], a)
			}
		}
		l.Dynamic.Has = func(a netip.Addr) bool { return slices.Contains(members[l], a) }
		lists = append(lists, l)
	}
	return lists, members
}()

// teach fills the policy's random dynamic lists: what is not in them was, some time
// ago, or never.
func (b *bench) teach(f *Firewall) {
	b.tb.Helper()
	for _, l := range f.policy.DynamicLists() {
		for i, a := range slices.Concat(sources4, sources6, targets4, targets6) {
			ttl := time.Hour
			switch {
			case l.Dynamic.Has(a):
			case i%2 == 0:
				ttl = -time.Second
			default:
				continue
			}
			if err := f.Learn(l, a, ttl); err != nil {
				b.tb.Fatal(err)
			}
		}
	}
}

const dynamicPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists:
  cdn: { type: dynamic, from: cdn.example, ttl: 300 }
  bad: { type: dynamic, from: bad.example }
rules:
  - { name: bad, from: wan, src: "@bad", action: drop }
  - { name: cdn, from: lan, to: wan, dst: "@cdn", action: accept }
  - { name: not, from: wan, to: lan, src: "!@cdn", action: drop }
  - { name: back, from: wan, to: lan, action: accept }
`

// TestDynamicLists: an address is in a list from when it is learned until its time is
// over, in every program, and not in another list.
func TestDynamicLists(t *testing.T) {
	b := newBench(t)
	p := mustPolicy(t, dynamicPolicy)
	f := b.load(p)
	cdn, bad := p.Lists[0], p.Lists[1]
	out := packet{src: sources4[0], dst: targets4[4], proto: protoUDP, sport: 1000, dport: 53, hopLimit: 64, payload: make([]byte, 8)}
	in := packet{src: sources4[2], dst: targets4[2], proto: protoUDP, sport: 53, dport: 1000, hopLimit: 64, payload: make([]byte, 8)}
	check := func(what string, passes, enters, early bool) {
		t.Helper()
		b.host.MustDo(t, func() error {
			for _, c := range []struct {
				ifindex uint32
				p       packet
				want    bool
			}{{b.lan, out, passes}, {b.wan, in, enters}} {
				code, _ := b.tc(f.objs.FwTc, c.p.frame(), skb{Ifindex: c.ifindex})
				f.dropEntry(t, c.p.flow())
				if got := code != tcDrop; got != c.want {
					t.Errorf("%s: %v > %v passes: %v", what, c.p.src, c.p.dst, got)
				}
			}
			if got := b.xdp(f, in.frame(), b.wan) == xdpDrop; got != early {
				t.Errorf("%s: dropped early: %v", what, got)
			}
			return nil
		})
	}
	learn := func(l *policy.List, addr netip.Addr, ttl time.Duration) {
		t.Helper()
		if err := f.Learn(l, addr, ttl); err != nil {
			t.Fatal(err)
		}
	}
	check("nothing is learned", false, false, false)
	learn(cdn, out.dst, time.Hour)
	check("cdn has the target", true, false, false)
	learn(cdn, out.dst, time.Millisecond)
	learn(cdn, in.src, time.Hour)
	check("cdn has both", true, true, false) // a shorter time takes nothing away
	learn(bad, in.src, time.Hour)
	check("bad has the source, too", true, false, true)
	learn(bad, in.src, -1) // until before now: it stays as it is
	check("bad has the source still", true, false, true)

	lists, err := f.Lists()
	if err != nil || lists[0].Entries != 2 || lists[1].Entries != 1 || lists[0].Type != "dynamic" {
		t.Errorf("lists: %+v, %v", lists, err)
	}
	short := netip.MustParseAddr("198.51.100.77")
	out.dst = short
	learn(cdn, short, 50*time.Millisecond)
	check("learned for a moment", true, false, true)
	time.Sleep(100 * time.Millisecond)
	check("and that is over", false, false, true)
}

// TestDynamicListsOutlivePolicies: a list that the next policy has, too, keeps what it
// holds; one that is filled from other names begins empty, and so does one that comes
// to the place of another.
func TestDynamicListsOutlivePolicies(t *testing.T) {
	b := newBench(t)
	f := b.load(mustPolicy(t, dynamicPolicy))
	addr := netip.MustParseAddr("198.51.100.77")
	for _, l := range f.policy.Lists {
		if err := f.Learn(l, addr, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	entries := func(text string) map[string]int {
		t.Helper()
		b.host.MustDo(t, func() error { return f.Apply(mustPolicy(t, text)) })
		lists, err := f.Lists()
		if err != nil {
			t.Fatal(err)
		}
		counts := make(map[string]int)
		for _, l := range lists {
			counts[l.List] = l.Entries
		}
		return counts
	}
	const begin = "version: 1\nzones: { lan: [lan0], wan: [wan0] }\nlists:\n  bad: { type: dynamic, from: bad.example }\n"
	const end = "rules: [{ name: all, from: lan, dst: \"@bad\", action: accept }]\n"
	if got := entries(begin + "  cdn: { type: dynamic, from: other.example, ttl: 300 }\n" + end); got["bad"] != 1 || got["cdn"] != 0 {
		t.Errorf("after cdn has other names: %v, want bad with one address", got)
	}
	if got := entries(begin + end); got["bad"] != 1 {
		t.Errorf("after cdn is gone: %v", got)
	}
	text := begin
	for i := range policy.MaxDynamic - 1 {
		text += "  l" + strconv.Itoa(i) + ": { type: dynamic, from: x.example }\n"
	}
	for list, n := range entries(text + end) {
		if want := 0; list != "bad" && n != want || list == "bad" && n != 1 {
			t.Errorf("list %s has %d addresses", list, n)
		}
	}
	// All others new beside those in force do not fit.
	fresh := "version: 1\nzones: { lan: [lan0], wan: [wan0] }\nlists:\n  n: { type: dynamic, from: n.example }\n" +
		"rules: [{ name: all, from: lan, dst: \"@n\", action: accept }]\n"
	var err error
	b.host.MustDo(t, func() error { err = f.Apply(mustPolicy(t, fresh)); return nil })
	if err == nil {
		t.Error("a ninth list beside the eight in force was taken")
	}
}

// TestFullDynamicLists: where there are too many addresses, new ones find room, and none
// is refused.
func TestFullDynamicLists(t *testing.T) {
	b := newBench(t)
	f := b.load(mustPolicy(t, dynamicPolicy))
	room := int(f.objs.Learned.MaxEntries())
	addr := netip.MustParseAddr("10.0.0.0")
	learn := room + room/8
	if testnet.InGuest() {
		learn = 2000 // an emulated machine is slow
	}
	for i := range learn {
		addr = addr.Next()
		if err := f.Learn(f.policy.Lists[i%2], addr, time.Hour); err != nil {
			t.Fatalf("address %d of %d: %v", i, room, err)
		}
	}
	var l gen.FWMembership
	if err := f.objs.Learned.Lookup(gen.FWAddress{Addr: addr.As16()}, &l); err != nil {
		t.Errorf("the last address is not there: %v", err)
	}
	lists, err := f.Lists()
	if n := lists[0].Entries + lists[1].Entries; err != nil || n > room || n < min(learn, room)/2 {
		t.Errorf("%d addresses are there, %v", n, err)
	}
}

// withoutDynamic takes the dynamic lists out of rules, so that no condition is left
// that is none.
func withoutDynamic(rules []policy.Rule) {
	for i := range rules {
		for _, m := range []*policy.AddrMatch{&rules[i].Src, &rules[i].Dst} {
			m.Lists = slices.DeleteFunc(m.Lists, func(l *policy.List) bool { return l.Type == policy.ListDynamic })
			m.Not = m.Not && !m.Any()
		}
	}
}
