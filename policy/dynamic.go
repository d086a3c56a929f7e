package policy

import (
	"hash/fnv"
	"net/netip"
	"strings"
	"time"
)

// MaxDynamic is how many dynamic lists a policy may have.
const MaxDynamic = 8

// maxDynamicTTL bounds ttl of a dynamic list, in seconds.
const maxDynamicTTL = 7 * 24 * 3600

// Dynamic is what fills a list of type dynamic: the addresses in DNS answers about
// names in a set.
type Dynamic struct {
	From []NameMatch
	TTL  time.Duration // how long an address stays; 0: as long as its record says

	// ID tells dynamic lists apart over reloads and restarts: lists of the same name,
	// filled from the same names for the same time, have the same. It is never 0.
	ID uint64

	// Has tells whether an address is in the list now. Whoever fills the list sets
	// it; nil is an empty list.
	Has func(netip.Addr) bool
}

// Wants tells whether answers about a name fill the list. It does not allocate.
func (d *Dynamic) Wants(name []byte) bool {
	for i := range d.From {
		if d.From[i].Match(name) {
			return true
		}
	}
	return false
}

// id is Dynamic.ID.
func (l *List) id() uint64 {
	h := fnv.New64a()
	h.Write([]byte(l.Name))
	for _, from := range l.Dynamic.From {
		h.Write([]byte("\x00" + from.Pattern))
	}
	h.Write([]byte("\x00" + l.Dynamic.TTL.String()))
	return max(1, h.Sum64())
}

// DynamicLists returns the policy's dynamic lists, and behind them those that only
// its pinned rules know.
func (p *Policy) DynamicLists() (all []*List) {
	add := func(l *List) {
		for _, other := range all {
			if other.Dynamic.ID == l.Dynamic.ID {
				return
			}
		}
		all = append(all, l)
	}
	for _, l := range p.Lists {
		if l.Type == ListDynamic {
			add(l)
		}
	}
	for i := range p.Rules {
		for _, m := range []*AddrMatch{&p.Rules[i].Src, &p.Rules[i].Dst} {
			for _, l := range m.Lists {
				if l.Type == ListDynamic {
					add(l)
				}
			}
		}
	}
	return all
}

// dynamic tells whether one of the lists is.
func (m *AddrMatch) dynamic() bool {
	for _, l := range m.Lists {
		if l.Type == ListDynamic {
			return true
		}
	}
	return false
}

// readDynamic reads what fills a dynamic list.
func (p *reader) readDynamic(l *List, at Pos, path string, values map[string]*node) {
	for _, key := range []string{"entries", "file"} {
		if v := values[key]; v != nil {
			p.errorf(v.pos, "%s: a list of type dynamic is filled by DNS answers; expected from", v.path())
		}
	}
	from := values["from"]
	if from == nil {
		p.errorf(at, `%s.from is missing; expected the names whose addresses fill it, such as "*.cdn.example" or "@list"`, path)
	}
	for _, item := range p.several(from, `names, such as "*.cdn.example" or "@list"`) {
		var m NameMatch
		if p.nameMatch(item, &m); m.Domains != nil {
			l.Dynamic.From = append(l.Dynamic.From, m)
		}
	}
	v := values["ttl"]
	switch {
	case v == nil:
	case v.kind == kindBool && strings.EqualFold(v.text, "true"):
	case v.kind == kindBool:
		p.invalid(v, "true for that of the records, or a number of seconds")
	default:
		var seconds int
		p.number(v, &seconds, maxDynamicTTL)
		l.Dynamic.TTL = time.Duration(seconds) * time.Second
	}
	l.Dynamic.ID = l.id()
}

// checkDynamic numbers what is too much, and warns of what nothing fills.
func (p *reader) checkDynamic() {
	all := p.policy.DynamicLists()
	if len(all) > MaxDynamic {
		p.errorf(all[MaxDynamic].Pos, "lists.%s is one dynamic list too many; expected at most %d", all[MaxDynamic].Name, MaxDynamic)
	}
	if len(all) == 0 {
		return
	}
	learns := false
	for i := range p.policy.Rules {
		r := &p.policy.Rules[i]
		r.Learns = r.Action == ActionInspect && r.onlyDNS()
		learns = learns || r.Learns
	}
	if !learns {
		p.warnf(all[0].Pos, "lists.%s is never filled: no inspecting rule is for DNS alone; expected one with proto: [udp, tcp] and dport: 53", all[0].Name)
	}
}

// dnsPort is that of DNS over UDP and TCP.
const dnsPort = 53

// onlyDNS tells whether a rule is for nothing but DNS. Replies are looked at for such
// rules alone: what a server says first must not decide about what a client asks for.
func (r *Rule) onlyDNS() bool {
	for _, ports := range r.Dport {
		if ports != (PortRange{First: dnsPort, Last: dnsPort}) {
			return false
		}
	}
	return len(r.Dport) > 0
}
