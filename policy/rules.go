package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	maxUntilPackets = 1000
	maxUntilBytes   = 1 << 20
)

// readRules reads all rules in their order.
func (p *reader) readRules(n *node) {
	if n.kind != kindSequence {
		p.want(n, "a sequence of rules")
		return
	}
	names := map[string]Pos{}
	inspecting := 0
	for i, item := range n.items {
		if i == MaxRules {
			p.errorf(item.pos, "%s is one too many; expected at most %d rules", item.path(), MaxRules)
			return
		}
		r := Rule{Pos: item.pos}
		if values := p.keys(item, ruleKeys); values != nil {
			p.readRule(&r, item, values)
		}
		if first, twice := names[r.Name]; twice && r.Name != "" {
			p.errorf(item.pos, "%s.name %s is there twice; the first is at %v", item.path(), r.Name, first)
		}
		names[r.Name] = r.Pos
		r.ID = item.id()
		if r.Action == ActionInspect {
			r.Inspect = inspecting
			r.lists = p.named(item)
			inspecting++
		}
		p.policy.Rules = append(p.policy.Rules, r)
	}
	if p.count == 0 {
		p.warnShadowed()
	}
}

// readRule fills a rule. The checks of keys against each other come after each
// key was read by itself, and not on top of an error of theirs.
func (p *reader) readRule(r *Rule, n *node, values map[string]*node) {
	if v := values["name"]; v == nil {
		p.errorf(n.pos, "%s.name is missing; messages and counters need one", n.path())
	} else if !v.scalar() {
		p.want(v, "a name")
	} else if p.nameOf(v.pos, n.path()+".name", v.text) {
		r.Name = v.text
	}
	p.zone(values["from"], &r.From, &r.NotFrom)
	p.zone(values["to"], &r.To, &r.NotTo)
	p.addresses(values["src"], &r.Src)
	p.addresses(values["dst"], &r.Dst)
	protos := p.protocols(values["proto"], &r.Proto)
	p.ports(values["sport"], &r.Sport)
	p.ports(values["dport"], &r.Dport)
	p.flags(values["flags"], &r.Flags)
	p.icmp(r, values, protos)
	p.vlans(values["vlan"], &r.VLAN)
	p.codePoints(values["dscp"], &r.DSCP)
	p.fragments(values["fragment"], &r.Fragment)
	if v := values["limit"]; v != nil {
		p.readLimit(v, &r.Limit)
	}
	acted := false
	if v := values["action"]; v == nil {
		p.errorf(n.pos, "%s.action is missing; expected accept, drop or inspect", n.path())
	} else {
		acted = p.action(v, &r.Action, ActionAccept, ActionDrop, ActionInspect)
	}
	if v := values["rewrite"]; v != nil {
		p.readRewrite(r, v)
	}
	p.ruleOffload(r, values["offload"])
	p.checkHosts(r, values)
	p.checkFamilies(r, values)
	if protos {
		p.checkProtocols(r, values)
	}
	if acted {
		p.readInspection(r, n, values, protos)
	}
	if v := values["pin"]; v != nil {
		if v.kind != kindBool {
			p.want(v, "true or false")
		} else if r.Pin = strings.EqualFold(v.text, "true"); r.Pin && acted && r.Action != ActionAccept {
			p.errorf(v.pos, "%s keeps a way in open across reloads; expected it in a rule with action: accept", v.path())
		}
	}
}

// zone reads the name of a zone, or host, with a "!" before it for every other.
func (p *reader) zone(n *node, to *ZoneID, not *bool) {
	if n == nil {
		return
	}
	if !n.scalar() {
		p.want(n, "the name of a zone, or host")
		return
	}
	name, negated := strings.CutPrefix(n.text, "!")
	id, ok := p.zones[name]
	if !ok && len(p.policy.Zones) == 0 {
		return // there is an error about that already
	}
	if !ok {
		names := []string{"host"}
		for _, z := range p.policy.Zones {
			names = append(names, z.Name)
		}
		p.errorf(n.pos, "%s: no zone is called %s; %s", n.path(), quote(name), oneOf(name, names))
		return
	}
	*to, *not = id, negated
}

// addresses reads prefixes and names of lists, one or several.
func (p *reader) addresses(n *node, to *AddrMatch) {
	items, not := p.choice(n, `an address, a prefix or a list, such as 192.0.2.1, "2001:db8::/48" or "@admins"`)
	to.Not = not
	for _, item := range items {
		if name, ok := strings.CutPrefix(item.text, "@"); ok {
			if l := p.list(item, name, ListCIDR, ListDynamic); l != nil {
				to.Lists = append(to.Lists, l)
			}
		} else if prefix, err := parsePrefix(item.text); err != nil {
			p.errorf(item.pos, "%s: %s %v", item.path(), quote(item.text), err)
		} else {
			to.Prefixes = append(to.Prefixes, prefix)
		}
	}
}

// several returns a key's value or values, all of them scalars. A value that is
// there but says nothing would match everything: it is refused.
func (p *reader) several(n *node, what string) []*node {
	if n == nil {
		return nil
	}
	if n.kind == kindSequence && len(n.items) == 0 {
		p.errorf(n.pos, "%s is empty; expected %s, or no such key", n.path(), what)
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.each()), func(item *node) bool {
		if !item.scalar() {
			p.want(item, what)
		}
		return !item.scalar()
	})
}

// list returns the list with the given name if it has the type.
func (p *reader) list(n *node, name string, types ...ListType) *List {
	l, ok := p.lists[name]
	switch {
	case ok && slices.Contains(types, l.Type):
		p.used[l] = true
		return l
	case ok:
		p.errorf(n.pos, "%s: list %s is of type %v; expected one of type %v", n.path(), name, l.Type, types[0])
	case !p.bad[name]:
		names := make([]string, len(p.policy.Lists))
		for i, l := range p.policy.Lists {
			names[i] = l.Name
		}
		if len(names) == 0 {
			p.errorf(n.pos, "%s: no list is called %s; expected one of lists, which has none", n.path(), quote(name))
		} else {
			p.errorf(n.pos, "%s: no list is called %s; %s", n.path(), quote(name), oneOf(name, names))
		}
	}
	return nil
}

// checkHosts refuses what no hook sees. Loopback always passes.
func (p *reader) checkHosts(r *Rule, values map[string]*node) {
	if r.From == ZoneHost && r.To == ZoneHost && !r.NotFrom && !r.NotTo {
		p.errorf(values["to"].pos, "%s can never match from host to host; expected a zone in from or to", values["to"].path())
	}
}

// families tells which of the two address families a condition can match.
func (m *AddrMatch) families() (v4, v6 bool) {
	if m.Any() {
		return true, true
	}
	note := func(prefixes []netip.Prefix) {
		for _, prefix := range prefixes {
			v4 = v4 || prefix.Addr().Is4()
			v6 = v6 || prefix.Addr().Is6()
		}
	}
	if m.Not {
		return true, true // but for what no list of a sane policy has
	}
	if m.dynamic() {
		return true, true
	}
	note(m.Prefixes)
	for _, l := range m.Lists {
		note(l.Prefixes)
	}
	return v4, v6
}

// checkFamilies refuses a rule between IPv4 and IPv6, which no packet is.
func (p *reader) checkFamilies(r *Rule, values map[string]*node) {
	src4, src6 := r.Src.families()
	dst4, dst6 := r.Dst.families()
	if (src4 || src6) && (dst4 || dst6) && !(src4 && dst4) && !(src6 && dst6) {
		n := values["dst"]
		p.errorf(n.pos, "%s can never match: its addresses are of another family than those of src", n.path())
	}
}

// checkProtocols checks the keys that only some protocols have.
func (p *reader) checkProtocols(r *Rule, values map[string]*node) {
	ported := len(r.Proto) > 0
	for _, proto := range r.Proto {
		ported = ported && (proto == protoTCP || proto == protoUDP)
	}
	for _, key := range []string{"sport", "dport"} {
		if n := values[key]; n != nil && !ported {
			p.errorf(n.pos, "%s needs ports; expected proto: tcp, proto: udp or proto: [tcp, udp] in this rule", n.path())
		}
	}
	if n := values["flags"]; n != nil && !(len(r.Proto) == 1 && r.Proto[0] == protoTCP) {
		p.errorf(n.pos, "%s are those of TCP; expected proto: tcp in this rule", n.path())
	}
	if len(r.Proto) != 1 {
		return
	}
	src4, src6 := r.Src.families()
	dst4, dst6 := r.Dst.families()
	n := values["proto"]
	for _, key := range []string{"icmp", "icmpv6"} {
		if n == nil {
			n = values[key]
		}
	}
	switch {
	case r.Proto[0] == protoICMP && !(src4 && dst4) && (src6 && dst6):
		p.warnf(n.pos, "%s: icmp is that of IPv4, and the addresses are IPv6; is icmpv6 meant?", n.path())
	case r.Proto[0] == protoICMPv6 && !(src6 && dst6) && (src4 && dst4):
		p.warnf(n.pos, "%s: icmpv6 is that of IPv6, and the addresses are IPv4; is icmp meant?", n.path())
	}
}

// readInspection reads what only inspecting rules have.
func (p *reader) readInspection(r *Rule, n *node, values map[string]*node, protos bool) {
	until, steps := values["until"], values["steps"]
	if r.Action != ActionInspect {
		for _, v := range []*node{until, steps} {
			if v != nil {
				p.errorf(v.pos, "%s has no effect in a rule with action: %v; expected action: inspect", v.path(), r.Action)
			}
		}
		return
	}
	switch from := values["from"]; {
	case from == nil:
		p.errorf(n.pos, "%s.from is missing; expected a zone, which rules with action: inspect need", n.path())
	case r.NotFrom:
		p.errorf(from.pos, "%s is negated; expected a zone, which rules with action: inspect need", from.path())
	case r.From == ZoneHost:
		p.errorf(from.pos, "%s: inspecting the host's own traffic is not built yet; expected a zone", from.path())
	}
	inspectable := len(r.Proto) > 0
	for _, proto := range r.Proto {
		inspectable = inspectable && (proto == protoTCP || proto == protoUDP)
	}
	if protos && !inspectable {
		at := n
		if v := values["proto"]; v != nil {
			at = v
		}
		p.errorf(at.pos, "%s: nothing but TCP and UDP can be inspected; expected proto: tcp, proto: udp or proto: [tcp, udp]", n.path())
	}
	r.Until = defaultUntil
	if until != nil {
		p.readUntil(until, &r.Until)
	}
	switch {
	case steps == nil:
		p.errorf(n.pos, "%s.steps is missing; expected at least one step, such as {action: accept}", n.path())
	case steps.kind != kindSequence || len(steps.items) == 0:
		p.errorf(steps.pos, "%s has no steps; expected a sequence of at least one step, such as [{action: accept}]", steps.path())
	default:
		p.readSteps(r, steps)
	}
}

// readUntil lays the file's budget over the default one.
func (p *reader) readUntil(n *node, to *Until) {
	values := p.keys(n, untilKeys)
	if v := values["packets"]; v != nil {
		p.number(v, &to.Packets, maxUntilPackets)
	}
	if v := values["bytes"]; v != nil {
		p.size(v, &to.Bytes, maxUntilBytes)
	}
}

// String returns the range as policies write it.
func (r PortRange) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
