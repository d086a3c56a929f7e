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
	lists    []listBit // of rules that name several in this field
}

// listBit says that addresses with a set are, for a rule, in one of its lists: the
// first in the rule's order.
type listBit struct {
	set  uint32
	rule int
	list *policy.List
}

type addrSet struct {
	prefix netip.Prefix
	set    uint32
}

// several tells that it does not follow from the rule which list an address was in.
func several(m *policy.AddrMatch) bool {
	return !m.Not && len(m.Lists) > 0 && len(m.Lists)+min(1, len(m.Prefixes)) > 1
}

// addrs makes the table of one address field.
func (p *setPool) addrs(rules []policy.Rule, field func(*policy.Rule) *policy.AddrMatch) addrTable {
	// What is collected first are the rules that name an address; a negated rule
	// matches where its bit is not there. Behind the rules' words there is a bit for
	// each list of a rule that names several. These sets stay out of the kernel.
	var lists []listBit
	for i := range rules {
		if m := field(&rules[i]); several(m) {
			for _, l := range m.Lists {
				lists = append(lists, listBit{rule: i, list: l})
			}
		}
	}
	names := newSetPool(64*p.words + len(lists))
	bit := 64 * p.words // of the next list
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
			if several(m) {
				here := slices.Clone(alone)
				here.add(bit)
				bit++
				n = names.number(here)
			}
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
				n = t.split(p, names.sets[s.set], not, lists)
				numbers[s.set] = n
			}
			table[i].set = n
		}
	}
	return t
}

// split numbers the set of rules in a set of names. Where addresses are in lists that
// are told apart, their sets have numbers of their own.
func (t *addrTable) split(p *setPool, names, not ruleSet, lists []listBit) uint32 {
	rules := differ(names[:p.words], not[:p.words])
	var in []listBit
	for k, l := range lists {
		bit := 64*p.words + k
		// The first list of each rule counts.
		if names[bit/64]&(1<<(bit%64)) != 0 && (len(in) == 0 || in[len(in)-1].rule != l.rule) {
			in = append(in, l)
		}
	}
	if in == nil {
		return p.number(rules)
	}
	n := p.add(rules)
	for _, l := range in {
		l.set = n
		t.lists = append(t.lists, l)
	}
	return n
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
