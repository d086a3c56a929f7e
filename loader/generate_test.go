package loader

import (
	"math/rand/v2"
	"strconv"

	"github.com/hybridfw/hybridfw/policy"
)

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
		list := &policy.List{Name: "l" + strconv.FormatUint(r.Uint64(), 36), Type: policy.ListCIDR}
		for range r.IntN(5) {
			list.Prefixes = append(list.Prefixes, pick(r, randomPrefixes...))
		}
		m.Lists = append(m.Lists, list)
	}
	for range pick(r, 0, 0, 0, 0, 0, 0, 0, 1, 2) {
		m.Lists = append(m.Lists, pick(r, randomDynamic...))
	}
	m.Not = !m.Any() && r.IntN(4) == 0
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

// randomHeaders adds conditions on what few rules look at.
func randomHeaders(r *rand.Rand, rule *policy.Rule) {
	for range pick(r, 0, 0, 0, 0, 1, 2) {
		first := pick[uint16](r, 0, 1, 10, 20, 4094)
		rule.VLAN = append(rule.VLAN, policy.VLANRange{First: first, Last: max(first, pick[uint16](r, first, 10, 4095))})
	}
	for range pick(r, 0, 0, 0, 0, 1, 3) {
		rule.DSCP |= 1 << pick(r, 0, 8, 10, 46, 63)
	}
	if r.IntN(8) == 0 {
		rule.DSCP = ^rule.DSCP
	}
	rule.Fragment = pick(r, policy.FragmentAny, policy.FragmentAny, policy.FragmentAny, policy.FragmentOnly, policy.FragmentNone)
	if r.IntN(5) > 0 {
		return
	}
	rule.Proto, rule.Flags = []uint8{pick[uint8](r, protoICMP, protoICMPv6)}, policy.FlagsMatch{}
	rule.ICMP.Not = r.IntN(3) == 0
	for range pick(r, 1, 1, 2, 4) {
		rule.ICMP.Types = append(rule.ICMP.Types, policy.ICMPType{
			Type: pick[uint8](r, 0, 3, 8, 11, 135, 137, 144, 255), Code: uint8(r.IntN(3)), AnyCode: r.IntN(2) == 0})
	}
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
	randomHeaders(r, &rule)
	rule.NotTo = rule.To != policy.ZoneNone && r.IntN(4) == 0
	if rule.From != policy.ZoneNone && rule.From != policy.ZoneHost && r.IntN(3) == 0 {
		rule.Action = policy.ActionInspect
		return rule
	}
	rule.NotFrom = rule.From != policy.ZoneNone && r.IntN(4) == 0
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
		rule.Name = "r" + strconv.Itoa(len(p.Rules))
		p.Rules = append(p.Rules, rule)
	}
	return p
}
