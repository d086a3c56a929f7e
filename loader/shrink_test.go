package loader

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// shrink makes a policy and a packet that fail as small as it can: it removes
// rules, conditions, their values and headers, as long as they still fail.
func shrink(pol *policy.Policy, p packet, fails func(*policy.Policy, packet) bool) (*policy.Policy, packet) {
	small := *pol
	small.Rules = shrinkSlice(pol.Rules, func(rules []policy.Rule) bool {
		return fails(withRules(&small, rules), p)
	})
	for again := true; again; {
		again = false
		for i := range small.Rules {
			for _, simpler := range simplerRules(small.Rules[i]) {
				rules := slices.Clone(small.Rules)
				rules[i] = simpler
				if next := withRules(&small, rules); fails(next, p) {
					small, again = *next, true
					break
				}
			}
		}
		for _, simpler := range simplerPackets(p) {
			if fails(&small, simpler) {
				p, again = simpler, true
				break
			}
		}
	}
	small.Rules = shrinkSlice(small.Rules, func(rules []policy.Rule) bool {
		return fails(withRules(&small, rules), p)
	})
	return &small, p
}

func withRules(p *policy.Policy, rules []policy.Rule) *policy.Policy {
	q := *p
	q.Rules = rules
	return &q
}

// shrinkSlice removes runs of elements, long ones first, as long as it fails.
func shrinkSlice[T any](s []T, fails func([]T) bool) []T {
	for n := (len(s) + 1) / 2; n > 0; n /= 2 {
		for at := 0; at < len(s); {
			fewer := slices.Delete(slices.Clone(s), at, min(at+n, len(s)))
			if fails(fewer) {
				s = fewer
			} else {
				at += n
			}
		}
	}
	return s
}

// simplerRules are the rules that have one condition or one value less.
func simplerRules(r policy.Rule) []policy.Rule {
	var list []policy.Rule
	try := func(has bool, change func(*policy.Rule)) {
		if has {
			c := r
			change(&c)
			list = append(list, c)
		}
	}
	inspects := r.Action == policy.ActionInspect
	try(r.From != policy.ZoneNone && !inspects, func(c *policy.Rule) { c.From, c.NotFrom = policy.ZoneNone, false })
	try(r.To != policy.ZoneNone, func(c *policy.Rule) { c.To, c.NotTo = policy.ZoneNone, false })
	try(!r.Src.Any(), func(c *policy.Rule) { c.Src = policy.AddrMatch{} })
	try(!r.Dst.Any(), func(c *policy.Rule) { c.Dst = policy.AddrMatch{} })
	try(len(r.Proto) > 0, func(c *policy.Rule) { c.Proto, c.ICMP = nil, policy.ICMPMatch{} })
	try(len(r.Sport) > 0, func(c *policy.Rule) { c.Sport = nil })
	try(len(r.Dport) > 0, func(c *policy.Rule) { c.Dport = nil })
	try(r.Flags.Mask != 0, func(c *policy.Rule) { c.Flags = policy.FlagsMatch{} })
	try(len(r.ICMP.Types) > 0, func(c *policy.Rule) { c.ICMP = policy.ICMPMatch{} })
	try(len(r.VLAN) > 0, func(c *policy.Rule) { c.VLAN = nil })
	try(r.DSCP != 0, func(c *policy.Rule) { c.DSCP = 0 })
	try(r.Fragment != policy.FragmentAny, func(c *policy.Rule) { c.Fragment = policy.FragmentAny })
	try(inspects, func(c *policy.Rule) { c.Action = policy.ActionDrop })
	try(inspects, func(c *policy.Rule) { c.Action = policy.ActionAccept })
	for i := range r.ICMP.Types {
		try(len(r.ICMP.Types) > 1, func(c *policy.Rule) { c.ICMP.Types = slices.Delete(slices.Clone(r.ICMP.Types), i, i+1) })
	}
	try(len(r.Proto) > 1, func(c *policy.Rule) { c.Proto = r.Proto[:1] })
	try(len(r.Proto) > 1, func(c *policy.Rule) { c.Proto = r.Proto[1:] })
	for _, side := range []func(*policy.Rule) *policy.AddrMatch{
		func(r *policy.Rule) *policy.AddrMatch { return &r.Src },
		func(r *policy.Rule) *policy.AddrMatch { return &r.Dst },
	} {
		m := side(&r)
		for i := range m.Prefixes {
			try(len(m.Prefixes)+len(m.Lists) > 1, func(c *policy.Rule) {
				side(c).Prefixes = slices.Delete(slices.Clone(m.Prefixes), i, i+1)
			})
		}
		try(len(m.Prefixes) > 0 && len(m.Lists) > 0, func(c *policy.Rule) { side(c).Lists = nil })
	}
	return list
}

// simplerPackets are the packets that have one header or one odd value less.
func simplerPackets(p packet) []packet {
	var list []packet
	try := func(has bool, change func(*packet)) {
		if has {
			c := p
			change(&c)
			list = append(list, c)
		}
	}
	try(len(p.vlans) > 0, func(c *packet) { c.vlans = p.vlans[:len(p.vlans)-1] })
	try(len(p.extensions) > 0, func(c *packet) { c.extensions = p.extensions[1:] })
	try(p.ipOptions > 0, func(c *packet) { c.ipOptions = 0 })
	try(len(p.payload) > 0, func(c *packet) { c.payload = nil })
	try(p.tos != 0, func(c *packet) { c.tos = 0 })
	try(p.fragOffset > 0, func(c *packet) { c.fragOffset = 0 })
	try(p.moreFrags, func(c *packet) { c.moreFrags = false })
	try(p.fragID != 0, func(c *packet) { c.fragID = 0 })
	try(p.icmpID != 0, func(c *packet) { c.icmpID = 0 })
	try(p.icmpCode != 0, func(c *packet) { c.icmpCode = 0 })
	try(p.icmpType != 0, func(c *packet) { c.icmpType = 0 })
	try(p.hopLimit != 64, func(c *packet) { c.hopLimit = 64 })
	try(p.sport != 0, func(c *packet) { c.sport = 0 })
	try(p.dport != 0, func(c *packet) { c.dport = 0 })
	try(p.flags != syn, func(c *packet) { c.flags = syn })
	return list
}

// policyText writes a policy down as a file that says the same.
func policyText(p *policy.Policy) string {
	var b strings.Builder
	d, f := p.Defaults, p.Failure
	fmt.Fprintf(&b, "version: 1\nzones: { lan: [lan0], wan: [wan0] }\n")
	fmt.Fprintf(&b, "defaults: { input: %v, forward: %v, output: %v }\n", d.Input, d.Forward, d.Output)
	fmt.Fprintf(&b, "failure: { malformed: %v, midstream: %v }\nmarks: { mask: %#08x }\nlists:\n", f.Malformed, f.Midstream, p.Marks.Mask)
	var rules strings.Builder
	for i := range p.Rules {
		rules.WriteString(ruleText(&b, &p.Rules[i]))
	}
	return strings.Replace(b.String(), "lists:\n", "lists: {", 1) + "}\nrules:\n" + rules.String()
}

// ruleText writes a rule, and the lists that it names into those of the policy.
func ruleText(lists *strings.Builder, r *policy.Rule) string {
	text := fmt.Sprintf("  - { name: %s, action: %v", r.Name, r.Action)
	add := func(key string, not bool, values ...string) {
		if len(values) == 0 {
			return
		}
		for i, v := range values {
			if not {
				v = "!" + v
			}
			values[i] = `"` + v + `"`
		}
		text += fmt.Sprintf(", %s: [%s]", key, strings.Join(values, ", "))
	}
	zone := func(key string, id policy.ZoneID, not bool) {
		names := map[policy.ZoneID]string{zoneLan: "lan", zoneWan: "wan", policy.ZoneHost: "host"}
		if id != policy.ZoneNone {
			text += fmt.Sprintf(", %s: %q", key, map[bool]string{true: "!"}[not]+names[id])
		}
	}
	zone("from", r.From, r.NotFrom)
	zone("to", r.To, r.NotTo)
	for key, m := range map[string]*policy.AddrMatch{"src": &r.Src, "dst": &r.Dst} {
		values := texts(m.Prefixes, netip.Prefix.String)
		for _, l := range m.Lists {
			values = append(values, "@"+l.Name)
			fmt.Fprintf(lists, " %s: { type: cidr, entries: [", l.Name)
			for _, member := range randomMembers[l] { // as if they had always been there
				fmt.Fprintf(lists, "%q,", member)
			}
			for _, prefix := range l.Prefixes {
				fmt.Fprintf(lists, "%q,", prefix)
			}
			fmt.Fprint(lists, "] },")
		}
		add(key, m.Not, values...)
	}
	add("proto", false, texts(r.Proto, func(n uint8) string { return fmt.Sprint(n) })...)
	add("sport", false, texts(r.Sport, policy.PortRange.String)...)
	add("dport", false, texts(r.Dport, policy.PortRange.String)...)
	add("flags", false, flagTexts(r.Flags)...)
	key := "icmp"
	if slices.Equal(r.Proto, []uint8{protoICMPv6}) {
		key = "icmpv6"
	}
	add(key, r.ICMP.Not, texts(r.ICMP.Types, func(t policy.ICMPType) string {
		if t.AnyCode {
			return fmt.Sprint(t.Type)
		}
		return fmt.Sprintf("%d/%d", t.Type, t.Code)
	})...)
	add("vlan", false, vlanTexts(r.VLAN)...)
	var points []string
	for i := range 64 {
		if r.DSCP>>i&1 != 0 {
			points = append(points, fmt.Sprint(i))
		}
	}
	add("dscp", false, points...)
	text += map[policy.FragmentMatch]string{policy.FragmentOnly: ", fragment: true", policy.FragmentNone: ", fragment: false"}[r.Fragment]
	if r.Action == policy.ActionInspect {
		text += ", steps: [{ action: accept }]"
	}
	return text + " }\n"
}

func texts[T any](values []T, text func(T) string) []string {
	var list []string
	for _, v := range values {
		list = append(list, text(v))
	}
	return list
}

func flagTexts(f policy.FlagsMatch) []string {
	var list []string
	for i, name := range []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"} {
		switch {
		case f.Mask>>i&1 == 0:
		case f.Value>>i&1 != 0:
			list = append(list, name)
		default:
			list = append(list, "!"+name)
		}
	}
	return list
}

// vlanTexts writes what has an id from 1 on and what has none apart. The reserved
// id 4095 cannot be named: a range up to it is written up to the one before.
func vlanTexts(ranges []policy.VLANRange) []string {
	var list []string
	for _, r := range ranges {
		if r.First == 0 {
			list = append(list, "none")
		}
		if r.Last > 0 {
			list = append(list, fmt.Sprintf("%d-%d", max(r.First, 1), min(r.Last, 4094)))
		}
	}
	return list
}

// TestShrinkFindsAPlantedFault plants matchers that are wrong in one thing, and
// asks for the smallest policy and packet that show it.
func TestShrinkFindsAPlantedFault(t *testing.T) {
	for _, fault := range []struct {
		name  string
		plant func(*policy.Rule)
		has   string // what the shrunk rule must have kept
	}{
		{"DSCP is not looked at", func(r *policy.Rule) { r.DSCP = 0 }, "dscp: "},
		{"negated sources match nothing", func(r *policy.Rule) {
			if r.Src.Not {
				r.Src = policy.AddrMatch{Prefixes: prefixes("255.255.255.255/32")}
			}
		}, `src: ["!`},
		{"fragments are as whole packets", func(r *policy.Rule) { r.Fragment = policy.FragmentAny }, "fragment: "},
		{"codes are not looked at", func(r *policy.Rule) {
			r.ICMP.Types = slices.Clone(r.ICMP.Types)
			for i := range r.ICMP.Types {
				r.ICMP.Types[i].AnyCode = true
			}
		}, "icmp"},
		{"VLANs are not looked at", func(r *policy.Rule) { r.VLAN = nil }, "vlan: "},
	} {
		fails := func(pol *policy.Policy, p packet) bool {
			wrong := withRules(pol, slices.Clone(pol.Rules))
			for i := range wrong.Rules {
				fault.plant(&wrong.Rules[i])
			}
			from, to := policy.ZoneID(zoneLan), zoneOf[p.dst.String()]
			return want(pol, &p, from, to) != want(wrong, &p, from, to)
		}
		r := rand.New(rand.NewPCG(3, 3))
		found := false
		for range 20_000 {
			pol, p := randomPolicy(r), randomPacket(r)
			if len(pol.Rules) < 10 || len(pol.Rules) > 200 || !fails(pol, p) {
				continue
			}
			found = true
			small, least := shrink(pol, p, fails)
			text := policyText(small)
			if !fails(small, least) || len(small.Rules) != 1 || !strings.Contains(text, fault.has) {
				t.Errorf("%s: shrunk from %d rules to\n%s%+v", fault.name, len(pol.Rules), text, least)
			}
			if conditions := strings.Count(ruleText(new(strings.Builder), &small.Rules[0]), ":"); conditions > 6 {
				t.Errorf("%s: conditions are left over:\n%s", fault.name, text)
			}
			if len(least.payload) > 1 || len(least.extensions) > 0 || least.ipOptions > 0 || least.fragID != 0 {
				t.Errorf("%s: headers are left over: %+v", fault.name, least)
			}
			break
		}
		if !found {
			t.Errorf("%s: no random policy shows it", fault.name)
		}
	}
}

// TestPolicyTextSaysTheSame parses what is printed, and compares what it means.
func TestPolicyTextSaysTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	parsed := 0
	for range 3000 {
		pol := randomPolicy(r)
		pol.Rules = pol.Rules[:1]
		pol.Rules[0].Action = pick(r, policy.ActionAccept, policy.ActionDrop)
		if slices.ContainsFunc(pol.Rules[0].VLAN, func(v policy.VLANRange) bool { return v.Last == 4095 }) {
			continue
		}
		again, err := policy.ParseBytes("p", []byte(policyText(pol)), "")
		if err != nil {
			continue // conditions that are never met together are refused in files
		}
		parsed++
		for range 50 {
			p := randomPacket(r)
			pkt := p.asPolicy(zoneLan, zoneOf[p.dst.String()])
			if got, want := again.Match(pkt), pol.Match(pkt); got != want {
				t.Fatalf("%+v: %+v, want %+v\n%s", p, got, want, policyText(pol))
			}
		}
	}
	if parsed < 300 {
		t.Errorf("%d policies could be parsed: the test tests little", parsed)
	}
}
