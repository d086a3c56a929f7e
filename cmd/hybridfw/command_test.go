package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// result is what one command line has printed and returned.
type result struct {
	stdout, stderr string
	status         int
}

// runCommandLine runs a command inside this process.
func runCommandLine(tb testing.TB, args ...string) result {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	status := execute(context.Background(), env{stdout: &stdout, stderr: &stderr}, args)
	return result{stdout.String(), stderr.String(), status}
}

func TestHelpListsEveryCommand(t *testing.T) {
	help := runCommandLine(t, "help")
	if help.status != exitOK || help.stderr != "" {
		t.Errorf("help: %+v", help)
	}
	for _, other := range []string{"-h", "--help"} {
		if got := runCommandLine(t, other); got != help {
			t.Errorf("%s differs from help: %+v", other, got)
		}
	}
	seen := make(map[string]bool)
	for _, c := range commands() {
		if seen[c.name] {
			t.Errorf("there are two commands %s", c.name)
		}
		seen[c.name] = true
		if line := regexp.MustCompile(`(?m)^  ` + c.name + ` +` + regexp.QuoteMeta(c.summary) + `$`); !line.MatchString(help.stdout) {
			t.Errorf("help does not list %s: %s", c.name, help.stdout)
		}
	}
	none := runCommandLine(t)
	if none.status != exitUsage || none.stderr != help.stdout || none.stdout != "" {
		t.Errorf("no command at all: %+v, want the help on the standard error", none)
	}
}

func TestHelpOfEachCommand(t *testing.T) {
	for _, c := range commands() {
		help := runCommandLine(t, "help", c.name)
		if help.status != exitOK || help.stderr != "" || !strings.HasPrefix(help.stdout, "Usage: hybridfw "+c.name) ||
			!strings.Contains(help.stdout, c.about) {
			t.Errorf("help %s: %+v", c.name, help)
		}
		for _, flag := range []string{"-h", "--help"} {
			if got := runCommandLine(t, c.name, flag); got != help {
				t.Errorf("%s %s differs from help %s: %+v", c.name, flag, c.name, got)
			}
		}
		if c.summary == "" || c.about == "" || strings.HasSuffix(c.summary, ".") || !strings.HasSuffix(c.about, ".") {
			t.Errorf("%s: summary %q, about %q: want a summary without and sentences with a final dot", c.name, c.summary, c.about)
		}
		for i, line := range strings.Split(c.about, "\n") {
			if len(line) > 80 {
				t.Errorf("%s: line %d of the help has %d columns, want 80 at most", c.name, i+1, len(line))
			}
		}
		flags, _ := c.flags()
		if flags.ArgsLenAtDash() != -1 || flags.SortFlags {
			t.Errorf("%s: flags are shown sorted, want them in their order", c.name)
		}
	}
}

// TestUsageErrors: one line on the standard error, nothing else, and 2.
func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"fly", `hybridfw: there is no command "fly": 'hybridfw help' lists them`},
		{"help fly", `hybridfw: there is no command "fly": 'hybridfw help' lists them`},
		{"--fly", `hybridfw: there is no command "--fly": 'hybridfw help' lists them`},
		{"check", `hybridfw check: expected one policy file (see 'hybridfw help check')`},
		{"check a b", `hybridfw check: expected one policy file (see 'hybridfw help check')`},
		{"check --fly a", `hybridfw check: unknown flag: --fly (see 'hybridfw help check')`},
		{"version now", `hybridfw version: unexpected argument "now" (see 'hybridfw help version')`},
		{"status now", `hybridfw status: unexpected argument "now" (see 'hybridfw help status')`},
		{"status --json=maybe", `hybridfw status: invalid argument "maybe" for "--json" flag: strconv.ParseBool: parsing "maybe": invalid syntax (see 'hybridfw help status')`},
		{"detach now", `hybridfw detach: unexpected argument "now" (see 'hybridfw help detach')`},
		{"detach --timeout soon", `hybridfw detach: invalid argument "soon" for "--timeout" flag: time: invalid duration "soon" (see 'hybridfw help detach')`},
		{"demo now", `hybridfw demo: unexpected argument "now" (see 'hybridfw help demo')`},
		{"run now", `hybridfw run: unexpected argument "now" (see 'hybridfw help run')`},
		{"run --policy", `hybridfw run: flag needs an argument: --policy (see 'hybridfw help run')`},
		{"run -p", `hybridfw run: flag needs an argument: 'p' in -p (see 'hybridfw help run')`},
		{"run --xdp fast", `hybridfw run: --xdp "fast": expected auto, native, generic, off (see 'hybridfw help run')`},
		{"run --tc nft --log-format xml", `hybridfw run: --tc "nft": expected auto, tcx, clsact; --log-format "xml": expected text, json (see 'hybridfw help run')`},
		{"run --queue 65536", `hybridfw run: --queue 65536: expected 0 to 65535 (see 'hybridfw help run')`},
		{"run --queue -1", `hybridfw run: --queue -1: expected 0 to 65535 (see 'hybridfw help run')`},
		{"run --queue 65535 --queues 2", `hybridfw run: --queue 65535 with 2 queues: the last would be 65536, expected 65535 at most (see 'hybridfw help run')`},
		{"run --queues 257", `hybridfw run: --queues 257: expected 1 to 256, or 0 for one per CPU (see 'hybridfw help run')`},
		{"run --flows 0", `hybridfw run: --flows 0: expected 1 to 268435456 (see 'hybridfw help run')`},
		{"run --half-open 0", `hybridfw run: --half-open 0: expected 1 to 268435456 (see 'hybridfw help run')`},
		{"run --flows 268435457", `hybridfw run: --flows 268435457: expected 1 to 268435456 (see 'hybridfw help run')`},
		{"run --iface ../eth0", `hybridfw run: --iface ../eth0: "../eth0" is not the name of an interface (see 'hybridfw help run')`},
		{"run --iface a-name-of-16-chr", `hybridfw run: --iface a-name-of-16-chr: "a-name-of-16-chr" is not the name of an interface (see 'hybridfw help run')`},
		{"run --iface net=", `hybridfw run: --iface net=: "" is not the name of an interface (see 'hybridfw help run')`},
		{"run --iface dmz=eth0", `hybridfw run: --iface dmz=eth0: the policy has no zone "dmz" (see 'hybridfw help run')`},
	} {
		got := runCommandLine(t, strings.Fields(c.args)...)
		if got.status != exitUsage || got.stdout != "" || !sameMessage(got.stderr, c.want) {
			t.Errorf("hybridfw %s: status %d, printed %q and %q; want status 2 and %q", c.args, got.status, got.stdout, got.stderr, c.want)
		}
	}
}

// sameMessage allows another cause behind "flag:", which pflag words itself.
func sameMessage(got, want string) bool {
	if got == want+"\n" {
		return true
	}
	front, _, ok := strings.Cut(want, `" flag: `)
	_, back, _ := strings.Cut(want, "(see ")
	return ok && strings.HasPrefix(got, front) && strings.HasSuffix(got, "(see "+back+"\n") && strings.Count(got, "\n") == 1
}

func TestVersion(t *testing.T) {
	want := regexp.MustCompile(`^hybridfw \S+ \(go1\.\d+\S*.*, linux/\w+\)\n$`)
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if got := runCommandLine(t, args...); got.status != exitOK || got.stderr != "" || !want.MatchString(got.stdout) {
			t.Errorf("%v: %+v", args, got)
		}
	}
	old := version
	t.Cleanup(func() { version = old })
	version = "1.2.3"
	if got := runCommandLine(t, "version"); !strings.HasPrefix(got.stdout, "hybridfw 1.2.3 (") {
		t.Errorf("a release says %q", got.stdout)
	}
}

// TestCheckGolden runs check on the policies that package policy is tested with,
// where their golden files name them.
func TestCheckGolden(t *testing.T) {
	t.Chdir("../../policy")
	good, bad := policies(t, "good"), policies(t, "bad")
	for _, file := range good {
		got := runCommandLine(t, "check", file)
		if got.status != exitOK || !regexp.MustCompile(`^`+file+`: good: \d+ zones, \d+ lists, \d+ rules\n$`).MatchString(got.stdout) {
			t.Errorf("check %s: %+v", file, got)
		}
		for line := range strings.Lines(got.stderr) { // warnings
			if !strings.HasPrefix(line, file+":") {
				t.Errorf("check %s printed %q", file, line)
			}
		}
		if got := runCommandLine(t, "check", "--quiet", file); got != (result{}) {
			t.Errorf("check --quiet %s: %+v, want silence", file, got)
		}
	}
	for _, file := range bad {
		want, err := os.ReadFile(strings.TrimSuffix(file, ".yaml") + ".err")
		if err != nil {
			t.Fatal(err)
		}
		got := runCommandLine(t, "check", file)
		if got.status != exitUsage || got.stdout != "" || strings.TrimSpace(got.stderr) != strings.TrimSpace(string(want)) {
			t.Errorf("check %s: status %d, printed %q and\n%s\nwant\n%s", file, got.status, got.stdout, got.stderr, want)
		}
	}
	if len(good) < 5 || len(bad) < 50 {
		t.Errorf("only %d good and %d bad policies were found", len(good), len(bad))
	}
}

func policies(tb testing.TB, kind string) []string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", kind, "*.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

func TestCheckMissingFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nowhere.yaml")
	got := runCommandLine(t, "check", file)
	if want := fmt.Sprintf("%s: cannot be read: no such file or directory\n", file); got != (result{"", want, exitUsage}) {
		t.Errorf("got %+v, want %q", got, want)
	}
}
