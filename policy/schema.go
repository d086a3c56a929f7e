package policy

import (
	"fmt"
	"slices"
	"strings"
)

// schema names the keys of one kind of mapping: those that are built, and those
// of the language that are not, which are refused by name so that nobody
// believes they work.
type schema struct {
	built []string
	later []string
}

var (
	policyKeys = schema{
		built: []string{"version", "zones", "defaults", "failure", "queue", "offload", "timeouts", "marks", "lists", "rules"},
	}
	defaultsKeys = schema{built: []string{"input", "forward", "output"}}
	failureKeys  = schema{built: []string{"no_listener", "overload", "undecided", "malformed", "midstream"}}
	marksKeys    = schema{built: []string{"mask"}}
	listKeys     = schema{
		built: []string{"type", "entries", "file", "from", "ttl"},
	}
	ruleKeys = schema{
		built: []string{"name", "from", "to", "src", "dst", "proto", "sport", "dport", "flags",
			"icmp", "icmpv6", "vlan", "dscp", "fragment", "limit", "rewrite", "offload", "action", "pin", "until", "steps"},
		later: []string{"redirect", "mark", "connmark", "mirror", "capture", "replace"},
	}
	untilKeys = schema{built: []string{"packets", "bytes"}}
	stepKeys  = schema{
		built: []string{"sni", "alpn", "ech", "ja4", "qname", "qtype", "host", "path", "list", "proto_l7", "direction", "action", "answer", "ttl", "log"},
		later: []string{"replace", "redirect"},
	}
)

// keys returns the values of a mapping's keys. It reports what is no mapping,
// and keys that are unknown or not built.
func (p *reader) keys(n *node, s schema) map[string]*node {
	if n.kind != kindMapping {
		p.want(n, "a mapping with the keys "+strings.Join(s.built, ", "))
		return nil
	}
	values := make(map[string]*node, len(n.fields))
	for _, f := range n.fields {
		switch {
		case slices.Contains(s.built, f.key):
			values[f.key] = f.value
		case slices.Contains(s.later, f.key):
			p.errorf(f.pos, "%s is not built yet; leave it out", n.child(f.key))
		default:
			p.errorf(f.pos, "%s is unknown; %s", n.child(f.key), oneOf(f.key, s.built))
		}
	}
	return values
}

// want reports a value of the wrong type.
func (p *reader) want(n *node, what string) {
	name := n.path()
	if name == "" {
		name = "the policy"
	}
	p.errorf(n.pos, "%s is %v; expected %s", name, n.kind, what)
}

// invalid reports a scalar with a wrong value.
func (p *reader) invalid(n *node, what string) {
	text := quote(n.text)
	if n.kind == kindNumber {
		text = n.text
	}
	p.errorf(n.pos, "%s is %s; expected %s", n.path(), text, what)
}

// oneOf says which words are allowed, and which of them was probably meant.
func oneOf(got string, words []string) string {
	expected := "expected one of " + strings.Join(words, ", ")
	if len(words) == 1 {
		return "expected " + words[0]
	}
	if near := nearest(got, words); near != "" {
		return fmt.Sprintf("did you mean %s? %s", near, expected)
	}
	return expected
}

// nearest returns the word that differs from got by a slip of the finger or
// two, or "".
func nearest(got string, words []string) string {
	best, word := 3, ""
	got = strings.ToLower(got)
	if len(got) > 40 {
		return ""
	}
	for _, w := range words {
		if d := editDistance(got, w); d < best && 2*d < len(w) {
			best, word = d, w
		}
	}
	return word
}

// editDistance counts the letters to insert, delete, replace or swap with
// their neighbour to make b of a.
func editDistance(a, b string) int {
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}

// word reads a scalar that is one of a few words. It returns -1 where it is
// none, which it has reported.
func (p *reader) word(n *node, words, later []string) int {
	if !n.scalar() {
		p.want(n, oneOf("", words)[len("expected "):])
		return -1
	}
	if i := slices.Index(words, n.text); i >= 0 {
		return i
	}
	if slices.Contains(later, n.text) {
		p.errorf(n.pos, "%s: %s is not built yet; expected one of %s", n.path(), n.text, strings.Join(words, ", "))
		return -1
	}
	p.errorf(n.pos, "%s is %s; %s", n.path(), quote(n.text), oneOf(n.text, words))
	return -1
}

// nameOf checks a name that the policy gives to something.
func (p *reader) nameOf(pos Pos, what, name string) bool {
	ok := name != "" && len(name) <= maxName
	for _, c := range []byte(name) {
		ok = ok && isNameByte(c)
	}
	if !ok {
		p.errorf(pos, "%s %s: bad name; expected 1 to %d of a-z, 0-9, _ and -", what, quote(name), maxName)
	}
	return ok
}

// maxName is the length of names in metrics and messages that stays readable.
const maxName = 63
