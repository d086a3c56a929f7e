package loader

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// listEntry says to which list packets of a rule count whose address has a set, where
// the rule names several.
type listEntry struct {
	key  gen.FWListKey
	list uint32 // index into Policy.Lists
}

func (t *Tables) compileLists(p *policy.Policy, src, dst addrTable) {
	t.listCount = len(p.Lists)
	for dir, table := range []addrTable{src, dst} {
		for _, b := range table.lists {
			// A pinned rule's lists may have gone with the policy before.
			if list := slices.Index(p.Lists, b.list); list >= 0 {
				t.lists = append(t.lists, listEntry{
					gen.FWListKey{Set: b.set, Rule: uint16(b.rule), Dst: uint8(dir)}, uint32(list)})
			}
		}
	}
}

func (t *Tables) fillLists(m *ebpf.Map) error {
	keys, lists := make([]gen.FWListKey, len(t.lists)), make([]uint32, len(t.lists))
	for i, e := range t.lists {
		keys[i], lists[i] = e.key, e.list
	}
	return fill(m, keys, lists)
}

// ListHits are the packets that rules have judged by a list of addresses: as with
// RuleHits those that began flows, and those that were dropped. A packet counts for
// the first of a rule's lists that its source is in, and so for its destination;
// negated lists count nothing. What lists of names match is counted by user space
// alone, and not by list.
type ListHits struct {
	List    string  `json:"list"`
	Type    string  `json:"type"` // "cidr", "domain" or "dynamic"
	Line    int     `json:"line"` // of the policy file
	File    string  `json:"file,omitempty"`
	Entries int     `json:"entries"`
	Packets *uint64 `json:"packets,omitempty"` // nil for names
	Bytes   *uint64 `json:"bytes,omitempty"`   // of frames
}

// Lists lists all lists of the policy in force in their order. A list that an earlier
// policy had under the same name goes on counting.
func (f *Firewall) Lists() ([]ListHits, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts, err := f.instance.listCounts()
	if err != nil {
		return nil, err
	}
	learned, err := f.learnedCounts()
	if err != nil {
		return nil, err
	}
	all := make([]ListHits, 0, len(f.policy.Lists))
	for i, l := range f.policy.Lists {
		h := ListHits{List: l.Name, Type: l.Type.String(), Line: l.Pos.Line, File: l.File, Entries: l.Domains.Len()}
		if l.Type == policy.ListDynamic {
			if place := f.places.Load().of(l.Dynamic.ID); place >= 0 {
				h.Entries = learned[place]
			}
		}
		if l.Type != policy.ListDomain {
			h.Entries += len(l.Prefixes)
			before := f.listsBefore[l.Name]
			c := tally{counts[i].packets + before.packets, counts[i].bytes + before.bytes}
			h.Packets, h.Bytes = &c.packets, &c.bytes
		}
		all = append(all, h)
	}
	return all, nil
}

type tally struct{ packets, bytes uint64 }

// listCounts gives what each list of the policy has matched.
func (i *instance) listCounts() ([]tally, error) {
	counts := make([]tally, len(i.policy.Lists))
	var perCPU []gen.FWCounter
	for n := range counts {
		if err := i.objs.ListCounters.Lookup(uint32(n), &perCPU); err != nil {
			return nil, fmt.Errorf("reading the counter of list %d: %w", n, err)
		}
		counts[n].packets, counts[n].bytes = sum(perCPU)
	}
	hits, err := i.hits()
	if err != nil {
		return nil, err
	}
	for n := range i.policy.Rules {
		r := &i.policy.Rules[n]
		for _, m := range []*policy.AddrMatch{&r.Src, &r.Dst} {
			if m.Not || len(m.Lists) != 1 || len(m.Prefixes) > 0 {
				continue
			}
			if list := slices.Index(i.policy.Lists, m.Lists[0]); list >= 0 {
				counts[list].packets += hits[n].Packets
				counts[list].bytes += hits[n].Bytes
			}
		}
	}
	return counts, nil
}

// keepLists adds what an instance has counted that is no longer in force. The caller
// holds f.mu.
func (f *Firewall) keepLists(old *instance) error {
	counts, err := old.listCounts()
	if err != nil {
		return err
	}
	if f.listsBefore == nil {
		f.listsBefore = make(map[string]tally)
	}
	for i, l := range old.policy.Lists {
		before := f.listsBefore[l.Name]
		f.listsBefore[l.Name] = tally{before.packets + counts[i].packets, before.bytes + counts[i].bytes}
	}
	return nil
}
