package loader

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/policy"
)

var (
	costRounds = flag.Int("rounds", 7, "BenchmarkCost: measure each program in turn `n` times")
	costEach   = flag.Uint("each", 200_000, "BenchmarkCost: `packets` in each turn")
	costOnly   = flag.String("only", "", "BenchmarkCost: measure only what has this `text` in its name")
)

// A cost is what one program costs over packets that differ, by the median of
// several rounds in which all take turns.
type cost struct {
	name    string
	wanted  float64 // ns at most; 0: nothing is wanted
	prog    *ebpf.Program
	frame   []byte
	vary    variation
	in      any    // the program's context
	verdict uint32 // that is expected
	driven  *driven
	ns      []float64
}

// BenchmarkCost prints what the programs cost per packet by a policy's size and
// by the number of flows and listed sources. Packets differ from one to the next:
// a small program changes each and calls the measured one. What that one costs by
// itself, with a program behind it that does nothing, is taken off.
func BenchmarkCost(b *testing.B) {
	bb := newBench(b)
	bb.host.MustDo(b, func() error {
		costs := slices.Concat(idleCosts(bb), flowCosts(bb), newFlowCosts(bb), listCosts(bb))
		costs = slices.DeleteFunc(costs, func(c *cost) bool { return !asked(c.name) })
		for _, c := range costs {
			c.driven = drive(b, c.prog, c.vary)
			c.round(b, *costEach/10)
		}
		for range *costRounds {
			for _, c := range costs {
				c.ns = append(c.ns, c.round(b, *costEach))
			}
		}
		fmt.Printf("%-52s %8s %8s %8s %8s\n", "ns per packet, medians", "median", "least", "most", "wanted")
		for _, c := range costs {
			c.print()
		}
		return nil
	})
}

func asked(name string) bool { return strings.Contains(name, *costOnly) }

// round measures once over n packets, and expects the verdict on the last one.
func (c *cost) round(b *testing.B, packets uint) float64 {
	b.Helper()
	n := uint32(packets)
	verdict, took := run(b, c.driven.prog, c.frame, c.in, n)
	if verdict != c.verdict {
		b.Fatalf("%s: the program returned %d, not %d", c.name, verdict, c.verdict)
	}
	_, alone := run(b, c.driven.alone, c.frame, c.in, n)
	_, empty := run(b, c.driven.empty, c.frame, c.in, n)
	return float64(took) - float64(alone) + float64(empty)
}

func (c *cost) print() {
	slices.Sort(c.ns)
	median := c.ns[len(c.ns)/2]
	wanted := ""
	if c.wanted > 0 {
		wanted = fmt.Sprintf("%8.0f met", c.wanted)
		if median > c.wanted {
			wanted = fmt.Sprintf("%8.0f NOT met", c.wanted)
		}
	}
	fmt.Printf("%-52s %8.1f %8.1f %8.1f %s\n", c.name, median, c.ns[0], c.ns[len(c.ns)-1], wanted)
}

func idleCosts(bb *bench) []*cost {
	b := bb.tb.(*testing.B)
	p := tcp(client4, server4, 40000, 80, ack).with(10)
	return []*cost{
		bb.incoming("tc: a program that does nothing", empty(b, ebpf.SchedCLS), p, variation{}),
		bb.early("XDP: a program that does nothing", empty(b, ebpf.XDP), p, variation{}),
	}
}

// incoming measures a program where packets come in from lan.
func (b *bench) incoming(name string, prog *ebpf.Program, p packet, vary variation) *cost {
	return &cost{name: name, prog: prog, frame: p.frame(), vary: vary, verdict: tcNext,
		in: skb{Ifindex: b.lan, IngressIfindex: b.lan}}
}

func (b *bench) early(name string, prog *ebpf.Program, p packet, vary variation) *cost {
	frame := p.frame()
	return &cost{name: name, prog: prog, frame: frame, vary: vary, verdict: xdpPass,
		in: xdpMd{DataEnd: uint32(len(frame)), IngressIfindex: b.lan}}
}

func (c *cost) drops() *cost {
	c.verdict = xdpDrop
	return c
}

func (c *cost) want(ns float64) *cost {
	c.wanted = ns
	return c
}

// sized loads a policy with tables of the sizes that are asked for.
func (b *bench) sized(p *policy.Policy, o Options) *Firewall {
	b.tb.Helper()
	f, err := Load(p, o)
	if err != nil {
		b.tb.Fatalf("loading: %+v", err)
	}
	b.tb.Cleanup(func() { f.Close() })
	b.enter(f)
	return f
}

// flowCosts measures packets of established flows.
func flowCosts(bb *bench) []*cost {
	f := bb.sized(mustPolicy(bb.tb, basePolicy), Options{})
	var costs []*cost
	for _, of := range []struct {
		family string
		server netip.Addr
		source func(i int) netip.Addr
	}{{"IPv4", server4, source4}, {"IPv6", server6, source6}} {
		for _, flows := range []int{1, 1 << 10, 1 << 16} {
			sources := addresses(flows, of.source)
			for _, src := range sources {
				bb.establish(f, tcp(src, of.server, 40000, 80, syn))
			}
			data := tcp(sources[0], of.server, 40000, 80, ack).with(100)
			leaves := bb.incoming(fmt.Sprintf("tc out: known flow, %s, %d flows", of.family, flows), f.objs.FwTcOut, data.reply(), variation{targets: sources})
			leaves.in = skb{Ifindex: bb.lan, IngressIfindex: bb.wan}
			comes := bb.incoming(fmt.Sprintf("tc: known flow, %s, %d flows", of.family, flows), f.objs.FwTc, data, variation{sources: sources})
			if flows == 1<<10 {
				comes.want(90)
				leaves.want(90)
			}
			costs = append(costs, comes, leaves,
				bb.early(fmt.Sprintf("XDP: known flow, %s, %d flows", of.family, flows), f.objs.FwXdp, data, variation{sources: sources}))
		}
	}
	return costs
}

// establish lets a connection from lan to wan begin.
func (b *bench) establish(f *Firewall, open packet) {
	b.tb.Helper()
	answer := open.reply()
	answer.flags = syn | ack
	done := open
	done.flags = ack
	for _, step := range []string{b.arrives(f, b.lan, open), b.arrives(f, b.wan, answer), b.arrivesFrame(f, b.lan, done.acking(0, 1))} {
		if step != passes {
			b.tb.Fatalf("beginning a connection: %s", step)
		}
	}
}

// acking is the frame of a TCP packet with its numbers.
func (p packet) acking(seq, ack uint32) []byte {
	b := p.frame()
	l4 := len(b) - 20 - len(p.payload)
	binary.BigEndian.PutUint32(b[l4+4:], seq)
	binary.BigEndian.PutUint32(b[l4+8:], ack)
	return b
}

// newFlowCosts measures packets that begin flows, each another one, with tables of
// half-open flows that are full: each entry pushes one out. A large table costs
// more because the kernel's caches do not hold it.
func newFlowCosts(bb *bench) []*cost {
	var costs []*cost
	for _, c := range []struct {
		rules  int
		wanted float64
	}{{10, 250}, {1000, 400}, {policy.MaxRules, 600}} {
		for _, halfOpen := range []int{1000, 65536} {
			for what, to := range map[string]policy.ZoneID{"": policy.ZoneNone, ", by zone out": zoneWan} {
				name := fmt.Sprintf("tc: new flow, %d rules, %d half-open%s", c.rules, halfOpen, what)
				if !asked(name) {
					continue
				}
				f := bb.sized(manyRules(c.rules, to), Options{HalfOpen: halfOpen})
				vary := variation{sources: addresses(1<<12, source4), targets: addresses(1<<12, target4), ports: true}
				p := tcp(client4, server4, 40000, 80, syn)
				costs = append(costs, bb.incoming(name, f.objs.FwTc, p, vary).want(c.wanted))
			}
		}
	}
	slices.SortStableFunc(costs, func(a, b *cost) int { return strings.Compare(a.name, b.name) })
	return costs
}

// manyRules is a policy in which packets from source4 to target4 meet the last
// rule, the only one that asks for a zone out.
func manyRules(n int, to policy.ZoneID) *policy.Policy {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	p := &policy.Policy{
		Zones:    []policy.Zone{{Name: "lan"}, {Name: "wan"}},
		Defaults: policy.Defaults{Input: policy.ActionDrop, Forward: policy.ActionDrop, Output: policy.ActionAccept},
		Failure:  policy.Failure{Malformed: policy.ActionDrop, Midstream: policy.ActionInspect},
		Timeouts: timeouts,
		Marks:    policy.Marks{Mask: 0x00ff0000},
	}
	for i := range n - 1 {
		first := uint16(1 + r.IntN(60000))
		if first <= 80 {
			first = 81
		}
		p.Rules = append(p.Rules, policy.Rule{
			Name:   fmt.Sprint(i),
			From:   pick(r, zoneLan, policy.ZoneNone),
			Proto:  []uint8{pick[uint8](r, protoTCP, protoUDP)},
			Src:    policy.AddrMatch{Prefixes: []netip.Prefix{netip.PrefixFrom(source4(r.IntN(1<<24)), 12+r.IntN(13)).Masked()}},
			Dst:    policy.AddrMatch{Prefixes: []netip.Prefix{netip.PrefixFrom(target4(r.IntN(1<<16)), 24+r.IntN(7)).Masked()}},
			Dport:  []policy.PortRange{{First: first, Last: first + uint16(r.IntN(100))}},
			Action: pick(r, policy.ActionAccept, policy.ActionDrop),
		})
	}
	p.Rules = append(p.Rules, policy.Rule{Name: "last", From: zoneLan, To: to, Action: policy.ActionAccept})
	return p
}

// listCosts measures packets of listed sources.
func listCosts(bb *bench) []*cost {
	var costs []*cost
	for _, c := range []struct {
		name   string
		list   []netip.Prefix
		wanted float64
	}{
		{"10,000 addresses", hosts(10_000), 60},
		{"1 million addresses", hosts(1_000_000), 200},
		{"1 million prefixes of /21 to /32", mixed(1_000_000), 350},
	} {
		if !asked("XDP: listed source, "+c.name) && !asked("XDP: not listed, "+c.name) {
			continue
		}
		p := mustPolicy(bb.tb, basePolicy)
		list := &policy.List{Name: "bots", Type: policy.ListCIDR, Prefixes: c.list}
		p.Rules = append([]policy.Rule{{Name: "bots", Src: policy.AddrMatch{Lists: []*policy.List{list}}, Action: policy.ActionDrop}}, p.Rules...)
		f := bb.sized(p, Options{})
		r := rand.New(rand.NewPCG(3, 3))
		sources := make([]netip.Addr, 1<<16)
		for i := range sources {
			sources[i] = c.list[r.IntN(len(c.list))].Addr()
		}
		listed := tcp(sources[0], server4, 40000, 80, syn)
		if got := bb.xdp(f, listed.frame(), bb.lan); got != xdpDrop {
			bb.tb.Fatalf("%s: fw_xdp gives %d to a listed source", c.name, got)
		}
		costs = append(costs,
			bb.early("XDP: listed source, "+c.name, f.objs.FwXdp, listed, variation{sources: sources}).want(c.wanted).drops(),
			bb.early("XDP: not listed, "+c.name, f.objs.FwXdp, listed, variation{sources: addresses(1<<16, func(i int) netip.Addr {
				return netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)})
			})}))
	}
	return costs
}

// hosts is a list of single addresses, spread out.
func hosts(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		list[i] = netip.PrefixFrom(source4(i), 32)
	}
	return list
}

// mixed is a list of prefixes of which none holds another.
func mixed(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		x := uint32(i) << 11
		bits := 21 + i%12
		// One prefix in each /21.
		x |= uint32(i) * 2654435761 >> 21
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], x)
		list[i] = netip.PrefixFrom(netip.AddrFrom4(a), bits).Masked()
	}
	return list
}

// Addresses that look random: the numbers are multiplied by an odd constant.

func source4(i int) netip.Addr {
	x := uint32(i) * 0x9e3779b1 & 0xffffff
	return netip.AddrFrom4([4]byte{10, byte(x >> 16), byte(x >> 8), byte(x)})
}

func target4(i int) netip.Addr {
	x := uint32(i) * 0x9e3779b1 & 0xffff
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(x >> 8)})
}

func source6(i int) netip.Addr {
	a := client6.As16()
	binary.BigEndian.PutUint32(a[12:], uint32(i)*0x9e3779b1+1)
	return netip.AddrFrom16(a)
}

func addresses(n int, address func(i int) netip.Addr) []netip.Addr {
	all := make([]netip.Addr, n)
	for i := range all {
		all[i] = address(i)
	}
	return all
}
