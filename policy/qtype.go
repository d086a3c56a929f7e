package policy

import "strings"

// qtypes are the types of DNS questions that have names here, as IANA has them.
var qtypes = map[string]uint16{
	"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33, "NAPTR": 35,
	"DS": 43, "DNSKEY": 48, "TLSA": 52, "SVCB": 64, "HTTPS": 65, "IXFR": 251, "AXFR": 252, "ANY": 255, "CAA": 257,
}

// qtype reads the types of questions that a step is about.
func (p *reader) qtype(n *node, s *Step) {
	const want = "types of DNS questions, such as A, [AAAA, HTTPS] or a number up to 65535"
	for _, item := range p.several(n, want) {
		t, ok := qtypes[strings.ToUpper(item.text)]
		if !ok {
			v, err := parseUint32(item.text)
			if err != nil || v == 0 || v > 0xffff {
				p.invalid(item, want)
				continue
			}
			t = uint16(v)
		}
		s.QType = append(s.QType, t)
	}
}
