package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// What dynamic lists hold outlives policies and processes, so each has its place in
// struct membership for as long as some policy names it.

// listPlaces are the places of dynamic lists, by policy.Dynamic.ID; 0 is a free one.
type listPlaces [policy.MaxDynamic]uint64

func (l *listPlaces) of(id uint64) int { return slices.Index(l[:], id) }

// next gives the lists of a policy their places: those that they have, or free ones.
// A place that the policy in force uses is not given to another list.
func (l listPlaces) next(p, inForce *policy.Policy) (listPlaces, error) {
	var used, next listPlaces
	for _, list := range inForce.DynamicLists() {
		if i := l.of(list.Dynamic.ID); i >= 0 {
			used[i], next[i] = list.Dynamic.ID, list.Dynamic.ID
		}
	}
	lists := p.DynamicLists()
	// What is there already keeps what it holds, whoever has left it.
	for _, list := range lists {
		if i := l.of(list.Dynamic.ID); i >= 0 {
			next[i] = list.Dynamic.ID
		}
	}
	for _, list := range lists {
		if next.of(list.Dynamic.ID) >= 0 {
			continue
		}
		i := next.of(0)
		if i < 0 {
			return l, fmt.Errorf("%s:%v: there is no place for the dynamic list %s beside those in force: %d fit together; reload in two steps",
				p.File, list.Pos, list.Name, policy.MaxDynamic)
		}
		next[i] = list.Dynamic.ID
	}
	return next, nil
}

// compileDynamic makes the sets of each choice of dynamic lists: for sources and for
// destinations, of the rules that they add to an address's set and of those that they
// leave.
func (t *Tables) compileDynamic(p *policy.Policy, places listPlaces) {
	lists := p.DynamicLists()
	if len(lists) == 0 {
		return
	}
	t.dynamic = true
	fields := [...]func(*policy.Rule) *policy.AddrMatch{
		func(r *policy.Rule) *policy.AddrMatch { return &r.Src },
		func(r *policy.Rule) *policy.AddrMatch { return &r.Dst },
	}
	// named is the places of the lists that a rule names in a field.
	named := func(m *policy.AddrMatch) (places8 uint8) {
		for _, l := range m.Lists {
			if l.Type == policy.ListDynamic {
				places8 |= 1 << places.of(l.Dynamic.ID)
			}
		}
		return places8
	}
	// Places that others use mean nothing here, but may be set.
	t.dynamicSets = uint32(t.sets.len())
	for choice := range 1 << policy.MaxDynamic {
		for _, field := range fields {
			add, leave := t.sets.empty(), t.sets.empty()
			for i := range p.Rules {
				m := field(&p.Rules[i])
				in := named(m)&uint8(choice) != 0
				if in && !m.Not {
					add.add(i)
				}
				if !in || !m.Not {
					leave.add(i)
				}
			}
			t.sets.add(add)
			t.sets.add(leave)
		}
	}
	for i, r := range t.rules {
		if m := &p.Rules[i].Src; r.early() && !m.Not {
			t.dynamicEarly |= named(m)
		}
	}
}

// learnedPlaces reads which lists the places in the table of learned addresses stand
// for.
func (i *instance) learnedPlaces() (places listPlaces, err error) {
	var ids gen.FWListPlaces
	if err := i.objs.ListIds.Lookup(uint32(0), &ids); err != nil {
		return places, fmt.Errorf("reading the places of dynamic lists: %w", err)
	}
	return ids.Id, nil
}

// takePlaces makes places those of the lists of the next policy and of the one in
// force, and empties those that were another's.
func (f *Firewall) takePlaces(i *instance, next listPlaces) error {
	before, err := i.learnedPlaces()
	if err != nil {
		return err
	}
	for place, id := range next {
		if before[place] != 0 && id != before[place] {
			if err := f.empty(i, place); err != nil {
				return err
			}
		}
	}
	if err := i.objs.ListIds.Put(uint32(0), gen.FWListPlaces{Id: next}); err != nil {
		return fmt.Errorf("noting the places of dynamic lists: %w", err)
	}
	f.places.Store(&next)
	return nil
}

// eachLearned calls a function for each address in the table.
func (i *instance) eachLearned(do func(gen.FWAddress, *gen.FWMembership) error) error {
	var addr gen.FWAddress
	var l gen.FWMembership
	entries := i.objs.Learned.Iterate()
	for entries.Next(&addr, &l) {
		if err := do(addr, &l); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("reading the addresses of dynamic lists: %w", err)
	}
	return nil
}

func (f *Firewall) empty(i *instance, place int) error {
	return i.eachLearned(func(addr gen.FWAddress, l *gen.FWMembership) error {
		if l.Until[place] == 0 {
			return nil
		}
		return f.note(gen.FWLearning{Addr: addr, List: uint32(place)})
	})
}

// Learn puts an address into a dynamic list for a time. Packets that begin flows find
// it there at once. A list that no policy in force names takes nothing.
func (f *Firewall) Learn(list *policy.List, addr netip.Addr, ttl time.Duration) error {
	place := f.places.Load().of(list.Dynamic.ID)
	if place < 0 {
		return nil
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	return f.note(gen.FWLearning{Addr: gen.FWAddress{Addr: addr.As16()}, Until: now + uint64(ttl), List: uint32(place)})
}

// note runs fw_learn.
func (f *Firewall) note(l gen.FWLearning) error {
	code, err := f.learn.Run(&ebpf.RunOptions{Context: &l})
	if err != nil {
		return fmt.Errorf("running fw_learn: %w", err)
	}
	if code != 0 {
		return errors.New("the table of dynamic lists takes no address")
	}
	return nil
}

// learnedCounts is how many addresses each place has.
func (i *instance) learnedCounts() (counts [policy.MaxDynamic]int, err error) {
	if len(i.policy.DynamicLists()) == 0 {
		return counts, nil // walking through the empty table takes longer than all else
	}
	now, err := monotonic()
	if err != nil {
		return counts, err
	}
	err = i.eachLearned(func(_ gen.FWAddress, l *gen.FWMembership) error {
		for place, until := range l.Until {
			if until > now {
				counts[place]++
			}
		}
		return nil
	})
	return counts, err
}
