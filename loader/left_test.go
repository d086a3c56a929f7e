package loader

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// TestQdiscOfAProcessKilledWhileItStopped: between the removal of the filters and
// that of the qdisc nothing but the mark tells whose the qdisc is.
func TestQdiscOfAProcessKilledWhileItStopped(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t), TC: TCClsact}
		dead := mustLoad(t, basePolicy, o)
		if err := errors.Join(dead.Attach(), dead.Release(), dead.Close()); err != nil {
			return err
		}
		if a := look(t, o.PinDir); len(a.programs) != 0 || a.qdiscs != 2 {
			t.Errorf("left %+v, want two qdiscs and no program", a)
		}
		err := Detach(o.PinDir)
		gone(t, o.PinDir)
		return err
	})
}

// TestEmptyQdiscOfOthersStays: it was there first.
func TestEmptyQdiscOfOthersStays(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: int(b.lan), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
		if err != nil {
			return err
		}
		o := Options{PinDir: pinDir(t), TC: TCClsact}
		dead := mustLoad(t, basePolicy, o)
		if err := errors.Join(dead.Attach(), dead.Release(), dead.Close(), Detach(o.PinDir)); err != nil {
			return err
		}
		if a := look(t, o.PinDir); a.qdiscs != 1 || len(a.pins) != 0 {
			t.Errorf("left %+v, want the one qdisc that was there before", a)
		}
		return nil
	})
}

// TestDetachLeavesARunningProcessAlone: another run folder does not show it.
func TestDetachLeavesARunningProcessAlone(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t)}
		f := mustLoad(t, basePolicy, o)
		if err := f.Attach(); err != nil {
			return err
		}
		before := look(t, o.PinDir)
		if err := Detach(o.PinDir); !errors.Is(err, ErrInUse) {
			t.Errorf("got %v, want %v", err, ErrInUse)
		}
		if a := look(t, o.PinDir); len(a.programs) != len(before.programs) || len(a.pins) != len(before.pins) {
			t.Errorf("left %+v, want all of %+v", a, before)
		}
		return errors.Join(f.Detach(), f.Close())
	})
}

// TestInterfaceThatGoesWhileItIsAttachedTo: containers come and go, and are no
// reason not to start.
func TestInterfaceThatGoesWhileItIsAttachedTo(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		f := mustLoad(t, replace(t, basePolicy, "wan: [wan0]", `wan: [wan0, "late*"]`), o)
		if err := f.Attach(); err != nil {
			t.Fatal(err)
		}
		before := look(t, o.PinDir)
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "late0"}, PeerName: "peer0"}); err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName("late0")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netlink.LinkDel(l), f.attach(l)); err != nil {
			t.Errorf("attaching to what is gone: %v", err)
		}
		if a := look(t, o.PinDir); !slices.Equal(a.pins, before.pins) {
			t.Errorf("pins %v, want %v", a.pins, before.pins)
		}
		var zone uint8
		if err := f.objs.Zones.Lookup(uint32(l.Attrs().Index), &zone); !errors.Is(err, ebpf.ErrKeyNotExist) || len(f.Interfaces()) != 2 {
			t.Errorf("zone %d, error %v, interfaces %v; want none of it", zone, err, f.Interfaces())
		}
		if err := errors.Join(f.Detach(), f.Close()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestListingIsBegunAnewWhereItChanges(t *testing.T) {
	for changes, want := range map[int]error{0: nil, 1: nil, listAttempts - 1: nil, listAttempts: netlink.ErrDumpInterrupted} {
		calls := 0
		got, err := complete(func() ([]int, error) {
			if calls++; calls <= changes {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, nil
		})
		if !errors.Is(err, want) || want == nil && len(got) != 2 {
			t.Errorf("%d changes: got %v, %v; want error %v", changes, got, err, want)
		}
	}
	other := errors.New("something else")
	calls := 0
	if _, err := complete(func() ([]int, error) { calls++; return nil, other }); err != other || calls != 1 {
		t.Errorf("got %v after %d calls, want %v after one", err, calls, other)
	}
}
