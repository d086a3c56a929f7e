package policy

import (
	"testing"
)

const stepsPolicy = `
version: 1
zones: {lan: [eth1]}
lists:
  ads: {type: domain, entries: [.ads.example]}
rules:
  - name: names
    from: lan
    proto: [tcp, udp]
    dport: [53, 443]
    action: inspect
    steps:
      - {sni: "@ads", log: true}
      - {sni: exact.example, action: drop}
      - {qname: "*.below.example", action: rewrite, answer: 192.0.2.1}
      - {sni: .ads.example, action: drop}
      - {qname: "@ads", action: drop, log: true}
      - {action: accept}
  - name: open
    from: lan
    proto: tcp
    dport: 80
    action: inspect
    steps:
      - {sni: exact.example, action: drop}
      - {log: true}
`

func TestMatchStep(t *testing.T) {
	p := mustParse(t, stepsPolicy)
	for _, test := range []struct {
		rule int
		kind NameKind
		name string
		step int
		log  bool
	}{
		{0, NameSNI, "exact.example", 1, false},
		{0, NameSNI, "EXACT.Example.", 1, false},
		{0, NameQName, "exact.example", 5, false}, // a condition on sni, a DNS question
		{0, NameQName, "x.below.example", 2, false},
		{0, NameSNI, "x.below.example", 5, false}, // the other way round
		{0, NameQName, "below.example", 5, false},
		{0, NameSNI, "x.ads.example", 3, true}, // logged on the way by step 0
		{0, NameSNI, "ads.example", 3, true},
		{0, NameQName, "ads.example.", 4, true},
		{0, NameQName, "other.example", 5, false},
		{0, NameSNI, "", 5, false},   // a hello without a name
		{0, NameQName, "", 5, false}, // the root
		{0, NameNone, "", 5, false},
		{0, NameNone, "exact.example", 5, false},
		{1, NameSNI, "exact.example", 0, false},
		{1, NameSNI, "other.example", -1, true},
		{1, NameSNI, "", -1, true},
		{1, NameNone, "", -1, true},
	} {
		step, log := p.Rules[test.rule].MatchStep(&Sight{Kind: test.kind, Name: []byte(test.name)})
		if step != test.step || log != test.log {
			t.Errorf("rule %d, kind %d, %q: step %d log %t, want %d %t",
				test.rule, test.kind, test.name, step, log, test.step, test.log)
		}
	}
	if !p.Rules[0].Rewrites() || p.Rules[1].Rewrites() {
		t.Error("the first rule rewrites, the second does not")
	}
}

func TestMatchStepDoesNotAllocate(t *testing.T) {
	p := mustParse(t, stepsPolicy)
	names := [][]byte{nil, []byte("X.Ads.Example."), []byte("other.example")}
	n := testing.AllocsPerRun(100, func() {
		for _, name := range names {
			for kind := NameNone; kind <= NameQName; kind++ {
				p.Rules[0].MatchStep(&Sight{Kind: kind, Name: name})
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNameMatchWithoutSet checks a value that was not made by Parse: it must
// not match everything because its set is missing.
func TestNameMatchWithoutSet(t *testing.T) {
	made := NameMatch{Pattern: "a.example"}
	if made.Any() || made.Match([]byte("b.example")) {
		t.Error("a pattern without a set matches everything")
	}
	var zero NameMatch
	if !zero.Any() || !zero.Match(nil) || !zero.Match([]byte("b.example")) {
		t.Error("no condition does not match everything")
	}
}

func TestMatchStepOnRequests(t *testing.T) {
	p := mustParse(t, requestsPolicy)
	for _, test := range []struct {
		kind       NameKind
		host, path string
		want       int
	}{
		{NameHost, "A.BAD.example.", "/", 0},
		{NameHost, "bad.example", "/", -1},
		{NameSNI, "a.bad.example", "/", -1},
		{NameHost, "good.example", "/admin", 1},
		{NameHost, "x.good.example", "/administrator/x", 1},
		{NameHost, "good.example", "/adm", -1},
		{NameHost, "other.example", "/admin", -1},
		{NameHost, "other.example", "/secret", 2},
		{NameHost, "", "/secret", 2},
		{NameHost, "other.example", "/secret/", -1},
		{NameHost, "other.example", "", -1},
		{NameQName, "a.bad.example", "", -1},
		{NameSNI, "exact.example", "", 3},
		{NameHost, "exact.example", "", -1},
		{NameNone, "", "/secret", -1},
	} {
		got, _ := p.Rules[0].MatchStep(&Sight{Kind: test.kind, Name: []byte(test.host), Path: []byte(test.path)})
		if got != test.want {
			t.Errorf("kind %d, %q %q: step %d, want %d", test.kind, test.host, test.path, got, test.want)
		}
	}
}

const requestsPolicy = `
version: 1
zones: {lan: [eth1]}
rules:
  - name: web
    from: lan
    proto: tcp
    action: inspect
    steps:
      - {host: "*.bad.example", action: drop}
      - {host: .good.example, path: "/admin*", action: drop}
      - {path: /secret, action: drop}
      - {sni: exact.example, action: drop}
`

func TestMatchStepOnHellos(t *testing.T) {
	p := mustParse(t, `
version: 1
zones: {lan: [eth1]}
rules:
  - name: hellos
    from: lan
    proto: [tcp, udp]
    action: inspect
    steps:
      - {sni: .cdn.example, ech: true, action: drop}
      - {alpn: h3, action: drop}
      - {ech: false, alpn: h2, action: accept}
      - {ech: true, action: accept}
`)
	const h2, h3 = "\x02h2\x08http/1.1", "\x02h2\x02h3"
	for _, test := range []struct {
		kind       NameKind
		name, alpn string
		ech        bool
		want       int
	}{
		{NameSNI, "a.cdn.example", h2, true, 0},
		{NameSNI, "a.cdn.example", h2, false, 2},
		{NameSNI, "a.example", h3, true, 1},
		{NameSNI, "a.example", h2, true, 3},
		{NameSNI, "a.example", "", false, -1},
		{NameSNI, "", "\x09h", false, -1},
		{NameSNI, "", "\x03h2x", false, -1},
		{NameHost, "a.cdn.example", h3, true, -1},
		{NameNone, "", "", false, -1},
	} {
		got, _ := p.Rules[0].MatchStep(&Sight{Kind: test.kind, Name: []byte(test.name), ALPN: []byte(test.alpn), ECH: test.ech})
		if got != test.want {
			t.Errorf("%+v: step %d", test, got)
		}
	}
	for i := range p.Rules[0].Steps {
		if s := &p.Rules[0].Steps[i]; !s.AsksForHello() || s.AsksForRequest() {
			t.Errorf("step %d asks for something else", i)
		}
	}
}
