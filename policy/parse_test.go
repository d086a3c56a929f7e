package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// manyErrors are more than anyone wants in memory.
const manyErrors = 100_000

const zonesHead = "version: 1\nzones: {lan: [eth1]}\n"

// madeErrors are policies too large or too odd to lie in testdata. Each is
// made as p.yaml in an empty folder, which messages show as DIR.
var madeErrors = []struct {
	name string
	make func(t *testing.T, file string)
	want string
}{
	{"missing", func(*testing.T, string) {}, "DIR/p.yaml: cannot be read: no such file or directory"},
	{"folder", func(t *testing.T, file string) { must(t, os.Mkdir(file, 0o755)) }, "DIR/p.yaml: is a directory; expected a file"},
	{"pipe", func(t *testing.T, file string) { must(t, syscall.Mkfifo(file, 0o644)) },
		"DIR/p.yaml: is a device, a socket or a pipe; expected a file"},
	{"large", func(t *testing.T, file string) {
		must(t, os.WriteFile(file, nil, 0o644))
		must(t, os.Truncate(file, maxFile+1))
	}, "DIR/p.yaml: is larger than 4 MiB"},
	{"large list", func(t *testing.T, file string) {
		list := filepath.Join(filepath.Dir(file), "l.txt")
		must(t, os.WriteFile(list, nil, 0o644))
		must(t, os.Truncate(list, maxListFile+1))
		must(t, os.WriteFile(file, []byte(zonesHead+"lists: {l: {type: cidr, file: l.txt}}\n"), 0o644))
	}, "DIR/p.yaml:3:31: lists.l.file: DIR/l.txt: is larger than 256 MiB"},
	{"many limits", text(zonesHead, "rules:\n", repeat(257, "  - { name: r%d, src: 192.0.2.1, proto: tcp, action: drop, limit: { rate: 5/s } }\n")),
		"DIR/p.yaml:260:5: rules[256] is one limit too many; expected at most 256 rules with a limit"},
	{"deep brackets", text(zonesHead, "rules: ", strings.Repeat("[", 33), strings.Repeat("]", 33)),
		"DIR/p.yaml:3:40: nested too deeply; expected at most 32 levels"},
	{"deep dashes", text(zonesHead, "rules:\n", strings.Repeat("- ", 150), "x\n"),
		"DIR/p.yaml:4:201: nested too deeply or a key too long; expected at most column 200"},
	{"long key", text(zonesHead, strings.Repeat("x", 300), ": 1\n"),
		"DIR/p.yaml:3:301: nested too deeply or a key too long; expected at most column 200"},
	{"many keys", text("version: 1\nzones:\n", repeat(maxMapKeys+1, "  k%d: [a]\n")),
		"DIR/p.yaml:4099:8: too many keys in one mapping; expected at most 4096"},
	{"many rules", text(zonesHead, "rules:\n", repeat(MaxRules+2, "  - {name: r%d, from: lan, action: drop}\n")),
		"DIR/p.yaml:4100:5: rules[4096] is one too many; expected at most 4096 rules"},
	{"many errors", text(zonesHead, "rules: [", strings.Repeat("1, ", 2)+"]\n", "lists: {l: {type: cidr, entries: [", strings.Repeat("x, ", manyErrors), "]}}\n"),
		"DIR/p.yaml:3:9: rules[0] is a number; expected a mapping with the keys name, from, to, src, dst, proto, sport, dport, flags, icmp, icmpv6, vlan, dscp, fragment, limit, rewrite, offload, action, pin, until, steps"},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(parts ...string) func(*testing.T, string) {
	return func(t *testing.T, file string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(strings.Join(parts, "")), 0o644))
	}
}

func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestMadeErrors(t *testing.T) {
	for _, test := range madeErrors {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "p.yaml")
			test.make(t, file)
			_, err := Parse(file)
			if err == nil {
				t.Fatal("accepted")
			}
			checkErrors(t, err)
			if got := strings.Split(strings.ReplaceAll(err.Error(), dir, "DIR"), "\n")[0]; got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
}

// TestErrorsAreCounted checks that those which are not shown are not forgotten.
func TestErrorsAreCounted(t *testing.T) {
	policy := zonesHead + "lists: {l: {type: cidr, entries: [" + strings.Repeat("x, ", manyErrors) + "]}}\n"
	_, err := ParseBytes("p.yaml", []byte(policy), "")
	var all *Errors
	if !errors.As(err, &all) {
		t.Fatalf("%T", err)
	}
	if len(all.List) != maxErrors || all.More != manyErrors-maxErrors {
		t.Errorf("%d errors and %d more, want %d and %d", len(all.List), all.More, maxErrors, manyErrors-maxErrors)
	}
	lines := strings.Split(err.Error(), "\n")
	if last := lines[len(lines)-1]; last != "and 99980 more" {
		t.Errorf("the last line is %q", last)
	}
}

func TestErrorsUnwrap(t *testing.T) {
	_, err := Parse(filepath.Join(t.TempDir(), "nowhere.yaml"))
	var one *Error
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &one) || one.Pos != (Pos{}) {
		t.Errorf("missing policy: %#v", err)
	}
	_, err = Parse("testdata/bad/list-file-missing.yaml")
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &one) || one.Pos != (Pos{3, 35}) {
		t.Errorf("missing list: %#v", err)
	}
	_, err = Parse("testdata/bad/version-2.yaml")
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("a wrong version is a missing file")
	}
}

func TestUnreadableFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	must(t, os.WriteFile(file, []byte(zonesHead), 0))
	refused := make(chan error)
	go func() {
		// Root may read everything: this thread reads as nobody, and ends with
		// its goroutine.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				refused <- err
				return
			}
		}
		_, err := Parse(file)
		refused <- err
	}()
	if err := <-refused; !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v", err)
	}
}

func TestParseBytesIsBounded(t *testing.T) {
	_, err := ParseBytes("p.yaml", make([]byte, maxFile+1), "")
	if err == nil || err.Error() != "p.yaml: is larger than 4 MiB; put long lists into list files" {
		t.Errorf("%v", err)
	}
}

// TestListFilesAreRelative checks from where list files are read.
func TestListFilesAreRelative(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "l.txt"), []byte("192.0.2.1\n"), 0o644))
	policy := zonesHead + "lists: {a: {type: cidr, file: l.txt}, b: {type: cidr, file: " + dir + "/l.txt}}\n"
	p, err := ParseBytes("elsewhere/p.yaml", []byte(policy), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range p.Lists {
		if l.File != filepath.Join(dir, "l.txt") || len(l.Prefixes) != 1 {
			t.Errorf("list %s: %s, %v", l.Name, l.File, l.Prefixes)
		}
	}
}

// TestDefaults pins what applies where a policy says nothing: these values are
// promised to operators, and wrong ones open or close a host.
func TestDefaults(t *testing.T) {
	p := mustParse(t, zonesHead)
	if want := (Defaults{Input: ActionDrop, Forward: ActionDrop, Output: ActionAccept}); p.Defaults != want {
		t.Errorf("defaults %+v", p.Defaults)
	}
	want := Failure{NoListener: Closed, Overload: Open, Undecided: ActionAccept, Malformed: ActionDrop, Midstream: ActionInspect}
	if p.Failure != want {
		t.Errorf("failure %+v", p.Failure)
	}
	if p.Marks.Mask != 0x00ff0000 || p.Marks.Shift() != 16 || p.Marks.Bits() != 8 || p.Marks.Room() != 127 || p.Marks.Judged() != 0x00800000 || p.Marks.Field(0x12345678) != 0x34 {
		t.Errorf("marks %+v", p.Marks)
	}
	a, b := mustParse(t, zonesHead), mustParse(t, zonesHead)
	a.Zones[0].Interfaces[0] = "x"
	if b.Zones[0].Interfaces[0] != "eth1" {
		t.Error("two policies share memory")
	}
}

func TestMarks(t *testing.T) {
	for mask, want := range map[string]Marks{
		"0x00ff_0000": {0x00ff0000}, "16711680": {0x00ff0000}, "0xFFFFFFFF": {0xffffffff}, "3": {3},
		"0xc0000000": {0xc0000000}, "\"0x18\"": {0x18},
	} {
		if p := mustParse(t, zonesHead+"marks: {mask: "+mask+"}\n"); p.Marks != want {
			t.Errorf("%s: %#x, want %#x", mask, p.Marks.Mask, want.Mask)
		}
	}
	for mask, room := range map[uint32]int{3: 1, 0x70: 3, 0xffffffff: 1<<31 - 1} {
		if got := (Marks{mask}).Room(); got != room {
			t.Errorf("mask %#x has room for %d, want %d", mask, got, room)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		ActionNone.String(): "none", ActionAccept.String(): "accept", ActionDrop.String(): "drop",
		ActionInspect.String(): "inspect", ActionRewrite.String(): "rewrite", Action(99).String(): "unknown",
		Open.String(): "open", Closed.String(): "closed",
		ListCIDR.String(): "cidr", ListDomain.String(): "domain", ListType(0).String() + "?": "unknown?",
		PortRange{80, 80}.String(): "80", PortRange{1, 65535}.String(): "1-65535",
		Pos{3, 4}.String(): "3:4", Pos{Line: 3}.String(): "3",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
