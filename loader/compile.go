package loader

import (
	"fmt"
	"slices"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// Table sizes. They are the kernel half's own, see bpf/hybridfw.h.
const (
	maxRules = 4096
	noPorts  = 65536 // index of packets without ports
	maxFlags = 256   // values of TCP's flags
	maxVLAN  = 4096  // ids of VLANs, and behind them the index of "nobody can tell"
	maxIP    = 128   // code points, and behind them those of fragments
	icmpSets = 65536 // types and codes of ICMP, and behind them those of ICMPv6
	maxMarks = 8192  // values of the mark field for rules
	ruleNone = 0xffff
)

// Tables are a compiled policy: for each field of a packet the number of the set
// of rules that its value satisfies. The rules that match a packet are the
// intersection of its fields' sets, and the lowest is the first match.
type Tables struct {
	defaults policy.Defaults
	failure  policy.Failure
	timeouts policy.Timeouts
	mask     uint32
	rules    []tableRule
	sets     *setPool

	fromClass, toClass [256]uint16 // of zones
	toClasses          int         // the last one is "any"
	pairs              uint32      // number of the set of the first pair of classes

	proto        [256]uint32 // sets; for all protocols but TCP
	flags        [maxFlags]uint32
	sport, dport []uint32       // sets, noPorts + 1 of them; nil where no rule looks
	icmp         []uint32       // sets; nil where no rule looks
	vlan         []uint32       // as icmp
	ip           *[maxIP]uint32 // as icmp

	addrs            addrLines
	lists            []listEntry
	listCount        int // of the policy
	sources, targets gen.FWAddressTable

	early   bool // some rule drops whatever the zone out is
	inspect bool // some rule inspects
	rewrite bool // some rule rewrites headers
	dynamic bool // some rule names a dynamic list
	offload bool // some flows may pass the stack by
	forward bool // of these, those that no rule has judged
	limits  []policy.Limit

	dynamicSets  uint32 // number of the first set of the first choice of dynamic lists
	dynamicEarly uint8  // places of those that rules name which XDP may apply
	queue        policy.Queue
}

// tableRule is what a matched rule does.
type tableRule struct {
	action  policy.Action
	mark    uint16 // ActionInspect: the mark field
	replies bool   // ActionInspect: replies are inspected too
	anyZone bool   // asks for no zone out
	anyVLAN bool   // asks for no VLAN
	id      uint32 // ActionInspect: policy.Rule.ID
	limit   int    // number in Tables.limits, from 1
	rewrite policy.Rewrite
	offload bool
	lists   bool   // names several lists in one field
	after   uint32 // number of the set of the rules behind it, from 1
}

// early tells that XDP may apply the rule: it drops whatever the zone out is, and
// the VLAN, whose tag XDP may not see.
func (r tableRule) early() bool { return r.anyZone && r.anyVLAN && r.action == policy.ActionDrop }

// Compile turns a policy into tables. It is pure: the kernel is not asked.
func Compile(p *policy.Policy) (*Tables, error) {
	places, err := listPlaces{}.next(p, p)
	if err != nil {
		return nil, err
	}
	return compile(p, places)
}

// compile is Compile with places for the policy's dynamic lists.
func compile(p *policy.Policy, places listPlaces) (*Tables, error) {
	if len(p.Rules) > maxRules {
		return nil, fmt.Errorf("%s: %d rules, but the kernel half holds %d", p.File, len(p.Rules), maxRules)
	}
	t := &Tables{
		defaults: p.Defaults,
		failure:  p.Failure,
		timeouts: p.Timeouts,
		queue:    p.Queue,
		offload:  p.Offloads(),
		forward:  p.Offload == policy.OffloadForward,
		mask:     p.Marks.Mask,
		sets:     newSetPool(len(p.Rules)),
	}
	for i := range p.Rules {
		r := compileRule(&p.Rules[i])
		t.early = t.early || r.early()
		t.rewrite = t.rewrite || r.rewrite.Any()
		t.inspect = t.inspect || r.action == policy.ActionInspect
		if l := p.Rules[i].Limit; l.Limited() {
			t.limits = append(t.limits, l)
			r.limit = len(t.limits)
			r.after = t.sets.number(t.sets.after(i)) + 1
		}
		t.rules = append(t.rules, r)
	}
	t.compileZones(p.Rules)
	t.compileL4(p.Rules)
	t.icmp = t.sets.icmp(p.Rules)
	t.ip = t.sets.ip(p.Rules)
	t.vlan = t.sets.vlans(p.Rules)
	t.sport = t.sets.ranges(p.Rules, noPorts, func(r *policy.Rule) []policy.PortRange { return r.Sport })
	t.dport = t.sets.ranges(p.Rules, noPorts, func(r *policy.Rule) []policy.PortRange { return r.Dport })
	src := t.sets.addrs(p.Rules, func(r *policy.Rule) *policy.AddrMatch { return &r.Src })
	dst := t.sets.addrs(p.Rules, func(r *policy.Rule) *policy.AddrMatch { return &r.Dst })
	t.compileDynamic(p, places)
	if t.sets.full {
		return nil, fmt.Errorf("%s: its %d rules tell too many kinds of packets apart, more than %d: let fewer rules name lists or ranges that overlap in part, or write fewer rules",
			p.File, len(p.Rules), maxSetBytes/(8*t.sets.words))
	}
	t.compileLists(p, src, dst)
	t.sources = t.addrs.table(src, t.earlySets())
	t.targets = t.addrs.table(dst, nil)
	return t, nil
}

// earlySets tells for each set whether it holds a rule that fw_xdp may apply.
func (t *Tables) earlySets() []bool {
	rules := t.sets.empty()
	for i, r := range t.rules {
		if r.early() {
			rules.add(i)
		}
	}
	early := make([]bool, t.sets.len())
	for i, s := range t.sets.sets {
		early[i] = slices.ContainsFunc(intersect(s, rules), func(w uint64) bool { return w != 0 })
	}
	return early
}

func compileRule(r *policy.Rule) tableRule {
	c := tableRule{
		action:  r.Action,
		anyZone: r.To == policy.ZoneNone,
		anyVLAN: len(r.VLAN) == 0,
		rewrite: r.Rewrite,
		lists:   several(&r.Src) || several(&r.Dst),
		offload: r.Offload == policy.OffloadForward,
	}
	if r.Action == policy.ActionInspect {
		c.mark = r.Mark()
		c.id = r.ID
		c.replies = r.WantsReplies()
	}
	return c
}

// compileZones numbers the zones that rules tell apart, in and out, and makes a
// set for each pair.
func (t *Tables) compileZones(rules []policy.Rule) {
	from, fromSets := t.sets.byZone(rules, (*policy.Rule).MatchFrom)
	to, toSets := t.sets.byZone(rules, (*policy.Rule).MatchTo)
	toSets = append(toSets, t.sets.where(rules, func(*policy.Rule) bool { return true }))
	t.fromClass, t.toClass, t.toClasses = from, to, len(toSets)
	// Pairs are found by their place, so each has a number of its own.
	t.pairs = uint32(t.sets.len())
	for _, f := range fromSets {
		for _, o := range toSets {
			t.sets.add(intersect(f, o))
		}
	}
}

func (t *Tables) compileL4(rules []policy.Rule) {
	for proto := range t.proto {
		t.proto[proto] = t.sets.number(t.sets.where(rules, func(r *policy.Rule) bool {
			return matchesProto(r, uint8(proto)) && r.Flags == policy.FlagsMatch{} && len(r.ICMP.Types) == 0
		}))
	}
	for flags := range t.flags {
		t.flags[flags] = t.sets.number(t.sets.where(rules, func(r *policy.Rule) bool {
			return matchesProto(r, protoTCPNumber) && len(r.ICMP.Types) == 0 && uint8(flags)&r.Flags.Mask == r.Flags.Value
		}))
	}
}

// Protocols whose packets have sets of their own.
const (
	protoTCPNumber    = 6
	protoICMPNumber   = 1
	protoICMPv6Number = 58
)

func matchesProto(r *policy.Rule, proto uint8) bool {
	return len(r.Proto) == 0 || slices.Contains(r.Proto, proto)
}
