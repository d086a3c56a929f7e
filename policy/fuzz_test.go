package policy

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// FuzzParse feeds anything to the parser: it must come to an end without a
// panic, with a policy whose parts fit together or with errors of one line.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		for _, file := range mustGlob(f, pattern) {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		if pos, lost := lostScalar(t, data); lost != "" {
			t.Errorf("%v: %q is in the file and nowhere in its tree", pos, lost)
		}
		p, err := ParseBytes("fuzz.yaml", data, "testdata/good")
		if err != nil {
			if p != nil {
				t.Error("a policy and an error")
			}
			checkErrors(t, err)
			return
		}
		checkPolicy(t, p)
	})
}

// TestNothingIsLost looks for lost values in good policies into which pieces of
// YAML were put at random places.
func TestNothingIsLost(t *testing.T) {
	rnd := rand.New(rand.NewPCG(13, 14))
	pieces := []string{"\n", " ", "  ", "- ", ": ", ":", ",", "{", "}", "[", "]", "x", "x: y", "\n- ", "\n  ", "\n    x: 1", "#", " # c\n",
		"'", "\"", "'q'", "1", "true", "~", "\r\n", "\t", "{a: b}", "[a, b]", "? ", "---\n", "...\n", "é", "\n\n", "rules:\n"}
	var good [][]byte
	for _, file := range mustGlob(t, "testdata/good/*.yaml") {
		data, err := os.ReadFile(file)
		must(t, err)
		good = append(good, data)
	}
	trees := 0
	for range 5_000 {
		data := slices.Clone(good[rnd.IntN(len(good))])
		for range 1 + rnd.IntN(3) {
			at := rnd.IntN(len(data) + 1)
			data = slices.Insert(data, at, []byte(pieces[rnd.IntN(len(pieces))])...)
			if cut := rnd.IntN(len(data)); rnd.IntN(3) == 0 {
				data = slices.Delete(data, cut, min(cut+rnd.IntN(4), len(data)))
			}
		}
		pos, lost := lostScalar(t, data)
		if lost != "" {
			t.Fatalf("%v: %q is in the file and nowhere in its tree:\n%s", pos, lost, data)
		}
		r := &report{file: "p"}
		if readYAML(r, data) != nil && r.count == 0 {
			trees++
		}
	}
	if trees < 500 {
		t.Errorf("%d of the files were YAML: the test tests little", trees)
	}
}

// lostScalar finds a scalar of the file that is not in its tree. A value that
// the YAML parser drops would be a rule that the file has and the firewall has
// not.
func lostScalar(t *testing.T, data []byte) (Pos, string) {
	t.Helper()
	r := &report{file: "fuzz.yaml"}
	root := readYAML(r, data)
	if root == nil || r.count > 0 {
		return Pos{}, ""
	}
	found := map[Pos]bool{}
	collect(root, found)
	for _, tk := range lexer.Tokenize(string(trimBOM(data))) {
		switch tk.Type {
		case token.StringType, token.IntegerType, token.FloatType, token.BoolType, token.NullType,
			token.SingleQuoteType, token.DoubleQuoteType, token.HexIntegerType, token.OctetIntegerType,
			token.BinaryIntegerType, token.InfinityType, token.NanType:
			if !found[tokenPos(tk)] {
				return tokenPos(tk), tk.Value
			}
		}
	}
	return Pos{}, ""
}

func collect(n *node, found map[Pos]bool) {
	found[n.pos] = true
	for _, item := range n.items {
		collect(item, found)
	}
	for _, f := range n.fields {
		found[f.pos] = true
		collect(f.value, found)
	}
}

// checkPolicy holds what is true of every policy that Parse returns.
func checkPolicy(t *testing.T, p *Policy) {
	t.Helper()
	if len(p.Zones) == 0 || len(p.Zones) > MaxZones || len(p.Rules) > MaxRules {
		t.Errorf("%d zones, %d rules", len(p.Zones), len(p.Rules))
	}
	for _, z := range p.Zones {
		for _, m := range z.Interfaces {
			if id := p.Zone(m); !isGlob(m) && p.ZoneName(id) != z.Name {
				t.Errorf("interface %s of zone %s is in zone %s", m, z.Name, p.ZoneName(id))
			}
		}
	}
	inspecting := 0
	for i := range p.Rules {
		r := &p.Rules[i]
		for _, id := range []ZoneID{r.From, r.To} {
			if id != ZoneHost && int(id) > len(p.Zones) {
				t.Errorf("rule %d names zone %d of %d", i, id, len(p.Zones))
			}
		}
		switch r.Action {
		case ActionInspect:
			if r.Inspect != inspecting || r.Until.Packets <= 0 || r.Until.Bytes <= 0 || len(r.Steps) == 0 ||
				len(r.Proto) == 0 || r.From == ZoneNone || r.From == ZoneHost {
				t.Errorf("rule %d is no sound inspecting rule: %+v", i, r)
			}
			inspecting++
		case ActionAccept, ActionDrop:
			if len(r.Steps) != 0 {
				t.Errorf("rule %d has steps and does not inspect", i)
			}
		default:
			t.Errorf("rule %d has action %v", i, r.Action)
		}
		for _, s := range r.Steps {
			if (s.Action == ActionRewrite) != (s.Answer != nil) {
				t.Errorf("rule %d has a step with action %v and answer %v", i, s.Action, s.Answer)
			}
		}
	}
	if inspecting > p.Marks.Room() {
		t.Errorf("%d inspecting rules, mask %#x", inspecting, p.Marks.Mask)
	}
}

// FuzzDomains compares the set with its slow twin on any pattern and name.
func FuzzDomains(f *testing.F) {
	f.Add("example.com", "*.example.net", ".example.org.", "www.example.net")
	f.Add("a", ".a", "*.a", "b.A.")
	f.Add("..", "*.", "", ".")
	f.Fuzz(func(t *testing.T, a, b, c, name string) {
		var fast Domains
		var slow slowDomains
		for _, pattern := range []string{a, b, c} {
			if err := fast.Add(pattern); err == nil {
				slow = append(slow, pattern)
			}
		}
		if got, want := fast.Match([]byte(name)), slow.match(name); got != want {
			t.Errorf("%q in %q: %t, want %t", name, slow, got, want)
		}
	})
}
