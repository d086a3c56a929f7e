package testnet

import (
	"errors"
	"fmt"
	"net/netip"
)

// Addresses of the routed network. Networks are those reserved for examples
// (RFC 5737, RFC 3849).
var (
	Client4 = netip.MustParseAddr("192.0.2.2")
	Client6 = netip.MustParseAddr("2001:db8:1::2")
	Lan4    = netip.MustParseAddr("192.0.2.1")
	Lan6    = netip.MustParseAddr("2001:db8:1::1")
	Wan4    = netip.MustParseAddr("198.51.100.1")
	Wan6    = netip.MustParseAddr("2001:db8:2::1")
	Server4 = netip.MustParseAddr("198.51.100.2")
	Server6 = netip.MustParseAddr("2001:db8:2::2")
)

// RoutedOptions configure a routed network. The zero value is the default.
type RoutedOptions struct {
	Lan string // the firewall's interface towards the client, "" is lan0
	Wan string // the firewall's interface towards the server, "" is wan0

	// StaticNeighbours saves all ARP and neighbour discovery, for tests that
	// count packets exactly.
	StaticNeighbours bool

	// NoOffload makes every interface finish its checksums and cut its
	// segments, so that packets look as they do on a wire.
	NoOffload bool
}

// Routed is the usual network: a client and a server with a router in between,
// where the firewall belongs. Client and server call their interface eth0.
type Routed struct {
	*Net
	Client, Firewall, Server *Host
	Lan, Wan                 string // the firewall's interfaces
}

// NewRouted builds the routed network for IPv4 and IPv6; it works when NewRouted
// returns.
func NewRouted(o RoutedOptions) (*Routed, error) {
	r := &Routed{Net: New(), Lan: "lan0", Wan: "wan0"}
	if o.Lan != "" {
		r.Lan = o.Lan
	}
	if o.Wan != "" {
		r.Wan = o.Wan
	}
	if err := r.build(o); err != nil {
		return nil, fmt.Errorf("building the routed network: %w", errors.Join(err, r.Close()))
	}
	return r, nil
}

func (r *Routed) build(o RoutedOptions) error {
	for _, h := range []struct {
		name string
		at   **Host
	}{{"client", &r.Client}, {"firewall", &r.Firewall}, {"server", &r.Server}} {
		host, err := r.Host(h.name)
		if err != nil {
			return err
		}
		*h.at = host
	}
	if err := r.Firewall.Forward(); err != nil {
		return err
	}
	links := []routedLink{
		{
			End{r.Client, "eth0", []netip.Prefix{in24(Client4), in64(Client6)}},
			End{r.Firewall, r.Lan, []netip.Prefix{in24(Lan4), in64(Lan6)}},
		},
		{
			End{r.Server, "eth0", []netip.Prefix{in24(Server4), in64(Server6)}},
			End{r.Firewall, r.Wan, []netip.Prefix{in24(Wan4), in64(Wan6)}},
		},
	}
	for _, l := range links {
		if err := l.build(r.Net, o); err != nil {
			return err
		}
	}
	return nil
}

// routedLink is an end host's link to its router.
type routedLink struct{ host, router End }

func (l routedLink) build(n *Net, o RoutedOptions) error {
	if err := n.Link(l.host, l.router); err != nil {
		return err
	}
	if o.NoOffload {
		for _, end := range []End{l.host, l.router} {
			if err := end.Host.NoOffload(end.Name); err != nil {
				return err
			}
		}
	}
	if o.StaticNeighbours {
		if err := errors.Join(knows(l.host, l.router), knows(l.router, l.host)); err != nil {
			return err
		}
	}
	for _, gw := range l.router.Addrs {
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gw.Addr().Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := l.host.Host.Route(everything, gw.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// knows gives one end the other's addresses as permanent neighbours.
func knows(a, b End) error {
	mac, err := b.Host.MAC(b.Name)
	if err != nil {
		return err
	}
	for _, addr := range b.Addrs {
		if err := a.Host.Neighbour(a.Name, addr.Addr(), mac); err != nil {
			return err
		}
	}
	return nil
}

func in24(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 24) }
func in64(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 64) }
