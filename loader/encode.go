package loader

import (
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
func (t *Tables) setVariables(spec *ebpf.CollectionSpec) error {
	var rules [maxRules]gen.FWRule
	for i, r := range t.rules {
		action, err := encodeAction(r.action)
		if err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
		rules[i] = gen.FWRule{Action: uint8(action), Mark: r.mark}
		if r.replies {
			rules[i].Replies = 1
		}
	}
	variables := map[string]any{
		gen.FWVarMarkMask:   t.mask,
		gen.FWVarMarkShift:  uint8(bits.TrailingZeros32(t.mask)),
		gen.FWVarRules:      rules,
		gen.FWVarRulesFrom:  t.from,
		gen.FWVarRulesTo:    t.to,
		gen.FWVarRulesProto: t.proto,
		gen.FWVarRulesFlags: t.flags,
		gen.FWVarRulesEarly: t.early,
	}
	for name, a := range map[string]policy.Action{
		gen.FWVarDefaultInput:   t.defaults.Input,
		gen.FWVarDefaultForward: t.defaults.Forward,
		gen.FWVarDefaultOutput:  t.defaults.Output,
		gen.FWVarOnMalformed:    t.failure.Malformed,
		gen.FWVarOnMidstream:    t.failure.Midstream,
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
	spec.Maps[gen.FWMapRulesSrc].MaxEntries = uint32(len(t.src))
	spec.Maps[gen.FWMapRulesDst].MaxEntries = uint32(len(t.dst))
	return nil
}

// fillMaps writes the large tables.
func (t *Tables) fillMaps(m *gen.FWMaps) error {
	return errors.Join(
		fillPorts(m.RulesSport, t.sport),
		fillPorts(m.RulesDport, t.dport),
		fillPrefixes(m.RulesSrc, t.src),
		fillPrefixes(m.RulesDst, t.dst))
}

func fillPorts(m *ebpf.Map, table []ruleSet) error {
	keys := make([]uint32, len(table))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := m.BatchUpdate(keys, table, nil); err != nil {
		return fmt.Errorf("filling %v: %w", m, err)
	}
	return nil
}

func fillPrefixes(m *ebpf.Map, table []prefixSet) error {
	keys := make([]gen.FWPrefixKey, len(table))
	values := make([]ruleSet, len(table))
	for i, s := range table {
		keys[i] = gen.FWPrefixKey{Prefixlen: uint32(s.prefix.Bits()), Addr: s.prefix.Addr().As16()}
		values[i] = s.set
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("filling %v: %w", m, err)
	}
	return nil
}

// encodeFlow gives the key of a flow's entry, and which of its endpoints is the
// flow's source: the lower endpoint comes first, as in bpf/flow.h.
func encodeFlow(f pktbuf.Flow) (key gen.FWFlowKey, sender uint8) {
	first, second := f.Src, f.Dst
	if compareEndpoints(f.Dst, f.Src) < 0 {
		first, second = f.Dst, f.Src
		sender = 1
	}
	key = gen.FWFlowKey{
		Addr:  [2][16]uint8{first.Addr().As16(), second.Addr().As16()},
		Port:  [2]uint16{networkOrder(first.Port()), networkOrder(second.Port())},
		Proto: f.Proto,
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

// decodeFlow turns an entry's key back into the flow that its first packet had.
func decodeFlow(key gen.FWFlowKey, origin uint8) pktbuf.Flow {
	endpoint := func(i uint8) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(key.Addr[i]).Unmap(), networkOrder(key.Port[i]))
	}
	return pktbuf.Flow{Src: endpoint(origin), Dst: endpoint(1 - origin), Proto: key.Proto}
}
