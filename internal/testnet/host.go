package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience is how long this package waits for something that the kernel or a
// peer on the same machine does at once, even on an emulated machine.
const patience = 20 * time.Second

// Net is a network: hosts and what was started on them.
type Net struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	hosts  []*Host
	links  int
	closes []func() error
}

// New returns an empty network.
func New() *Net {
	ctx, cancel := context.WithCancel(context.Background())
	return &Net{ctx: ctx, cancel: cancel}
}

// Close ends the processes, servers and captures started on the network and
// gives its namespaces up. A connection that its user still holds keeps its
// namespace alive until it is closed.
func (n *Net) Close() error {
	n.cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for i := len(n.closes) - 1; i >= 0; i-- {
		errs = append(errs, n.closes[i]())
	}
	for _, h := range n.hosts {
		h.nl.Close()
		errs = append(errs, h.ns.Close())
	}
	n.closes, n.hosts = nil, nil
	return errors.Join(errs...)
}

func (n *Net) onClose(f func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closes = append(n.closes, f)
}

// Host is one machine of a network: a network namespace.
type Host struct {
	Name string

	net *Net
	ns  netns.NsHandle
	nl  *netlink.Handle
}

// quiet are the settings of a new host: no duplicate address detection, so that
// IPv6 addresses work at once, no reverse path filter, whatever the machine's
// own defaults are, and no router solicitations that tests would count.
var quiet = []struct{ key, value string }{
	{"net/ipv4/conf/all/rp_filter", "0"},
	{"net/ipv4/conf/default/rp_filter", "0"},
	{"net/ipv6/conf/all/accept_dad", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	{"net/ipv6/conf/all/accept_ra", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/conf/default/router_solicitations", "0"},
}

// Host adds a host with nothing but its loopback interface.
func (n *Net) Host(name string) (*Host, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("making host %s: %w", name, err)
	}
	nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("making host %s: opening netlink: %w", name, errors.Join(err, ns.Close()))
	}
	h := &Host{Name: name, net: n, ns: ns, nl: nl}
	n.mu.Lock()
	n.hosts = append(n.hosts, h)
	n.mu.Unlock()
	for _, s := range quiet {
		if err := h.Sysctl(s.key, s.value); err != nil {
			return nil, err
		}
	}
	if err := h.Do(loopbackUp); err != nil {
		return nil, fmt.Errorf("making host %s: %w", name, err)
	}
	return h, nil
}

// newNamespace makes a network namespace that lives as long as its handle or
// something inside it. The calling thread is back home when it returns.
func newNamespace() (ns netns.NsHandle, err error) {
	err = onThread(func() error {
		ns, err = netns.New()
		return err
	})
	return ns, err
}

// Do runs f with the calling goroutine's thread inside the host's namespace.
// Sockets and netlink handles that f opens belong to the host, whoever uses them
// later. Goroutines that f starts are not inside.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("entering host %s: %w", h.Name, err)
		}
		return f()
	})
}

// onThread runs f on a locked thread and brings the thread back to the network
// namespace it came from.
func onThread(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("remembering the namespace: %w", err)
	}
	defer func() {
		back := netns.Set(home)
		err = errors.Join(err, back, home.Close())
		if back != nil {
			return // still locked: the stray thread ends with its goroutine
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Sysctl sets a value below /proc/sys, written with slashes, on the host.
func (h *Host) Sysctl(key, value string) error {
	err := h.Do(func() error {
		return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644)
	})
	if err != nil {
		return fmt.Errorf("setting %s on host %s: %w", key, h.Name, err)
	}
	return nil
}

// Forward makes the host a router for both families.
func (h *Host) Forward() error {
	return errors.Join(
		h.Sysctl("net/ipv4/ip_forward", "1"),
		h.Sysctl("net/ipv6/conf/all/forwarding", "1"),
	)
}

// Netlink is a handle on the host's own interfaces, addresses and routes.
func (h *Host) Netlink() *netlink.Handle { return h.nl }

// NsFd is the descriptor of the host's network namespace, open until the network
// is closed.
func (h *Host) NsFd() int { return int(h.ns) }
