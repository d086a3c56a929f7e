package testnet_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// mountTable is what can be compared of the mounts that a process sees.
func mountTable(t *testing.T, pid string) string {
	t.Helper()
	mounts, err := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	return string(mounts)
}

// outsider is a process that has never been isolated: this one's parent, because
// Isolate keeps the process.
func outsider() string { return strconv.Itoa(os.Getppid()) }

// outside reads what the outsider sees of mounts and interfaces.
func outside(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("/proc/" + outsider() + "/net/dev_snmp6/*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return mountTable(t, outsider()) + strings.Join(names, "\n")
}

func TestProcessIsAlone(t *testing.T) {
	if !testnet.Isolated() {
		t.Fatal("the tests do not run isolated")
	}
	for _, ns := range []string{"mnt", "net"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if others, err := os.Readlink("/proc/" + outsider() + "/ns/" + ns); err != nil || others == own {
			t.Errorf("%s namespace %s is that of the parent (%s, %v)", ns, own, others, err)
		}
	}
	if interfaces, err := filepath.Glob("/sys/class/net/*"); err != nil || !onlyNew(interfaces) {
		t.Errorf("/sys/class/net shows %v (%v), want a new namespace's", interfaces, err)
	}
	if mounts := mountTable(t, "self"); strings.Contains(mounts, "shared:") {
		t.Errorf("mounts are shared with others:\n%s", mounts)
	}
	if err := testnet.Isolate(); err != nil {
		t.Errorf("isolating twice: %v", err)
	}
}

// onlyNew reports whether a namespace has only what the kernel puts into each.
func onlyNew(interfaces []string) bool {
	for _, path := range interfaces {
		switch name := filepath.Base(path); name {
		case bondingMasters, "lo", "ifb0", "ifb1", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0", "dummy0":
		default:
			return false
		}
	}
	return len(interfaces) > 0
}

func TestNothingIsSeenOrLeftOutside(t *testing.T) {
	before := outside(t)
	r, err := testnet.NewRouted(testnet.RoutedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Server.ServeTLS("[::]:443"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Client.Capture("eth0"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/run/left", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/sys/fs/bpf/left", 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove("/sys/fs/bpf/left")
	if err := r.Client.Ping(testnet.Patience(t), testnet.Server4); err != nil {
		t.Fatal(err)
	}
	var ns string
	r.Client.MustDo(t, func() error { ns = netNamespace(t); return nil })
	for _, path := range []string{"/run/left", "/sys/fs/bpf/left"} {
		if _, err := os.Stat("/proc/" + outsider() + "/root" + path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is seen outside (%v)", path, err)
		}
	}
	if during := outside(t); during != before {
		t.Errorf("seen outside before:\n%s\nduring:\n%s", before, during)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if after := outside(t); after != before {
		t.Errorf("seen outside before:\n%s\nafter:\n%s", before, after)
	}
	if holder := holderOf(t, ns); holder != "" {
		t.Errorf("namespace %s is still held: %s", ns, holder)
	}
}

// holderOf finds a process or a descriptor that keeps a namespace alive.
func holderOf(t *testing.T, ns string) string {
	t.Helper()
	for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if target, err := os.Readlink(path); err == nil && target == ns {
				return path
			}
		}
	}
	return ""
}

// runMain starts this program again as a package's tests with only its user
// changed and returns what it printed and its exit status.
func runMain(t *testing.T, uid uint32, env ...string) (string, int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test")
	if err := copyFile(path, self(t)); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(path, "-test.run=^TestThreadComesHomeFromAHost$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func TestWithoutRootNothingRunsAndTheReasonIsSaid(t *testing.T) {
	for _, c := range []struct {
		env  string
		want int
	}{{"CI=", 0}, {"CI=true", 1}} {
		out, status := runMain(t, 65534, c.env)
		if status != c.want || !strings.Contains(out, "no test was run: network namespaces need root") {
			t.Errorf("with %s exit status %d, want %d, and the reason, got %q", c.env, status, c.want, out)
		}
		if strings.Contains(out, "RUN") {
			t.Errorf("with %s a test was run: %s", c.env, out)
		}
	}
}

func TestIsolationIsNotBelievedButChecked(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range []string{"1", "mnt:[1] net:[1]", own} {
		t.Setenv("HYBRIDFW_ISOLATED", claim)
		if testnet.Isolated() {
			t.Errorf("believed %q", claim)
		}
	}
}

// fakeTB notes what a helper does with the test.
type fakeTB struct {
	testnet.TB
	said string
}

func (f *fakeTB) Helper() {}
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.said += "fatal: " + fmt.Sprintf(format, args...)
}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.said += "skip: " + fmt.Sprintf(format, args...)
}

func TestSkipsAreFailuresWhereTheyCouldBeLifted(t *testing.T) {
	for _, c := range []struct {
		ci, guest string
		act       func(testnet.TB)
		want      string
	}{
		{"", "", func(tb testnet.TB) { testnet.SkipOrFail(tb, "no disk") }, "skip: skipped: no disk"},
		{"true", "", func(tb testnet.TB) { testnet.SkipOrFail(tb, "no disk") }, "fatal: not skipped in CI: no disk"},
		{"true", "", func(tb testnet.TB) { testnet.NeedLinux(tb, 99, 1, "TCX") }, "skip: TCX needs Linux 99.1, this is "},
		{"true", "", func(tb testnet.TB) { testnet.NeedLinux(tb, 5, 99, "TCX") }, ""},
		{"true", "", func(tb testnet.TB) { testnet.SkipUnlessGuest(tb, "nft queue") }, "skip: skipped: this kernel was built without nft queue"},
		{"", "1", func(tb testnet.TB) { testnet.SkipUnlessGuest(tb, "nft queue") }, "fatal: nft queue is missing"},
		{"true", "", testnet.Need, ""},
	} {
		t.Setenv("CI", c.ci)
		t.Setenv(testnet.GuestEnv, c.guest)
		tb := &fakeTB{}
		c.act(tb)
		if !strings.HasPrefix(tb.said, c.want) || c.want == "" && tb.said != "" {
			t.Errorf("CI=%q guest=%q: %q, want %q", c.ci, c.guest, tb.said, c.want)
		}
	}
}
