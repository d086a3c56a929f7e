package policy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// successionErrors are all errors of what replaces a policy.
var successionErrors = []string{
	"test.yaml: marks.mask 0x00000007 has values for 3 inspecting rules; 2 that have changed do not fit beside those in force: restart, or reload in two steps",
	"test.yaml: rule mgmt of the policy in force is pinned, and its zone wan is missing; expected the zone, a rule of the name mgmt, or --drop-pinned",
	"test.yaml: 4096 rules, and 1 pinned ones of the policy in force; expected at most 4096 together, or --drop-pinned",
}

func inspecting(name, port, step string) string {
	return fmt.Sprintf("  - {name: %s, from: lan, proto: tcp, dport: %s, action: inspect, steps: [%s]}\n", name, port, step)
}

const succeedHead = "version: 1\nzones: {lan: [eth1], wan: [eth0]}\n"

// numbers are those of the inspecting rules, by name.
func numbers(p *Policy) map[string]int {
	m := map[string]int{}
	for _, r := range p.Rules {
		if r.Action == ActionInspect {
			m[r.Name] = r.Inspect
		}
	}
	return m
}

func TestUnchangedRulesKeepTheirNumber(t *testing.T) {
	a := inspecting("a", "443", "{sni: '@ads', action: drop}, {action: accept}")
	b := inspecting("b", "8443", "{action: accept}")
	ads := "lists: {ads: {type: domain, entries: [x.example]}}\n"
	other := "lists: {ads: {type: domain, entries: [y.example]}}\n"
	first := mustParse(t, succeedHead+ads+"rules:\n"+a+b)
	for name, c := range map[string]struct {
		text string
		held []int
		want map[string]int
	}{
		"the same":         {ads + "rules:\n" + a + b, nil, map[string]int{"a": 0, "b": 1}},
		"another order":    {ads + "rules:\n" + b + a, nil, map[string]int{"a": 0, "b": 1}},
		"one in front":     {ads + "rules:\n" + inspecting("c", "1", "{action: drop}") + a + b, nil, map[string]int{"c": 2, "a": 0, "b": 1}},
		"held numbers":     {ads + "rules:\n" + inspecting("c", "1", "{action: drop}") + a + b, []int{2, 3}, map[string]int{"c": 4, "a": 0, "b": 1}},
		"one gone":         {ads + "rules:\n" + b, nil, map[string]int{"b": 1}},
		"another step":     {ads + "rules:\n" + a + inspecting("b", "8443", "{action: drop}"), nil, map[string]int{"a": 0, "b": 2}},
		"another name":     {ads + "rules:\n" + a + inspecting("c", "8443", "{action: accept}"), nil, map[string]int{"a": 0, "c": 2}},
		"another list":     {other + "rules:\n" + a + b, nil, map[string]int{"a": 2, "b": 1}},
		"another failure":  {ads + "failure: {undecided: drop}\nrules:\n" + a + b, nil, map[string]int{"a": 2, "b": 3}},
		"nothing the same": {"rules:\n" + inspecting("a", "1", "{action: drop}") + inspecting("b", "2", "{action: drop}"), nil, map[string]int{"a": 2, "b": 3}},
	} {
		next := mustParse(t, succeedHead+c.text)
		if err := next.Succeed(first, c.held); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := numbers(next); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: numbers %v, want %v", name, got, c.want)
		}
	}
}

// TestSameTextHasTheSameID in every policy, and another text another one.
func TestSameTextHasTheSameID(t *testing.T) {
	id := func(rule string) uint32 {
		p := mustParse(t, succeedHead+"rules:\n"+rule)
		return p.Rules[len(p.Rules)-1].ID
	}
	web := inspecting("web", "443", "{action: accept}")
	same := "  - name: web\n    from: lan\n    proto: tcp\n    dport: 443\n    action: inspect\n    steps:\n      - action: accept\n"
	if id(web) == 0 || id(web) != id(same) || id(web) != id(inspecting("a", "1", "{action: drop}")+web) {
		t.Error("the same text has another id elsewhere, or in another style")
	}
	for _, other := range []string{
		inspecting("web", "444", "{action: accept}"),
		inspecting("web", "[443, 444]", "{action: accept}"),
		inspecting("web", "443", "{action: drop}"),
		inspecting("web", "443", "{sni: x.example, action: accept}"),
		inspecting("webb", "443", "{action: accept}"),
	} {
		if id(other) == id(web) {
			t.Errorf("%s has the same id as %s", other, web)
		}
	}
}

func TestChangedRulesNeedNumbersOfTheirOwn(t *testing.T) {
	const mask = "marks: {mask: 0x7}\n" // three
	first := mustParse(t, succeedHead+mask+"rules:\n"+inspecting("a", "1", "{action: drop}")+inspecting("b", "2", "{action: drop}"))
	second := func() *Policy {
		return mustParse(t, succeedHead+mask+"rules:\n"+inspecting("a", "1", "{action: accept}")+inspecting("b", "2", "{action: accept}"))
	}
	err := second().Succeed(first, nil)
	if err == nil || err.Error() != successionErrors[0] {
		t.Errorf("got %v, want %s", err, successionErrors[0])
	}
	checkErrors(t, err)
	one := mustParse(t, succeedHead+mask+"rules:\n"+inspecting("a", "1", "{action: accept}")+inspecting("b", "2", "{action: drop}"))
	if err := one.Succeed(first, nil); err != nil {
		t.Fatal(err)
	}
	two := second()
	if err := two.Succeed(one, nil); err != nil {
		t.Fatal(err)
	}
	if got := numbers(two); !reflect.DeepEqual(got, map[string]int{"a": 2, "b": 0}) {
		t.Errorf("numbers %v", got)
	}
}

func TestPinnedRulesAreKept(t *testing.T) {
	const mgmt = "  - {name: mgmt, from: wan, to: host, proto: tcp, dport: 22, action: accept, pin: true}\n"
	const drop = "  - {name: all, from: wan, action: drop}\n"
	first := mustParse(t, succeedHead+"rules:\n"+drop+mgmt)
	next := mustParse(t, "version: 1\nzones: {wan: [eth0], lan: [eth1]}\nrules:\n"+drop)
	names, err := next.KeepPinned(first)
	if err != nil || !reflect.DeepEqual(names, []string{"mgmt"}) {
		t.Fatalf("kept %v, %v", names, err)
	}
	if r := next.Rules[0]; r.Name != "mgmt" || next.ZoneName(r.From) != "wan" || r.To != ZoneHost || len(next.Rules) != 2 {
		t.Errorf("rules %+v, want mgmt from wan in front", next.Rules)
	}
	if first.ZoneName(first.Rules[1].From) != "wan" {
		t.Error("the policy in force was changed")
	}
	// It stays pinned.
	third := mustParse(t, succeedHead+"rules:\n"+drop)
	if names, err := third.KeepPinned(next); err != nil || len(names) != 1 {
		t.Errorf("the reload after: %v, %v", names, err)
	}
	replaced := mustParse(t, succeedHead+"rules:\n  - {name: mgmt, from: wan, to: host, proto: tcp, dport: 23, action: accept}\n")
	if names, err := replaced.KeepPinned(first); err != nil || len(names) != 0 || len(replaced.Rules) != 1 {
		t.Errorf("a rule of the same name: kept %v, %v", names, err)
	}
	for i, text := range []string{
		"version: 1\nzones: {lan: [eth1]}\nrules: [{name: a, from: lan, action: drop}]\n",
		succeedHead + "rules:\n" + repeat(MaxRules, "  - {name: r%d, from: lan, action: drop}\n"),
	} {
		p := mustParse(t, text)
		before := len(p.Rules)
		_, err := p.KeepPinned(first)
		if err == nil || strings.TrimSpace(err.Error()) != successionErrors[i+1] || len(p.Rules) != before {
			t.Errorf("got %v, want %s", err, successionErrors[i+1])
		}
		checkErrors(t, err)
	}
}

// TestResumeGoesOnWithNumbersOfAGoneProcess knows ids only.
func TestResumeGoesOnWithNumbersOfAGoneProcess(t *testing.T) {
	a, b := inspecting("a", "443", "{action: accept}"), inspecting("b", "8443", "{action: accept}")
	first := mustParse(t, succeedHead+"rules:\n"+a+b)
	ids := map[int]uint32{7: first.Rules[0].ID, 0: 12345, 2: 54321}
	next := mustParse(t, succeedHead+"rules:\n"+b+a)
	next.Resume(ids)
	if got := numbers(next); !reflect.DeepEqual(got, map[string]int{"a": 7, "b": 1}) {
		t.Errorf("numbers %v, want the known one, and a free one", got)
	}
	next = mustParse(t, succeedHead+"rules:\n"+b+a)
	next.Resume(nil)
	if got := numbers(next); !reflect.DeepEqual(got, map[string]int{"b": 0, "a": 1}) {
		t.Errorf("numbers %v without a process before", got)
	}
	narrow := mustParse(t, succeedHead+"marks: {mask: 0x7}\nrules:\n"+b+a)
	narrow.Resume(ids)
	if got := numbers(narrow); !reflect.DeepEqual(got, map[string]int{"b": 0, "a": 1}) {
		t.Errorf("numbers %v where there is no room for others", got)
	}
}
