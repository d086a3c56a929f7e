package policy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// maxNumbers is how many numbers of inspecting rules the kernel half tells apart:
// those of two policies, see bpf/hybridfw.h.
const maxNumbers = 8191

// named lists the lists that a rule's text names.
func (p *reader) named(n *node) []*List {
	var lists []*List
	if n.kind == kindString {
		name, ok := strings.CutPrefix(strings.TrimPrefix(n.text, "!"), "@")
		if l := p.lists[name]; l != nil && ok {
			lists = append(lists, l)
		}
	}
	for _, item := range n.items {
		lists = append(lists, p.named(item)...)
	}
	for _, f := range n.fields {
		lists = append(lists, p.named(f.value)...)
	}
	return lists
}

// same tells whether two lists have the same entries in the same order.
func (l *List) same(other *List) bool {
	return l.Type == other.Type && l.Dynamic.ID == other.Dynamic.ID && slices.Equal(l.Prefixes, other.Prefixes) &&
		bytes.Equal(l.Domains.names, other.Domains.names)
}

// Succeed numbers p's inspecting rules as the policy that replaces before: a rule
// that does the same as one of before's keeps its number, and no other gets a
// number that before uses, or that is among held, those of policies before it
// whose packets may still wait. So a marked packet is told by its number whichever
// policy marked it. Succeed is called once, before p is used.
func (p *Policy) Succeed(before *Policy, held []int) error {
	taken := make(map[int]bool)
	for _, n := range held {
		taken[n] = true
	}
	known := make(map[uint32]*Rule)
	for i := range before.Rules {
		if r := &before.Rules[i]; r.Action == ActionInspect {
			taken[r.Inspect] = true
			known[r.ID] = r
		}
	}
	changed, ok := p.number(taken, func(r *Rule) (int, bool) {
		old := known[r.ID]
		if old == nil || p.Failure != before.Failure || !slices.EqualFunc(r.lists, old.lists, (*List).same) {
			return 0, false
		}
		delete(known, r.ID)
		return old.Inspect, true
	})
	if !ok {
		return &Errors{List: []*Error{{File: p.File, Msg: fmt.Sprintf(
			"marks.mask 0x%08x has values for %d inspecting rules; %d that have changed do not fit beside those in force: restart, or reload in two steps",
			p.Marks.Mask, p.Marks.Room(), changed)}}}
	}
	return nil
}

// Resume is Succeed where of the policy before only the numbers of its rules and
// their ids are known: that of a process that is gone. Where there is no room for
// numbers of their own the rules keep those that Parse has given them.
func (p *Policy) Resume(ids map[int]uint32) {
	taken := make(map[int]bool)
	known := make(map[uint32]int)
	for n, id := range ids {
		taken[n] = true
		known[id] = n
	}
	p.number(taken, func(r *Rule) (int, bool) {
		n, ok := known[r.ID]
		delete(known, r.ID)
		return n, ok
	})
}

// number gives inspecting rules the numbers that keep knows for them, and the
// others free ones, of which it returns how many there are. ok is false where there
// is no room: then nothing is changed.
func (p *Policy) number(taken map[int]bool, keep func(*Rule) (int, bool)) (fresh int, ok bool) {
	numbers := make(map[*Rule]int)
	var others []*Rule
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Action != ActionInspect {
			continue
		}
		if n, ok := keep(r); ok {
			numbers[r] = n
		} else {
			others = append(others, r)
		}
	}
	free := 0
	for _, r := range others {
		for taken[free] {
			free++
		}
		numbers[r] = free
		free++
	}
	room := min(p.Marks.Room(), maxNumbers)
	for _, n := range numbers {
		if n >= room {
			return len(others), false
		}
	}
	for r, n := range numbers {
		r.Inspect = n
	}
	return len(others), true
}

// KeepPinned puts the pinned rules of before that p has no rule of the same name
// for in front of p's rules, and returns their names. Their zones must be there.
// It is called once, before Succeed.
func (p *Policy) KeepPinned(before *Policy) (names []string, err error) {
	var kept []Rule
	var errs Errors
	for _, r := range before.Rules {
		if !r.Pin || slices.ContainsFunc(p.Rules, func(own Rule) bool { return own.Name == r.Name }) {
			continue
		}
		for _, zone := range []*ZoneID{&r.From, &r.To} {
			name := before.ZoneName(*zone)
			if *zone == ZoneNone || *zone == ZoneHost {
				continue
			}
			i := slices.IndexFunc(p.Zones, func(z Zone) bool { return z.Name == name })
			if i < 0 {
				errs.List = append(errs.List, &Error{File: p.File, Msg: fmt.Sprintf(
					"rule %s of the policy in force is pinned, and its zone %s is missing; expected the zone, a rule of the name %s, or --drop-pinned",
					r.Name, name, r.Name)})
				break
			}
			*zone = ZoneID(i + 1)
		}
		kept = append(kept, r)
		names = append(names, r.Name)
	}
	if len(errs.List) == 0 && len(kept)+len(p.Rules) > MaxRules {
		errs.List = append(errs.List, &Error{File: p.File, Msg: fmt.Sprintf(
			"%d rules, and %d pinned ones of the policy in force; expected at most %d together, or --drop-pinned", len(p.Rules), len(kept), MaxRules)})
	}
	if len(errs.List) > 0 {
		return nil, &errs
	}
	p.Rules = append(kept, p.Rules...)
	return names, nil
}
