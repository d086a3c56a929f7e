package userspace

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsRaw is a query with the given bytes as question section.
func dnsRaw(questions int, section ...byte) []byte {
	b := []byte{0x12, 0x34, 1, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(questions))
	return append(append(b, 0, 0, 0, 0, 0, 0), section...)
}

func wireName(name string) []byte {
	var b []byte
	for _, label := range strings.Split(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

// asked is the question for an address of a name.
func asked(name []byte) []byte { return append(name, 0, 1, 0, 1) }

func TestQuestionNames(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	longest := label63 + "." + label63 + "." + label63 + "." + strings.Repeat("b", 61)
	pointer := func(at int) []byte { return []byte{0xc0 | byte(at>>8), byte(at)} }
	ads := asked(wireName("ads.example"))                         // at 12; "example" at 16
	second := append([]byte{1, 'x'}, pointer(16)...)              // x.example
	third := asked(pointer(dnsHeaderLen + len(ads)))              // a pointer to a name that ends in one
	overLong := asked(append([]byte{3, 'a', 'b', 'c'}, 0xc0, 12)) // in front of the longest name
	for name, c := range map[string]struct {
		in   []byte
		want outcome
		all  []string
	}{
		"one":                 {dnsQuery("www.example", dnsmessage.TypeA), sawNames, []string{"www.example"}},
		"mixed case":          {dnsRaw(1, asked(wireName("EvIl.ExAmPlE"))...), sawNames, []string{"evil.example"}},
		"root":                {dnsRaw(1, asked([]byte{0})...), sawNames, []string{""}},
		"longest":             {dnsRaw(1, asked(wireName(longest))...), sawNames, []string{longest}},
		"too long":            {dnsRaw(1, asked(wireName(longest+"b"))...), sawMalformed, nil},
		"too long by pointer": {dnsRaw(2, append(asked(wireName(longest)), overLong...)...), sawMalformed, nil},
		"two":                 {dnsRaw(2, append(bytes.Clone(ads), asked(wireName("b.example"))...)...), sawNames, []string{"ads.example", "b.example"}},
		"pointer":             {dnsRaw(2, append(bytes.Clone(ads), asked(second)...)...), sawNames, []string{"ads.example", "x.example"}},
		"pointer to a pointer": {dnsRaw(3, bytes.Join([][]byte{ads, asked(second), third}, nil)...), sawNames,
			[]string{"ads.example", "x.example", "x.example"}},
		"pointer to itself":     {dnsRaw(1, asked(pointer(12))...), sawMalformed, nil},
		"pointer forward":       {dnsRaw(1, asked(pointer(14))...), sawMalformed, nil},
		"pointer to the header": {dnsRaw(1, asked(pointer(4))...), sawMalformed, nil},
		"pointer into its name": {dnsRaw(1, asked(append([]byte{1, 'a'}, pointer(12)...))...), sawMalformed, nil},
		"half a pointer":        {dnsRaw(1, 0xc0), sawMalformed, nil},
		"old label type 01":     {dnsRaw(1, asked([]byte{0x41, 0})...), sawMalformed, nil},
		"old label type 10":     {dnsRaw(1, asked([]byte{0x81, 0})...), sawMalformed, nil},
		"no type":               {dnsRaw(1, wireName("a.example")...), sawMalformed, nil},
		"half a class":          {dnsRaw(1, append(wireName("a.example"), 0, 1, 0)...), sawMalformed, nil},
		"label beyond":          {dnsRaw(1, 9, 'a'), sawMalformed, nil},
		"one of two":            {dnsRaw(2, asked(wireName("a.example"))...), sawMalformed, nil},
		"dot inside a label":    {dnsRaw(1, asked(append([]byte{5, 'a', '.', 'b', '.', 'c'}, wireName("example")...))...), sawNames, []string{`a\b\c.example`}},
		"12 zero bytes":         {make([]byte, 12), sawMalformed, nil},
		"11 bytes":              {make([]byte, 11), sawMalformed, nil},
		"nothing":               {nil, sawMalformed, nil},
		"count without more":    {dnsRaw(1), sawMalformed, nil},
		"cookie only":           {append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 0, 0, 41, 4, 0, 0, 0, 0, 0, 0, 0), sawNone, nil},
		"response, no question": {[]byte{0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0}, sawNone, nil},
	} {
		copied := bytes.Clone(c.in)
		var in dnsInspector
		got, names := see(&in, c.in)
		if got != c.want || strings.Join(names, " ") != strings.Join(c.all, " ") || len(names) != len(c.all) {
			t.Errorf("%s: %v %q, want %v %q", name, got, names, c.want, c.all)
		}
		if !bytes.Equal(c.in, copied) {
			t.Errorf("%s: the message was written to", name)
		}
	}
}

// Random bytes on port 53 are no DNS: no name is made up, nothing panics.
func TestRandomBytesAreNotDNS(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 93))
	var in dnsInspector
	for _, n := range []int{29, 93} {
		names := 0
		for range 10000 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			if got, _ := see(&in, b); got == sawNames {
				names++
			}
		}
		// A count of 1 and 2, or so, and short labels come about by chance.
		if names > 5 {
			t.Errorf("%d bytes: %d of 10,000 random messages gave names", n, names)
		}
	}
}

// Pointers lead in front of where they stand, always, so that even the message
// with the most of them is read in no time.
func TestPointerChainsEndQuickly(t *testing.T) {
	b := dnsRaw(1, asked([]byte{0})...)
	for len(b) < 0x3fff {
		b = append(b, 0xc0|byte((len(b)-2)>>8), byte(len(b)-2))
	}
	in := dnsInspector{msg: b}
	start := time.Now()
	in.readName(len(b) - 2)
	loop := dnsInspector{msg: dnsRaw(1, 1, 'a', 0xc0, 16, 1, 'b', 0xc0, 12)}
	for _, at := range []int{12, 16} {
		if _, next := loop.readName(at); next >= 0 {
			t.Errorf("names that point at each other were read from %d", at)
		}
	}
	if took := time.Since(start); took > 50*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

func FuzzDNS(f *testing.F) {
	f.Add(dnsQuery("www.example", dnsmessage.TypeA))
	f.Add(dnsRaw(2, append(asked(wireName("ads.example")), 1, 'x', 0xc0, 16, 0, 1, 0, 1)...))
	f.Add(make([]byte, 12))
	var in dnsInspector
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		got, names := see(&in, b)
		if !bytes.Equal(b, copied) {
			t.Fatal("the message was written to")
		}
		if got != sawNames {
			return
		}
		if len(names) != int(binary.BigEndian.Uint16(b[4:])) {
			t.Fatalf("%d names", len(names))
		}
		for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
			checkRewritten(t, b, addr)
		}
		// Where a library that is not ours reads questions, it reads the same.
		var p dnsmessage.Parser
		if _, err := p.Start(b); err != nil {
			return
		}
		questions, err := p.AllQuestions()
		if err != nil {
			return
		}
		for i, q := range questions {
			theirs := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
			if ascii(names[i]) && !strings.Contains(names[i], `\`) && names[i] != theirs {
				t.Fatalf("name %q, the library reads %q", names[i], theirs)
			}
		}
	})
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}
