package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// A scene says what is sent and what should become of it.
type scene struct {
	name    string
	to      netip.Addr
	sources []netip.AddrPort
	arrive  bool // all of it arrives, or nothing
}

const port = 9 // that all is sent to

// flows is how many flows scenes have, unless they are about many more.
const flows = 64

func listedSources(n int) []netip.AddrPort {
	all := make([]netip.AddrPort, n)
	for i := range all {
		all[i] = netip.AddrPortFrom(listed(i), 40000)
	}
	return all
}

func clientPorts(n int) []netip.AddrPort {
	all := make([]netip.AddrPort, n)
	for i := range all {
		all[i] = netip.AddrPortFrom(testnet.Client4, uint16(40000+i))
	}
	return all
}

// listed is an address of lists. They look random: numbers are multiplied by an
// odd constant.
func listed(i int) netip.Addr {
	x := uint32(i+1) * 0x9e3779b1 & 0xffffff
	return netip.AddrFrom4([4]byte{10, byte(x >> 16), byte(x >> 8), byte(x)})
}

var (
	dropped   = scene{name: "drop", to: testnet.Lan4, sources: listedSources(flows)}
	passed    = scene{name: "pass", to: testnet.Lan4, sources: clientPorts(flows), arrive: true}
	forwarded = scene{name: "forward", to: testnet.Server4, sources: clientPorts(flows), arrive: true}

	// Each packet begins a flow: there are more of them than half-open flows are
	// remembered.
	begun = scene{name: "begin", to: testnet.Lan4, sources: listedSources(1 << 18), arrive: true}
)

// A site is a network of its own in which one filter meets one scene. What is
// sent to the host itself arrives at a UDP socket, and what is sent through it at
// an XDP program; both count it and throw it away.
type site struct {
	*testnet.Routed
	b      testing.TB
	scene  scene
	source *source
	socket int       // of the host that it is sent to
	sink   *ebpf.Map // counts what arrives at the server, nil where the host is meant
	dir    string
}

var sites atomic.Int64

// newNetwork builds a site's network; its interfaces have names that no other
// network has, because kernel threads are found by them.
func newNetwork(b testing.TB, sc scene) *site {
	b.Helper()
	n := sites.Add(1)
	r := testnet.MustRouted(b, testnet.RoutedOptions{StaticNeighbours: true, Lan: fmt.Sprintf("lan%d", n), Wan: fmt.Sprintf("wan%d", n)})
	s := &site{Routed: r, b: b, scene: sc, dir: fmt.Sprintf("/run/site%d", n)}
	if err := os.Mkdir(s.dir, 0o755); err != nil { // on a tmpfs of this process's own
		b.Fatal(err)
	}
	return s
}

// newSite builds a network with all that sends and receives the scene's packets.
func newSite(b testing.TB, sc scene) *site {
	b.Helper()
	s := newNetwork(b, sc)
	// Frames redirected into a veth are received only where its other end has
	// GRO or an XDP program (drivers/net/veth.c, veth_xdp_xmit).
	for _, end := range []testnet.End{{Host: s.Firewall, Name: s.Lan}, {Host: s.Client, Name: "eth0"}} {
		if err := end.Host.GRO(end.Name, true); err != nil {
			b.Fatal(err)
		}
	}
	s.source = newSource(b, s.Client, "eth0", s.frames(sc.sources, netip.AddrPortFrom(sc.to, port)))
	receiver := s.Firewall
	if sc.to == testnet.Server4 {
		receiver = s.Server
		s.sink = counter(b)
		s.attach(s.Server, "eth0", program(b, dropCode(s.sink)))
	}
	s.listen(receiver)
	return s
}

func counter(b testing.TB) *ebpf.Map {
	b.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

// dropCode drops everything and counts IPv4, without an atomic: one CPU at a time
// runs it.
func dropCode(count *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R6),
		asm.Add.Imm(asm.R3, 14),
		asm.JGT.Reg(asm.R3, asm.R2, "drop"),
		asm.LoadMem(asm.R2, asm.R6, 12, asm.Half),
		asm.JNE.Imm(asm.R2, 0x0008, "drop"),
		asm.LoadMapValue(asm.R1, count.FD(), 0),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), // XDP_DROP
		asm.Return(),
	}
}

// attach attaches an XDP program in the driver until the test ends.
func (s *site) attach(h *testnet.Host, ifname string, prog *ebpf.Program) {
	s.b.Helper()
	h.MustDo(s.b, func() error {
		index, err := h.Index(ifname)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attaching to %s: %w", ifname, err)
		}
		s.b.Cleanup(func() { _ = l.Close() })
		return nil
	})
}

// listen opens the socket that packets are sent to.
func (s *site) listen(h *testnet.Host) {
	s.b.Helper()
	h.MustDo(s.b, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.socket = fd
		s.b.Cleanup(func() { _ = unix.Close(fd) })
		refuse := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // counted as dropped by the socket
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: s.scene.to.As4()}),
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &refuse}))
	})
}

// answer sends a packet back for each flow, so that filters that know flows know
// that both sides want it.
func (s *site) answer() error {
	for _, src := range s.scene.sources {
		if err := unix.Sendto(s.socket, []byte("yes"), 0, &unix.SockaddrInet4{Port: int(src.Port()), Addr: src.Addr().As4()}); err != nil {
			return fmt.Errorf("answering %v: %w", src, err)
		}
	}
	return nil
}

// counts are what has come to the host's interface and what has arrived, ever.
type counts struct{ came, arrived uint64 }

func (s *site) counts() (c counts, err error) {
	l, err := s.Firewall.Netlink().LinkByName(s.Lan)
	if err != nil {
		return c, fmt.Errorf("asking for the packets of %s: %w", s.Lan, err)
	}
	c.came = l.Attrs().Statistics.RxPackets
	if s.sink != nil {
		return c, s.sink.Lookup(uint32(0), &c.arrived)
	}
	const soMeminfo, drops = 55, 8 // asm-generic/socket.h, linux/sock_diag.h
	var info [9]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := syscall.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.socket), unix.SOL_SOCKET, soMeminfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return c, fmt.Errorf("asking for a socket's drops: %w", errno)
	}
	c.arrived = uint64(info[drops])
	return c, nil
}

// sub says what has come in between; the socket counts in 32 bits.
func (c counts) sub(before counts) counts {
	return counts{c.came - before.came, uint64(uint32(c.arrived - before.arrived))}
}

// write writes a file below the site's folder.
func (s *site) write(name, text string) string {
	s.b.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.b.Fatal(err)
	}
	return path
}

// sh runs a command line on the firewall's host.
func (s *site) sh(line string) {
	s.b.Helper()
	if out, err := s.Firewall.Command("sh", "-c", line).CombinedOutput(); err != nil {
		if len(out) > 1000 {
			out = out[:1000]
		}
		s.b.Fatalf("%.200s: %v\n%s", line, err, out)
	}
}

// threaded moves the interface's receiving into a kernel thread, bound to the
// second CPU, and returns that one's process id; or back into softirqs.
func (s *site) threaded(on bool) (pid int, err error) {
	value := "0"
	if on {
		value = "1"
	}
	if out, err := s.Firewall.Command("sh", "-c", "echo "+value+" > /sys/class/net/"+s.Lan+"/threaded").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("moving the packets of %s to a thread: %w\n%s", s.Lan, err, out)
	}
	if !on {
		return 0, nil
	}
	if pid, err = kernelThread("napi/" + s.Lan + "-"); err != nil {
		return 0, err
	}
	var second unix.CPUSet
	second.Set(1)
	return pid, unix.SchedSetaffinity(pid, &second)
}

// kernelThread finds a kernel thread by the beginning of its name.
func kernelThread(name string) (pid int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, path := range names {
		comm, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(comm), name) { // others may end meanwhile
			_, err = fmt.Sscanf(path, "/proc/%d/", &pid)
			return pid, err
		}
	}
	return 0, fmt.Errorf("there is no kernel thread %s*", name)
}

// onCPUFor is how long a thread has run, ever.
func onCPUFor(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading a thread's time: %w", err)
	}
	var ns int64
	_, err = fmt.Sscan(string(text), &ns)
	return time.Duration(ns), err
}

// redirectCode sends IPv4 out of another interface with new hardware addresses:
// the least that forwarding takes.
func redirectCode(to int, addresses []byte) asm.Instructions {
	load := func(at int) int64 { return int64(binary.NativeEndian.Uint32(addresses[at:])) }
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R6),
		asm.Add.Imm(asm.R3, 14),
		asm.JGT.Reg(asm.R3, asm.R2, "pass"),
		asm.LoadMem(asm.R2, asm.R6, 12, asm.Half),
		asm.JNE.Imm(asm.R2, 0x0008, "pass"),
	}
	for at := 0; at < 12; at += 4 {
		code = append(code, asm.LoadImm(asm.R2, load(at), asm.DWord), asm.StoreMem(asm.R6, int16(at), asm.R2, asm.Word))
	}
	return append(code,
		asm.Mov.Imm(asm.R1, int32(to)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"),
		asm.Return())
}
