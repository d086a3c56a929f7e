package loader

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
)

// The maps that outlive a policy are pinned under their names, so that they outlive
// the process too: the next one goes on with its flows. Beside them is "state",
// which says what their entries mean and which policy judged last.
const statePin = "state"

var pinnedMaps = slices.Sorted(maps.Keys(new(instance).sharedMaps()))

// state is the value of the map "state".
type state struct {
	Layout     uint32 // gen.FWLimitsLAYOUT of who wrote it
	Generation uint32 // the last that was given
}

// heir is a map that takes over the entries of an earlier one of another size.
type heir struct {
	name string
	from *ebpf.Map
}

// readState returns what a process before has left; ok is false where it left
// nothing that can be used.
func (f *Firewall) readState() (s state, ok bool) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(f.opts.PinDir, statePin), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, errNotExist) {
		return s, false
	}
	if err == nil {
		defer m.Close()
		err = m.Lookup(uint32(0), &s)
	}
	if err != nil || s.Layout != uint32(gen.FWLimitsLAYOUT) {
		f.opts.Log.Warn("flows of the process before are not taken over: their entries have another layout",
			"layout", s.Layout, "expected", uint32(gen.FWLimitsLAYOUT), "err", err)
		return s, false
	}
	return s, true
}

// inherit opens the maps that a process before has left. Those of the size that
// spec asks for are used as they are, of others the entries are copied.
func (f *Firewall) inherit(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	found := make(map[string]*ebpf.Map)
	for _, name := range pinnedMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(f.opts.PinDir, name), nil)
		if errors.Is(err, errNotExist) {
			continue
		}
		want := spec.Maps[name].Copy()
		if err == nil {
			if err = want.Compatible(m); err == nil {
				found[name] = m
				continue
			}
			size := want.MaxEntries
			if want.MaxEntries = m.MaxEntries(); want.Compatible(m) == nil && m.Type() == ebpf.LRUHash {
				f.opts.Log.Info("entries of the process before are copied: the table has another size", "map", name, "before", m.MaxEntries(), "now", size)
				f.heirs = append(f.heirs, heir{name: name, from: m})
				continue
			}
			err = errors.Join(err, m.Close())
		}
		f.opts.Log.Warn("what the process before has left is not taken over", "map", name, "err", err)
	}
	return found
}

// copyEntries copies what the heirs do not have themselves.
func (f *Firewall) copyEntries() error {
	for _, h := range f.heirs {
		to := f.sharedMaps()[h.name]
		key, value := make([]byte, h.from.KeySize()), make([]byte, h.from.ValueSize())
		entries := h.from.Iterate()
		for entries.Next(&key, &value) {
			if err := to.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("copying the entries of %v: %w", h.from, err)
			}
		}
		if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("reading the entries of %v: %w", h.from, err)
		}
	}
	return nil
}

// endHeritage copies what has come since, when no program writes to the earlier
// maps any more, and lets go of them.
func (f *Firewall) endHeritage() error {
	err := f.copyEntries()
	for _, h := range f.heirs {
		err = errors.Join(err, h.from.Close())
	}
	f.heirs = nil
	return err
}

// pinMaps pins what the next process goes on with.
func (f *Firewall) pinMaps() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "fw_state", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("making the map of the state: %w", err)
	}
	f.state = m
	if err := f.saveState(f.numbered); err != nil {
		return err
	}
	for name, m := range f.sharedMaps() {
		if f.inherited[name] {
			continue // pinned already
		}
		if err := repin(m, filepath.Join(f.opts.PinDir, name)); err != nil {
			return err
		}
	}
	return repin(f.state, filepath.Join(f.opts.PinDir, statePin))
}

// saveState notes a generation before the first flow is judged by it.
func (f *Firewall) saveState(generation uint32) error {
	if f.state == nil {
		return nil // nothing is pinned
	}
	if err := f.state.Put(uint32(0), state{uint32(gen.FWLimitsLAYOUT), generation}); err != nil {
		return fmt.Errorf("noting the state: %w", err)
	}
	return nil
}
