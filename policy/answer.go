package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// RCode is the response code of a DNS message (RFC 1035 section 4.1.1).
type RCode uint8

const (
	RCodeNoError  RCode = 0
	RCodeNXDomain RCode = 3 // the name does not exist
	RCodeRefused  RCode = 5
)

// Answer is what a rewritten DNS response says.
type Answer struct {
	Addrs []netip.Addr // of both families; none: no records
	RCode RCode
	TTL   int // of the records, seconds; 0: the response's own, up to 300
}

// answerWords are answers without records.
var answerWords = map[string]RCode{"nodata": RCodeNoError, "nxdomain": RCodeNXDomain, "refused": RCodeRefused}

// String writes it as in a policy.
func (a *Answer) String() string {
	for word, code := range answerWords {
		if len(a.Addrs) == 0 && a.RCode == code {
			return word
		}
	}
	return strings.Trim(fmt.Sprint(a.Addrs), "[]")
}

// What Parse accepts.
const (
	maxAnswers   = 16
	maxAnswerTTL = 86400
)

// answer reads what a rewritten DNS answer says; nil where it says nothing.
func (p *reader) answer(n *node) *Answer {
	const want = "nxdomain, nodata, refused, or addresses such as 0.0.0.0 or [192.0.2.1, \"2001:db8::1\"]"
	if n.scalar() {
		if code, ok := answerWords[n.text]; ok {
			return &Answer{RCode: code}
		}
	}
	if n.kind == kindMapping {
		p.errorf(n.pos, "%s: a mapping is not built yet; expected %s", n.path(), want)
		return new(Answer)
	}
	a := new(Answer)
	for _, item := range p.several(n, want) {
		addr, err := netip.ParseAddr(item.text)
		switch {
		case err != nil || addr.Zone() != "":
			p.invalid(item, want)
		case addr.Is4In6():
			p.invalid(item, "the IPv4 address, "+addr.Unmap().String())
		case slices.Contains(a.Addrs, addr):
			p.errorf(item.pos, "%s is there already", item.path())
		default:
			a.Addrs = append(a.Addrs, addr)
		}
	}
	if len(a.Addrs) > maxAnswers {
		p.errorf(n.pos, "%s has %d addresses; expected at most %d", n.path(), len(a.Addrs), maxAnswers)
	}
	return a
}
