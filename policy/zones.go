package policy

import (
	"slices"
	"strings"
)

const (
	maxIfname = 15   // IFNAMSIZ of the kernel without the final NUL
	maxGlobs  = 1000 // each is compared with each
)

// member is an interface name or glob of a zone that is already read.
type member struct {
	text string
	zone string
	pos  Pos
}

// readZones reads the zones. One with a bad name or without interfaces is kept,
// so that rules which name it are not called wrong on top.
func (p *reader) readZones(n *node) {
	if n.kind != kindMapping {
		p.want(n, "a mapping of zone names to interfaces, such as {wan: [eth0]}")
		return
	}
	if len(n.fields) == 0 {
		p.errorf(n.pos, "zones is empty; expected at least one zone, such as zones: {wan: [eth0]}")
	}
	literals := map[string]member{}
	var globs []member
	for i, f := range n.fields {
		if i == MaxZones {
			p.errorf(f.pos, "zones.%s is one too many; expected at most %d zones", f.key, MaxZones)
			return
		}
		if f.key == "host" {
			p.errorf(f.pos, "zones.host is the host itself; expected another name")
			continue
		}
		p.nameOf(f.pos, "zone", f.key)
		z := Zone{Name: f.key, Pos: f.pos}
		for _, m := range p.readMembers(f) {
			if isGlob(m.text) && len(globs) == maxGlobs {
				p.errorf(m.pos, "glob %s is one too many; expected at most %d in all zones", m.text, maxGlobs)
				return
			} else if isGlob(m.text) {
				p.checkGlob(m, globs)
				globs = append(globs, m)
			} else if other, taken := literals[m.text]; taken {
				p.errorf(m.pos, "interface %s is in zone %s already, at %v; expected each interface once", m.text, other.zone, other.pos)
				continue
			} else {
				literals[m.text] = m
			}
			z.Interfaces = append(z.Interfaces, m.text)
		}
		p.policy.Zones = append(p.policy.Zones, z)
		p.zones[f.key] = ZoneID(len(p.policy.Zones))
	}
}

// readMembers reads the interfaces of a zone.
func (p *reader) readMembers(f field) []member {
	if f.value.kind != kindSequence || len(f.value.items) == 0 {
		p.errorf(f.value.pos, "%s has no interfaces; expected a sequence of names or globs, such as [eth0, \"br-*\"]", f.value.path())
		return nil
	}
	var members []member
	for _, item := range f.value.items {
		if !item.scalar() {
			p.want(item, "the name of an interface or a glob with * and ?")
			continue
		}
		if what := badIfname(item.text); what != "" {
			p.errorf(item.pos, "%s is %s, which %s; expected the name of an interface or a glob with * and ?",
				item.path(), quote(item.text), what)
			continue
		}
		members = append(members, member{item.text, f.key, item.pos})
	}
	return members
}

// checkGlob refuses a glob that shares a name with another zone's glob: which
// zone such an interface joins would depend on nothing that the file says.
func (p *reader) checkGlob(m member, others []member) {
	for _, other := range others {
		if other.text == m.text && other.zone == m.zone {
			p.errorf(m.pos, "interface %s is in zone %s already, at %v; expected each interface once", m.text, other.zone, other.pos)
			return
		}
		if other.zone != m.zone && globsMeet(m.text, other.text) {
			p.errorf(m.pos, "glob %s of zone %s and %s of zone %s at %v match the same names; expected globs that share none",
				m.text, m.zone, other.text, other.zone, other.pos)
			return
		}
	}
}

// badIfname says what is wrong with an interface name or glob, by the rules of
// the kernel's dev_valid_name (net/core/dev.c).
func badIfname(s string) string {
	switch {
	case s == "":
		return "is empty"
	case s == "." || s == "..":
		return "no interface can be called"
	case len(strings.ReplaceAll(s, "*", "")) > maxIfname:
		return "is longer than 15 characters"
	case strings.Contains(s, "**"):
		return "has two stars in a row"
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`/:[]{}\`, c) >= 0 {
			return "has a character that is not allowed"
		}
	}
	return ""
}

// isGlob tells a glob from the name of one interface.
func isGlob(s string) bool { return strings.ContainsAny(s, "*?") }

// globMatch tells whether name matches a glob, in which * stands for any
// characters, none included, and ? for exactly one. After a mismatch only the
// last star takes one character more, so the work is at most their product.
func globMatch(glob, name string) bool {
	g, n := 0, 0
	star, taken := -1, 0
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, taken = g, n
			g++
		case g < len(glob) && (glob[g] == '?' || glob[g] == name[n]):
			g++
			n++
		case star >= 0:
			taken++
			g, n = star+1, taken
		default:
			return false
		}
	}
	return strings.Trim(glob[g:], "*") == ""
}

// globsMeet tells whether an interface name exists that matches both globs. It
// finds the length of the shortest string that does: shortest[i][j] is that of
// the globs' ends from i and j.
func globsMeet(a, b string) bool {
	const none = 1 << 20
	shortest := make([][]int, len(a)+1)
	for i := range shortest {
		shortest[i] = slices.Repeat([]int{none}, len(b)+1)
	}
	for i := len(a); i >= 0; i-- {
		for j := len(b); j >= 0; j-- {
			best := none
			switch {
			case i == len(a) && j == len(b):
				best = 0
			case i < len(a) && a[i] == '*' || j < len(b) && b[j] == '*':
				best = starMeets(a, b, i, j, shortest)
			case i < len(a) && j < len(b) && (a[i] == b[j] || a[i] == '?' || b[j] == '?'):
				best = 1 + shortest[i+1][j+1]
			}
			shortest[i][j] = best
		}
	}
	return shortest[0][0] <= maxIfname
}

// starMeets is globsMeet where at least one of the two is at a star: the star
// ends, or it takes one character of the other.
func starMeets(a, b string, i, j int, shortest [][]int) int {
	best := 1 << 20
	if i < len(a) && a[i] == '*' {
		best = min(best, shortest[i+1][j])
		if j < len(b) && b[j] != '*' {
			best = min(best, 1+shortest[i][j+1])
		}
	}
	if j < len(b) && b[j] == '*' {
		best = min(best, shortest[i][j+1])
		if i < len(a) && a[i] != '*' {
			best = min(best, 1+shortest[i+1][j])
		}
	}
	return best
}

// Zone returns the zone of the interface with the given name, or ZoneNone. A
// literal name beats a glob.
func (p *Policy) Zone(ifname string) ZoneID {
	found := ZoneNone
	for i := range p.Zones {
		for _, m := range p.Zones[i].Interfaces {
			if m == ifname {
				return ZoneID(i + 1)
			}
			// Globs of two zones never match one name, see checkGlob.
			if isGlob(m) && globMatch(m, ifname) {
				found = ZoneID(i + 1)
			}
		}
	}
	return found
}

// ZoneName returns the name of a zone as the policy writes it, "host" for
// ZoneHost and "" for ZoneNone.
func (p *Policy) ZoneName(id ZoneID) string {
	switch {
	case id == ZoneHost:
		return "host"
	case id == ZoneNone || int(id) > len(p.Zones):
		return ""
	}
	return p.Zones[id-1].Name
}
