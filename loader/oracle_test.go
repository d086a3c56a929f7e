package loader

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// Addresses of the random packets. The bench's host is 192.0.2.1 and
// 2001:db8:1::1 in lan, 198.51.100.1 and 2001:db8:2::1 in wan, and has no
// default route.
var (
	sources4 = addrs("192.0.2.2", "192.0.2.77", "198.51.100.2", "203.0.113.9", "10.1.2.3")
	sources6 = addrs("2001:db8:1::2", "2001:db8:1::77", "2001:db8:2::2", "2001:db8:9::9")
	targets4 = addrs("192.0.2.1", "198.51.100.1", "192.0.2.2", "198.51.100.2", "198.51.100.9", "203.0.113.9", "224.0.0.1")
	targets6 = addrs("2001:db8:1::1", "2001:db8:2::1", "2001:db8:1::2", "2001:db8:2::2", "2001:db8:2::9", "2001:db8:9::9", "ff02::1")

	zoneOf = map[string]policy.ZoneID{
		"192.0.2.1": policy.ZoneHost, "198.51.100.1": policy.ZoneHost, "224.0.0.1": policy.ZoneHost,
		"203.0.113.9": policy.ZoneHost, "2001:db8:9::9": policy.ZoneHost, // no route
		"2001:db8:1::1": policy.ZoneHost, "2001:db8:2::1": policy.ZoneHost, "ff02::1": policy.ZoneHost,
		"192.0.2.2": zoneLan, "2001:db8:1::2": zoneLan,
		"198.51.100.2": zoneWan, "198.51.100.9": zoneWan, "2001:db8:2::2": zoneWan, "2001:db8:2::9": zoneWan,
	}
)

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// Prefixes that overlap one another and the addresses above, with the edges.
var randomPrefixes = prefixes("0.0.0.0/0", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.2/32", "198.51.100.0/24",
	"198.51.100.2/31", "203.0.113.0/24", "10.0.0.0/8", "::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1::2/128",
	"2001:db8:2::/64", "::/64", "ff00::/8")

func randomAddrMatch(r *rand.Rand) policy.AddrMatch {
	var m policy.AddrMatch
	for range pick(r, 0, 0, 1, 2, 3) {
		m.Prefixes = append(m.Prefixes, pick(r, randomPrefixes...))
	}
	if r.IntN(6) == 0 {
		list := &policy.List{Type: policy.ListCIDR}
		for range r.IntN(5) {
			list.Prefixes = append(list.Prefixes, pick(r, randomPrefixes...))
		}
		m.Lists = append(m.Lists, list)
	}
	return m
}

func randomPorts(r *rand.Rand) []policy.PortRange {
	var ranges []policy.PortRange
	for range pick(r, 0, 0, 1, 2) {
		first := pick[uint16](r, 0, 22, 53, 80, 443, 1024, 65535)
		ranges = append(ranges, policy.PortRange{First: first, Last: max(first, pick[uint16](r, first, 443, 65535))})
	}
	return ranges
}

func randomRule(r *rand.Rand) policy.Rule {
	rule := policy.Rule{
		From:   pick(r, policy.ZoneNone, policy.ZoneHost, zoneLan, zoneWan, zoneLan, zoneWan),
		To:     pick(r, policy.ZoneNone, policy.ZoneNone, policy.ZoneHost, zoneLan, zoneWan),
		Src:    randomAddrMatch(r),
		Dst:    randomAddrMatch(r),
		Sport:  randomPorts(r),
		Dport:  randomPorts(r),
		Action: pick(r, policy.ActionAccept, policy.ActionDrop),
	}
	for range pick(r, 0, 1, 1, 2) {
		rule.Proto = append(rule.Proto, pick[uint8](r, protoTCP, protoUDP, protoICMP, protoICMPv6, protoSCTP, protoGRE))
	}
	if r.IntN(4) == 0 {
		rule.Flags = policy.FlagsMatch{Mask: syn | ack, Value: pick[uint8](r, syn, ack, 0)}
	}
	if rule.From != policy.ZoneNone && rule.From != policy.ZoneHost && r.IntN(3) == 0 {
		rule.Action = policy.ActionInspect
	}
	return rule
}

// timeouts are those of a policy that says nothing of them.
var timeouts = func() policy.Timeouts {
	p, err := policy.ParseBytes("", []byte("version: 1\nzones: { lan: [lan0] }\n"), "")
	if err != nil {
		panic(err)
	}
	return p.Timeouts
}()

func randomPolicy(r *rand.Rand) *policy.Policy {
	p := &policy.Policy{
		Zones: []policy.Zone{{Name: "lan"}, {Name: "wan"}},
		Defaults: policy.Defaults{
			Input:   pick(r, policy.ActionAccept, policy.ActionDrop),
			Forward: pick(r, policy.ActionAccept, policy.ActionDrop),
			Output:  pick(r, policy.ActionAccept, policy.ActionDrop),
		},
		Failure: policy.Failure{
			Malformed: pick(r, policy.ActionAccept, policy.ActionDrop),
			Midstream: pick(r, policy.ActionInspect, policy.ActionAccept, policy.ActionDrop),
		},
		Timeouts: timeouts,
		Marks:    policy.Marks{Mask: pick[uint32](r, 0x00ff0000, 0xff000000, 0x7f)},
	}
	inspecting := 0
	for range pick(r, 1, 3, 10, 63, 64, 65, 129, 1000, 4096) {
		rule := randomRule(r)
		if rule.Action == policy.ActionInspect && inspecting == p.Marks.Room() {
			rule.Action = policy.ActionDrop
		}
		if rule.Action == policy.ActionInspect {
			rule.Inspect = inspecting
			inspecting++
		}
		p.Rules = append(p.Rules, rule)
	}
	return p
}

// judgement is a verdict in the terms of a tc program.
type judgement struct {
	code uint32
	mark uint32 // the field under the mask
}

// isVital is RFC 4890's list, as the design keeps it.
func isVital(p *packet) bool {
	if p.proto != protoICMPv6 || !p.src.Is6() || p.later() {
		return false
	}
	switch t := p.icmpType; {
	case t == 1 || t == 2 || t == 128 || t == 129 || t >= 130 && t <= 132 || t == 143:
		return true
	case t == 3:
		return p.icmpCode == 0
	case t == 4:
		return p.icmpCode == 1 || p.icmpCode == 2
	case t >= 133 && t <= 137:
		return p.hopLimit == 255
	}
	return false
}

// want is the verdict on the first packet of a flow by the policy's plain
// meaning and what is built in.
func want(pol *policy.Policy, p *packet, from, to policy.ZoneID) judgement {
	if p.later() {
		return judgement{code: tcDrop} // its first fragment never came
	}
	if isVital(p) {
		return judgement{code: tcNext}
	}
	action := policy.ActionNone
	m := pol.Match(p.asPolicy(from, to))
	action = m.Action
	if action == policy.ActionInspect && p.proto == protoTCP && p.flags&(syn|ack|rst) != syn {
		action = pol.Failure.Midstream
	}
	switch action {
	case policy.ActionAccept:
		return judgement{code: tcNext}
	case policy.ActionInspect:
		if payloadOf(p) == 0 && !p.moreFrags {
			return judgement{code: tcNext}
		}
		return judgement{code: tcNext, mark: uint32(policy.MarkInspect + pol.Rules[m.Rule].Inspect)}
	}
	return judgement{code: tcDrop}
}

// payloadOf counts what follows the headers that the kernel half knows.
func payloadOf(p *packet) int {
	switch {
	case p.proto == protoSCTP:
		return 12 + len(p.payload) // its header is not taken apart
	case p.proto == protoICMPv6 && p.src.Is4(), p.proto == protoICMP && p.src.Is6():
		return 8 + len(p.payload) // nothing of this kind exists
	}
	return len(p.payload)
}

// wantDrop says whether fw_xdp may drop: where the first match drops whatever
// the zone out is.
func wantDrop(pol *policy.Policy, p *packet, from policy.ZoneID) bool {
	if p.later() || isVital(p) || isError(p) {
		return false
	}
	for i := range pol.Rules {
		r := pol.Rules[i]
		to := r.To
		r.To = policy.ZoneNone
		if r.Match(p.asPolicy(from, policy.ZoneNone)) {
			return to == policy.ZoneNone && r.Action == policy.ActionDrop
		}
	}
	return false
}

func isError(p *packet) bool {
	return p.proto == protoICMP && p.src.Is4() && (p.icmpType == 3 || p.icmpType == 11 || p.icmpType == 12) ||
		p.proto == protoICMPv6 && p.src.Is6() && p.icmpType < 128
}

// TestProgramsAgreeWithThePolicy compares the programs with policy.Match, the
// slow and plain meaning, on random policies and packets.
func TestProgramsAgreeWithThePolicy(t *testing.T) {
	policies, packets := 80, 400
	if testing.Short() {
		policies = 20
	}
	b := newBench(t)
	b.host.MustDo(t, func() error {
		for seed := range uint64(policies) {
			r := rand.New(rand.NewPCG(seed, 1))
			pol := randomPolicy(r)
			f := b.load(pol)
			for range packets {
				b.compare(f, pol, randomPacket(r), seed)
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// compare judges one packet at all three hooks.
func (b *bench) compare(f *Firewall, pol *policy.Policy, p packet, seed uint64) {
	b.tb.Helper()
	frame := p.frame()
	to := zoneOf[p.dst.String()]
	const foreignMark = 0x0000a500
	mask := pol.Marks.Mask
	describe := func() string {
		return fmt.Sprintf("seed %d, packet %+v, frame %s, policy %+v", seed, p, hex.EncodeToString(frame), pol)
	}
	for _, from := range []policy.ZoneID{zoneLan, zoneWan, policy.ZoneNone} {
		in := skb{Mark: foreignMark &^ mask, Ifindex: map[policy.ZoneID]uint32{zoneLan: b.lan, zoneWan: b.wan}[from]}
		if from == policy.ZoneNone {
			continue // programs are attached to interfaces of zones only
		}
		code, out := b.tc(f.objs.FwTc, frame, in)
		got := judgement{code, out.Mark & mask >> pol.Marks.Shift()}
		if w := want(pol, &p, from, to); got != w {
			b.tb.Fatalf("fw_tc from %d to %d: got %+v, want %+v; %s", from, to, got, w, describe())
		}
		if out.Mark&^mask != in.Mark {
			b.tb.Fatalf("fw_tc changed foreign mark bits: %#x to %#x", in.Mark, out.Mark)
		}
		f.dropEntry(b.tb, p.flow())

		wantCode := uint32(xdpPass)
		if wantDrop(pol, &p, from) {
			wantCode = xdpDrop
		}
		if code := b.xdp(f, frame, in.Ifindex); code != wantCode {
			b.tb.Fatalf("fw_xdp from %d: got %d, want %d; %s", from, code, wantCode, describe())
		}
	}
	b.compareLeaving(f, pol, p, describe)
}

// compareLeaving judges the packet as one that the host sends.
func (b *bench) compareLeaving(f *Firewall, pol *policy.Policy, p packet, describe func() string) {
	b.tb.Helper()
	code, _ := b.tc(f.objs.FwTcOut, p.frame(), skb{Ifindex: b.wan})
	if w := want(pol, &p, policy.ZoneHost, zoneWan); code != w.code {
		b.tb.Fatalf("fw_tc_out: got %d, want %d; %s", int32(code), int32(w.code), describe())
	}
	f.dropEntry(b.tb, p.flow())
}
