package loader

import (
	"slices"

	"github.com/hybridfw/hybridfw/policy"
)

// differ is the set of the rules that are in one of the sets only.
func differ(a, b ruleSet) ruleSet {
	c := slices.Clone(a)
	for i := range c {
		c[i] ^= b[i]
	}
	return c
}

// looks tells whether some rule has a condition.
func looks(rules []policy.Rule, at func(*policy.Rule) bool) bool {
	return slices.ContainsFunc(rules, func(r policy.Rule) bool { return at(&r) })
}

// vlans gives the set's number of each VLAN id. Where the id is not known every rule
// may match.
func (p *setPool) vlans(rules []policy.Rule) []uint32 {
	table := p.ranges(rules, maxVLAN, func(r *policy.Rule) []policy.PortRange {
		ranges := make([]policy.PortRange, len(r.VLAN))
		for i, v := range r.VLAN {
			ranges[i] = policy.PortRange(v)
		}
		return ranges
	})
	if table != nil {
		table[maxVLAN] = p.number(p.where(rules, func(*policy.Rule) bool { return true }))
	}
	return table
}

// ip gives the set's number of each code point, for whole packets and behind them
// for fragments. It is nil where no rule looks.
func (p *setPool) ip(rules []policy.Rule) *[maxIP]uint32 {
	if !looks(rules, func(r *policy.Rule) bool { return r.DSCP != 0 || r.Fragment != policy.FragmentAny }) {
		return nil
	}
	table := new([maxIP]uint32)
	for i := range table {
		dscp, fragment := i%(maxIP/2), i >= maxIP/2
		table[i] = p.number(p.where(rules, func(r *policy.Rule) bool {
			return (r.DSCP == 0 || r.DSCP>>dscp&1 != 0) &&
				(r.Fragment == policy.FragmentAny || (r.Fragment == policy.FragmentOnly) == fragment)
		}))
	}
	return table
}

// icmp gives the set's number of each type and code of ICMP, and behind them of
// ICMPv6. It is nil where no rule looks. It goes through what the rules name, not
// through all rules for each type and code.
func (p *setPool) icmp(rules []policy.Rule) []uint32 {
	if !looks(rules, func(r *policy.Rule) bool { return len(r.ICMP.Types) > 0 }) {
		return nil
	}
	table := make([]uint32, 0, 2*icmpSets)
	for _, proto := range []uint8{protoICMPNumber, protoICMPv6Number} {
		base := p.where(rules, func(r *policy.Rule) bool {
			return matchesProto(r, proto) && r.Flags == policy.FlagsMatch{} && len(r.ICMP.Types) == 0
		})
		not := p.where(rules, func(r *policy.Rule) bool {
			return matchesProto(r, proto) && r.ICMP.Not && len(r.ICMP.Types) > 0
		})
		table = append(table, p.icmpOf(rules, proto, base, not)...)
	}
	return table
}

// icmpOf gives one protocol's numbers, from the sets of the rules that match all
// types and of those that name what they do not match.
func (p *setPool) icmpOf(rules []policy.Rule, proto uint8, base, not ruleSet) []uint32 {
	var types [256]ruleSet              // rules that name the type, with any code
	codes := make(map[[2]uint8]ruleSet) // that name the code
	for i := range rules {
		r := &rules[i]
		if !matchesProto(r, proto) {
			continue
		}
		for _, t := range r.ICMP.Types {
			if t.AnyCode {
				if types[t.Type] == nil {
					types[t.Type] = p.empty()
				}
				types[t.Type].add(i)
				continue
			}
			key := [2]uint8{t.Type, t.Code}
			if codes[key] == nil {
				codes[key] = p.empty()
			}
			codes[key].add(i)
		}
	}
	result := func(named ruleSet) uint32 {
		return p.number(union(base, differ(named, not)))
	}
	table := make([]uint32, 0, icmpSets)
	for t, named := range types {
		if named == nil {
			named = p.empty()
		}
		anyCode := result(named)
		for code := range 256 {
			n := anyCode
			if c := codes[[2]uint8{uint8(t), uint8(code)}]; c != nil {
				n = result(union(named, c))
			}
			table = append(table, n)
		}
	}
	return table
}
