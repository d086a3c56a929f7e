package policy

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// maxPrefixes bounds the addresses and prefixes in all lists of a policy: the kernel
// half's tables of so many take about a gibibyte.
var maxPrefixes = 4 << 20

var listTypes = []string{"cidr", "domain", "dynamic"}

// String returns the type as policies write it.
func (t ListType) String() string {
	if t >= ListCIDR && t <= ListDynamic {
		return listTypes[t-ListCIDR]
	}
	return "unknown"
}

// readLists reads all lists, so that rules can name them.
func (p *reader) readLists(n *node) {
	if n.kind != kindMapping {
		p.want(n, "a mapping of list names to lists, such as {admins: {type: cidr, entries: [192.0.2.0/24]}}")
		return
	}
	for _, f := range n.fields {
		// A rule that names a list with an error must not be told that there
		// is no such list.
		p.bad[f.key] = true
	}
	// Dynamic lists may name others.
	lists := make([]*List, len(n.fields))
	for _, dynamic := range []bool{false, true} {
		for i, f := range n.fields {
			if isDynamic(f) == dynamic && p.nameOf(f.pos, "list", f.key) {
				if lists[i] = p.readList(f); lists[i] != nil {
					delete(p.bad, f.key)
					p.lists[f.key] = lists[i]
				}
			}
		}
	}
	p.policy.Lists = slices.DeleteFunc(lists, func(l *List) bool { return l == nil })
}

// isDynamic tells whether a list says that it is.
func isDynamic(f field) bool {
	for _, key := range f.value.fields {
		if key.key == "type" && key.value.text == listTypes[ListDynamic-ListCIDR] {
			return true
		}
	}
	return false
}

// readList returns nil where it has reported an error.
func (p *reader) readList(f field) *List {
	before := p.count
	values := p.keys(f.value, listKeys)
	if values == nil {
		return nil
	}
	l := &List{Name: f.key, Pos: f.pos}
	if v := values["type"]; v == nil {
		p.errorf(f.pos, "%s.type is missing; expected cidr, domain or dynamic", f.value.path())
		return nil
	} else if i := p.word(v, listTypes, nil); i < 0 {
		return nil
	} else {
		l.Type = ListCIDR + ListType(i)
	}
	entries, file := values["entries"], values["file"]
	for _, key := range []string{"from", "ttl"} {
		if v := values[key]; v != nil && l.Type != ListDynamic {
			p.errorf(v.pos, "%s: only a list of type dynamic has it; expected entries or file", v.path())
		}
	}
	switch {
	case l.Type == ListDynamic:
		p.readDynamic(l, f.pos, f.value.path(), values)
	case entries == nil && file == nil:
		p.errorf(f.pos, "%s has no entries; expected entries or file", f.value.path())
	case entries != nil && file != nil:
		p.errorf(file.pos, "%s has entries too; expected entries or file, not both", file.path())
	case entries != nil:
		p.readEntries(l, entries)
	default:
		p.readListFile(l, file)
	}
	if p.count > before {
		return nil
	}
	return l
}

// readEntries reads a list that stands in the policy itself.
func (p *reader) readEntries(l *List, n *node) {
	if n.kind != kindSequence {
		p.want(n, "a sequence")
		return
	}
	for _, item := range n.items {
		if !item.scalar() {
			p.want(item, "an entry of type "+l.Type.String()+", in quotes where it has a colon")
		} else if err := p.enter(l, item.text); err != nil {
			p.errorf(item.pos, "%s: %s %v", item.path(), quote(item.text), err)
		}
	}
}

// enter puts an entry into a list, if there is still room for it.
func (p *reader) enter(l *List, entry string) error {
	if l.Type == ListCIDR {
		if p.prefixes++; p.prefixes > maxPrefixes {
			return fmt.Errorf("is one too many; expected at most %d addresses and prefixes in all lists", maxPrefixes)
		}
	}
	return l.add(entry)
}

// add puts an entry into the list. Its error goes on after the entry: what is
// wrong with it, what was expected.
func (l *List) add(entry string) error {
	if l.Type == ListDomain {
		return l.Domains.Add(entry)
	}
	prefix, err := parsePrefix(entry)
	if err == nil {
		l.Prefixes = append(l.Prefixes, prefix)
	}
	return err
}

// readListFile reads a file with one entry a line. A # begins a comment.
func (p *reader) readListFile(l *List, n *node) {
	if n.kind != kindString || n.text == "" {
		p.want(n, "the name of a file")
		return
	}
	l.File = n.text
	if !filepath.IsAbs(l.File) {
		l.File = filepath.Join(p.dir, l.File)
	}
	f, bad := openFile(l.File, maxListFile)
	if bad != nil {
		p.add(&Error{File: p.file, Pos: n.pos, Msg: fmt.Sprintf("%s: %v", n.path(), bad), Err: bad.Err})
		return
	}
	defer f.Close()
	wrong := func(line int, msg string) {
		p.add(&Error{File: l.File, Pos: Pos{Line: line}, Msg: msg})
	}
	number := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		number++
		text, _, _ := strings.Cut(lines.Text(), "#")
		if number == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if err := p.enter(l, text); err != nil {
			wrong(number, quote(text)+" "+err.Error())
			if p.prefixes > maxPrefixes {
				return // each further line would say the same
			}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		wrong(number+1, "the line is too long; expected one entry a line")
	} else if err != nil {
		p.add(fileError(l.File, err))
	}
}

// parsePrefix reads an address or a prefix. Its error goes on after the text.
func parsePrefix(s string) (netip.Prefix, error) {
	const forms = "expected an address or a prefix, such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/48"
	if strings.HasPrefix(s, "!") {
		return netip.Prefix{}, errors.New("is negated, which only values of rules can be; " + forms)
	}
	var prefix netip.Prefix
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, errors.New("names an interface; " + forms)
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if prefix, err = netip.ParsePrefix(s); err != nil {
		return netip.Prefix{}, errors.New("is no address; " + forms)
	}
	// On the wire such an address is one of IPv4, where an IPv6 prefix would
	// never match it.
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("is IPv4 in an IPv6 address; expected the IPv4 address, %v", prefix.Addr().Unmap())
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, fmt.Errorf("has bits set behind its length; expected %v, or %v", masked, prefix.Addr())
	}
	return prefix, nil
}
