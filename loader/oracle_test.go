package loader

import (
	"net/netip"

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
// the zone out is, and whatever VLAN tag the device may have taken off.
func wantDrop(pol *policy.Policy, p *packet, from policy.ZoneID) bool {
	if p.later() || isVital(p) || isError(p) {
		return false
	}
	for i := range pol.Rules {
		r := pol.Rules[i]
		to, vlan := r.To, r.VLAN
		r.To, r.VLAN = policy.ZoneNone, nil
		if r.Match(p.asPolicy(from, policy.ZoneNone)) {
			return to == policy.ZoneNone && vlan == nil && r.Action == policy.ActionDrop
		}
	}
	return false
}

func isError(p *packet) bool {
	return p.proto == protoICMP && p.src.Is4() && (p.icmpType == 3 || p.icmpType == 11 || p.icmpType == 12) ||
		p.proto == protoICMPv6 && p.src.Is6() && p.icmpType < 128
}
