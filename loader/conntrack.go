package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/pktbuf"
)

// On a first start connections exist that no program of ours has seen begin. Where
// the kernel tracks connections they get entries as if an older policy had
// accepted them: their next packet has them judged by the one in force, as known
// flows, in the direction in which they began.

// tracked is a connection in the kernel's table.
type tracked struct {
	flow  pktbuf.Flow // as its first packet came
	reply pktbuf.Flow // as replies come, from where NAT sends it
	state uint8       // gen.FWFlowState
}

const protoUDPNumber, protoSCTPNumber = 17, 132

// conntrackFile lists connections where the kernel has no nf_conntrack_netlink. It
// is that of the calling thread's network namespace.
const conntrackFile = "/proc/thread-self/net/nf_conntrack"

// takeConnections makes entries for the connections that the kernel knows.
func (f *Firewall) takeConnections() error {
	list, err := listTracked()
	if errors.Is(err, errNoConntrack) {
		f.opts.Log.Info("connections that exist already are not known, and judged by their next packets as new ones", "because", err)
		return nil
	}
	if err != nil {
		return err
	}
	now, err := monotonic()
	if err != nil {
		return err
	}
	origins := make(map[netip.Addr]uint32)
	for _, t := range list {
		src := t.flow.Src().Addr()
		in, ok := origins[src]
		if !ok {
			in = originOf(src)
			origins[src] = in
		}
		if err := f.enter(t, in, now); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		f.opts.Log.Info("connections that exist already are taken over", "connections", len(list))
	}
	return nil
}

// enter makes the entries of one connection: under its first addresses, and where
// NAT changes them under those that it leaves with.
func (f *Firewall) enter(t tracked, in uint32, now uint64) error {
	table := f.objs.Flows
	if t.state < uint8(gen.FWFlowStateSTATE_ESTABLISHED) {
		table = f.objs.HalfOpen
	}
	put := func(flow pktbuf.Flow, via uint8) error {
		key, sender := encodeFlow(flow)
		err := table.Update(key, gen.FWFlow{
			LastSeen: now, Rule: ruleNone, Action: uint8(gen.FWActionACTION_ACCEPT),
			Origin: sender, Via: via, In: in, State: t.state,
		}, ebpf.UpdateNoExist)
		if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("entering a connection: %w", err)
		}
		return nil
	}
	err := put(t.flow, 0)
	leaves := t.reply.Reverse()
	if err != nil || leaves == t.flow {
		return err
	}
	var via uint8
	if in != 0 {
		// An interface without a zone, or none, is in none: then the flow is
		// judged where it leaves.
		if err := f.objs.Zones.Lookup(in, &via); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("looking up a zone: %w", err)
		}
	}
	return put(leaves, via)
}

// originOf is where packets from an address come in: the interface of the route
// to it, 0 for the host's own.
func originOf(src netip.Addr) uint32 {
	routes, err := netlink.RouteGet(net.IP(src.AsSlice()))
	if err != nil || len(routes) == 0 {
		return uint32(gen.FWLimitsIN_UNKNOWN)
	}
	if routes[0].Type == unix.RTN_LOCAL {
		return 0
	}
	return uint32(routes[0].LinkIndex)
}

// monotonic is the clock of flow entries.
func monotonic() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("reading the clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}

var errNoConntrack = errors.New("this kernel lists no connections (nf_conntrack_netlink is missing)")

// listTracked lists the connections of both families.
func listTracked() ([]tracked, error) {
	var list []tracked
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := complete(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, family)
		})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
			return readConntrackFile(conntrackFile)
		}
		if err != nil {
			return nil, fmt.Errorf("listing the kernel's connections: %w", err)
		}
		for _, c := range flows {
			var state uint8
			if tcp, ok := c.ProtoInfo.(*netlink.ProtoInfoTCP); ok {
				state = tcp.State
			}
			if t, ok := newTracked(tupleFlow(c.Forward), tupleFlow(c.Reverse), state); ok {
				list = append(list, t)
			}
		}
	}
	return list, nil
}

func tupleFlow(t netlink.IPTuple) pktbuf.Flow {
	src, _ := netip.AddrFromSlice(t.SrcIP) // an invalid address is refused later
	dst, _ := netip.AddrFromSlice(t.DstIP)
	if !src.IsValid() || !dst.IsValid() {
		return pktbuf.Flow{}
	}
	return pktbuf.FlowOf(netip.AddrPortFrom(src.Unmap(), t.SrcPort), netip.AddrPortFrom(dst.Unmap(), t.DstPort), t.Protocol)
}

// States of a TCP connection, enum tcp_conntrack in linux/netfilter/nf_conntrack_tcp.h.
const (
	ctSynSent     = 1
	ctSynRecv     = 2
	ctEstablished = 3
)

// newTracked is a connection that has flow entries of the kind that can be made
// from outside. That of another protocol is short, or has no ports to go by.
func newTracked(flow, reply pktbuf.Flow, tcpState uint8) (t tracked, ok bool) {
	t = tracked{flow: flow, reply: reply}
	if none := (pktbuf.Flow{}); flow == none || reply == none || flow.Src().Addr().IsLoopback() {
		return t, false
	}
	switch flow.Proto() {
	case protoTCPNumber:
		switch tcpState {
		case ctSynSent, ctSynRecv:
			t.state = uint8(gen.FWFlowStateSTATE_MIDSTREAM)
		case ctEstablished:
			t.state = uint8(gen.FWFlowStateSTATE_ESTABLISHED)
		default:
			t.state = uint8(gen.FWFlowStateSTATE_FIN_WAIT)
		}
	case protoUDPNumber:
		t.state = uint8(gen.FWFlowStateSTATE_UDP_REPLIED)
	case protoSCTPNumber:
		t.state = uint8(gen.FWFlowStateSTATE_OTHER_REPLIED)
	default:
		return t, false
	}
	return t, true
}

// readConntrackFile reads the kernel's list for people
// (net/netfilter/nf_conntrack_standalone.c).
func readConntrackFile(path string) ([]tracked, error) {
	file, err := os.Open(path)
	if errors.Is(err, errNotExist) {
		return nil, errNoConntrack
	}
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's list of connections: %w", err)
	}
	defer file.Close()
	return parseConntrack(file)
}

var tcpStates = map[string]uint8{"SYN_SENT": ctSynSent, "SYN_RECV": ctSynRecv, "ESTABLISHED": ctEstablished}

// parseConntrack reads lines such as "ipv4 2 tcp 6 431999 ESTABLISHED src=192.0.2.1
// dst=198.51.100.1 sport=1024 dport=80 src=... dst=... sport=... dport=... ...".
func parseConntrack(r io.Reader) ([]tracked, error) {
	var list []tracked
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			continue
		}
		proto, err := strconv.ParseUint(fields[3], 10, 8)
		if err != nil {
			return nil, fmt.Errorf("reading the kernel's list of connections: %q: %w", lines.Text(), err)
		}
		var tuples [2]tupleText
		n := -1
		for _, field := range fields {
			key, value, _ := strings.Cut(field, "=")
			if key == "src" {
				n++
			}
			if n == 0 || n == 1 {
				tuples[n].set(key, value)
			}
		}
		if t, ok := newTracked(tuples[0].flow(uint8(proto)), tuples[1].flow(uint8(proto)), tcpStates[fields[5]]); ok {
			list = append(list, t)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the kernel's list of connections: %w", err)
	}
	return list, nil
}

// tupleText is one direction of a connection as it is read.
type tupleText struct {
	src, dst     netip.Addr
	sport, dport uint16
}

func (t *tupleText) set(key, value string) {
	switch key {
	case "src":
		t.src, _ = netip.ParseAddr(value) // an invalid address is refused later
	case "dst":
		t.dst, _ = netip.ParseAddr(value)
	case "sport", "dport":
		port, _ := strconv.ParseUint(value, 10, 16) // the kernel writes nothing else
		if key == "sport" {
			t.sport = uint16(port)
		} else {
			t.dport = uint16(port)
		}
	}
}

func (t *tupleText) flow(proto uint8) pktbuf.Flow {
	if !t.src.IsValid() || !t.dst.IsValid() {
		return pktbuf.Flow{}
	}
	return pktbuf.FlowOf(netip.AddrPortFrom(t.src, t.sport), netip.AddrPortFrom(t.dst, t.dport), proto)
}
