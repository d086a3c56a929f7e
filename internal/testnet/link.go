package testnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a link: an interface to be made on a host.
type End struct {
	Host  *Host
	Name  string
	Addrs []netip.Prefix // the interface's own addresses with their networks
}

// Link joins two hosts by a veth pair and returns when both ends are up and
// their addresses work.
func (n *Net) Link(a, b End) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name:      a.Name,
			Index:     n.nextIndex(),
			Namespace: netlink.NsFd(a.Host.ns),
		},
		PeerName:      b.Name,
		PeerNamespace: netlink.NsFd(b.Host.ns),
	}
	if err := a.Host.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("linking %s of %s with %s of %s: %w", a.Name, a.Host.Name, b.Name, b.Host.Name, err)
	}
	for _, end := range []End{a, b} {
		if err := end.Host.setUp(end.Name); err != nil {
			return err
		}
	}
	for _, end := range []End{a, b} {
		if err := end.Host.waitUp(end.Name); err != nil {
			return err
		}
		for _, addr := range end.Addrs {
			if err := end.Host.Addr(end.Name, addr); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextIndex is an interface index far from those that the kernel gives out. With
// equal indexes at both ends, as two new namespaces would have, the kernel takes
// a second to report a link as up (net/core/link_watch.c).
func (n *Net) nextIndex() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links++
	return 1000 + n.links
}

// Bridge makes a bridge on the host, puts the named interfaces into it and
// returns when it is up.
func (h *Host) Bridge(name string, ports ...string) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := h.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("making bridge %s on host %s: %w", name, h.Name, err)
	}
	for _, port := range ports {
		link, err := h.link(port)
		if err != nil {
			return err
		}
		if err := h.nl.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("putting %s into bridge %s of host %s: %w", port, name, h.Name, err)
		}
	}
	if err := h.setUp(name); err != nil {
		return err
	}
	if len(ports) == 0 {
		return nil // a bridge without ports has no carrier to wait for
	}
	return h.waitUp(name)
}

// Addr gives an interface an address, usable at once.
func (h *Host) Addr(ifname string, addr netip.Prefix) error {
	link, err := h.link(ifname)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := h.nl.AddrAdd(link, a); err != nil {
		return fmt.Errorf("adding %s to %s of host %s: %w", addr, ifname, h.Name, err)
	}
	return h.waitOwn(addr.Addr())
}

// waitOwn waits until the host takes packets to an address for its own. For IPv6
// the kernel makes that route in a worker, some time after it has told of the
// address (addrconf_dad_work), and until then drops what arrives.
func (h *Host) waitOwn(addr netip.Addr) error {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	end := time.Now().Add(patience)
	for {
		routes, err := h.nl.RouteGet(addr.AsSlice())
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("waiting for host %s to take %s for its own: routes %v: %w", h.Name, addr, routes,
				errors.Join(err, context.DeadlineExceeded))
		}
		<-again.C
	}
}

// Route sends a network by way of a gateway. The prefixes 0.0.0.0/0 and ::/0 are
// the default routes.
func (h *Host) Route(to netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}
	if err := h.nl.RouteAdd(route); err != nil {
		return fmt.Errorf("routing %s by way of %s on host %s: %w", to, via, h.Name, err)
	}
	return nil
}

// RouteMTU adds a route to a network on a link, with an MTU of its own, locked, as
// forwarding looks at no other.
func (h *Host) RouteMTU(to netip.Prefix, ifname string, mtu int) error {
	l, err := h.link(ifname)
	if err != nil {
		return err
	}
	if err := h.nl.RouteReplace(&netlink.Route{Dst: ipNet(to), LinkIndex: l.Attrs().Index, MTU: mtu, MTULock: true}); err != nil {
		return fmt.Errorf("routing %v by %s of host %s: %w", to, ifname, h.Name, err)
	}
	return nil
}

// Neighbour tells the host a neighbour's hardware address for good, so that no
// ARP or neighbour discovery is needed for it.
func (h *Host) Neighbour(ifname string, addr netip.Addr, mac net.HardwareAddr) error {
	link, err := h.link(ifname)
	if err != nil {
		return err
	}
	neigh := &netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: mac,
	}
	if err := h.nl.NeighSet(neigh); err != nil {
		return fmt.Errorf("setting neighbour %s on %s of host %s: %w", addr, ifname, h.Name, err)
	}
	return nil
}

// MAC is the hardware address of an interface.
func (h *Host) MAC(ifname string) (net.HardwareAddr, error) {
	link, err := h.link(ifname)
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

// Index is the index of an interface within the host.
func (h *Host) Index(ifname string) (int, error) {
	link, err := h.link(ifname)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// Down takes an interface down.
func (h *Host) Down(ifname string) error {
	link, err := h.link(ifname)
	if err != nil {
		return err
	}
	if err := h.nl.LinkSetDown(link); err != nil {
		return fmt.Errorf("setting %s of host %s down: %w", ifname, h.Name, err)
	}
	return nil
}

func (h *Host) link(ifname string) (netlink.Link, error) {
	link, err := h.nl.LinkByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("looking up %s on host %s: %w", ifname, h.Name, err)
	}
	return link, nil
}

func (h *Host) setUp(ifname string) error {
	link, err := h.link(ifname)
	if err != nil {
		return err
	}
	if err := h.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s of host %s up: %w", ifname, h.Name, err)
	}
	return nil
}

// waitUp waits for the kernel to report the interface as operational: until then
// its queue drops what is sent.
func (h *Host) waitUp(ifname string) error {
	ctx, cancel := context.WithTimeout(h.net.ctx, patience)
	defer cancel()
	updates := make(chan netlink.LinkUpdate)
	done := make(chan struct{})
	var failed error
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		Namespace:     &h.ns,
		ListExisting:  true,
		ErrorCallback: func(err error) { failed = err },
	})
	if err != nil {
		return fmt.Errorf("watching interfaces of host %s: %w", h.Name, err)
	}
	defer func() {
		close(done)
		for range updates { // lets the sender see that it is done
		}
	}()
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				return fmt.Errorf("watching interfaces of host %s: %w", h.Name, errors.Join(failed, net.ErrClosed))
			}
			attrs := u.Link.Attrs()
			if attrs.Name == ifname && attrs.OperState == netlink.OperUp {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s of host %s to come up: %w", ifname, h.Name, ctx.Err())
		}
	}
}

// ipNet keeps the host part of the address, which net/netip calls not masked.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
