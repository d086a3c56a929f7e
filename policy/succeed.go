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
		if l := p.lists[strings.TrimPrefix(n.text, "@")]; l != nil && strings.HasPrefix(n.text, "@") {
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
	return l.Type == other.Type && slices.Equal(l.Prefixes, other.Prefixes) &&
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
	free := 0
	var fresh []*Rule
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Action != ActionInspect {
			continue
		}
		old := known[r.ID]
		if old != nil && p.Failure == before.Failure && slices.EqualFunc(r.lists, old.lists, (*List).same) {
			r.Inspect = old.Inspect
			delete(known, r.ID)
			continue
		}
		fresh = append(fresh, r)
	}
	for _, r := range fresh {
		for taken[free] {
			free++
		}
		r.Inspect = free
		free++
	}
	if room := min(p.Marks.Room(), maxNumbers); free > room && len(fresh) > 0 {
		return &Errors{List: []*Error{{File: p.File, Msg: fmt.Sprintf(
			"marks.mask 0x%08x has values for %d inspecting rules; %d that have changed do not fit beside those in force: restart, or reload in two steps",
			p.Marks.Mask, room, len(fresh))}}}
	}
	return nil
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
