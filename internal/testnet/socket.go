package testnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Dial opens a real connection from the host. The address is numeric: a name
// would be looked up on another thread, outside the host.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	err = h.Do(func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// DialFrom is Dial with a local address and port of the caller's choice.
func (h *Host) DialFrom(ctx context.Context, network string, from, to netip.AddrPort) (conn net.Conn, err error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from)}
	if len(network) >= 3 && network[:3] == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	err = h.Do(func() error {
		conn, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return conn, err
}

// Listen opens a real listening socket on the host.
func (h *Host) Listen(network, address string) (l net.Listener, err error) {
	err = h.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket opens a real datagram socket on the host.
func (h *Host) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = h.Do(func() error {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// pingKind is what differs between the two families' echo requests.
type pingKind struct {
	network, local string
	proto          int
	request, reply icmp.Type
}

func pingKindOf(to netip.Addr) pingKind {
	if to.Is4() {
		return pingKind{"ip4:icmp", "0.0.0.0", 1, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	}
	return pingKind{"ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
}

// Ping sends one ICMP echo request and waits for its reply.
func (h *Host) Ping(ctx context.Context, to netip.Addr) error {
	kind := pingKindOf(to)
	conn, err := h.ListenPacket(kind.network, kind.local)
	if err != nil {
		return fmt.Errorf("pinging %s: %w", to, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	echo := &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("hybridfw")}
	request, err := (&icmp.Message{Type: kind.request, Body: echo}).Marshal(nil)
	if err != nil {
		return fmt.Errorf("pinging %s: %w", to, err)
	}
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return fmt.Errorf("pinging %s: %w", to, err)
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("waiting for %s to answer: %w", to, errors.Join(ctx.Err(), err))
		}
		msg, err := icmp.ParseMessage(kind.proto, buf[:n])
		if err != nil || msg.Type != kind.reply || from.String() != to.String() {
			continue // other ICMP of the host, neighbour discovery for one
		}
		if got, ok := msg.Body.(*icmp.Echo); ok && got.ID == echo.ID {
			return nil
		}
	}
}
