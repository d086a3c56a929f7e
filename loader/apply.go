package loader

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// instance is one policy with programs and maps of its own. The maps of sharedMaps
// are those of every instance.
type instance struct {
	policy *policy.Policy
	objs   gen.FWObjects
}

// sharedMaps are what outlives a policy.
func (i *instance) sharedMaps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		gen.FWMapFlows:     i.objs.Flows,
		gen.FWMapHalfOpen:  i.objs.HalfOpen,
		gen.FWMapFragments: i.objs.Fragments,
		gen.FWMapCounters:  i.objs.Counters,
		gen.FWMapLearned:   i.objs.Learned,
		gen.FWMapListIds:   i.objs.ListIds,
	}
}

// program is the one that belongs to a hook.
func (i *instance) program(hook string) *ebpf.Program {
	switch hook {
	case hookEgress:
		return i.objs.FwTcOut
	case hookIngress:
		return i.objs.FwTc
	}
	return i.objs.FwXdp
}

// Apply puts another policy into force without a gap. Everything that can fail is
// done aside; then each hook of each guarded interface gets its new program in one
// step, so that a packet meets the one policy or the other. Known flows are judged
// anew by their next packets. On an error the policy before is in force, as if
// nothing had happened.
func (f *Firewall) Apply(p *policy.Policy) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	if p.Marks != f.policy.Marks {
		return fmt.Errorf("%s: marks.mask is 0x%08x, but packets under way have been marked under 0x%08x: restart to change it",
			p.File, p.Marks.Mask, f.policy.Marks.Mask)
	}
	places, err := f.places.Load().next(p, f.policy)
	if err != nil {
		return err
	}
	tables, err := compile(p, places)
	if err != nil {
		return err
	}
	f.numbered++
	g := f.current.Load().next(tables, f.numbered)
	objs, err := f.load(tables, g, f.sharedMaps())
	if err != nil {
		return explainLoad(err)
	}
	// Decisions go on by the program that is there.
	err = errors.Join(objs.FwDecide.Close(), objs.FwLearn.Close())
	objs.FwDecide, objs.FwLearn = f.decide, f.learn
	if err == nil {
		// Places that neither policy uses are given away before the next one looks.
		err = f.takePlaces(&f.instance, places)
	}
	if err == nil {
		err = f.swap(&instance{policy: p, objs: *objs}, g)
	}
	if err != nil {
		return errors.Join(err, f.closeInstance(&instance{objs: *objs}))
	}
	return nil
}

// closeInstance closes an instance that is not in force.
func (f *Firewall) closeInstance(i *instance) error {
	i.objs.FwDecide, i.objs.FwLearn = nil, nil
	return i.objs.Close()
}

// swap takes the programs of all hooks from the instance in force to the next.
func (f *Firewall) swap(next *instance, g *generation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	links, err := complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	if err := checkInterfaces(next.policy, links); err != nil {
		return err
	}
	for _, l := range links {
		if err := next.enterZone(l); err != nil {
			return err
		}
	}
	if next.policy.Offloads() {
		if err := next.enterPorts(links, f.xdpTakers()); err != nil {
			f.opts.Log.Warn("packets may go the ordinary way where they could be offloaded", "err", err)
		}
	}
	// Decisions about flows that the next policy has judged must be known to be
	// older from the first such flow on.
	before, old := f.current.Load(), f.instance
	if err := f.saveState(g, before); err != nil {
		return err
	}
	f.current.Store(g)
	joined, err := f.join(next, links)
	if err == nil {
		err = f.update(next)
	}
	if err != nil {
		for _, a := range joined {
			delete(f.attached, a.iface.Index)
			err = errors.Join(err, a.close())
		}
		f.current.Store(before)
		return errors.Join(err, f.forgetJudgements(g.number))
	}
	f.instance = *next
	if err := errors.Join(f.keepHits(&old), f.keepLists(&old)); err != nil {
		f.opts.Log.Warn("what the policy's rules and lists have counted before is lost", "err", err)
	}
	f.settleInterfaces()
	if err := f.closeInstance(&old); err != nil {
		f.opts.Log.Warn("closing the programs of the policy before", "err", err)
	}
	return nil
}

// join guards the interfaces that only the next policy's zones have. They come
// first: what came in there unjudged must not count as judged where it leaves.
func (f *Firewall) join(next *instance, links []netlink.Link) (joined []*attachment, err error) {
	if f.lock == nil {
		return nil, nil // nothing is attached yet
	}
	for _, l := range links {
		if f.attached[l.Attrs().Index] != nil {
			continue
		}
		a, err := f.attachTo(next, l)
		if err != nil {
			return joined, err
		}
		if a != nil {
			joined = append(joined, a)
		}
	}
	return joined, nil
}

// update gives every hook its program of the next instance, or on an error all of
// them those that they had.
func (f *Firewall) update(next *instance) error {
	type change struct {
		a *attachment
		h placedHook
	}
	var done []change
	// What leaves comes first: the mark of a rule that only the next policy has
	// means nothing to programs of the one before.
	for _, name := range []string{hookEgress, hookIngress, hookXDP} {
		for _, a := range f.attached {
			i := slices.IndexFunc(a.hooks, func(h placedHook) bool { return h.name == name })
			if i < 0 {
				continue
			}
			c := change{a, a.hooks[i]}
			err := c.h.update(next.program(name))
			if err == nil {
				done = append(done, c)
				continue
			}
			if isGone(err) || errors.Is(err, unix.ENOLINK) {
				continue // with its interface, which is forgotten when the kernel says so
			}
			err = fmt.Errorf("swapping the %s program of %s: %w", name, a.iface.Name, err)
			for _, c := range slices.Backward(done) {
				if back := c.h.update(f.program(c.h.name)); back != nil && !isGone(back) && !errors.Is(back, unix.ENOLINK) {
					err = errors.Join(err, fmt.Errorf("%s of %s keeps the refused policy's program: %w", c.h.name, c.a.iface.Name, back))
				}
			}
			return err
		}
	}
	return nil
}

// settleInterfaces lets go of what the policy in force does not guard, and notes
// what is in another zone now.
func (f *Firewall) settleInterfaces() {
	for _, a := range f.attached {
		zone := f.policy.Zone(a.iface.Name)
		if zone == policy.ZoneNone {
			f.release(a)
			continue
		}
		a.iface.Zone = f.policy.ZoneName(zone)
	}
}

// forgetJudgements has the flows judged again that a policy judged which did not
// come into force.
func (f *Firewall) forgetJudgements(number uint32) error {
	var key gen.FWFlowKey
	var flow gen.FWFlow
	for _, table := range []*ebpf.Map{f.objs.Flows, f.objs.HalfOpen} {
		entries := table.Iterate()
		for entries.Next(&key, &flow) {
			if flow.Generation != number {
				continue
			}
			flow.Generation = 0
			if err := table.Update(key, flow, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("having a flow judged again: %w", err)
			}
		}
		if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("looking for flows to judge again: %w", err)
		}
	}
	return nil
}
