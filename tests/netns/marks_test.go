package netns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const (
	ownBits     = 0x00ff0000 // marks.mask by default
	foreignBits = ^uint32(ownBits)
	byTC        = 0x12000034 // set by another tc program, before fw_tc
	byNFT       = 0x8000ab00 // set by another nft table, behind fw_tc
)

// markBefore attaches a program that overwrites the mark of what comes in, so
// that it runs before fw_tc.
func markBefore(tb testing.TB, host *testnet.Host, ifname, mode string, mark uint32) {
	tb.Helper()
	const skbMark = 8 // offset in struct __sk_buff
	host.MustDo(tb, func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.LoadImm(asm.R2, int64(mark), asm.DWord),
			asm.StoreMem(asm.R1, skbMark, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R0, -1), // TC_ACT_UNSPEC: the next program judges
			asm.Return(),
		}})
		if err != nil {
			return err
		}
		tb.Cleanup(func() { _ = prog.Close() })
		l, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		if mode == "tcx" {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: prog,
				Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
			if err == nil {
				tb.Cleanup(func() { _ = attached.Close() })
			}
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{Fd: prog.FD(), Name: "foreign", DirectAction: true,
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS,
				Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}})
	})
}

// markWatch counts what leaves a host: chain "udp" and chain "tcp" have a rule
// for packets with all of the foreign bits, one for those without, and one for
// packets whose field of ours is not 0.
func markWatch(tb testing.TB, host *testnet.Host) *nft {
	tb.Helper()
	n := newNFT(host, "others")
	n.mustAdd(tb, &nftables.Chain{Name: "first", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}, setMark(byNFT))
	for name, proto := range map[string]uint8{"udp": unix.IPPROTO_UDP, "tcp": unix.IPPROTO_TCP} {
		n.mustAdd(tb, &nftables.Chain{Name: name, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter},
			rule(protocol(proto), marked(expr.CmpOpEq, foreignBits, byTC|byNFT)),
			rule(protocol(proto), marked(expr.CmpOpNeq, foreignBits, byTC|byNFT)),
			rule(protocol(proto), marked(expr.CmpOpNeq, ownBits, 0)))
	}
	return n
}

// TestForeignMarksSurvive marks packets before fw_tc and before the queue, and
// looks at them behind the verdict.
func TestForeignMarksSurvive(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, sinkPolicy+`
  - { name: web, from: lan, to: wan, proto: tcp, dport: 443, action: inspect, steps: [{ action: accept }] }
`, m.flags()...)
		for _, ifname := range []string{b.Lan, b.Wan} {
			markBefore(t, b.Firewall, ifname, m.tc, byTC)
		}
		watch := markWatch(t, b.Firewall)
		eachFamily(t, func(t *testing.T, fam family) {
			dns, server := b.serveDNS(t, fam), b.serveTLS(t, fam)
			udp, tcp, before := watch.counted(t, "udp"), watch.counted(t, "tcp"), b.f.status()

			addrs, err := b.Client.Resolver(dns.Addr).LookupNetIP(testnet.Patience(t), "ip4", "four.sink.example.")
			if want := netip.MustParseAddr("192.0.2.99"); err != nil || len(addrs) != 1 || addrs[0].Unmap() != want {
				t.Errorf("a rewritten answer: got %v, %v; want %v", addrs, err, want)
			}
			conn, err := b.Client.DialTLS(testnet.Patience(t), server.Addr.String(), server.ClientConfig("good.example"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			exchange(t, conn, 3)
			b.f.eventually(t, "question, response and hello have been queued", func(s status) bool { return s.since(before, "user") == 3 })

			now := watch.counted(t, "udp")
			if with, without := now[0]-udp[0], now[1]-udp[1]; with != 2 || without != 0 {
				t.Errorf("%d DNS packets left with all foreign bits and %d without, want 2 and 0", with, without)
			}
			now = watch.counted(t, "tcp")
			if with, without := now[0]-tcp[0], now[1]-tcp[1]; with < 10 || without != 0 {
				t.Errorf("%d TCP packets left with all foreign bits and %d without, want all with", with, without)
			}
		})
	})
}

// TestForeignValueInOwnBitsIsCleared: who could set our bits could have packets
// queued, or pass the queue by.
func TestForeignValueInOwnBitsIsCleared(t *testing.T) {
	// Accepted by user space; for the first rule, for the second; for none.
	for field, m := range map[uint32]mode{
		0x00010000: twoModes[0], 0x00020000: twoModes[1], 0x00030000: twoModes[0], 0x00ff0000: twoModes[0],
	} {
		t.Run(fmt.Sprintf("%#x", field), func(t *testing.T) {
			eachMode(t, []mode{m}, func(t *testing.T, m mode) {
				b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
				markBefore(t, b.Firewall, b.Lan, m.tc, byTC|field)
				markBefore(t, b.Firewall, b.Wan, m.tc, byTC|field)
				watch := markWatch(t, b.Firewall)
				eachFamily(t, func(t *testing.T, fam family) { cleared(t, b, fam, watch) })
			})
		})
	}
}

func cleared(t *testing.T, b *bench, fam family, watch *nft) {
	udp, before := watch.counted(t, "udp"), b.f.status()
	exchange(t, b.Client.MustDial(t, "udp", at(fam.server, 7)), 5)
	expect(t, before, b.f.status(), counts{"tc pass rule": 1, "tc pass flow": 9, "queued": 0, "bypassed": 0, "user": 0})
	now := watch.counted(t, "udp")
	for i := range now {
		now[i] -= udp[i]
	}
	if now[0] != 10 || now[1] != 0 || now[2] != 0 {
		t.Errorf("%d packets left with the foreign bits, %d without, %d with our field set; want 10, 0 and 0", now[0], now[1], now[2])
	}
	// An inspected packet is queued for its own rule, whatever it was marked.
	dns := b.serveDNS(t, fam)
	conn := b.Client.MustDial(t, "udp", dns.Addr.String())
	if _, err := conn.Write(question(t, 1, "denied.example.", 1)); err != nil {
		t.Fatal(err)
	}
	b.f.eventually(t, "the denied question is dropped by a step", func(s status) bool {
		return s.User.Dropped == before.User.Dropped+1 && s.User.Step == before.User.Step+1
	})
}
