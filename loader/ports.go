package loader

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/genetlink"
	nl "github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// This file tells the programs between which interfaces packets of decided flows may
// pass the stack by.

// portOf is what the programs must know of an interface; ok is false where its
// packets always go the ordinary way. tagged tells that VLAN interfaces stand on it.
func (i *instance) portOf(l netlink.Link, tagged bool) (p gen.FWPort, ok bool) {
	attrs := l.Attrs()
	if i.policy.Zone(attrs.Name) == policy.ZoneNone || unfit(l) != "" || isBare(l) ||
		attrs.MasterIndex != 0 || len(attrs.HardwareAddr) != len(p.Mac) {
		return p, false
	}
	copy(p.Mac[:], attrs.HardwareAddr)
	// XDP may not see the tag of a frame, and would take it for one without.
	p.Xdp = encodeBool(!tagged)
	return p, true
}

// enterPorts tells the programs which interfaces there are, and which of them take
// frames from XDP.
func (i *instance) enterPorts(links []netlink.Link, takes map[int]bool) error {
	tagged := make(map[int]bool)
	for _, l := range links {
		if l.Type() == "vlan" {
			tagged[l.Attrs().ParentIndex] = true
		}
	}
	var errs []error
	known, targets := make(map[uint32]bool), make(map[uint32]bool)
	for _, l := range links {
		port, ok := i.portOf(l, tagged[l.Attrs().Index])
		if !ok {
			continue
		}
		index := uint32(l.Attrs().Index)
		known[index] = true
		errs = append(errs, i.objs.Ports.Put(index, port))
		if takes[l.Attrs().Index] {
			targets[index] = true
			errs = append(errs, i.objs.XdpTargets.Put(index, index))
		}
	}
	errs = append(errs, keep(i.objs.Ports, known), keep(i.objs.XdpTargets, targets))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("telling the programs the interfaces that may be passed on to: %w", err)
	}
	return nil
}

// keep deletes what is not wanted from a map by ifindex.
func keep(m *ebpf.Map, wanted map[uint32]bool) error {
	var gone []uint32
	var before any // the first key has none
	for {
		var index uint32
		err := m.NextKey(before, &index)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return err
		}
		if !wanted[index] {
			gone = append(gone, index)
		}
		before = index
	}
	for _, index := range gone {
		if err := m.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// settlePorts looks anew at what may be passed on to. It does nothing where no rule
// asks for it.
func (f *Firewall) settlePorts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.policy.Offloads() {
		return
	}
	links, err := complete(netlink.LinkList)
	if err == nil {
		err = f.enterPorts(links, f.xdpTakers())
	}
	if err != nil {
		f.opts.Log.Warn("packets may go the ordinary way where they could be offloaded", "err", err)
	}
}

// Numbers of the generic netlink family netdev, linux/netdev.h.
const (
	netdevFamily   = "netdev"
	netdevGroup    = "mgmt"
	netdevGet      = 1
	netdevIfindex  = 1
	netdevXDP      = 3
	netdevXDPTakes = 1 << 2 // NETDEV_XDP_ACT_NDO_XMIT
)

// xdpTakers asks the kernel which interfaces take frames from XDP at this moment: a
// veth, for one, only while its peer can receive them; a frame for another would
// vanish. None is named by a kernel that cannot tell (before Linux 6.3), and while
// nobody sees it change. The caller holds f.mu.
func (f *Firewall) xdpTakers() map[int]bool {
	if !f.seesTakers {
		return nil
	}
	takes, err := xdpTakers()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.opts.Log.Warn("XDP passes nothing on", "err", err)
	}
	return takes
}

func xdpTakers() (map[int]bool, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("asking for XDP features: %w", err)
	}
	defer conn.Close()
	family, err := conn.GetFamily(netdevFamily)
	if err != nil {
		return nil, fmt.Errorf("asking for XDP features: %w", err)
	}
	answers, err := conn.Execute(genetlink.Message{Header: genetlink.Header{Command: netdevGet, Version: family.Version}},
		family.ID, nl.Request|nl.Dump)
	if err != nil {
		return nil, fmt.Errorf("asking for XDP features: %w", err)
	}
	takes := make(map[int]bool)
	for _, a := range answers {
		attrs, err := nl.UnmarshalAttributes(a.Data)
		if err != nil {
			return nil, fmt.Errorf("reading XDP features: %w", err)
		}
		var ifindex uint32
		var features uint64
		for _, attr := range attrs {
			switch {
			case attr.Type == netdevIfindex && len(attr.Data) == 4:
				ifindex = nlenc.Uint32(attr.Data)
			case attr.Type == netdevXDP && len(attr.Data) == 8:
				features = nlenc.Uint64(attr.Data)
			}
		}
		if features&netdevXDPTakes != 0 {
			takes[int(ifindex)] = true
		}
	}
	return takes, nil
}

// watchTakers settles ports whenever the kernel says that an interface takes frames
// from XDP now, or no more, until done is closed.
func (f *Firewall) watchTakers(done <-chan struct{}) error {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return err
	}
	family, err := conn.GetFamily(netdevFamily)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	for _, g := range family.Groups {
		if g.Name != netdevGroup {
			continue
		}
		if err := conn.JoinGroup(g.ID); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	see := func(sees bool) {
		f.mu.Lock()
		f.seesTakers = sees
		f.mu.Unlock()
		f.settlePorts()
	}
	see(true)
	go func() {
		<-done
		_ = conn.Close() // ends Receive
	}()
	go func() {
		for {
			// More news than fit: what is settled is what is so now.
			if _, _, err := conn.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				select {
				case <-done:
				default:
					f.opts.Log.Warn("changes of XDP features are not seen any more: XDP passes nothing on", "err", err)
					see(false)
				}
				return
			}
			f.settlePorts()
		}
	}()
	return nil
}
