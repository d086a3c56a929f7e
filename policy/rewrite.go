package policy

import "slices"

// Rewrite says which header fields a rule sets in the packets that it lets pass.
// The zero value sets none.
type Rewrite struct {
	TTL  int  // hop limit with which packets leave, from 1 to 254; 0 leaves it
	DSCP int  // code point + 1; 0 leaves it
	MSS  int  // the most that either side of a TCP connection may announce; 0 leaves it
	PMTU bool // MSS is the most that fits the routes both ways
}

// Any tells whether some field is set.
func (r Rewrite) Any() bool { return r != Rewrite{} }

var rewriteKeys = schema{built: []string{"ttl", "dscp", "mss"}}

// What Parse accepts.
const (
	maxTTL = 254
	minMSS = 88 // leaves room for the options of IPv4 at its smallest MTU (RFC 791)
	maxMSS = 65534
)

// readRewrite reads a rule's rewrite; the rest of the rule is read.
func (p *reader) readRewrite(r *Rule, n *node) {
	values := p.keys(n, rewriteKeys)
	if values == nil {
		return
	}
	if len(n.fields) == 0 {
		p.errorf(n.pos, "%s is empty; expected ttl, dscp or mss, or no such key", n.path())
	}
	if r.Action == ActionDrop {
		p.errorf(n.pos, "%s has no effect in a rule that drops", n.path())
	}
	to := &r.Rewrite
	if v := values["ttl"]; v != nil {
		p.number(v, &to.TTL, maxTTL)
		if r.To == ZoneHost && !r.NotTo {
			p.errorf(v.pos, "%s has no effect on packets to the host; expected it in a rule without to: host", v.path())
		}
	}
	if v := values["dscp"]; v != nil {
		if code, ok := dscp(v.text); !v.scalar() || !ok {
			p.invalid(v, "a code point such as ef, af11, cs1, or a number up to 63")
		} else {
			to.DSCP = int(code) + 1
		}
	}
	if v := values["mss"]; v != nil {
		p.readMSS(r, v)
	}
}

func (p *reader) readMSS(r *Rule, n *node) {
	const want = "pmtu, or a number from 88 to 65534"
	size, err := parseUint32(n.text)
	switch {
	case n.text == "pmtu" && n.scalar():
		r.Rewrite.PMTU = true
	case !n.scalar() || err != nil || size < minMSS || size > maxMSS:
		p.invalid(n, want)
		return
	default:
		r.Rewrite.MSS = int(size)
	}
	if !r.hasProto(protoTCP) {
		p.errorf(n.pos, "%s is about TCP alone; expected proto: tcp, or none", n.path())
	}
}

// hasProto tells whether a rule may match packets of a protocol.
func (r *Rule) hasProto(proto uint8) bool {
	return len(r.Proto) == 0 || slices.Contains(r.Proto, proto)
}
