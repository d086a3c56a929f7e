// Package house holds the house rules that a program can check.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hybridfw/hybridfw"

// arrows says which packages of this module each may import. A packet and a rule
// go one way, and loader and userspace do not know each other; cmd joins them. A
// new package needs a line here.
var arrows = map[string][]string{
	"pktbuf":    {},
	"gen":       {},
	"policy":    {"pktbuf"},
	"loader":    {"gen", "policy", "pktbuf"},
	"userspace": {"policy", "pktbuf"},

	"cmd/hybridfw": {"loader", "userspace", "policy", "pktbuf", "internal/testnet", "internal/pcap"},

	"internal/testnet":       {},
	"internal/kernels":       {},
	"internal/kernels/guest": {"internal/testnet"},
	"internal/house":         {},
	"internal/pcap":          {},
	"bench/pktbuf":           {"pktbuf"},
	"bench/fastpath":         {},
	"bench/queue":            {"userspace", "policy", "internal/testnet"},
	"examples/queue":         {"userspace"},
	"tests/netns":            {},
}

// foreign says what a package may import from outside the module and the
// standard library, where that matters. The others are free.
var foreign = map[string][]string{
	"pktbuf": {}, // others would import it for itself
	"policy": {"github.com/goccy/go-yaml"},
}

// forTests may be imported by every test.
var forTests = []string{"internal/testnet", "internal/pcap"}

// free are the beginnings of packages whose tests see the whole system.
var free = []string{"tests/"}

// listed is what go list says about a package.
type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	args := append([]string{"list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports"}, patterns...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// below is an import path within the module, or false.
func below(path string) (string, bool) {
	return strings.CutPrefix(path, module+"/")
}

// wrongImports names the imports that the rules forbid a package.
func wrongImports(p listed) []string {
	name, _ := below(p.ImportPath)
	allowed, known := arrows[name]
	if !known {
		return []string{name + " is new: say in arrows what it may import"}
	}
	var wrong []string
	check := func(imports []string, allowed []string) {
		for _, path := range imports {
			inside, ok := below(path)
			if ok && inside != name && !slices.Contains(allowed, inside) {
				wrong = append(wrong, name+" must not import "+inside)
			}
			if outside, limited := foreign[name]; !ok && limited && isForeign(path, outside) {
				wrong = append(wrong, name+" must not import "+path)
			}
		}
	}
	check(p.Imports, allowed)
	if !slices.ContainsFunc(free, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		check(slices.Concat(p.TestImports, p.XTestImports), slices.Concat(allowed, forTests))
	}
	return wrong
}

// isForeign reports whether path is neither of the standard library, whose paths
// have no dot in their first part, nor below one of the allowed ones.
func isForeign(path string, allowed []string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".") &&
		!slices.ContainsFunc(allowed, func(a string) bool { return path == a || strings.HasPrefix(path, a+"/") })
}

func TestImportsFollowTheArrows(t *testing.T) {
	packages := list(t, module+"/...")
	if len(packages) < 5 {
		t.Fatalf("go list shows only %d packages", len(packages))
	}
	for _, p := range packages {
		for _, wrong := range wrongImports(p) {
			t.Error(wrong)
		}
	}
}

func TestArrowsNoticeWhatTheyForbid(t *testing.T) {
	for want, p := range map[string]listed{
		"loader must not import userspace":             {ImportPath: module + "/loader", Imports: []string{"fmt", module + "/policy", module + "/userspace"}},
		"userspace must not import loader":             {ImportPath: module + "/userspace", XTestImports: []string{module + "/loader", module + "/internal/testnet"}},
		"policy must not import loader":                {ImportPath: module + "/policy", TestImports: []string{module + "/loader"}},
		"pktbuf must not import golang.org/x":          {ImportPath: module + "/pktbuf", Imports: []string{"net/netip", "golang.org/x"}},
		"new is new: say in arrows what it may import": {ImportPath: module + "/new"},
	} {
		if got := wrongImports(p); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: found %q, want %q", p.ImportPath, got, want)
		}
	}
	for _, p := range []listed{
		{ImportPath: module + "/policy", Imports: []string{"github.com/goccy/go-yaml/ast", module + "/pktbuf"}},
		{ImportPath: module + "/tests/netns", XTestImports: []string{module + "/loader", module + "/userspace"}},
		{ImportPath: module + "/pktbuf", XTestImports: []string{module + "/pktbuf"}},
	} {
		if got := wrongImports(p); len(got) != 0 {
			t.Errorf("%s: found %q, want nothing", p.ImportPath, got)
		}
	}
}
