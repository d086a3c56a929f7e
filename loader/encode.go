package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// This file is the one place where Go values take the shape that the kernel half
// knows.

// encodeAction gives the kernel half's number of an action.
func encodeAction(a policy.Action) (gen.FWAction, error) {
	switch a {
	case policy.ActionAccept:
		return gen.FWActionACTION_ACCEPT, nil
	case policy.ActionDrop:
		return gen.FWActionACTION_DROP, nil
	case policy.ActionInspect:
		return gen.FWActionACTION_INSPECT, nil
	}
	return 0, fmt.Errorf("the kernel half knows no action %q", a)
}

// setVariables writes the settings and small tables into the constants of a
// collection that is not loaded yet, and sizes its maps.
func (t *Tables) setVariables(spec *ebpf.CollectionSpec, g *generation) error {
	rules, err := t.encodeRules()
	if err != nil {
		return err
	}
	variables := map[string]any{
		gen.FWVarMarkMask:       t.mask,
		gen.FWVarMarkShift:      uint8(bits.TrailingZeros32(t.mask)),
		gen.FWVarRules:          rules,
		gen.FWVarGeneration:     g.number,
		gen.FWVarMarkSince:      g.encodeMarks(),
		gen.FWVarRuleWords:      uint32(t.sets.words),
		gen.FWVarZoneFrom:       t.fromClass,
		gen.FWVarZoneTo:         t.toClass,
		gen.FWVarZoneClassesTo:  uint32(t.toClasses),
		gen.FWVarZoneSets:       t.pairs,
		gen.FWVarL4Sets:         t.proto,
		gen.FWVarFlagSets:       t.flags,
		gen.FWVarAnyEarly:       t.early,
		gen.FWVarAnyInspect:     t.inspect,
		gen.FWVarAnyOffload:     t.offload,
		gen.FWVarOffloadDefault: t.forward,
		gen.FWVarAnyLists:       len(t.lists) > 0,
		gen.FWVarAnyDynamic:     t.dynamic,
		gen.FWVarDynamicEarly:   t.dynamicEarly,
		gen.FWVarDynamicSets:    t.dynamicSets,
		gen.FWVarAnyRewrite:     t.rewrite,
		gen.FWVarAnyLimit:       len(t.limits) > 0,
		gen.FWVarRateLimits:     t.encodeLimits(),
		gen.FWVarLimitQueue:     t.queue.PerSrc.Limited(),
		gen.FWVarQueueLimit:     encodeLimit(t.queue.Total),
		gen.FWVarTimeouts:       t.encodeTimeouts(),
		gen.FWVarSources:        t.sources,
		gen.FWVarTargets:        t.targets,
		gen.FWVarAnySport:       t.sport != nil,
		gen.FWVarAnyIcmp:        t.icmp != nil,
		gen.FWVarAnyIp:          t.ip != nil,
		gen.FWVarAnyVlan:        t.vlan != nil,
		gen.FWVarAnyDport:       t.dport != nil,
	}
	if t.ip != nil {
		variables[gen.FWVarIpSets] = *t.ip
	}
	for name, a := range map[string]policy.Action{
		gen.FWVarDefaultInput:   t.defaults.Input,
		gen.FWVarDefaultForward: t.defaults.Forward,
		gen.FWVarDefaultOutput:  t.defaults.Output,
		gen.FWVarOnMalformed:    t.failure.Malformed,
		gen.FWVarOnMidstream:    t.failure.Midstream,
		gen.FWVarOnOverload:     t.failure.Overload.Action(),
	} {
		action, err := encodeAction(a)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		variables[name] = action
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	t.sizeMaps(spec)
	return nil
}

func (t *Tables) encodeRules() (rules [maxRules]gen.FWRule, err error) {
	for i, r := range t.rules {
		action, err := encodeAction(r.action)
		if err != nil {
			return rules, fmt.Errorf("rule %d: %w", i, err)
		}
		rules[i] = gen.FWRule{
			Action: uint8(action), Mark: r.mark, Replies: encodeBool(r.replies),
			AnyZone: encodeBool(r.anyZone), AnyVlan: encodeBool(r.anyVLAN), Id: r.id,
			Limit: uint16(r.limit), After: r.after,
			Mss: uint16(r.rewrite.MSS), Ttl: uint8(r.rewrite.TTL), Dscp: uint8(r.rewrite.DSCP),
			Offload: encodeBool(r.offload), Lists: encodeBool(r.lists),
		}
		if r.rewrite.PMTU {
			rules[i].Mss = uint16(gen.FWLimitsMSS_PMTU)
		}
	}
	return rules, nil
}

// encodeMarks tells since when each mark field in use stands for its rule.
func (g *generation) encodeMarks() (since [maxMarks]uint32) {
	for mark, m := range g.marks {
		if m.rule != ruleNone {
			since[mark] = m.since
		}
	}
	return since
}

func (t *Tables) encodeLimits() (limits [gen.FWLimitsMAX_LIMITS + 1]gen.FWLimit) {
	for i, l := range t.limits {
		limits[i] = encodeLimit(l)
	}
	limits[gen.FWLimitsLIMIT_QUEUE] = encodeLimit(t.queue.PerSrc)
	return limits
}

func encodeLimit(l policy.Limit) gen.FWLimit {
	if !l.Limited() {
		return gen.FWLimit{}
	}
	mask := func(bits int) (m [16]uint8) {
		for i := range bits {
			m[i/8] |= 0x80 >> (i % 8)
		}
		return m
	}
	const mapped = 96 // bits in front of an IPv4 address
	return gen.FWLimit{
		Interval: uint64(l.Interval),
		Ahead:    uint64(l.Interval) * uint64(l.Burst-1),
		Per:      uint8(l.Per),
		Mask:     mask(l.V6),
		Mask4:    mask(mapped + l.V4),
	}
}

func (t *Tables) encodeTimeouts() (ns [gen.FWFlowStateSTATE_COUNT]uint64) {
	for state, d := range t.timeouts {
		ns[state] = uint64(d)
	}
	return ns
}

func encodeBool(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func (t *Tables) sizeMaps(spec *ebpf.CollectionSpec) {
	sets := spec.Maps[gen.FWMapRuleSets]
	sets.MaxEntries = uint32(t.sets.len())
	sets.ValueSize = uint32(8 * t.sets.words)
	sets.Value = nil // it is of another size than the C type
	for name, n := range map[string]int{
		gen.FWMapRuleCounters: len(t.rules),
		gen.FWMapListCounters: t.listCount,
		gen.FWMapListNumbers:  len(t.lists),
		gen.FWMapLines:        len(t.addrs.lines),
	} {
		spec.Maps[name].MaxEntries = uint32(max(1, n))
	}
	for name, table := range map[string][]uint32{
		gen.FWMapRulesSport: t.sport, gen.FWMapRulesDport: t.dport, gen.FWMapRulesIcmp: t.icmp, gen.FWMapRulesVlan: t.vlan,
	} {
		if table == nil {
			spec.Maps[name].MaxEntries = 1 // is not looked at
		}
	}
}

// fillMaps writes the large tables.
func (t *Tables) fillMaps(m *gen.FWMaps) error {
	return errors.Join(
		fillSets(m.RuleSets, t.sets.sets),
		fill(m.RulesSport, count(len(t.sport)), t.sport),
		fill(m.RulesDport, count(len(t.dport)), t.dport),
		fill(m.RulesIcmp, count(len(t.icmp)), t.icmp),
		fill(m.RulesVlan, count(len(t.vlan)), t.vlan),
		t.fillLists(m.ListNumbers),
		t.addrs.write(m.Lines))
}

// fillSets writes one by one: the library takes batches of values whose size is
// known when it is compiled only.
func fillSets(m *ebpf.Map, sets []ruleSet) error {
	for i, s := range sets {
		value := make([]byte, 0, 8*len(s))
		for _, w := range s {
			value = binary.NativeEndian.AppendUint64(value, w)
		}
		if err := m.Put(uint32(i), value); err != nil {
			return fmt.Errorf("filling %v: %w", m, err)
		}
	}
	return nil
}

func count(n int) []uint32 {
	keys := make([]uint32, n)
	for i := range keys {
		keys[i] = uint32(i)
	}
	return keys
}

func fill[K, V any](m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("filling %v: %w", m, err)
	}
	return nil
}

// encodeFlow gives the key of a flow's entry, and which of its endpoints is the
// flow's source: the lower endpoint comes first, as in bpf/flow.h.
func encodeFlow(f pktbuf.Flow) (key gen.FWFlowKey, sender uint8) {
	first, second := f.Src(), f.Dst()
	if compareEndpoints(second, first) < 0 {
		first, second = second, first
		sender = 1
	}
	key = gen.FWFlowKey{
		Addr:  [2][16]uint8{first.Addr().As16(), second.Addr().As16()},
		Port:  [2]uint16{networkOrder(first.Port()), networkOrder(second.Port())},
		Proto: f.Proto(),
	}
	return key, sender
}

// compareEndpoints orders by address in its 16-byte form, then by port.
func compareEndpoints(a, b netip.AddrPort) int {
	x, y := netip.AddrFrom16(a.Addr().As16()), netip.AddrFrom16(b.Addr().As16())
	return netip.AddrPortFrom(x, a.Port()).Compare(netip.AddrPortFrom(y, b.Port()))
}

// networkOrder is a port in the byte order of the wire. The kernel half is built
// for little-endian machines.
func networkOrder(port uint16) uint16 { return bits.ReverseBytes16(port) }
