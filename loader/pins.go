package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pins lie flat in one folder: those of inherit.go, and for each guarded interface
// "xdp-<ifindex>", "ingress-<ifindex>" and "egress-<ifindex>", or the folder
// "clsact-<ifindex>". (BPF file systems
// refuse dots, which interface names may have.)

func counterPin(dir string) string { return filepath.Join(dir, "counters") }

func linkPin(dir, hook string, ifindex int) string {
	return filepath.Join(dir, hook+"-"+strconv.Itoa(ifindex))
}

// lockPins makes the folder, and locks it for as long as the returned file is
// open: one process at most may pin there.
func lockPins(dir string) (*os.File, error) {
	var st unix.Statfs_t
	parent := filepath.Dir(dir)
	if err := unix.Statfs(parent, &st); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", parent, err)
	}
	if uint32(st.Type) != unix.BPF_FS_MAGIC {
		return nil, fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf), or name another folder with --pin-dir", parent)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("making the folder for pins: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the folder for pins: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w in %s: stop it first (detach does with its --run-dir), or use another --pin-dir", ErrInUse, dir), f.Close())
	}
	return f, nil
}

// repin pins a map in the place of what an earlier process left there.
func repin(m *ebpf.Map, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing an old pin: %w", err)
	}
	if err := m.Pin(path); err != nil {
		return fmt.Errorf("pinning %s: %w", path, err)
	}
	return nil
}

// pinnedLink is a BPF link that stays when the process dies.
type pinnedLink struct {
	link link.Link
}

func pinLink(l link.Link, path string) (hook, error) {
	if err := l.Pin(path); err != nil {
		return nil, errors.Join(fmt.Errorf("pinning a link: %w", err), l.Close())
	}
	return &pinnedLink{l}, nil
}

// takeOverLink swaps the program of a link that an earlier process left, in one
// step. Where there is none, or its interface is gone, it returns nil.
func takeOverLink(path string, prog *ebpf.Program) (hook, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the pinned link %s: %w", path, err)
	}
	if err := l.Update(prog); err != nil {
		// The number of an interface that is gone can be given again.
		return nil, (&pinnedLink{l}).close()
	}
	return &pinnedLink{l}, nil
}

func (p *pinnedLink) update(prog *ebpf.Program) error { return p.link.Update(prog) }

func (p *pinnedLink) close() error {
	// Detaching takes effect at once, whoever else holds the link.
	err := p.link.Detach()
	if isGone(err) || errors.Is(err, unix.ENOLINK) {
		err = nil
	}
	return errors.Join(err, p.link.Unpin(), p.link.Close())
}

func removePinnedLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the pinned link %s: %w", path, err)
	}
	return (&pinnedLink{l}).close()
}

// dropStale removes links that an earlier process left on interfaces that are no
// longer guarded.
func (f *Firewall) dropStale(links []netlink.Link) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	pins, err := linkPins(f.opts.PinDir)
	if err != nil {
		return err
	}
	keep := make(map[string]bool)
	for _, l := range links {
		i := l.Attrs().Index
		if f.attached[i] == nil {
			if err := removeAllFilters(l, f.opts.PinDir); err != nil {
				return err
			}
			continue
		}
		for _, hook := range hookPlaces {
			keep[linkPin(f.opts.PinDir, hook, i)] = true
		}
	}
	for _, pin := range pins {
		if keep[pin] {
			continue
		}
		if err := removePinnedLink(pin); err != nil {
			return err
		}
	}
	return nil
}

func linkPins(dir string) ([]string, error) {
	var pins []string
	for _, hook := range hookPlaces {
		found, err := filepath.Glob(filepath.Join(dir, hook+"-*"))
		if err != nil {
			return nil, err
		}
		pins = append(pins, found...)
	}
	return pins, nil
}

// listAttempts is how often a listing is begun that changes under way.
const listAttempts = 20

// complete lists anew where the kernel says that the list changed while it gave
// it: interfaces of containers come and go.
func complete[T any](list func() ([]T, error)) (all []T, err error) {
	for range listAttempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func removeAllFilters(l netlink.Link, pinDir string) error {
	own := 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, _, err := ours(l, parent)
		if err != nil {
			return err
		}
		own += len(filters)
		if err := removeFilter(l, parent); err != nil {
			return err
		}
	}
	mark := clsactMark(pinDir, l.Attrs().Index)
	if _, err := os.Stat(mark); own == 0 && err != nil {
		return nil // a clsact qdisc without filters of ours and without a mark is not ours
	}
	return removeClsact(l, mark)
}

// Detach removes everything of the kernel half from the interfaces of this
// network namespace and from pinDir, whoever put it there. Where there is
// nothing it does nothing. What a running process has it leaves alone.
func Detach(pinDir string) error {
	if _, err := os.Stat(pinDir); err == nil {
		lock, err := lockPins(pinDir)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	return detach(pinDir)
}

func detach(pinDir string) error {
	pins, err := linkPins(pinDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, pin := range pins {
		errs = append(errs, removePinnedLink(pin))
	}
	links, err := complete(netlink.LinkList)
	if err != nil {
		errs = append(errs, fmt.Errorf("listing interfaces: %w", err))
	}
	for _, l := range links {
		errs = append(errs, removeAllFilters(l, pinDir))
	}
	marks, err := filepath.Glob(filepath.Join(pinDir, "clsact-*"))
	errs = append(errs, err)
	for _, mark := range marks {
		errs = append(errs, removeMark(mark)) // of an interface that is gone
	}
	for _, name := range append(slices.Clone(pinnedMaps), statePin, ".") {
		path := filepath.Join(pinDir, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a pin: %w", err))
		}
	}
	return errors.Join(errs...)
}
