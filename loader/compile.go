package loader

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/hybridfw/hybridfw/policy"
)

// Table sizes. They are the kernel half's own, see bpf/hybridfw.h.
const (
	maxRules = 64
	noPorts  = 65536 // index of packets without ports
	noFlags  = 256   // index of packets without TCP flags
)

// A ruleSet is a set of rules: bit i stands for Policy.Rules[i].
type ruleSet uint64

// first is the index of the first rule of the set, or -1.
func (s ruleSet) first() int {
	if s == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(s))
}

// Tables are a compiled policy: for each field of a packet the set of rules that
// its value satisfies. The rules that match a packet are the intersection, and
// the lowest bit is the first match.
type Tables struct {
	defaults policy.Defaults
	failure  policy.Failure
	mask     uint32
	rules    []tableRule
	from, to [256]ruleSet
	proto    [256]ruleSet
	flags    [noFlags + 1]ruleSet
	sport    []ruleSet // noPorts + 1
	dport    []ruleSet
	src, dst []prefixSet
	early    ruleSet // drop whatever the zone out is: XDP may do it
}

// tableRule is what a matched rule does.
type tableRule struct {
	action  policy.Action
	mark    uint8 // ActionInspect: the mark field
	replies bool  // ActionInspect: replies are inspected too
}

// prefixSet is the set of the rules that match the addresses of a prefix, unless
// a longer prefix says otherwise. IPv4 prefixes are in their IPv4-mapped form.
type prefixSet struct {
	prefix netip.Prefix
	set    ruleSet
}

// Compile turns a policy into tables. It is pure: the kernel is not asked.
func Compile(p *policy.Policy) (*Tables, error) {
	if len(p.Rules) > maxRules {
		return nil, fmt.Errorf("%s: %d rules, but the kernel half holds %d", p.File, len(p.Rules), maxRules)
	}
	t := &Tables{
		defaults: p.Defaults,
		failure:  p.Failure,
		mask:     p.Marks.Mask,
		sport:    make([]ruleSet, noPorts+1),
		dport:    make([]ruleSet, noPorts+1),
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		bit := ruleSet(1) << i
		t.rules = append(t.rules, compileRule(r))
		addZone(&t.from, r.From, bit)
		addZone(&t.to, r.To, bit)
		addProtos(&t.proto, r.Proto, bit)
		addPorts(t.sport, r.Sport, bit)
		addPorts(t.dport, r.Dport, bit)
		t.addFlags(r.Flags, bit)
		if r.Action == policy.ActionDrop && r.To == policy.ZoneNone {
			t.early |= bit
		}
	}
	t.src = compileAddrs(p.Rules, func(r *policy.Rule) *policy.AddrMatch { return &r.Src })
	t.dst = compileAddrs(p.Rules, func(r *policy.Rule) *policy.AddrMatch { return &r.Dst })
	return t, nil
}

func compileRule(r *policy.Rule) tableRule {
	c := tableRule{action: r.Action}
	if r.Action == policy.ActionInspect {
		c.mark = uint8(policy.MarkInspect + r.Inspect)
		// Only a step that changes replies needs to see them.
		c.replies = slices.ContainsFunc(r.Steps, func(s policy.Step) bool {
			return s.Action == policy.ActionRewrite
		})
	}
	return c
}

func addZone(table *[256]ruleSet, zone policy.ZoneID, bit ruleSet) {
	if zone != policy.ZoneNone {
		table[zone] |= bit
		return
	}
	for z := range table {
		table[z] |= bit
	}
}

func addProtos(table *[256]ruleSet, protos []uint8, bit ruleSet) {
	for _, proto := range protos {
		table[proto] |= bit
	}
	if len(protos) == 0 {
		for proto := range table {
			table[proto] |= bit
		}
	}
}

func addPorts(table []ruleSet, ranges []policy.PortRange, bit ruleSet) {
	for _, r := range ranges {
		for port := int(r.First); port <= int(r.Last); port++ {
			table[port] |= bit
		}
	}
	if len(ranges) == 0 {
		for port := range table {
			table[port] |= bit
		}
	}
}

func (t *Tables) addFlags(m policy.FlagsMatch, bit ruleSet) {
	for flags := range noFlags {
		if uint8(flags)&m.Mask == m.Value {
			t.flags[flags] |= bit
		}
	}
	if m == (policy.FlagsMatch{}) {
		t.flags[noFlags] |= bit
	}
}

// compileAddrs makes the table of one address field.
func compileAddrs(rules []policy.Rule, field func(*policy.Rule) *policy.AddrMatch) []prefixSet {
	var any ruleSet
	own := make(map[netip.Prefix]ruleSet)
	for i := range rules {
		bit := ruleSet(1) << i
		m := field(&rules[i])
		if len(m.Prefixes) == 0 && len(m.Lists) == 0 {
			any |= bit
		}
		for _, prefix := range m.Prefixes {
			own[prefix.Masked()] |= bit
		}
		for _, list := range m.Lists {
			for _, prefix := range list.Prefixes {
				own[prefix.Masked()] |= bit
			}
		}
	}
	// Both roots are always there, so that every address finds an answer, and
	// no IPv4 address finds that of an IPv6 prefix around the mapped range.
	own[netip.PrefixFrom(netip.IPv4Unspecified(), 0)] |= any
	own[netip.PrefixFrom(netip.IPv6Unspecified(), 0)] |= any
	return inherit(own)
}

// inherit adds to each prefix the rules of the prefixes around it.
func inherit(own map[netip.Prefix]ruleSet) []prefixSet {
	sorted := make([]prefixSet, 0, len(own))
	for prefix, set := range own {
		sorted = append(sorted, prefixSet{prefix, set})
	}
	// Families apart, and each prefix behind all those around it.
	slices.SortFunc(sorted, func(a, b prefixSet) int {
		return cmp.Or(
			a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	var around []prefixSet // the last one is the innermost
	for i := range sorted {
		s := &sorted[i]
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(s.prefix.Addr()) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			s.set |= around[len(around)-1].set
		}
		around = append(around, *s)
	}
	for i := range sorted {
		sorted[i].prefix = mapped(sorted[i].prefix)
	}
	return sorted
}

// mapped is an IPv4 prefix in its IPv4-mapped form; IPv6 prefixes stay.
func mapped(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4() {
		return p
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
}
