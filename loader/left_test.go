package loader

import (
	"errors"
	"testing"

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
