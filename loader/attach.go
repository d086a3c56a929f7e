package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/policy"
)

// attachment is one guarded interface.
type attachment struct {
	iface Interface
	hooks []placedHook // in the order of attaching
}

// hook is one place where a program is attached: a BPF link or a clsact filter.
type hook interface {
	// update swaps the program in one step.
	update(prog *ebpf.Program) error
	close() error
}

// placedHook is a hook with its name, which tells its program.
type placedHook struct {
	hook
	name string
}

// Names of hooks.
const (
	hookEgress  = "egress"
	hookIngress = "ingress"
	hookXDP     = "xdp"
)

var hookPlaces = []string{hookXDP, hookIngress, hookEgress}

// Interface describes a guarded interface.
type Interface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	Zone  string `json:"zone"`
	XDP   string `json:"xdp"` // "native", "generic" or "off"
	TC    string `json:"tc"`  // "tcx" or "clsact"
}

func (a *attachment) close() error {
	var errs []error
	for _, h := range slices.Backward(a.hooks) {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}

// release takes the programs off, and keeps what is still to be closed.
func (a *attachment) release() error {
	var errs []error
	var kept []placedHook
	for _, h := range slices.Backward(a.hooks) {
		if c, ok := h.hook.(*clsactFilter); ok {
			errs = append(errs, removeFilter(c.link, c.parent))
			kept = append(kept, h)
			continue
		}
		errs = append(errs, h.close())
	}
	a.hooks = kept
	return errors.Join(errs...)
}

// Interfaces lists the guarded interfaces by name.
func (f *Firewall) Interfaces() []Interface {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Interface, 0, len(f.attached))
	for _, a := range f.attached {
		list = append(list, a.iface)
	}
	slices.SortFunc(list, func(a, b Interface) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// attach guards one interface, if a zone has it.
func (f *Firewall) attach(l netlink.Link) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.attached[l.Attrs().Index] != nil {
		return nil
	}
	_, err := f.attachTo(&f.instance, l)
	return err
}

// attachTo guards one interface by an instance's programs, if a zone of it has the
// interface. It returns nil where nothing is to be guarded. The caller holds f.mu.
func (f *Firewall) attachTo(in *instance, l netlink.Link) (*attachment, error) {
	attrs := l.Attrs()
	zone := in.policy.Zone(attrs.Name)
	if zone == policy.ZoneNone {
		return nil, nil
	}
	if why := unfit(l); why != "" {
		if attrs.EncapType != "loopback" {
			f.opts.Log.Warn("interface not guarded", "name", attrs.Name, "because", why)
		}
		return nil, nil
	}
	// The zone is known before the first packet is judged by it.
	if err := in.enterZone(l); err != nil {
		return nil, err
	}
	a := &attachment{iface: Interface{Name: attrs.Name, Index: attrs.Index, Zone: in.policy.ZoneName(zone)}}
	if err := f.attachHooks(in, a, l); err != nil {
		// Out of its zone too: what comes from a guarded zone counts as judged
		// when it leaves by another.
		undone := errors.Join(a.close(), in.leaveZone(attrs.Index))
		if errors.Is(err, syscall.ENODEV) && undone == nil {
			f.opts.Log.Warn("interface is gone before it was guarded", "name", attrs.Name)
			return nil, nil
		}
		return nil, errors.Join(fmt.Errorf("guarding %s: %w", attrs.Name, err), undone)
	}
	f.attached[attrs.Index] = a
	f.opts.Log.Info("interface guarded", "name", attrs.Name, "zone", a.iface.Zone, "xdp", a.iface.XDP, "tc", a.iface.TC)
	return a, nil
}

// enterZone tells the programs an interface's zone, if it has one and can be
// guarded.
func (i *instance) enterZone(l netlink.Link) error {
	zone := i.policy.Zone(l.Attrs().Name)
	if zone == policy.ZoneNone || unfit(l) != "" {
		return nil
	}
	if isBare(l) {
		if err := errors.Join(i.objs.Bare.Put(uint32(l.Attrs().Index), uint8(1)), i.objs.AnyBare.Set(uint8(1))); err != nil {
			return fmt.Errorf("telling the programs that %s has no Ethernet header: %w", l.Attrs().Name, err)
		}
	}
	if err := i.objs.Zones.Put(uint32(l.Attrs().Index), uint8(zone)); err != nil {
		return fmt.Errorf("entering %s into its zone: %w", l.Attrs().Name, err)
	}
	return nil
}

func (i *instance) leaveZone(ifindex int) error {
	for _, m := range []*ebpf.Map{i.objs.Zones, i.objs.Bare} {
		if err := m.Delete(uint32(ifindex)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("taking an interface out of its zone: %w", err)
		}
	}
	return nil
}

// attachHooks attaches the outgoing program first: flows that leave must be
// known before the incoming one judges their replies.
func (f *Firewall) attachHooks(in *instance, a *attachment, l netlink.Link) error {
	for _, dir := range []direction{
		{hookEgress, in.objs.FwTcOut, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
		{hookIngress, in.objs.FwTc, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	} {
		h, mode, err := attachTC(f.opts, l, dir)
		if err != nil {
			return err
		}
		a.hooks = append(a.hooks, placedHook{h, dir.name})
		a.iface.TC = mode
	}
	if a.iface.TC == string(TCX) {
		// Filters of a process that had no TCX guarded until now.
		if err := removeAllFilters(l, f.opts.PinDir); err != nil {
			return err
		}
	}
	opts := f.opts
	if isBare(l) {
		opts.XDP = XDPOff // fw_xdp reads Ethernet headers
	}
	h, mode, err := attachXDP(opts, l, in.objs.FwXdp)
	if err != nil {
		return err
	}
	if h != nil {
		a.hooks = append(a.hooks, placedHook{h, hookXDP})
	}
	a.iface.XDP = mode
	return nil
}

// unfit says why an interface cannot be guarded, or "".
func unfit(l netlink.Link) string {
	attrs := l.Attrs()
	if attrs.EncapType == "loopback" {
		return "loopback always passes"
	}
	if attrs.EncapType != "ether" && !isBare(l) {
		return fmt.Sprintf("its frames have headers of a kind that is not built yet (%s)", attrs.EncapType)
	}
	return ""
}

// isBare tells that an interface's packets begin with the IP header: tun, WireGuard,
// PPP, and tunnels of IP in IP.
func isBare(l netlink.Link) bool {
	return slices.Contains([]string{"none", "unknown519", "ppp", "ipip", "tunnel6", "sit"}, l.Attrs().EncapType)
}

// Watch guards interfaces that appear and forgets those that go, until done is
// closed or the kernel stops reporting. Errors about single interfaces are
// logged: the others stay guarded.
func (f *Firewall) Watch(done <-chan struct{}) error {
	updates := make(chan netlink.LinkUpdate, 64)
	var lost error
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ListExisting:  true, // what came between Attach and now
		ErrorCallback: func(err error) { lost = err },
	})
	if err != nil {
		return fmt.Errorf("watching interfaces: %w", err)
	}
	if err := f.watchTakers(done); err != nil {
		f.opts.Log.Debug("this kernel does not tell which interfaces take frames from XDP", "err", err)
	}
	for u := range updates {
		if u.Header.Type == rtmDelLink {
			f.forget(int(u.Index))
			continue
		}
		f.rezone(u.Link)
		if err := f.attach(u.Link); err != nil {
			f.opts.Log.Error("new interface not guarded", "name", u.Link.Attrs().Name, "err", err)
		}
		f.settlePorts()
	}
	select {
	case <-done:
		return nil
	default:
		return fmt.Errorf("watching interfaces: %w", lost)
	}
}

const rtmDelLink = 17 // RTM_DELLINK, linux/rtnetlink.h

// rezone lets go of an interface that a new name has put into another zone.
func (f *Firewall) rezone(l netlink.Link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.attached[l.Attrs().Index]
	if a == nil || a.iface.Name == l.Attrs().Name {
		return
	}
	zone := f.policy.Zone(l.Attrs().Name)
	if zone != policy.ZoneNone && f.policy.Zones[zone-1].Name == a.iface.Zone {
		a.iface.Name = l.Attrs().Name
		return
	}
	f.release(a)
}

// forget drops an interface that is gone. Its programs went with it.
func (f *Firewall) forget(ifindex int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.attached[ifindex]; a != nil {
		f.release(a)
	}
}

// release takes one interface out of the firewall. The caller holds f.mu.
func (f *Firewall) release(a *attachment) {
	delete(f.attached, a.iface.Index)
	if err := errors.Join(a.close(), f.leaveZone(a.iface.Index)); err != nil {
		f.opts.Log.Warn("interface released with errors", "name", a.iface.Name, "err", err)
		return
	}
	f.opts.Log.Info("interface released", "name", a.iface.Name)
}
