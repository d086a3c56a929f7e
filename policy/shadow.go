package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxCompare bounds the comparisons of one policy: a file made to be slow is only
// told less.
const maxCompare = 1 << 26

// maxJoined bounds likewise what is put in order, to look at several rules as one.
const maxJoined = 1 << 19

// maxExpanded is how many entries of a list are compared one by one. Longer ones
// are told apart by name, and by the span of their addresses.
const maxExpanded = 256

// shadows finds rules for which earlier ones leave nothing. It knows those that one
// earlier rule covers condition by condition, and those that several cover which
// differ in one condition: what it finds is so, but it does not find all.
type shadows struct {
	spans map[*List]addrRanges // of long lists
	left  int                  // comparisons
	joins int                  // ranges
}

// condition is a rule in a form that is quickly compared.
type condition struct {
	rule               *Rule
	proto              [256 / 64]uint64 // 0 where the rule does not ask
	anyProto           bool
	sport, dport, vlan []PortRange // in order and disjoint
	src, dst           addrCondition
}

type addrCondition struct {
	any, not bool
	ranges   addrRanges // prefixes and short lists
	long     []*List
}

// addrRanges are in order and disjoint.
type addrRanges []addrRange

type addrRange struct{ first, last netip.Addr }

// warnShadowed warns of rules that can never match.
func (p *reader) warnShadowed() {
	s := shadows{spans: make(map[*List]addrRanges), left: maxCompare, joins: maxJoined}
	rules := make([]condition, len(p.policy.Rules))
	for i := range rules {
		rules[i] = s.condition(&p.policy.Rules[i])
		if by := s.shadowing(rules, i); len(by) > 0 {
			p.warnf(rules[i].rule.Pos, "rules[%d] %s can never match: %s before it", i, rules[i].rule.Name, named(rules, by))
		}
	}
}

// named says which rules match all packets of one behind them.
func named(rules []condition, by []int) string {
	const most = 4
	var names []string
	for _, j := range by {
		names = append(names, fmt.Sprintf("rules[%d] %s at %v", j, rules[j].rule.Name, rules[j].rule.Pos))
	}
	switch {
	case len(by) == 1:
		return names[0] + " matches all of its packets"
	case len(by) > most:
		return fmt.Sprintf("%s and %d more match all of its packets together", strings.Join(names[:most], ", "), len(by)-most)
	}
	return strings.Join(names, ", ") + " match all of its packets together"
}

// shadowing gives the rules before rule i that leave it nothing.
func (s *shadows) shadowing(rules []condition, i int) []int {
	var alike [dims][]int // that cover it in all but one condition
	for j := range rules[:i] {
		rest, ok := s.rest(&rules[j], &rules[i])
		if !ok {
			continue
		}
		if rest == dims {
			return []int{j}
		}
		alike[rest] = append(alike[rest], j)
	}
	for d := range dims {
		if len(alike[d]) > 1 && s.together(rules, alike[d], &rules[i], d) {
			return alike[d]
		}
	}
	return nil
}

// dim is a condition in which several rules may cover one together.
type dim int

const (
	dimProto dim = iota
	dimSport
	dimDport
	dimSrc
	dimDst
	dims // all of them
)

func (s *shadows) condition(r *Rule) condition {
	c := condition{rule: r, anyProto: len(r.Proto) == 0, sport: merged(r.Sport), dport: merged(r.Dport)}
	for _, proto := range r.Proto {
		c.proto[proto/64] |= 1 << (proto % 64)
	}
	vlan := make([]PortRange, len(r.VLAN))
	for i, v := range r.VLAN {
		vlan[i] = PortRange(v)
	}
	c.vlan = merged(vlan)
	c.src, c.dst = s.address(&r.Src), s.address(&r.Dst)
	return c
}

func (s *shadows) address(m *AddrMatch) addrCondition {
	c := addrCondition{any: m.Any(), not: m.Not}
	prefixes := slices.Clone(m.Prefixes)
	for _, l := range m.Lists {
		if len(l.Prefixes) <= maxExpanded {
			prefixes = append(prefixes, l.Prefixes...)
			continue
		}
		c.long = append(c.long, l)
		if s.spans[l] == nil {
			s.spans[l] = span(l.Prefixes)
		}
	}
	c.ranges = rangesOf(prefixes)
	return c
}

// coversDynamic tells that what dynamic lists will hold does not matter.
func coversDynamic(a, b *AddrMatch) bool { return a.Any() || !a.dynamic() && !b.dynamic() }

// rest tells in which condition a may leave something of b, dims where in none; ok is
// false where it may in several, or in another. The cheap comparisons come first.
func (s *shadows) rest(a, b *condition) (rest dim, ok bool) {
	x, y := a.rule, b.rule
	if x.Limit.Limited() || !coversDynamic(&x.Src, &y.Src) || !coversDynamic(&x.Dst, &y.Dst) || !coversZone(x.From, x.NotFrom, y.From, y.NotFrom) || !coversZone(x.To, x.NotTo, y.To, y.NotTo) ||
		x.Flags.Mask&y.Flags.Mask != x.Flags.Mask || x.Flags.Value != y.Flags.Value&x.Flags.Mask ||
		x.DSCP != 0 && (y.DSCP == 0 || y.DSCP&^x.DSCP != 0) ||
		x.Fragment != FragmentAny && x.Fragment != y.Fragment ||
		!s.coversRanges(a.vlan, b.vlan) || !s.coversICMP(&x.ICMP, &y.ICMP) {
		return 0, false
	}
	rest = dims
	for d, covers := range [dims]func() bool{
		dimProto: func() bool { return a.anyProto || !b.anyProto && coversProto(&a.proto, &b.proto) },
		dimSport: func() bool { return s.coversRanges(a.sport, b.sport) },
		dimDport: func() bool { return s.coversRanges(a.dport, b.dport) },
		dimSrc:   func() bool { return s.coversAddr(&a.src, &b.src) },
		dimDst:   func() bool { return s.coversAddr(&a.dst, &b.dst) },
	} {
		if covers() {
			continue
		}
		if rest != dims {
			return 0, false
		}
		rest = dim(d)
	}
	return rest, true
}

func coversProto(a, b *[256 / 64]uint64) bool {
	for i, bits := range b {
		if bits&^a[i] != 0 {
			return false
		}
	}
	return true
}

// together tells whether rules that cover b in all other conditions cover it in this
// one, too, if all are taken together.
func (s *shadows) together(rules []condition, by []int, b *condition, d dim) bool {
	var all condition
	addr := func(c *addrCondition, more *addrCondition) {
		if !more.not {
			c.ranges, c.long = append(c.ranges, more.ranges...), append(c.long, more.long...)
		}
	}
	for _, j := range by {
		r := &rules[j]
		s.joins -= 1 + len(r.sport) + len(r.dport) + len(r.src.ranges) + len(r.dst.ranges)
		if s.joins < 0 {
			return false
		}
		for i, bits := range r.proto {
			all.proto[i] |= bits
		}
		all.sport, all.dport = append(all.sport, r.sport...), append(all.dport, r.dport...)
		addr(&all.src, &r.src)
		addr(&all.dst, &r.dst)
	}
	switch d {
	case dimProto:
		return !b.anyProto && coversProto(&all.proto, &b.proto)
	case dimSport:
		return s.coversRanges(merged(all.sport), b.sport)
	case dimDport:
		return s.coversRanges(merged(all.dport), b.dport)
	case dimSrc:
		all.src.ranges = joined(all.src.ranges)
		return s.coversAddr(&all.src, &b.src)
	}
	all.dst.ranges = joined(all.dst.ranges)
	return s.coversAddr(&all.dst, &b.dst)
}

// spend counts comparisons. It returns false where there were too many.
func (s *shadows) spend(n int) bool {
	s.left -= n
	return s.left > 0
}

func coversZone(a ZoneID, notA bool, b ZoneID, notB bool) bool {
	switch {
	case a == ZoneNone:
		return true
	case b == ZoneNone:
		return false
	case !notA:
		return a == b && !notB
	}
	return (a == b) == notB
}

// coversRanges tells whether each range of b lies within one of a.
func (s *shadows) coversRanges(a, b []PortRange) bool {
	if len(a) == 0 {
		return true
	}
	for _, r := range b {
		i, exact := slices.BinarySearchFunc(a, r, func(x, r PortRange) int { return int(x.First) - int(r.First) })
		if !exact {
			i--
		}
		if !s.spend(1) || i < 0 || a[i].Last < r.Last {
			return false
		}
	}
	return len(b) > 0
}

// coversICMP compares conditions of rules for the same protocol.
func (s *shadows) coversICMP(a, b *ICMPMatch) bool {
	within := func(in []ICMPType) func(ICMPType) bool {
		return func(t ICMPType) bool {
			return !slices.ContainsFunc(in, func(x ICMPType) bool {
				return x.Type == t.Type && (x.AnyCode || !t.AnyCode && x.Code == t.Code)
			})
		}
	}
	overlaps := func(t ICMPType) bool {
		return slices.ContainsFunc(a.Types, func(x ICMPType) bool {
			return x.Type == t.Type && (x.AnyCode || t.AnyCode || x.Code == t.Code)
		})
	}
	switch {
	case len(a.Types) == 0:
		return true
	case len(b.Types) == 0 || !s.spend(len(a.Types)*len(b.Types)):
		return false
	case a.Not && b.Not:
		return !slices.ContainsFunc(a.Types, within(b.Types))
	case a.Not:
		return !slices.ContainsFunc(b.Types, overlaps)
	}
	return !b.Not && !slices.ContainsFunc(b.Types, within(a.Types))
}

func (s *shadows) coversAddr(a, b *addrCondition) bool {
	switch {
	case a.any:
		return true
	case b.any:
		return false
	case a.not && b.not: // where a leaves out no more than b
		return s.within(b, a)
	case a.not:
		return len(a.long) == 0 && len(b.long) == 0 && s.apart(a.ranges, b.ranges)
	}
	return !b.not && s.within(a, b)
}

// within tells whether all that b names is among what a names.
func (s *shadows) within(a, b *addrCondition) bool {
	for _, l := range b.long {
		if !slices.Contains(a.long, l) && !s.holds(a.ranges, s.spans[l]) {
			return false
		}
	}
	return s.holds(a.ranges, b.ranges)
}

// holds tells whether each range of b lies within one of a.
func (s *shadows) holds(a, b addrRanges) bool {
	for _, r := range b {
		if i := a.at(r.first); !s.spend(1) || i < 0 || a[i].last.Less(r.last) || r.first.Is4() != a[i].first.Is4() {
			return false
		}
	}
	return true
}

// apart tells whether no range of a meets one of b.
func (s *shadows) apart(a, b addrRanges) bool {
	for _, r := range b {
		if i := a.at(r.last); !s.spend(1) || i >= 0 && a[i].last.Compare(r.first) >= 0 {
			return false
		}
	}
	return true
}

// at returns the index of the last range that begins at addr or before it, or -1.
func (a addrRanges) at(addr netip.Addr) int {
	i, exact := slices.BinarySearchFunc(a, addr, func(x addrRange, addr netip.Addr) int { return x.first.Compare(addr) })
	if !exact {
		i--
	}
	return i
}

// merged puts ranges in order and joins those that touch.
func merged(ranges []PortRange) []PortRange {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b PortRange) int { return int(a.First) - int(b.First) })
	out := sorted[:0]
	for _, r := range sorted {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// rangesOf are the addresses of prefixes.
func rangesOf(prefixes []netip.Prefix) addrRanges {
	ranges := make(addrRanges, len(prefixes))
	for i, p := range prefixes {
		ranges[i] = addrRange{p.Addr(), lastOf(p)}
	}
	return joined(ranges)
}

// joined puts ranges in order and joins those that touch.
func joined(ranges addrRanges) addrRanges {
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	out := ranges[:0]
	for _, r := range ranges {
		n := len(out)
		if n == 0 || out[n-1].first.Is4() != r.first.Is4() || out[n-1].last.Less(r.first) && out[n-1].last.Next() != r.first {
			out = append(out, r)
		} else if out[n-1].last.Less(r.last) {
			out[n-1].last = r.last
		}
	}
	return out
}

// span is, by family, from the lowest address to the highest.
func span(prefixes []netip.Prefix) addrRanges {
	var of [2]addrRange
	for _, p := range prefixes {
		r := &of[0]
		if p.Addr().Is6() {
			r = &of[1]
		}
		if last := lastOf(p); !r.first.IsValid() {
			*r = addrRange{p.Addr(), last}
		} else {
			if p.Addr().Less(r.first) {
				r.first = p.Addr()
			}
			if r.last.Less(last) {
				r.last = last
			}
		}
	}
	return slices.DeleteFunc(of[:], func(r addrRange) bool { return !r.first.IsValid() })
}

// lastOf is the highest address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		if n := p.Bits() - 8*i; n < 8 {
			b[i] |= 0xff >> max(n, 0)
		}
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}
