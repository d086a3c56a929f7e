package loader

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// TCMode says how fw_tc and fw_tc_out are attached.
type TCMode string

const (
	TCAuto   TCMode = "auto"   // TCX where the kernel has it (6.6), else clsact
	TCX      TCMode = "tcx"    // TCX or an error
	TCClsact TCMode = "clsact" // filters of the clsact qdisc
)

// Our clsact filters. The priority leaves room on both sides; name and handle
// tell them from those of others.
const (
	filterPriority = 4846
	filterHandle   = 1
	filterName     = "hybridfw"
)

// direction is one of the two sides of an interface.
type direction struct {
	name   string // part of the pin's name
	prog   *ebpf.Program
	attach ebpf.AttachType
	parent uint32 // clsact's handle
}

// attachTC attaches one program and says how it is attached.
func attachTC(opts Options, l netlink.Link, dir direction) (hook, string, error) {
	pin := linkPin(opts.PinDir, dir.name, l.Attrs().Index)
	if opts.TC != TCClsact {
		h, err := attachTCX(l, dir, pin)
		if err == nil {
			return h, string(TCX), nil
		}
		if opts.TC == TCX || !errors.Is(err, ebpf.ErrNotSupported) {
			return nil, "", fmt.Errorf("attaching to TCX %s: %w", dir.name, err)
		}
	}
	h, err := attachClsact(l, dir, clsactMark(opts.PinDir, l.Attrs().Index))
	if err != nil {
		return nil, "", fmt.Errorf("attaching to clsact %s: %w", dir.name, err)
	}
	// Only now, so that one of the two guards at any time.
	return h, string(TCClsact), removePinnedLink(pin)
}

func attachTCX(l netlink.Link, dir direction, pin string) (hook, error) {
	if h, err := takeOverLink(pin, dir.prog); h != nil || err != nil {
		return h, err
	}
	raw, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: dir.prog, Attach: dir.attach})
	if err != nil {
		return nil, err
	}
	return pinLink(raw, pin)
}

// clsactFilter is a filter of ours.
type clsactFilter struct {
	link   netlink.Link
	parent uint32
	mark   string
}

// clsactMark is a folder that says that we have made the qdisc: one without
// filters does not tell whose it is.
func clsactMark(pinDir string, ifindex int) string { return linkPin(pinDir, "clsact", ifindex) }

func removeMark(mark string) error {
	if err := os.Remove(mark); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the mark of a qdisc: %w", err)
	}
	return nil
}

// addClsact adds the qdisc, where there is none, and marks it as ours. The mark
// comes first: what a killed process leaves is marked at any time.
func addClsact(l netlink.Link, mark string) error {
	marked := os.Mkdir(mark, 0o700)
	if marked != nil && !errors.Is(marked, os.ErrExist) {
		return fmt.Errorf("marking the clsact qdisc: %w", marked)
	}
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}})
	if err == nil {
		return nil
	}
	if marked == nil { // then the one that is there is not ours
		if err := removeMark(mark); err != nil {
			return err
		}
	}
	if !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding the clsact qdisc: %w", err)
	}
	return nil
}

func attachClsact(l netlink.Link, dir direction, mark string) (hook, error) {
	if err := addClsact(l, mark); err != nil {
		return nil, err
	}
	c := &clsactFilter{link: l, parent: dir.parent, mark: mark}
	if err := c.update(dir.prog); err != nil {
		return nil, err
	}
	return c, nil
}

// update adds the filter, or replaces the one that is there in one step: one that
// a killed process left guards on.
func (c *clsactFilter) update(prog *ebpf.Program) error {
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: c.link.Attrs().Index,
			Parent:    c.parent,
			Handle:    filterHandle,
			Priority:  filterPriority,
			Protocol:  syscall.ETH_P_ALL,
		},
		Fd:           prog.FD(),
		Name:         filterName,
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("adding the filter: %w", err)
	}
	return nil
}

func (c *clsactFilter) close() error {
	return errors.Join(removeFilter(c.link, c.parent), removeClsact(c.link, c.mark))
}

// ours lists our filters on one side of an interface, and whether others have
// any.
func ours(l netlink.Link, parent uint32) (own []netlink.Filter, others bool, err error) {
	filters, err := complete(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
	if err != nil && !isGone(err) && !errors.Is(err, syscall.EINVAL) { // EINVAL: no such qdisc
		return nil, false, fmt.Errorf("listing filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if ok && bpf.Name == filterName && bpf.Priority == filterPriority {
			own = append(own, f)
		} else {
			others = true
		}
	}
	return own, others, nil
}

func removeFilter(l netlink.Link, parent uint32) error {
	own, _, err := ours(l, parent)
	if err != nil {
		return err
	}
	for _, f := range own {
		if err := netlink.FilterDel(f); err != nil && !isGone(err) {
			return fmt.Errorf("removing the filter of %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// removeClsact removes the qdisc when nobody has filters in it any more.
func removeClsact(l netlink.Link, mark string) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		own, others, err := ours(l, parent)
		if err != nil {
			return err
		}
		if others {
			return removeMark(mark) // it is theirs now
		}
		if len(own) > 0 {
			return nil
		}
	}
	qdiscs, err := complete(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		if isGone(err) {
			return removeMark(mark)
		}
		return fmt.Errorf("listing qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		if err := netlink.QdiscDel(q); err != nil && !isGone(err) {
			return fmt.Errorf("removing clsact of %s: %w", l.Attrs().Name, err)
		}
	}
	return removeMark(mark)
}

// isGone tells that an interface or what was on it is there no more.
func isGone(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT)
}
