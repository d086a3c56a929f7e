package loader

import (
	"encoding/binary"
	"slices"

	"github.com/hybridfw/hybridfw/policy"
)

// ruleSet is a set of rules as a bit vector: bit i of word i/64 stands for rule
// i. Sets are not changed once they are in a pool.
type ruleSet []uint64

func (s ruleSet) add(rule int) { s[rule/64] |= 1 << (rule % 64) }

func intersect(a, b ruleSet) ruleSet {
	c := slices.Clone(a)
	for i := range c {
		c[i] &= b[i]
	}
	return c
}

func union(a, b ruleSet) ruleSet {
	c := slices.Clone(a)
	for i := range c {
		c[i] |= b[i]
	}
	return c
}

// setPool numbers sets, equal ones alike.
type setPool struct {
	words   int
	sets    []ruleSet
	numbers map[string]uint32
	unions  map[[2]uint32]uint32
	full    bool // a set more than fits was asked for
}

// maxSetBytes bounds the memory of all sets of a policy.
var maxSetBytes = 512 << 20

func newSetPool(rules int) *setPool {
	return &setPool{
		words:   max(1, (rules+63)/64),
		numbers: make(map[string]uint32),
		unions:  make(map[[2]uint32]uint32),
	}
}

func (p *setPool) empty() ruleSet { return make(ruleSet, p.words) }

func (p *setPool) len() int { return len(p.sets) }

// add gives a set a new number, whether there is an equal one or not. Where there
// are too many it goes on with any other set: the policy is refused in the end.
func (p *setPool) add(s ruleSet) uint32 {
	if 8*p.words*(len(p.sets)+1) > maxSetBytes {
		p.full = true
		return 0
	}
	p.sets = append(p.sets, s)
	return uint32(len(p.sets) - 1)
}

// number gives the number of an equal set, or a new one.
func (p *setPool) number(s ruleSet) uint32 {
	key := make([]byte, 0, 8*len(s))
	for _, w := range s {
		key = binary.NativeEndian.AppendUint64(key, w)
	}
	if n, ok := p.numbers[string(key)]; ok {
		return n
	}
	n := p.add(slices.Clone(s))
	if !p.full {
		p.numbers[string(key)] = n
	}
	return n
}

// union numbers the union of two numbered sets. Of a list of a million prefixes
// nearly all ask for the same one.
func (p *setPool) union(a, b uint32) uint32 {
	if a == b {
		return a
	}
	key := [2]uint32{min(a, b), max(a, b)}
	n, ok := p.unions[key]
	if !ok {
		n = p.number(union(p.sets[a], p.sets[b]))
		p.unions[key] = n
	}
	return n
}

// where is the set of the rules for which a condition holds.
func (p *setPool) where(rules []policy.Rule, holds func(*policy.Rule) bool) ruleSet {
	s := p.empty()
	for i := range rules {
		if holds(&rules[i]) {
			s.add(i)
		}
	}
	return s
}

// after is the set of the rules behind one.
func (p *setPool) after(rule int) ruleSet {
	s := p.empty()
	for i := rule + 1; i < 64*p.words; i++ {
		s.add(i)
	}
	return s
}

// byZone puts zones that no rule tells apart into one class, and gives the set
// of each class.
func (p *setPool) byZone(rules []policy.Rule, match func(*policy.Rule, policy.ZoneID) bool) (class [256]uint16, sets []ruleSet) {
	of := make(map[uint32]uint16) // class by number of its set
	for zone := range class {
		s := p.where(rules, func(r *policy.Rule) bool {
			return match(r, policy.ZoneID(zone))
		})
		n := p.number(s)
		c, ok := of[n]
		if !ok {
			c = uint16(len(sets))
			of[n] = c
			sets = append(sets, s)
		}
		class[zone] = c
	}
	return class, sets
}

// ranges gives the set's number of each value below n, by a sweep over the ranges'
// ends, and behind them that of packets without one. It is nil where no rule looks
// at the field.
func (p *setPool) ranges(rules []policy.Rule, n int, field func(*policy.Rule) []policy.PortRange) []uint32 {
	begins, ends := make(map[int][]int), make(map[int][]int) // rules by port
	open := make([]int, len(rules))                          // ranges of a rule that are open
	current := p.empty()
	looks := false
	for i := range rules {
		ranges := field(&rules[i])
		for _, r := range ranges {
			looks = true
			begins[int(r.First)] = append(begins[int(r.First)], i)
			ends[int(r.Last)+1] = append(ends[int(r.Last)+1], i)
		}
		if len(ranges) == 0 {
			current.add(i)
		}
	}
	if !looks {
		return nil
	}
	none := p.number(current)
	table := make([]uint32, n+1)
	number := none
	for port := range n {
		if len(begins[port])+len(ends[port]) > 0 {
			for _, i := range begins[port] {
				open[i]++
				current.add(i)
			}
			for _, i := range ends[port] {
				if open[i]--; open[i] == 0 {
					current[i/64] &^= 1 << (i % 64)
				}
			}
			number = p.number(current)
		}
		table[port] = number
	}
	table[n] = none
	return table
}
