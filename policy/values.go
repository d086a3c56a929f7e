package policy

import (
	"slices"
	"strconv"
	"strings"
)

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// protoNames are the protocols that need not be written as numbers.
var protoNames = map[string]uint8{
	"icmp": protoICMP, "tcp": protoTCP, "udp": protoUDP, "gre": 47, "esp": 50, "ah": 51,
	"icmpv6": protoICMPv6, "sctp": 132,
}

var protoWords = []string{"tcp", "udp", "icmp", "icmpv6", "sctp", "gre", "esp", "ah"}

// protocols reads names and numbers, one or several. It returns false where it
// has reported an error.
func (p *reader) protocols(n *node, to *[]uint8) bool {
	before := p.count
	items, not := p.choice(n, "the name of a protocol or its number")
	for _, item := range items {
		proto, ok := protoNames[item.text]
		if !ok {
			number, err := parseUint32(item.text)
			if err != nil || number > 255 {
				p.errorf(item.pos, "%s: no protocol is called %s; %s, or a number up to 255",
					item.path(), quote(item.text), oneOf(item.text, protoWords))
				continue
			}
			proto = uint8(number)
		}
		if slices.Contains(*to, proto) {
			p.errorf(item.pos, "%s: protocol %s is there twice; expected it once", item.path(), item.text)
			continue
		}
		*to = append(*to, proto)
	}
	if not {
		var rest []uint8
		for proto := range 256 {
			if !slices.Contains(*to, uint8(proto)) {
				rest = append(rest, uint8(proto))
			}
		}
		if *to = rest; len(rest) == 0 {
			p.nothingLeft(n)
		}
	}
	return p.count == before
}

// ports reads numbers and ranges "a-b", one or several.
func (p *reader) ports(n *node, to *[]PortRange) {
	items, not := p.choice(n, "a port or a range such as 8000-8080")
	for _, item := range items {
		r, ok := parseRange(item.text, maxPort)
		switch {
		case !ok:
			p.invalid(item, "a port from 0 to 65535 or a range such as 8000-8080")
		case r.First > r.Last:
			p.invalid(item, "a range whose first port is not above its last")
		default:
			*to = append(*to, r)
		}
	}
	if not {
		if *to = complement(*to, maxPort); len(*to) == 0 {
			p.nothingLeft(n)
		}
	}
}

const maxPort = 65535

// flagNames are the TCP flags from the lowest bit of the header's octet on.
var flagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	_
	flagACK
)

// flags reads either the word syn, which is the first packet of a connection
// (SYN set; ACK, RST and FIN clear), or a sequence of flags that must be set
// and, with a "!" before them, clear. The others may be either.
func (p *reader) flags(n *node, to *FlagsMatch) {
	const want = `syn, or a sequence of flags set and clear such as [ack, "!syn"]`
	switch {
	case n == nil:
		return
	case n.scalar() && n.text == "syn":
		*to = FlagsMatch{Mask: flagSYN | flagACK | flagRST | flagFIN, Value: flagSYN}
		return
	case n.scalar():
		p.invalid(n, want)
		return
	case n.kind != kindSequence || len(n.items) == 0:
		p.want(n, want)
		return
	}
	for _, item := range n.items {
		if !item.scalar() {
			p.want(item, want)
			continue
		}
		name, clear := strings.CutPrefix(item.text, "!")
		i := slices.Index(flagNames, name)
		if i < 0 {
			p.errorf(item.pos, "%s: no flag is called %s; %s", item.path(), quote(name), oneOf(name, flagNames))
			continue
		}
		bit := uint8(1) << i
		if to.Mask&bit != 0 {
			p.errorf(item.pos, "%s: flag %s is there twice; expected it once", item.path(), name)
			continue
		}
		to.Mask |= bit
		if !clear {
			to.Value |= bit
		}
	}
}

// number reads a number from 1 to most.
func (p *reader) number(n *node, to *int, most int) {
	want := "a number from 1 to " + strconv.Itoa(most)
	v, err := parseUint32(n.text)
	switch {
	case n.kind != kindNumber:
		p.want(n, want)
	case err != nil || v == 0 || int64(v) > int64(most):
		p.invalid(n, want)
	default:
		*to = int(v)
	}
}

// size reads a number of bytes with an optional unit of B, KiB or MiB.
func (p *reader) size(n *node, to *int, most int) {
	text, shift := n.text, 0
	if t, ok := strings.CutSuffix(text, "KiB"); ok {
		text, shift = t, 10
	} else if t, ok := strings.CutSuffix(text, "MiB"); ok {
		text, shift = t, 20
	} else {
		text = strings.TrimSuffix(text, "B")
	}
	want := "a size from 1 to " + strconv.Itoa(most) + " bytes, such as 4096 or 32KiB"
	v, err := parseUint32(strings.TrimSpace(text))
	switch {
	case !n.scalar():
		p.want(n, want)
	case err != nil || v == 0 || int64(v)<<shift > int64(most):
		p.invalid(n, want)
	default:
		*to = int(v) << shift
	}
}
