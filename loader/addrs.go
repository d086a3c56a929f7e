package loader

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hybridfw/hybridfw/policy"
)

// addrTable gives the number of the set of rules that match an address: that of
// the address itself where it is there, else that of its longest prefix. Prefixes
// that say the same as the one around them are left out.
type addrTable struct {
	hosts    []addrSet // single addresses
	prefixes []addrSet // each behind all those around it
}

type addrSet struct {
	prefix netip.Prefix
	set    uint32
}

// addrs makes the table of one address field.
func (p *setPool) addrs(rules []policy.Rule, field func(*policy.Rule) *policy.AddrMatch) addrTable {
	// What is collected first are the rules that name an address; a negated rule
	// matches where its bit is not there. These sets stay out of the kernel.
	names := newSetPool(len(rules))
	any := names.number(names.where(rules, func(r *policy.Rule) bool { return field(r).Any() }))
	not := names.where(rules, func(r *policy.Rule) bool { return field(r).Not && !field(r).Any() })
	// Both roots are always there, so that every address finds an answer.
	own := []addrSet{
		{netip.PrefixFrom(netip.IPv4Unspecified(), 0), any},
		{netip.PrefixFrom(netip.IPv6Unspecified(), 0), any},
	}
	for i := range rules {
		m := field(&rules[i])
		if m.Any() {
			continue
		}
		alone := names.empty()
		alone.add(i)
		n := names.number(alone)
		for _, prefix := range m.Prefixes {
			own = append(own, addrSet{prefix.Masked(), n})
		}
		for _, list := range m.Lists {
			for _, prefix := range list.Prefixes {
				own = append(own, addrSet{prefix.Masked(), n})
			}
		}
	}
	t := names.inherit(own)
	p.full = p.full || names.full
	numbers := make(map[uint32]uint32)
	for _, table := range [][]addrSet{t.hosts, t.prefixes} {
		for i, s := range table {
			n, ok := numbers[s.set]
			if !ok {
				n = p.number(differ(names.sets[s.set], not))
				numbers[s.set] = n
			}
			table[i].set = n
		}
	}
	return t
}

// inherit sorts prefixes, unites equal ones, and adds to each the rules of those
// around it.
func (p *setPool) inherit(own []addrSet) addrTable {
	// Families apart, and each prefix behind all those around it.
	slices.SortFunc(own, func(a, b addrSet) int {
		return cmp.Or(
			a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	var t addrTable
	var around []addrSet // the last one is the innermost
	for i := 0; i < len(own); {
		s := own[i]
		for i++; i < len(own) && own[i].prefix == s.prefix; i++ {
			s.set = p.union(s.set, own[i].set)
		}
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(s.prefix.Addr()) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			outer := around[len(around)-1].set
			if s.set = p.union(s.set, outer); s.set == outer {
				continue
			}
		}
		if s.prefix.IsSingleIP() {
			t.hosts = append(t.hosts, s)
			continue // nothing is inside it
		}
		around = append(around, s)
		t.prefixes = append(t.prefixes, s)
	}
	return t
}
