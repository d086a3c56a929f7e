package testnet

import (
	"context"
	"net"
)

// MustNew returns an empty network that is closed with the test.
func MustNew(tb TB) *Net {
	tb.Helper()
	Need(tb)
	n := New()
	closeWith(tb, n.Close)
	return n
}

// MustRouted returns the routed network, closed with the test.
func MustRouted(tb TB, o RoutedOptions) *Routed {
	tb.Helper()
	Need(tb)
	r, err := NewRouted(o)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	closeWith(tb, r.Close)
	return r
}

func closeWith(tb TB, f func() error) {
	tb.Cleanup(func() {
		if err := f(); err != nil {
			tb.Logf("closing the network: %v", err)
		}
	})
}

// MustHost adds a host.
func (n *Net) MustHost(tb TB, name string) *Host {
	tb.Helper()
	h, err := n.Host(name)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return h
}

// MustDo runs f on the host.
func (h *Host) MustDo(tb TB, f func() error) {
	tb.Helper()
	if err := h.Do(f); err != nil {
		tb.Fatalf("on host %s: %v", h.Name, err)
	}
}

// MustDial opens a connection that is closed with the test.
func (h *Host) MustDial(tb TB, network, address string) net.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(h.net.ctx, patience)
	defer cancel()
	conn, err := h.Dial(ctx, network, address)
	if err != nil {
		tb.Fatalf("dialling from host %s: %v", h.Name, err)
	}
	tb.Cleanup(func() {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // ends at once, not among a later test's packets
		}
		_ = conn.Close()
	})
	return conn
}

// MustListenPacket opens a datagram socket that is closed with the test.
func (h *Host) MustListenPacket(tb TB, network, address string) net.PacketConn {
	tb.Helper()
	conn, err := h.ListenPacket(network, address)
	if err != nil {
		tb.Fatalf("listening on host %s: %v", h.Name, err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// MustCapture captures on an interface until the network is closed.
func (h *Host) MustCapture(tb TB, ifname string) *Capture {
	tb.Helper()
	c, err := h.Capture(ifname)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return c
}

// MustSend sends a frame.
func (h *Host) MustSend(tb TB, ifname string, frame []byte) {
	tb.Helper()
	if err := h.Send(ifname, frame); err != nil {
		tb.Fatalf("%v", err)
	}
}

// MustMAC is the hardware address of an interface.
func (h *Host) MustMAC(tb TB, ifname string) net.HardwareAddr {
	tb.Helper()
	mac, err := h.MAC(ifname)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	return mac
}

// Patience returns a context for something that happens at once unless it is
// broken.
func Patience(tb TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}
