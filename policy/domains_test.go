package policy

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// slowDomains is the plain meaning of a set of patterns.
type slowDomains []string

func (d slowDomains) match(name string) bool {
	name = asciiLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > maxDomain {
		return false
	}
	for _, pattern := range d {
		pattern = asciiLower(strings.TrimSuffix(pattern, "."))
		switch {
		case strings.HasPrefix(pattern, "*."):
			if strings.HasSuffix(name, pattern[1:]) {
				return true
			}
		case strings.HasPrefix(pattern, "."):
			if name == pattern[1:] || strings.HasSuffix(name, pattern) {
				return true
			}
		case name == pattern:
			return true
		}
	}
	return false
}

func asciiLower(s string) string {
	return strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, s)
}

func mustDomains(tb testing.TB, patterns ...string) *Domains {
	tb.Helper()
	d := new(Domains)
	for _, pattern := range patterns {
		if err := d.Add(pattern); err != nil {
			tb.Fatalf("%q %v", pattern, err)
		}
	}
	return d
}

func TestDomainsForms(t *testing.T) {
	d := mustDomains(t, "exact.example", "*.below.example", ".both.example", "UPPER.Example.", "*.Dot.example.", "tld", "*.com", "_dns._udp.example")
	for name, want := range map[string]bool{
		"exact.example":           true,
		"EXACT.example.":          true,
		"www.exact.example":       false,
		"exact.example..":         false,
		"exact":                   false,
		"below.example":           false,
		"a.below.example":         true,
		"a.b.c.Below.Example.":    true,
		"abelow.example":          false,
		"both.example":            true,
		"x.both.example":          true,
		"xboth.example":           false,
		"upper.example":           true,
		"x.dot.example":           true,
		"dot.example":             false,
		"tld":                     true,
		"x.tld":                   false,
		"com":                     false,
		"example.com":             true,
		"_dns._udp.example":       true,
		"":                        false,
		".":                       false,
		".both.example":           true, // an empty label is below, too
		"example":                 false,
		strings.Repeat("a.", 200): false,
		strings.Repeat("a.", 130): false,
		strings.Repeat("a.", 120) + "both.example": true,
		strings.Repeat("a.", 121) + "both.example": false, // 254 characters
	} {
		if got := d.Match([]byte(name)); got != want {
			t.Errorf("%q: %t, want %t", name, got, want)
		}
	}
	if d.Len() != 8 {
		t.Errorf("%d names, want 8", d.Len())
	}
}

// TestDomainsFormsTogether adds one name in several forms.
func TestDomainsFormsTogether(t *testing.T) {
	d := mustDomains(t, "a.example", "*.a.example", "*.A.example", "a.example.")
	if d.Len() != 1 {
		t.Errorf("%d names, want 1", d.Len())
	}
	for name, want := range map[string]bool{"a.example": true, "b.a.example": true, "example": false} {
		if got := d.Match([]byte(name)); got != want {
			t.Errorf("%q: %t, want %t", name, got, want)
		}
	}
}

func TestDomainsZeroValue(t *testing.T) {
	var d Domains
	if d.Match([]byte("example.com")) || d.Len() != 0 {
		t.Error("the empty set has a name")
	}
}

// TestDomainsRefused checks that a refused pattern leaves the set as it was.
func TestDomainsRefused(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a"
	for _, bad := range []string{
		"", ".", "*", "*.", "..", "a..b", ".a.", "*.*.a", "*a.b", "a.*", "a b", "a/b", "ä.example", "-a.b\n", long + "a",
		strings.Repeat("x", 64) + ".example",
	} {
		d := mustDomains(t, "x.example")
		err := d.Add(bad)
		if bad == ".a." || bad == "-a.b\n" {
			continue // told apart below
		}
		if err == nil {
			t.Errorf("%q is accepted", bad)
		}
		if d.Len() != 1 || !d.Match([]byte("x.example")) {
			t.Errorf("%q changed the set", bad)
		}
	}
	d := mustDomains(t, ".a.", long, "-a-.b")
	if !d.Match([]byte("b.a")) || !d.Match([]byte(long+".")) || !d.Match([]byte("-A-.b")) {
		t.Error("a pattern at the edge of what is allowed does not match")
	}
	if err := d.Add("a.b\n"); err == nil {
		t.Error("a line end is accepted")
	}
}

// TestDomainsSlowTwin compares random sets and names out of few labels, so that
// names are often in the set, just above, or just below.
func TestDomainsSlowTwin(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	labels := []string{"a", "b", "A", "bb", "x-1", "_s"}
	name := func() string {
		parts := make([]string, 1+rnd.IntN(5))
		for i := range parts {
			parts[i] = labels[rnd.IntN(len(labels))]
		}
		return strings.Join(parts, ".") + []string{"", "", "."}[rnd.IntN(3)]
	}
	hits := 0
	for range 2000 {
		var fast Domains
		var slow slowDomains
		for range rnd.IntN(40) {
			pattern := []string{"", "*.", "."}[rnd.IntN(3)] + name()
			if err := fast.Add(pattern); err != nil {
				t.Fatalf("%q %v", pattern, err)
			}
			slow = append(slow, pattern)
		}
		for range 50 {
			n := name()
			got, want := fast.Match([]byte(n)), slow.match(n)
			if got != want {
				t.Fatalf("%q in %q: %t, want %t", n, slow, got, want)
			}
			if got {
				hits++
			}
		}
	}
	if hits < 10_000 || hits > 90_000 {
		t.Errorf("%d of 100000 names were in their set: the test tests little", hits)
	}
}

func TestDomainsMatchDoesNotAllocate(t *testing.T) {
	d := mustDomains(t, "exact.example", "*.below.example")
	for _, name := range []string{"EXACT.example.", "a.b.below.example", "other.example", strings.Repeat("a.", 120) + "x"} {
		b := []byte(name)
		if n := testing.AllocsPerRun(100, func() { d.Match(b) }); n != 0 {
			t.Errorf("%q: %v allocations", name, n)
		}
	}
}

// manyDomains is a set of n names as long as those of common block lists.
func manyDomains(tb testing.TB, n int) (*Domains, []string) {
	tb.Helper()
	rnd := rand.New(rand.NewPCG(3, 4))
	d := new(Domains)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%x.%x.%s", []string{"ads-", "track", "x"}[rnd.IntN(3)], rnd.Uint32(), rnd.Uint32(),
			[]string{"com", "net", "example", "co.uk"}[rnd.IntN(4)])
		if err := d.Add([]string{"", "*.", "."}[rnd.IntN(3)] + names[i]); err != nil {
			tb.Fatal(err)
		}
	}
	return d, names
}

// TestDomainsMemory holds a million names to 64 MiB.
func TestDomainsMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a million names")
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	_, names := manyDomains(t, 1_000_000)
	before := heap()
	d := new(Domains)
	for _, name := range names {
		if err := d.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	used := heap() - before
	t.Logf("%d names: %.1f MiB", d.Len(), float64(used)/(1<<20))
	if used > 64<<20 {
		t.Errorf("%d bytes for a million names, want at most 64 MiB", used)
	}
	runtime.KeepAlive(names)
	runtime.KeepAlive(d)
}

// BenchmarkDomainsMatch asks for more names than the caches hold of the set.
// The names asked for lie in a row, as a packet's name is in the cache already.
func BenchmarkDomainsMatch(b *testing.B) {
	for _, size := range []int{1000, 1_000_000} {
		d, names := manyDomains(b, size)
		rnd := rand.New(rand.NewPCG(5, 6))
		queries := []struct {
			kind string
			name func() string
		}{
			{"in", func() string { return names[rnd.IntN(len(names))] }},
			{"below", func() string { return "www.cdn." + names[rnd.IntN(len(names))] }},
			{"out", func() string { return fmt.Sprintf("www.%x.example.com", rnd.Uint64()) }},
		}
		for _, q := range queries {
			b.Run(fmt.Sprintf("names=%d/%s", size, q.kind), func(b *testing.B) {
				var list [][]byte
				row := make([]byte, 0, 64<<17)
				for range 1 << 17 {
					start := len(row)
					row = append(row, q.name()...)
					list = append(list, row[start:])
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					d.Match(list[i&(len(list)-1)])
				}
			})
		}
	}
}
