package policy

import (
	"net/netip"
	"slices"
)

// Packet is what the rules look at in a packet.
type Packet struct {
	From, To ZoneID // ZoneHost where the host itself sends or receives
	Src, Dst netip.Addr
	Proto    uint8 // the IP protocol number, that behind all extension headers

	// HasPorts is set where the transport header could be read: not in later
	// fragments, in packets that end early, nor for protocols without ports.
	// Rules on ports or TCP flags never match without it.
	HasPorts     bool
	Sport, Dport uint16
	TCPFlags     uint8 // as in the TCP header: FIN is 0x01, CWR 0x80

	// HasICMP is set where type and code could be read: of ICMP in IPv4 and of
	// ICMPv6 in IPv6.
	HasICMP            bool
	ICMPType, ICMPCode uint8

	VLAN     uint16 // id of the outer tag, 0 without one
	DSCP     uint8
	Fragment bool // the first fragment of a datagram; later ones follow it unmatched
}

// Reason says why Match judged as it did.
type Reason uint8

const (
	ReasonRule    Reason = iota + 1 // a rule matched
	ReasonInput                     // no rule matched a packet to the host
	ReasonForward                   // no rule matched a packet through the host
	ReasonOutput                    // no rule matched a packet of the host
)

var reasonNames = [...]string{"none", "rule", "default input", "default forward", "default output"}

// String returns the reason in words: "rule", "default input" and so on.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Result is what a policy says about a packet.
type Result struct {
	Rule   int // index into Policy.Rules, or -1
	Action Action
	Reason Reason
}

// Match gives the plain meaning of the policy for the first packet of a flow:
// the first rule that matches decides, else the default of the packet's hook.
// An inspecting rule matches whatever its steps are. It is written to be
// evidently right, not to be fast: the kernel half is tested against it.
//
// Limits are taken for kept: rules that drop what is over one match nothing, and
// those that let through what is within one match all.
//
// What passes by itself (loopback, replies of known flows, the ICMP errors and
// neighbour discovery that must not be dropped) is not the policy's to decide,
// and so not part of its meaning.
func (p *Policy) Match(pkt *Packet) Result {
	for i := range p.Rules {
		if p.Rules[i].Match(pkt) && (!p.Rules[i].Limit.Limited() || p.Rules[i].Action != ActionDrop) {
			return Result{i, p.Rules[i].Action, ReasonRule}
		}
	}
	switch {
	case pkt.From == ZoneHost:
		return Result{-1, p.Defaults.Output, ReasonOutput}
	case pkt.To == ZoneHost:
		return Result{-1, p.Defaults.Input, ReasonInput}
	}
	return Result{-1, p.Defaults.Forward, ReasonForward}
}

// Match tells whether all of the rule's conditions hold for a packet.
func (r *Rule) Match(pkt *Packet) bool {
	return r.MatchFrom(pkt.From) &&
		r.MatchTo(pkt.To) &&
		r.Src.Match(pkt.Src) &&
		r.Dst.Match(pkt.Dst) &&
		(len(r.Proto) == 0 || slices.Contains(r.Proto, pkt.Proto)) &&
		matchPort(r.Sport, pkt.Sport, pkt.HasPorts) &&
		matchPort(r.Dport, pkt.Dport, pkt.HasPorts) &&
		r.Flags.match(pkt) &&
		r.ICMP.match(pkt) &&
		matchVLAN(r.VLAN, pkt.VLAN) &&
		(r.DSCP == 0 || r.DSCP>>pkt.DSCP&1 != 0) &&
		r.Fragment.match(pkt.Fragment)
}

// MatchFrom tells whether the rule's condition on the zone in holds.
func (r *Rule) MatchFrom(zone ZoneID) bool { return matchZone(r.From, r.NotFrom, zone) }

// MatchTo tells whether the rule's condition on the zone out holds.
func (r *Rule) MatchTo(zone ZoneID) bool { return matchZone(r.To, r.NotTo, zone) }

func matchZone(asked ZoneID, not bool, zone ZoneID) bool {
	return asked == ZoneNone || (asked == zone) != not
}

// Match tells whether an address is in one of the prefixes or lists, or with Not
// in none.
func (m *AddrMatch) Match(addr netip.Addr) bool {
	return m.Any() || m.has(addr) != m.Not
}

// has tells whether an address is in one of the prefixes or lists.
func (m *AddrMatch) has(addr netip.Addr) bool {
	for _, prefix := range m.Prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	for _, list := range m.Lists {
		if list.Dynamic.Has != nil && list.Dynamic.Has(addr) {
			return true
		}
		for _, prefix := range list.Prefixes {
			if prefix.Contains(addr) {
				return true
			}
		}
	}
	return false
}

// Any tells whether there is no condition on the address.
func (m *AddrMatch) Any() bool { return len(m.Prefixes) == 0 && len(m.Lists) == 0 }

// matchPort tells whether a port is in one of the ranges. A port that could
// not be read is in none.
func matchPort(ranges []PortRange, port uint16, known bool) bool {
	if len(ranges) == 0 {
		return true
	}
	for _, r := range ranges {
		if known && r.First <= port && port <= r.Last {
			return true
		}
	}
	return false
}

// match tells whether the flags are as asked. A packet whose header could not
// be read has none.
func (f FlagsMatch) match(pkt *Packet) bool {
	if f.Mask == 0 {
		return true
	}
	return pkt.Proto == protoTCP && pkt.HasPorts && pkt.TCPFlags&f.Mask == f.Value
}
