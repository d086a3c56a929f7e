package loader

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// TestFirstFragmentIsQueuedWithoutPayload: what is asked for would otherwise
// travel in the second fragment, behind a first one of bare headers.
func TestFirstFragmentIsQueuedWithoutPayload(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			for i, p := range []packet{
				udp(client, server, 40000, 53).with(0),
				tcp(client, server, 40000, 443, psh|ack),
			} {
				expect(t, "whole, nothing in it", b.arrives(f, b.lan, p), passes)
				p.moreFrags, p.fragID = true, uint32(i+1)
				expect(t, "first fragment of a known flow", b.arrives(f, b.lan, p), queues)
				p.sport, p.fragID = 40001, uint32(i+11)
				expect(t, "first fragment of a new flow", b.arrives(f, b.lan, p), queues)
			}
			answer := tcp(server, client, 443, 40000, psh|ack)
			answer.moreFrags, answer.fragID = true, 20
			expect(t, "first fragment of a reply that nobody looks into", b.arrives(f, b.wan, answer), passes)
		})
	})
}

// TestICMPErrorGoesToTheSenderOfWhatItQuotes: one known flow does not open the
// way to other hosts.
func TestICMPErrorGoesToTheSenderOfWhatItQuotes(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			known := tcp(client, server, 40000, 80, syn)
			b.arrives(f, b.lan, known)
			for _, quoted := range []packet{known, known.reply()} {
				p := icmpError(quoted, 8)
				if client.Is6() {
					p.icmpType, p.icmpCode = 3, 1 // not on RFC 4890's list
				}
				expect(t, "to the sender", b.arrives(f, b.wan, p), passes)
				p.dst = client.Next()
				expect(t, "to another host", b.arrives(f, b.wan, p), drops)
			}
		})
	})
}

// TestEntryOfALeavingPacketSpeaksForReplies: a packet that came in before its
// interface was guarded, or whose entry was lost before it left, is no licence
// for those behind it.
func TestEntryOfALeavingPacketSpeaksForReplies(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			query := udp(client, server, 40000, 53)
			expect(t, "a query leaves", b.leaves(f, b.wan, b.lan, query), passes)
			expect(t, "its response", b.arrives(f, b.wan, query.reply()), passes)
			expect(t, "the next query", b.arrives(f, b.lan, query), queues)
			expect(t, "its response", b.arrives(f, b.wan, query.reply()), queues)

			unasked := udp(server, client, 9, 9)
			expect(t, "an unasked packet leaves", b.leaves(f, b.lan, b.wan, unasked), passes)
			expect(t, "from elsewhere", b.arrives(f, b.lan, udp(server, client, 9, 9)), passes) // by the rule "out"
			if err := f.objs.HalfOpen.Delete(keyOf(unasked)); err != nil {
				t.Fatal(err)
			}
			expect(t, "an unasked packet leaves again", b.leaves(f, b.lan, b.wan, unasked), passes)
			expect(t, "the next unasked packet", b.arrives(f, b.wan, unasked), drops)
			if e, ok := f.entry(t, unasked.flow()); ok {
				t.Errorf("the entry of a dropped flow is still there: %+v", e)
			}
		})
	})
}

// TestForgedPacketDoesNotEndTheRepliesOfATranslatedFlow: the entry that lets
// them return goes only with a packet from where the flow came.
func TestForgedPacketDoesNotEndTheRepliesOfATranslatedFlow(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			outside := udp(client.Next(), server, 61000, 123)
			expect(t, "leaving under another address", b.leaves(f, b.wan, b.lan, outside), passes)
			expect(t, "forged with that address", b.arrives(f, b.wan, outside), drops)
			expect(t, "an answer", b.arrives(f, b.wan, outside.reply()), passes)
		})
	})
}

func keyOf(p packet) any {
	key, _ := encodeFlow(p.flow())
	return key
}

// TestInterfaceThatCannotBeGuardedIsInNoZone: what comes from a zone counts as
// judged when it leaves.
func TestInterfaceThatCannotBeGuardedIsInNoZone(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
		if err != nil {
			return err
		}
		defer prog.Close()
		f := mustLoad(t, replace(t, basePolicy, "lan: [lan0]", `lan: ["late*"]`), Options{PinDir: pinDir(t), XDP: XDPGeneric})
		defer f.Close()
		if err := f.Attach(); err != nil {
			return err
		}
		late := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "late0"}, PeerName: "peer0"}
		if err := netlink.LinkAdd(late); err != nil {
			return err
		}
		l, err := netlink.LinkByName("late0")
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		foreign, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPGenericMode})
		if err != nil {
			return err
		}
		defer foreign.Close()
		if err := f.attach(l); err == nil {
			t.Error("an interface with another XDP program was attached to")
		}
		var zone uint8
		if err := f.objs.Zones.Lookup(uint32(index), &zone); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("zone %d, error %v; want none", zone, err)
		}
		query := udp(netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2"), 40000, 80)
		expect(t, "what it sends into a zone", b.leaves(f, b.wan, uint32(index), query), drops)
		return f.Detach()
	})
}
