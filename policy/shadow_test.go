package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTooManyPrefixesNameTheLine: the line of the list file is told where the
// limit is passed, and only once.
func TestTooManyPrefixesNameTheLine(t *testing.T) {
	defer func(most int) { maxPrefixes = most }(maxPrefixes)
	maxPrefixes = 3
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "l.txt"), []byte("192.0.2.1\n# none\n192.0.2.2\n192.0.2.3\n192.0.2.4\n"), 0o600))
	text := zonesHead + "lists: {a: {type: cidr, entries: [10.0.0.1]}, b: {type: cidr, file: l.txt}}\n"
	_, err := ParseBytes("p.yaml", []byte(text), dir)
	want := filepath.Join(dir, "l.txt") + `:4: "192.0.2.3" is one too many; expected at most 3 addresses and prefixes in all lists`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	maxPrefixes = 5
	if _, err := ParseBytes("p.yaml", []byte(text), dir); err != nil {
		t.Errorf("as many as fit: %v", err)
	}
}

// TestShadowsOfLongLists: long lists are compared by name and by their span.
func TestShadowsOfLongLists(t *testing.T) {
	var entries []string
	for i := range maxExpanded + 1 {
		entries = append(entries, fmt.Sprintf("10.1.%d.%d", i/256, i%256), fmt.Sprintf("'2001:db8::%x'", i))
	}
	head := zonesHead + "lists: {long: {type: cidr, entries: [" + strings.Join(entries, ",") + "]}}\nrules:\n"
	for _, c := range []struct {
		first, second string
		want          bool
	}{
		{`src: "@long"`, `src: "@long"`, true},
		{`src: [10.1.0.0/16, "2001:db8::/64"]`, `src: "@long"`, true},
		{`src: [10.1.0.0/16, "2001:db8::/120"]`, `src: "@long"`, false},
		{`src: 10.1.0.0/16`, `src: "@long"`, false},
		{`src: "@long"`, `src: 10.1.0.1`, false}, // is so, and is not looked at
		{`src: "!@long"`, `src: 11.0.0.1`, false},
		{`src: "!@long"`, `src: "!@long"`, true},
		{`src: "!@long"`, `src: ["!@long", "!12.0.0.1"]`, true},
		{`src: ["!@long", "!12.0.0.1"]`, `src: "!@long"`, false},
	} {
		p := mustParse(t, head+"  - {name: a, action: drop, "+c.first+"}\n  - {name: b, action: drop, "+c.second+"}\n")
		if got := strings.Contains(fmt.Sprint(p.Warnings), "rules[1] b can never match: rules[0] a at 5:5"); got != c.want {
			t.Errorf("%s covers %s: %t, want %t; %v", c.first, c.second, got, c.want, p.Warnings)
		}
	}
}

// TestRangesAgreeWithPrefixes compares the ordered ranges with prefixes one by one.
func TestRangesAgreeWithPrefixes(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(21, 22))}
	random := func() (prefixes []netip.Prefix) {
		for range g.IntN(5) {
			prefixes = append(prefixes, netip.MustParsePrefix(strings.Trim(g.prefix(), `"`)))
		}
		return prefixes
	}
	has := func(prefixes []netip.Prefix, a netip.Addr) bool { return (&AddrMatch{Prefixes: prefixes}).has(a) }
	for range 3000 {
		a, b := random(), random()
		s := shadows{left: maxCompare}
		holds, apart := s.holds(rangesOf(a), rangesOf(b)), s.apart(rangesOf(a), rangesOf(b))
		for _, p := range append(append([]netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, a...), b...) {
			for _, x := range []netip.Addr{p.Addr(), lastOf(p), p.Addr().Prev(), lastOf(p).Next()} {
				if holds && has(b, x) && !has(a, x) {
					t.Fatalf("%v holds %v, but for %v", a, b, x)
				}
				if apart && has(b, x) && has(a, x) {
					t.Fatalf("%v and %v are apart, but for %v", a, b, x)
				}
			}
		}
		if holds != s.holds(rangesOf(append(a, a...)), rangesOf(append(b, b...))) {
			t.Fatalf("%v holds %v, or not, as often as they are written", a, b)
		}
	}
}

// TestShadowsOfManyRulesAreBounded: a policy made to be slow is accepted without a
// warning that is not sure, in a time that is printed.
func TestShadowsOfManyRulesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(zonesHead + "rules:\n")
	for i := range MaxRules {
		fmt.Fprintf(&b, "  - {name: r%d, action: drop, src: [", i)
		for j := range 40 {
			fmt.Fprintf(&b, "10.%d.%d.%d,", j, i%256, i/256)
		}
		fmt.Fprintf(&b, "11.%d.%d.0/24]}\n", i%256, i/256)
	}
	began := time.Now()
	p := mustParse(t, b.String())
	t.Logf("%v for 4,096 rules with 41 prefixes each", time.Since(began).Round(time.Millisecond))
	if len(p.Warnings) != 0 {
		t.Errorf("warnings: %v", p.Warnings[0])
	}
}

// TestRulesShadowTogether: rules that differ in one condition are looked at as one.
func TestRulesShadowTogether(t *testing.T) {
	for _, c := range []struct {
		rules []string // the last one is asked about
		by    string   // "" where it may match
	}{
		{[]string{"dport: 1-99", "dport: 100-200", "dport: 50-150"}, "rules[0] r0 at 5:5, rules[1] r1 at 6:5 match all"},
		{[]string{"dport: 1-99", "dport: 101-200", "dport: 50-150"}, ""},
		{[]string{"dport: 1-99", "dport: 100-200, src: 10.0.0.0/8", "dport: 50-150"}, ""},
		{[]string{"dport: 1-99", "dport: 100-200", "dport: 50-150, src: 10.0.0.0/8"}, "rules[0] r0 at 5:5, rules[1] r1 at 6:5 match all"},
		{[]string{"src: 10.0.0.0/9", "src: 10.128.0.0/9, dst: 1.0.0.0/8", "src: 10.128.0.0/9", "src: 10.0.0.0/8"}, "rules[0] r0 at 5:5, rules[2] r2 at 7:5 match all"},
		{[]string{"dst: 10.0.0.0/9", "dst: 10.129.0.0/16", "dst: 10.0.0.0/8"}, ""},
		{[]string{"sport: 1-5", "sport: 6-9", "sport: [2, 8]"}, "rules[0] r0 at 5:5, rules[1] r1 at 6:5 match all"},
		{[]string{`src: "!10.0.0.0/8"`, "src: 10.0.0.0/8", ""}, ""}, // is so, and is not looked at
		{[]string{"dport: 1", "dport: 2", "dport: 3", "dport: 4", "dport: 5", "dport: 1-5"}, "rules[3] r3 at 8:5 and 1 more match all"},
	} {
		text := zonesHead + "rules:\n#\n"
		for i, r := range c.rules {
			if r != "" {
				r = ", " + r
			}
			text += fmt.Sprintf("  - {name: r%d, action: drop, proto: tcp%s}\n", i, r)
		}
		p := mustParse(t, text)
		last := fmt.Sprintf("rules[%d] r%d can never match: ", len(c.rules)-1, len(c.rules)-1)
		got := fmt.Sprint(p.Warnings)
		if c.by == "" && strings.Contains(got, last) || c.by != "" && (!strings.Contains(got, last) || !strings.Contains(got, c.by)) {
			t.Errorf("%q: %v, want %q", c.rules, p.Warnings, c.by)
		}
	}
	p := mustParse(t, zonesHead+"rules:\n  - {name: a, action: drop, proto: tcp}\n  - {name: b, action: drop, proto: udp}\n  - {name: c, action: drop, proto: [tcp, udp]}\n")
	if !strings.Contains(fmt.Sprint(p.Warnings), "rules[2] c can never match: rules[0] a at 4:5, rules[1] b at 5:5 match all of its packets together before it") {
		t.Errorf("%v", p.Warnings)
	}
}
