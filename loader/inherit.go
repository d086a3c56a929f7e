package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// The maps that outlive a policy are pinned under their names, so that they outlive
// the process too: the next one goes on with its flows. Beside them is "state",
// which says what their entries mean and which policy judged last.
const statePin = "state"

var pinnedMaps = slices.Sorted(maps.Keys(new(instance).sharedMaps()))

// state is the value of the map "state".
type state struct {
	Layout     uint32           // gen.FWLimitsLAYOUT of who wrote it
	Generation uint32           // the last that was given
	IDs        [maxMarks]uint32 // by mark: policy.Rule.ID of the rule that it stands for, 0 where for none
}

// PinnedMarks returns what the numbers (policy.Rule.Inspect) of a process that is
// gone stand for, as policy.Policy.Resume needs it: its programs mark on until they
// are replaced.
func PinnedMarks(pinDir string) map[int]uint32 {
	f := &Firewall{opts: Options{PinDir: pinDir, Log: slog.New(slog.DiscardHandler)}}
	ids := make(map[int]uint32)
	if s, ok := f.readState(); ok {
		for mark, id := range s.IDs {
			if id != 0 {
				ids[mark-policy.MarkInspect] = id
			}
		}
	}
	return ids
}

// Guards tells whether something of a kernel half is attached, by the pins of a
// process that runs or is gone.
func Guards(pinDir string) (bool, error) {
	links, err := linkPins(pinDir)
	if err != nil {
		return false, err
	}
	marks, err := filepath.Glob(filepath.Join(pinDir, "clsact-*"))
	return len(links)+len(marks) > 0, err
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
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "fw_state", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(state{})), MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("making the map of the state: %w", err)
	}
	f.state = m
	if err := f.saveState(f.current.Load(), nil); err != nil {
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

// saveState notes a generation before the first flow is judged by it, and what the
// marks of both mean until the one before is gone.
func (f *Firewall) saveState(next, before *generation) error {
	if f.state == nil {
		return nil // nothing is pinned
	}
	s := state{Layout: uint32(gen.FWLimitsLAYOUT), Generation: next.number}
	for _, g := range []*generation{before, next} {
		if g == nil {
			continue
		}
		for mark, m := range g.marks {
			if m.rule != ruleNone {
				s.IDs[mark] = m.id
			}
		}
	}
	if err := f.state.Put(uint32(0), &s); err != nil {
		return fmt.Errorf("noting the state: %w", err)
	}
	return nil
}
