package policy

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files of what Parse says")

// TestGoodPolicies parses testdata/good and compares what was understood.
func TestGoodPolicies(t *testing.T) {
	for _, file := range mustGlob(t, "testdata/good/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			p, err := Parse(file)
			if err != nil {
				t.Fatalf("a good policy is refused:\n%v", err)
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".dump", dump(p))
		})
	}
}

// TestBadPolicies parses testdata/bad and compares the errors, each of which
// must be one line that begins with the file.
func TestBadPolicies(t *testing.T) {
	files := mustGlob(t, "testdata/bad/*.yaml")
	if len(files) < 60 {
		t.Errorf("%d bad policies; there were more", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			p, err := Parse(file)
			if err == nil {
				t.Fatalf("a bad policy is accepted:\n%s", dump(p))
			}
			checkErrors(t, err)
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".err", err.Error()+"\n")
		})
	}
}

// TestDocumentedPolicy parses the policy that the package documentation shows
// piece by piece.
func TestDocumentedPolicy(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	must(t, err)
	var policy strings.Builder
	for line := range strings.Lines(string(doc)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			policy.WriteString(code)
		}
	}
	p, err := ParseBytes("doc.yaml", []byte(policy.String()), "testdata/good")
	if err != nil {
		t.Fatalf("%v\n%s", err, policy.String())
	}
	d := defaultPolicy()
	if p.Defaults != d.Defaults || p.Failure != d.Failure || p.Queue != d.Queue || p.Offload != d.Offload || p.Marks != d.Marks || p.Rules[0].Until != defaultUntil {
		t.Errorf("the documentation shows other defaults than there are:\n%s", dump(p))
	}
	if len(p.Warnings) != 0 || len(p.Rules) != 1 || len(p.Rules[0].Steps) != 5 || len(p.Lists) != 2 {
		t.Errorf("the documentation's policy is understood as:\n%s", dump(p))
	}
}

// checkErrors holds what is true of all errors of Parse.
func checkErrors(t *testing.T, err error) {
	t.Helper()
	var all *Errors
	if !errors.As(err, &all) || len(all.List) == 0 || len(all.List) > maxErrors {
		t.Fatalf("%T %v: want *Errors with 1 to %d errors", err, err, maxErrors)
	}
	for i, one := range all.List {
		switch {
		case strings.ContainsAny(one.Error(), "\n\r"):
			t.Errorf("%q is not one line", one.Error())
		case one.File == "" || one.Msg == "":
			t.Errorf("%+v lacks file or message", one)
		case i > 0 && one.File == all.List[i-1].File && one.Pos.compare(all.List[i-1].Pos) < 0:
			t.Errorf("%v is not in order of position", one)
		}
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (write it anew with go test -update)\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

func mustGlob(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	return files
}

// dump writes down everything that a policy says.
func dump(p *Policy) string {
	var b strings.Builder
	d, f := p.Defaults, p.Failure
	fmt.Fprintf(&b, "defaults input=%v forward=%v output=%v\n", d.Input, d.Forward, d.Output)
	fmt.Fprintf(&b, "failure no_listener=%v overload=%v undecided=%v malformed=%v midstream=%v\n",
		f.NoListener, f.Overload, f.Undecided, f.Malformed, f.Midstream)
	if p.Queue != defaultQueue || p.Offload != OffloadNone {
		fmt.Fprintf(&b, "queue %+v offload %v\n", p.Queue, p.Offload)
	}
	fmt.Fprintf(&b, "marks mask=%#08x\n", p.Marks.Mask)
	for i, z := range p.Zones {
		fmt.Fprintf(&b, "zone %d %s %q at %v\n", i+1, z.Name, z.Interfaces, z.Pos)
	}
	for _, l := range p.Lists {
		if l.Type == ListDynamic {
			fmt.Fprintf(&b, "list %s %v", l.Name, l.Type)
			for _, from := range l.Dynamic.From {
				dumpName(&b, "from", from)
			}
			fmt.Fprintf(&b, " ttl=%v at %v\n", l.Dynamic.TTL, l.Pos)
			continue
		}
		fmt.Fprintf(&b, "list %s %v file=%q prefixes=%v names=%s at %v\n",
			l.Name, l.Type, filepath.ToSlash(l.File), l.Prefixes, dumpDomains(&l.Domains), l.Pos)
	}
	for i := range p.Rules {
		dumpRule(&b, p, i)
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(&b, "warning %v\n", w)
	}
	return b.String()
}

func dumpRule(b *strings.Builder, p *Policy, i int) {
	r := &p.Rules[i]
	fmt.Fprintf(b, "rule %d %s at %v: %v", i, r.Name, r.Pos, r.Action)
	if r.From != ZoneNone {
		fmt.Fprintf(b, " from=%s%s", dumpNot(r.NotFrom), p.ZoneName(r.From))
	}
	if r.To != ZoneNone {
		fmt.Fprintf(b, " to=%s%s", dumpNot(r.NotTo), p.ZoneName(r.To))
	}
	dumpAddr(b, "src", r.Src)
	dumpAddr(b, "dst", r.Dst)
	if r.Proto != nil {
		fmt.Fprintf(b, " proto=%v", r.Proto)
	}
	if r.Sport != nil {
		fmt.Fprintf(b, " sport=%v", r.Sport)
	}
	if r.Dport != nil {
		fmt.Fprintf(b, " dport=%v", r.Dport)
	}
	if r.Flags != (FlagsMatch{}) {
		fmt.Fprintf(b, " flags=%#02x/%#02x", r.Flags.Value, r.Flags.Mask)
	}
	if len(r.ICMP.Types) > 0 {
		fmt.Fprintf(b, " icmp=%s%v", dumpNot(r.ICMP.Not), r.ICMP.Types)
	}
	if r.VLAN != nil {
		fmt.Fprintf(b, " vlan=%v", r.VLAN)
	}
	if r.DSCP != 0 {
		fmt.Fprintf(b, " dscp=%#x", r.DSCP)
	}
	if r.Fragment != FragmentAny {
		fmt.Fprintf(b, " fragment=%t", r.Fragment == FragmentOnly)
	}
	if r.Rewrite.Any() {
		fmt.Fprintf(b, " rewrite=%+v", r.Rewrite)
	}
	if r.Offload != p.Offload {
		fmt.Fprintf(b, " offload=%v", r.Offload)
	}
	if r.Action == ActionInspect {
		fmt.Fprintf(b, " inspect=%d until=%+v rewrites=%t", r.Inspect, r.Until, r.Rewrites())
		if r.Learns {
			b.WriteString(" learns")
		}
	}
	b.WriteByte('\n')
	for i := range r.Steps {
		dumpStep(b, &r.Steps[i])
	}
}

func dumpStep(b *strings.Builder, s *Step) {
	fmt.Fprintf(b, "  step at %v: %v", s.Pos, s.Action)
	dumpName(b, "sni", s.SNI)
	dumpName(b, "qname", s.QName)
	if s.QType != nil {
		fmt.Fprintf(b, " qtype=%v", s.QType)
	}
	dumpName(b, "host", s.Host)
	if s.Path != "" {
		fmt.Fprintf(b, " path=%q", s.Path)
	}
	if s.ALPN != "" {
		fmt.Fprintf(b, " alpn=%q", s.ALPN)
	}
	if s.ECH != nil {
		fmt.Fprintf(b, " ech=%t", *s.ECH)
	}
	if s.JA4 != nil {
		fmt.Fprintf(b, " ja4=%v", s.JA4)
	}
	dumpName(b, "list", s.List)
	if s.L7 != 0 {
		fmt.Fprintf(b, " proto_l7=%v", s.L7)
	}
	if s.Direction != 0 {
		fmt.Fprintf(b, " direction=%s", directions[s.Direction-1])
	}
	if s.Answer != nil {
		fmt.Fprintf(b, " answer=%v ttl=%d", s.Answer, s.Answer.TTL)
	}
	fmt.Fprintf(b, " log=%t\n", s.Log)
}

func dumpNot(not bool) string {
	if not {
		return "!"
	}
	return ""
}

func dumpAddr(b *strings.Builder, key string, m AddrMatch) {
	if m.Any() {
		return
	}
	fmt.Fprintf(b, " %s=%s%v", key, dumpNot(m.Not), append([]netip.Prefix{}, m.Prefixes...))
	for _, l := range m.Lists {
		fmt.Fprintf(b, "@%s", l.Name)
	}
}

func dumpName(b *strings.Builder, key string, m NameMatch) {
	if !m.Any() {
		fmt.Fprintf(b, " %s=%q%s", key, m.Pattern, dumpDomains(m.Domains))
	}
}

// dumpDomains writes the names in the order in which they were added.
func dumpDomains(d *Domains) string {
	var names []string
	for at := 0; at < len(d.names); {
		end := at + 2 + int(d.names[at+1])
		form := map[byte]string{formExact: "", formBelow: "*.", formExact | formBelow: "."}[d.names[at]]
		names = append(names, form+string(d.names[at+2:end]))
		at = end
	}
	return fmt.Sprint(names)
}
