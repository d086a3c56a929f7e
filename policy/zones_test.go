package policy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func mustParse(tb testing.TB, text string) *Policy {
	tb.Helper()
	p, err := ParseBytes("test.yaml", []byte(text), "testdata")
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestZoneOfInterface(t *testing.T) {
	p := mustParse(t, `
version: 1
zones:
  wan: [eth0, "ppp?"]
  lan: [eth1, "br-*", "eth9?"]
  dmz: ["veth*x", br-dmz, "v*-*-?"]
`)
	for name, want := range map[string]string{
		"eth0": "wan", "eth1": "lan", "eth2": "", "eth": "", "eth00": "",
		"ppp": "", "ppp0": "wan", "ppp10": "",
		"br-": "lan", "br-lan": "lan", "br-dmz": "dmz", "br": "", "xbr-0": "",
		"eth9": "", "eth90": "lan",
		"vethx": "dmz", "veth0x": "dmz", "veth0": "", "vethxx": "dmz",
		"v1-2-3": "dmz", "v---": "dmz", "v--": "", "v1-2-33": "", "v1-2-3-4": "dmz",
		"": "", "host": "",
	} {
		if got := p.ZoneName(p.Zone(name)); got != want {
			t.Errorf("%q is in zone %q, want %q", name, got, want)
		}
	}
}

func TestZoneName(t *testing.T) {
	p := mustParse(t, "version: 1\nzones: {wan: [eth0], lan: [eth1]}\n")
	for id, want := range map[ZoneID]string{ZoneNone: "", 1: "wan", 2: "lan", 3: "", ZoneHost: "host"} {
		if got := p.ZoneName(id); got != want {
			t.Errorf("zone %d is called %q, want %q", id, got, want)
		}
	}
}

// TestGlobsSlowTwin compares matching and meeting of random globs with the
// plain way: a recursion by the words of the definition, and a try of every
// name up to a length that is enough for such short globs.
func TestGlobsSlowTwin(t *testing.T) {
	names := allNames("ab", 6)
	rnd := rand.New(rand.NewPCG(7, 8))
	glob := func() string {
		b := make([]byte, 1+rnd.IntN(4))
		for i := range b {
			b[i] = "ab*?*"[rnd.IntN(5)]
		}
		return string(b)
	}
	met := 0
	const pairs = 3000
	for range pairs {
		a, b := glob(), glob()
		want := false
		for _, name := range names {
			matchA, matchB := slowGlob(a, name), slowGlob(b, name)
			if globMatch(a, name) != matchA {
				t.Fatalf("%q matches %q: %t, want %t", a, name, !matchA, matchA)
			}
			want = want || matchA && matchB
		}
		// A glob with a star has at most three other characters here, so that
		// two of them share a name of at most six characters or none.
		if got := globsMeet(a, b); got != want {
			t.Fatalf("%q and %q meet: %t, want %t", a, b, got, want)
		}
		if want {
			met++
		}
	}
	if met < pairs/10 || met > pairs*9/10 {
		t.Errorf("%d of %d pairs meet: the test tests little", met, pairs)
	}
}

func slowGlob(glob, name string) bool {
	switch {
	case glob == "":
		return name == ""
	case glob[0] == '*':
		return slowGlob(glob[1:], name) || name != "" && slowGlob(glob, name[1:])
	}
	return name != "" && (glob[0] == '?' || glob[0] == name[0]) && slowGlob(glob[1:], name[1:])
}

func allNames(letters string, most int) []string {
	all, last := []string{""}, []string{""}
	for range most {
		var next []string
		for _, name := range last {
			for _, c := range letters {
				next = append(next, name+string(c))
			}
		}
		all, last = append(all, next...), next
	}
	return all
}

// TestGlobsMeetWithinIfname checks globs that share only names which are too
// long for an interface.
func TestGlobsMeetWithinIfname(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"aaaaaaaa*", "*bbbbbbb", true},   // 15 characters
		{"aaaaaaaa*", "*bbbbbbbb", false}, // 16
		{"aaaaaaaa*", "*abbbbbbb", true},  // 15, overlapping
		{"*", "???????????????", true},
		{"?", "??", false},
		{"*a*", "*b*", true},
		{"eth*", "et?0*", true},
		{"eth*", "wlan*", false},
	} {
		if globsMeet(test.a, test.b) != test.want || globsMeet(test.b, test.a) != test.want {
			t.Errorf("%q and %q meet: want %t both ways", test.a, test.b, test.want)
		}
	}
}

func TestGlobMatchIsBounded(t *testing.T) {
	glob, name := strings.Repeat("*a", 15)+"b", strings.Repeat("a", 15)
	for range 100_000 {
		if globMatch(glob, name) {
			t.Fatal("matches")
		}
	}
}

// TestZoneLimits needs more zones and globs than one would write down.
func TestZoneLimits(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		b.WriteString("version: 1\nzones:\n")
		for i := range n {
			fmt.Fprintf(&b, format, i, i)
		}
		return b.String()
	}
	p := mustParse(t, many(MaxZones, "  z%d: [if%d]\n"))
	if id := p.Zone("if253"); id != MaxZones || p.ZoneName(id) != "z253" {
		t.Errorf("the last interface is in zone %d", id)
	}
	wantError(t, many(MaxZones+1, "  z%d: [if%d]\n"),
		"test.yaml:257:3: zones.z254 is one too many; expected at most 254 zones")
	var globs strings.Builder
	for i := range maxGlobs + 1 {
		fmt.Fprintf(&globs, "\"a%d?\", ", i)
	}
	wantError(t, "version: 1\nzones: {z: ["+globs.String()+"]}\n",
		"test.yaml:2:8903: glob a1000? is one too many; expected at most 1000 in all zones")
}

// wantError checks that a policy has exactly the given errors.
func wantError(t *testing.T, text string, lines ...string) {
	t.Helper()
	_, err := ParseBytes("test.yaml", []byte(text), "testdata")
	if err == nil {
		t.Errorf("accepted; want %q", lines)
		return
	}
	checkErrors(t, err)
	if got, want := err.Error(), strings.Join(lines, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
