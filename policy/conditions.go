package policy

import (
	"slices"
	"strconv"
	"strings"
)

const (
	maxVLAN      = 4095 // the largest id that fits a tag
	maxVLANValid = 4094 // the largest that is one
	maxDSCP      = 63
)

// ICMPMatch matches ICMP or ICMPv6 by type and code; the rule's protocol says
// which of the two. The zero value matches every packet, any other only those
// whose type could be read.
type ICMPMatch struct {
	Not   bool // all but these
	Types []ICMPType
}

// ICMPType is a type of ICMP or ICMPv6, with one of its codes or with any.
type ICMPType struct {
	Type    uint8
	Code    uint8
	AnyCode bool
}

// VLANRange is an inclusive range of VLAN ids; 0 stands for packets without one.
type VLANRange struct {
	First, Last uint16
}

// FragmentMatch says whether a rule matches packets of fragmented datagrams. The
// zero value matches both kinds.
type FragmentMatch uint8

const (
	FragmentAny  FragmentMatch = iota
	FragmentOnly               // "true": first fragments, which the later ones follow
	FragmentNone               // "false": whole packets
)

// match tells whether type and code are as asked.
func (m *ICMPMatch) match(pkt *Packet) bool {
	if len(m.Types) == 0 {
		return true
	}
	listed := slices.ContainsFunc(m.Types, func(t ICMPType) bool {
		return t.Type == pkt.ICMPType && (t.AnyCode || t.Code == pkt.ICMPCode)
	})
	return pkt.HasICMP && listed != m.Not
}

// matchVLAN tells whether an id is in one of the ranges.
func matchVLAN(ranges []VLANRange, id uint16) bool {
	return len(ranges) == 0 ||
		slices.ContainsFunc(ranges, func(r VLANRange) bool { return r.First <= id && id <= r.Last })
}

func (f FragmentMatch) match(fragment bool) bool {
	return f == FragmentAny || (f == FragmentOnly) == fragment
}

// choice returns a key's value or values without their "!", and whether they have
// one. All of them have it or none: whether "not a, or b" is meant by a mixture
// nobody can tell.
func (p *reader) choice(n *node, what string) (items []*node, not bool) {
	items = p.several(n, what)
	for i, item := range items {
		text, negated := strings.CutPrefix(item.text, "!")
		if i == 0 {
			not = negated
		} else if negated != not {
			p.errorf(item.pos, `%s: values with and without "!" are mixed; expected "!" before all of them or none`, item.path())
			return nil, false
		}
		if negated {
			plain := *item
			plain.text = text
			items[i] = &plain
		}
	}
	return items, not
}

// complement returns the ranges between the given ones, from 0 to last.
func complement(ranges []PortRange, last uint16) []PortRange {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b PortRange) int { return int(a.First) - int(b.First) })
	var rest []PortRange
	next := 0
	for _, r := range sorted {
		if next < int(r.First) {
			rest = append(rest, PortRange{uint16(next), r.First - 1})
		}
		next = max(next, int(r.Last)+1)
	}
	if next <= int(last) {
		rest = append(rest, PortRange{uint16(next), last})
	}
	return rest
}

// nothingLeft reports a negation that leaves no value.
func (p *reader) nothingLeft(n *node) {
	p.errorf(n.pos, "%s can never match: nothing is left besides what is negated", n.path())
}

// parseRange reads "a" or "a-b".
func parseRange(text string, last uint32) (r PortRange, ok bool) {
	first, end, isRange := strings.Cut(text, "-")
	if !isRange {
		end = first
	}
	a, errA := parseUint32(strings.TrimSpace(first))
	b, errB := parseUint32(strings.TrimSpace(end))
	if errA != nil || errB != nil || a > last || b > last {
		return PortRange{}, false
	}
	return PortRange{uint16(a), uint16(b)}, true
}

// vlans reads ids and ranges, and the word none.
func (p *reader) vlans(n *node, to *[]VLANRange) {
	const want = "a VLAN id from 1 to 4094, a range such as 10-20, or none"
	items, not := p.choice(n, want)
	var ranges []PortRange
	for _, item := range items {
		r, ok := parseRange(item.text, maxVLANValid)
		switch {
		case item.text == "none":
			ranges = append(ranges, PortRange{})
		case !ok || r.First == 0 || r.First > r.Last:
			p.invalid(item, want)
		default:
			ranges = append(ranges, r)
		}
	}
	if not {
		ranges = complement(ranges, maxVLAN)
	}
	for _, r := range ranges {
		*to = append(*to, VLANRange(r))
	}
}

// dscpNames are the code points that have names. They fall into groups with
// numbers, which dscp knows: cs0 to cs7 and af11 to af43.
var dscpNames = map[string]uint8{"be": 0, "df": 0, "le": 1, "ef": 46, "va": 44}

// dscp returns the code point of a name or number.
func dscp(text string) (uint8, bool) {
	if v, ok := dscpNames[text]; ok {
		return v, true
	}
	digits := strings.TrimLeft(text, "csaf")
	switch {
	case text == "cs"+digits && len(digits) == 1 && digits[0] <= '7':
		return (digits[0] - '0') * 8, true
	case text == "af"+digits && len(digits) == 2 && '1' <= digits[0] && digits[0] <= '4' && '1' <= digits[1] && digits[1] <= '3':
		return (digits[0]-'0')*8 + (digits[1]-'0')*2, true
	}
	v, err := parseUint32(text)
	return uint8(min(v, 255)), err == nil && v <= maxDSCP
}

// codePoints reads names and numbers of DSCP into a bit vector.
func (p *reader) codePoints(n *node, to *uint64) {
	const want = "a code point from 0 to 63 or its name: be, le, cs0 to cs7, af11 to af43, va or ef"
	items, not := p.choice(n, want)
	for _, item := range items {
		v, ok := dscp(item.text)
		if !ok {
			p.invalid(item, want)
			continue
		}
		*to |= 1 << v
	}
	if not {
		if *to = ^*to; *to == 0 {
			p.nothingLeft(n)
		}
	}
}

// fragments reads true or false. What the design does not do is said by name: a
// later fragment has no header to match, and its first one decides for it.
func (p *reader) fragments(n *node, to *FragmentMatch) {
	const want = "true or false; later fragments follow their first one"
	switch {
	case n == nil:
	case n.kind == kindBool && strings.EqualFold(n.text, "true"):
		*to = FragmentOnly
	case n.kind == kindBool:
		*to = FragmentNone
	case n.scalar():
		p.invalid(n, want)
	default:
		p.want(n, want)
	}
}

// icmp reads the types of the two protocols. A rule about them needs no proto.
func (p *reader) icmp(r *Rule, values map[string]*node, protos bool) {
	if v := values["icmpv6"]; v != nil && values["icmp"] != nil {
		p.errorf(v.pos, "%s can never match together with icmp; expected a rule for each", v.path())
		return
	}
	for _, of := range []*icmpNames{&icmp4Names, &icmp6Names} {
		n := values[of.key]
		if n == nil {
			continue
		}
		p.icmpTypes(n, of, &r.ICMP)
		if values["proto"] == nil {
			r.Proto = []uint8{of.proto}
		} else if protos && !slices.Equal(r.Proto, []uint8{of.proto}) {
			p.errorf(n.pos, "%s are types of %s; expected proto: %s in this rule, or no proto", n.path(), of.key, of.key)
		}
		if r.ICMP.vital() && of.proto == protoICMPv6 {
			p.warnf(n.pos, "%s has no effect: these types of ICMPv6 pass whatever a policy says", n.path())
		}
	}
}

func (p *reader) icmpTypes(n *node, of *icmpNames, to *ICMPMatch) {
	items, not := p.choice(n, "a type of "+of.key+" such as echo-request, or a type and a code such as destination-unreachable/port-unreachable")
	to.Not = not
	for _, item := range items {
		name, code, hasCode := strings.Cut(item.text, "/")
		t := ICMPType{AnyCode: !hasCode}
		var ok bool
		if t.Type, ok = octet(name, of.types); !ok {
			p.errorf(item.pos, "%s: %s has no type %s; %s, or a number up to 255", item.path(), of.key, quote(name), oneOf(name, words(of.types)))
			continue
		}
		codes := of.codes[t.Type]
		if t.Code, ok = octet(code, codes); hasCode && !ok {
			p.errorf(item.pos, "%s: type %s has no code %s; %s", item.path(), name, quote(code), codeWords(code, codes))
			continue
		}
		to.Types = append(to.Types, t)
	}
}

func codeWords(got string, codes map[string]uint8) string {
	if len(codes) == 0 {
		return "expected a number up to 255"
	}
	return oneOf(got, words(codes)) + ", or a number up to 255"
}

// octet returns what a name stands for, or a number up to 255.
func octet(text string, names map[string]uint8) (uint8, bool) {
	if v, ok := names[text]; ok {
		return v, true
	}
	v, err := strconv.ParseUint(text, 10, 8)
	return uint8(v), err == nil && strconv.FormatUint(v, 10) == text
}

// words lists names by their numbers.
func words(names map[string]uint8) []string {
	list := make([]string, 0, len(names))
	for name := range names {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int {
		if d := int(names[a]) - int(names[b]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return list
}

// vital tells whether all types are such that always pass (RFC 4890).
func (m *ICMPMatch) vital() bool {
	vital := []uint8{1, 2, 128, 129, 130, 131, 132, 143}
	return !m.Not && len(m.Types) > 0 &&
		!slices.ContainsFunc(m.Types, func(t ICMPType) bool { return !slices.Contains(vital, t.Type) })
}
