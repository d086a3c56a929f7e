package fastpath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// A filter is something that may stand on a site's firewall.
type filter struct {
	name string
	set  func(s *site)
}

func none(*site) {}

func xdpDropAll(s *site) { s.attach(s.Firewall, s.Lan, program(s.b, dropCode(counter(s.b)))) }

func xdpPassAll(s *site) {
	pass := asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()} // XDP_PASS
	s.attach(s.Firewall, s.Lan, program(s.b, pass))
}

// tcAll gives everything one verdict, linux/pkt_cls.h.
func tcAll(verdict int32) func(s *site) {
	return func(s *site) {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
		if err != nil {
			s.b.Fatalf("loading a tc program: %+v", err)
		}
		s.b.Cleanup(func() { prog.Close() })
		s.Firewall.MustDo(s.b, func() error {
			index, err := s.Firewall.Index(s.Lan)
			if err != nil {
				return err
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return fmt.Errorf("attaching to %s: %w", s.Lan, err)
			}
			s.b.Cleanup(func() { _ = l.Close() })
			return nil
		})
	}
}

const tcNext, tcShot = -1, 2

// xdpRedirect forwards by a program that knows nothing but the way.
func xdpRedirect(s *site) {
	out, err := s.Firewall.Index(s.Wan)
	if err != nil {
		s.b.Fatal(err)
	}
	addresses := append(s.Server.MustMAC(s.b, "eth0"), s.Firewall.MustMAC(s.b, s.Wan)...)
	s.attach(s.Firewall, s.Lan, program(s.b, redirectCode(out, addresses)))
}

// verdict is what rules that match say in a scene.
func (s *site) verdict() string {
	if s.scene.arrive {
		return "accept"
	}
	return "drop"
}

// hook is where other firewalls judge the packets of a scene.
func (s *site) hook() string {
	if s.scene.to == testnet.Server4 {
		return "forward"
	}
	return "input"
}

// unmet is the i-th of the rules that no packet matches: a prefix and a port.
func unmet(i int) (prefix string, port int) {
	return fmt.Sprintf("172.%d.%d.0/24", 16+i>>8, i&0xff), 1024 + i
}

// nftRules is a chain of n rules, of which the last one matches; before them, if
// that is asked for, packets of known flows pass.
func nftRules(n int, established bool) func(s *site) {
	return func(s *site) {
		var t strings.Builder
		fmt.Fprintf(&t, "table inet peer {\n chain c {\n type filter hook %s priority filter; policy accept;\n", s.hook())
		if established {
			t.WriteString("ct state established accept\n")
		}
		for i := range n - 1 {
			prefix, port := unmet(i)
			fmt.Fprintf(&t, "ip saddr %s udp dport %d counter drop\n", prefix, port)
		}
		fmt.Fprintf(&t, "udp dport %d counter %s\n}\n}\n", port, s.verdict())
		s.sh("nft -f " + s.write("rules.nft", t.String()))
	}
}

// nftSet drops what is in a set of n addresses.
func nftSet(n int) func(s *site) {
	return func(s *site) { s.nftSet(n, "inet", "type filter hook "+s.hook()+" priority filter") }
}

// nftIngress does it where packets come from the driver.
func nftIngress(n int) func(s *site) {
	return func(s *site) { s.nftSet(n, "netdev", "type filter hook ingress device "+s.Lan+" priority 0") }
}

func (s *site) nftSet(n int, family, hook string) {
	var t strings.Builder
	fmt.Fprintf(&t, "table %s peer {\n set bots { type ipv4_addr; size %d; }\n chain c {\n %s; policy accept;\nip saddr @bots counter drop\n}\n}\n", family, n, hook)
	for i := 0; i < n; {
		fmt.Fprintf(&t, "add element %s peer bots {", family)
		for range min(n-i, 10_000) {
			t.WriteString(" " + listed(i).String() + ",")
			i++
		}
		t.WriteString(" }\n")
	}
	s.sh("nft -f " + s.write("set.nft", t.String()))
}

// iptables is a chain of n rules, of which the last one matches; variant is
// legacy or nft.
func iptables(variant string, n int) func(s *site) {
	return func(s *site) {
		var t strings.Builder
		t.WriteString("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n")
		chain := strings.ToUpper(s.hook())
		for i := range n - 1 {
			prefix, port := unmet(i)
			fmt.Fprintf(&t, "-A %s -s %s -p udp --dport %d -j DROP\n", chain, prefix, port)
		}
		fmt.Fprintf(&t, "-A %s -p udp --dport %d -j %s\nCOMMIT\n", chain, port, strings.ToUpper(s.verdict()))
		s.sh("iptables-" + variant + "-restore < " + s.write("rules.ipt", t.String()))
	}
}

// xdpFilter denies n addresses. The program's command adds them one by one; here
// it adds the first, and its entry is copied for the others.
func xdpFilter(n int) func(s *site) {
	return func(s *site) {
		first := listed(0)
		// A BPF file system of its own: the command knows one set of pins.
		s.sh("mount -t bpf bpf /sys/fs/bpf && xdp-filter load -m native -f ipv4 " + s.Lan + " && xdp-filter ip -m src " + first.String())
		m := s.newestMap("filter_ipv4")
		defer m.Close()
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			s.b.Fatal(err)
		}
		entry := make([]uint64, cpus)
		if err := m.Lookup(first.As4(), &entry); err != nil {
			s.b.Fatalf("reading xdp-filter's entry: %v", err)
		}
		for i := range n {
			if err := m.Put(listed(i).As4(), entry); err != nil {
				s.b.Fatalf("copying xdp-filter's entry: %v", err)
			}
		}
	}
}

// newestMap is the map of a name that was made last.
func (s *site) newestMap(name string) *ebpf.Map {
	s.b.Helper()
	var newest ebpf.MapID
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			s.b.Fatal(err)
		}
		id = next
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // gone meanwhile
		}
		if info, err := m.Info(); err == nil && info.Name == name {
			newest = id
		}
		_ = m.Close()
	}
	m, err := ebpf.NewMapFromID(newest)
	if err != nil {
		s.b.Fatalf("finding the map %s: %v", name, err)
	}
	return m
}

// has reports whether the machine has a peer's command.
func has(command string) bool {
	_, err := exec.LookPath(command)
	return err == nil
}
