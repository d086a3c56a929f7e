package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

// A process of this test program does one of these before it becomes hybridfw.
const (
	beforeEnv    = "HYBRIDFW_TEST_BEFORE"
	beNobody     = "be nobody"
	unmountBPFFS = "unmount the BPF file system"
)

func TestMain(m *testing.M) {
	if before := os.Getenv(beforeEnv); before != "" {
		fmt.Fprintln(os.Stderr, become(before, os.Args[1:]))
		os.Exit(125)
	}
	testnet.Main(m)
}

// become only returns when it could not.
func become(before string, argv []string) error {
	var err error
	switch before {
	case beNobody:
		if err = unix.Setgroups(nil); err == nil {
			err = unix.Setresgid(65534, 65534, 65534)
		}
		if err == nil {
			err = unix.Setresuid(65534, 65534, 65534)
		}
	case unmountBPFFS:
		err = unix.Unmount("/sys/fs/bpf", unix.MNT_DETACH)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", before, err)
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// refused is a start that must fail.
type refused struct {
	args   []string // behind run and the places
	before string
	status int
	says   []string // parts of the one line
}

// expectRefused starts hybridfw, and sees that it says why it cannot, in one
// line, and has left nothing.
func (f *firewall) expectRefused(t *testing.T, r refused) {
	t.Helper()
	before := f.outside(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{path, "run"}, f.places()...)
	if r.before != "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args = append([]string{self}, args...)
	}
	args = append(args, r.args...)
	cmd := f.host.Command(args[0], args[1:]...)
	cmd.Env = os.Environ()
	if r.before != "" {
		cmd.Env = append(cmd.Env, beforeEnv+"="+r.before)
	}
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting hybridfw: %v", err)
	}
	guarding := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // the status tells
	if !guarding.Stop() {
		f.mustDetach(t)
		t.Fatalf("it was not refused:\n%s", out.String())
	}
	said := out.String()
	if code := cmd.ProcessState.ExitCode(); code != r.status {
		t.Errorf("exit status %d, want %d; it says %q", code, r.status, said)
	}
	lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
	// The log tells what was done before; the error is the last line, and the
	// only one that is not of the log.
	for _, line := range lines[:len(lines)-1] {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("more than one line: %q", said)
		}
	}
	for _, part := range r.says {
		if !strings.Contains(lines[len(lines)-1], part) {
			t.Errorf("it says %q, want %q in it", said, part)
		}
	}
	f.expectOutside(t, before)
}

func TestBadCommandLines(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	for _, c := range []struct {
		args string
		says []string
	}{
		{"--nonsense", []string{"--nonsense", "hybridfw help run"}},
		{"surplus", []string{`unexpected argument "surplus"`}},
		{"--xdp fast", []string{`--xdp "fast"`, "auto, native, generic, off"}},
		{"--tc nft", []string{`--tc "nft"`, "auto, tcx, clsact"}},
		{"--log-format xml", []string{`"xml"`, "text, json"}},
		{"--flows 0", []string{"--flows 0", "expected 1 to"}},
		{"--queue 65536", []string{"--queue 65536", "expected 0 to 65535"}},
		{"--queue 65535 --queues 2", []string{"65536", "expected 65535 at most"}},
		{"--queues 257", []string{"--queues 257", "expected 1 to 256"}},
		{"--queues two", []string{`"two"`, "--queues"}},
		{"--iface lan1", []string{"--iface lan1", "ZONE=lan1"}},
		{"--iface dmz=eth7", []string{`no zone "dmz"`}},
		{"--iface wan=lan0", []string{"lan0 is in zone lan already"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			args := append([]string{"--policy", f.policy()}, strings.Fields(c.args)...)
			f.expectRefused(t, refused{args: args, status: 2, says: c.says})
		})
	}
}

func TestBadPolicies(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, "")
	for name, c := range map[string]struct {
		policy string
		says   []string // the place first
	}{
		"unknown key":    {"version: 1\nzones: { lan: [lan0] }\nrulez: []\n", []string{":3:1: ", "rulez", "rules"}},
		"wrong type":     {"version: 1\nzones: { lan: lan0 }\n", []string{":2:15: ", "zones.lan"}},
		"overlap":        {"version: 1\nzones: { lan: [lan0], wan: [lan0] }\n", []string{":2:", "lan0"}},
		"no bits":        {"version: 1\nzones: { lan: [lan0] }\nmarks: { mask: 0 }\n", []string{":3:16: ", "mask"}},
		"not built":      {"version: 1\nzones: { lan: [lan0] }\nrules: [{ name: a, action: reject }]\n", []string{":3:28: ", "reject", "not built yet"}},
		"missing list":   {"version: 1\nzones: { lan: [lan0] }\nrules: [{ name: a, src: \"@b\", action: drop }]\n", []string{":3:25: ", "b"}},
		"not YAML":       {"version: 1\nzones: [\n", []string{":"}},
		"no file":        {"", []string{"nowhere.yaml", "no such file"}},
		"missing domain": {"version: 1\nzones: { lan: [lan0] }\nlists: { a: { type: domain, file: gone.txt } }\n", []string{":3:", "gone.txt"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.tb = t
			f.write(c.policy)
			path := f.policy()
			if name == "no file" {
				path = filepath.Join(f.dir, "nowhere.yaml")
			}
			f.expectRefused(t, refused{args: []string{"--policy", path}, status: 2, says: append([]string{path}, c.says...)})
		})
	}
}

func TestWhatTheHostLacks(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	if err := os.Chmod(f.dir, 0o777); err != nil { // nobody may make a run folder
		t.Fatal(err)
	}
	policyArg := []string{"--policy", f.policy()}
	for name, c := range map[string]refused{
		"root": {before: beNobody, args: policyArg, says: []string{"not permitted", "as root", "CAP_BPF"}},
		"a run folder": {before: beNobody, args: append([]string{"--run-dir", "/run/not-there/x"}, policyArg...),
			says: []string{"/run/not-there", "permission denied", "as root", "--run-dir"}},
		"a BPF file system": {before: unmountBPFFS, args: policyArg,
			says: []string{"/sys/fs/bpf", "not on a BPF file system", "mount -t bpf", "--pin-dir"}},
		"a folder for the ready file": {args: append([]string{"--ready-file", "/run/not-there/ready"}, policyArg...),
			says: []string{"writing the ready file", "/run/not-there/ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.status = 1
			f.expectRefused(t, c)
		})
	}
	t.Run("an interface", func(t *testing.T) {
		f.write(strings.Replace(basePolicy, "wan: [wan0]", "wan: [wan0, wan7]", 1))
		f.expectRefused(t, refused{args: policyArg, status: 1,
			says: []string{f.policy() + ":3:", "zone wan", "wan7", "there is none", "create it"}})
	})
}

// TestWhatOthersHave: a firewall that finds a place taken, when half of its own
// are already, takes all of it back.
func TestWhatOthersHave(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	t.Run("queue", func(t *testing.T) {
		var stage *userspace.Stage
		r.Firewall.MustDo(t, func() (err error) {
			stage, err = userspace.Open(userspace.Options{Policy: policy.Observe(), Queue: 4847, Queues: 1})
			return err
		})
		f.expectRefused(t, refused{args: []string{"--policy", f.policy(), "--queues", "2"}, status: 1,
			says: []string{"4847", "in use", "--queue"}})
		if err := stage.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("XDP", func(t *testing.T) {
		index, err := r.Firewall.Index("wan0")
		if err != nil {
			t.Fatal(err)
		}
		r.Firewall.MustDo(t, func() error {
			prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // XDP_PASS
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = prog.Close() })
			l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		})
		f.expectRefused(t, refused{args: []string{"--policy", f.policy(), "--xdp", "native"}, status: 1,
			says: []string{"wan0", "another XDP program", "--xdp off"}})
	})
}

// TestSecondFirewall: one that guards already is not disturbed.
func TestSecondFirewall(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	atWork := b.f.outside(t)
	b.f.expectRefused(t, refused{args: []string{"--policy", b.f.policy()}, status: 1,
		says: []string{"already running", fmt.Sprintf("process %d", b.f.cmd.Process.Pid), "stop it first"}})
	other := prepare(t, b.Firewall, basePolicy)
	other.expectRefused(t, refused{args: []string{"--policy", other.policy(), "--queue", "100"}, status: 1,
		says: []string{"another hybridfw", "network namespace", "stop it first"}})
	b.f.expectOutside(t, atWork)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		before := b.f.status()
		ask(t, b.Client.MustDial(t, "udp", server.Addr.String()), question(t, 1, "good.example.", 1))
		b.barrier(t, fam)
		b.f.eventually(t, "the first goes on", func(s status) bool { return s.since(before, "user") == 1 })
	})
}

// TestMissingTCX: what is asked for and cannot be had is an error; left to
// itself hybridfw takes what there is.
func TestMissingTCX(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	f := prepare(t, r.Firewall, basePolicy)
	have := f.hasTCX(t)
	if !have {
		f.expectRefused(t, refused{args: []string{"--policy", f.policy(), "--tc", "tcx"}, status: 1, says: []string{"TCX", "lan0"}})
	}
	f.start()
	for _, i := range f.status().Interfaces {
		if want := map[bool]string{true: "tcx", false: "clsact"}[have]; i.TC != want {
			t.Errorf("%s is guarded by %s, want %s", i.Name, i.TC, want)
		}
	}
}

func (f *firewall) hasTCX(tb testing.TB) (have bool) {
	tb.Helper()
	index, err := f.host.Index("lan0")
	if err != nil {
		tb.Fatal(err)
	}
	f.host.MustDo(tb, func() error {
		_, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
		have = err == nil
		return nil
	})
	return have
}
