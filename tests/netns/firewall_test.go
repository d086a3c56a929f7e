// Package netns tests the whole system: the hybridfw program between hosts in
// network namespaces, with real sockets on both sides.
package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/userspace"
)

// patience is how long what should happen at once may take on a loaded machine.
const patience = 20 * time.Second

// binary builds hybridfw once, or takes the one that HYBRIDFW_BIN names, where
// there is no Go.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("HYBRIDFW_BIN"); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("/run", "hybridfw-bin") // a tmpfs of this process's own
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // nobody may run it too
		return "", err
	}
	path := filepath.Join(dir, "hybridfw")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/hybridfw").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building hybridfw: %w\n%s", err, out)
	}
	return path, nil
})

// firewall is a hybridfw process on a host.
type firewall struct {
	tb     testing.TB
	host   *testnet.Host
	cmd    *exec.Cmd
	dir    string
	log    lockedBuffer
	stderr *os.File // where the process logs to instead of log, if not nil
	exit   chan error
	over   error // what the process ended with
	gone   bool
}

// lockedBuffer collects what a process prints while a test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// prepared counts firewalls, to give each its own folders.
var prepared atomic.Int64

// observe stands for no policy file at all.
const observe = ""

// prepare makes a firewall that is not started: a policy in a folder of its own,
// which has a short name because the path of a socket may have 107 bytes.
func prepare(tb testing.TB, host *testnet.Host, policy string) *firewall {
	tb.Helper()
	f := &firewall{tb: tb, host: host, dir: fmt.Sprintf("/run/fw%d", prepared.Add(1)), gone: true}
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(f.dir) }) // on a tmpfs of this process's own
	if policy != observe {
		f.write(policy)
	}
	return f
}

// write replaces the policy.
func (f *firewall) write(policy string) {
	f.tb.Helper()
	if err := os.WriteFile(f.policy(), []byte(policy), 0o644); err != nil {
		f.tb.Fatal(err)
	}
}

func (f *firewall) policy() string { return filepath.Join(f.dir, "policy.yaml") }

func (f *firewall) runDir() string { return filepath.Join(f.dir, "run") }

func (f *firewall) pinDir() string { return "/sys/fs/bpf/" + filepath.Base(f.dir) }

// places are the flags by which commands find this firewall and no other.
func (f *firewall) places() []string {
	return []string{"--pin-dir", f.pinDir(), "--run-dir", f.runDir()}
}

// start starts hybridfw on a host and waits until it judges packets.
func start(tb testing.TB, host *testnet.Host, policy string, flags ...string) *firewall {
	tb.Helper()
	f := prepare(tb, host, policy)
	f.start(flags...)
	return f
}

func (f *firewall) start(flags ...string) {
	f.tb.Helper()
	ready := filepath.Join(f.dir, "ready")
	_ = os.Remove(ready) // of a process that was killed
	args := append([]string{"run", "--ready-file", ready, "--queues", "2"}, f.places()...)
	if _, err := os.Stat(f.policy()); err == nil { // else it observes
		args = append(args, "--policy", f.policy())
	}
	f.cmd = f.command(append(args, flags...)...)
	f.cmd.Stdout, f.cmd.Stderr = &f.log, &f.log
	if f.stderr != nil {
		f.cmd.Stderr = f.stderr
	}
	if err := f.cmd.Start(); err != nil {
		f.tb.Fatalf("starting hybridfw: %v", err)
	}
	f.exit, f.gone = make(chan error, 1), false
	go func() { f.exit <- f.cmd.Wait() }()
	f.tb.Cleanup(f.cleanUp)
	deadline := time.After(patience)
	for {
		if _, err := os.Stat(ready); err == nil {
			return
		}
		select {
		case err := <-f.exit:
			f.gone = true
			f.tb.Fatalf("hybridfw ended before it was ready: %v\n%s", err, f.log.String())
		case <-deadline:
			f.tb.Fatalf("hybridfw is not ready\n%s", f.log.String())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// command is a hybridfw command on the firewall's host.
func (f *firewall) command(args ...string) *exec.Cmd {
	f.tb.Helper()
	path, err := binary()
	if err != nil {
		f.tb.Fatal(err)
	}
	return f.host.Command(path, args...)
}

// run runs a hybridfw command and returns what it printed and its exit status.
func (f *firewall) run(args ...string) (stdout, stderr string, status int) {
	f.tb.Helper()
	cmd := f.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		f.tb.Fatalf("running hybridfw %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// wait waits for the process's end.
func (f *firewall) wait() error {
	f.tb.Helper()
	if f.gone {
		return f.over
	}
	select {
	case f.over = <-f.exit:
		f.gone = true
		return f.over
	case <-time.After(patience):
		f.tb.Fatalf("hybridfw does not end\n%s", f.log.String())
		return nil
	}
}

// stop ends the process as an operator does.
func (f *firewall) stop() {
	f.tb.Helper()
	f.signal(syscall.SIGTERM)
	if err := f.wait(); err != nil {
		f.tb.Errorf("hybridfw ended with %v\n%s", err, f.log.String())
	}
}

func (f *firewall) signal(s os.Signal) {
	f.tb.Helper()
	if err := f.cmd.Process.Signal(s); err != nil {
		f.tb.Fatal(err)
	}
}

// kill ends the process so that it can undo nothing.
func (f *firewall) kill() {
	f.tb.Helper()
	if err := f.cmd.Process.Kill(); err != nil {
		f.tb.Fatal(err)
	}
	_ = f.wait() // ends with the signal
}

func (f *firewall) cleanUp() {
	if !f.gone {
		f.kill()
	}
	f.run(append([]string{"detach"}, f.places()...)...)
	if f.tb.Failed() {
		f.tb.Logf("hybridfw's log:\n%s", f.log.String())
	}
}

// status is what the status command prints.
type status struct {
	Running    bool
	PID        int
	Rules      int
	Interfaces []loader.Interface
	Kernel     loader.Stats
	Hooks      []userspace.HookCounters
	User       userspace.Stats
	NamesLost  uint64 `json:"names_lost"`
	Lists      []loader.ListHits
}

// hook returns the counters of one netfilter hook.
func (s status) hook(name string) userspace.HookCounters {
	for _, h := range s.Hooks {
		if h.Hook == name {
			return h
		}
	}
	return userspace.HookCounters{}
}

// judged are the packets that fw_tc has judged by the policy: everything but the
// chatter of hosts, which comes when it likes.
func (s status) judged() uint64 {
	n := s.Kernel.Sum("tc", "", "")
	for _, chatter := range []string{"icmp", "non_ip"} {
		n -= s.Kernel.Sum("tc", "", chatter)
	}
	return n
}

// status asks the running process where the status command does.
func (f *firewall) status() (s status) {
	f.tb.Helper()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(f.runDir(), "control.sock"))
		},
	}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://hybridfw/status")
	if err != nil {
		f.tb.Fatalf("asking for the status: %v\n%s", err, f.log.String())
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&s); err != nil {
		f.tb.Fatalf("reading the status: %v", err)
	}
	return s
}

// printedStatus runs the status command.
func (f *firewall) printedStatus(tb testing.TB) (s status, stderr string, code int) {
	tb.Helper()
	out, stderr, code := f.run(append([]string{"status", "--json"}, f.places()...)...)
	if out == "" {
		return s, stderr, code
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		tb.Fatalf("status printed %q: %v", out, err)
	}
	return s, stderr, code
}

// eventually waits until a claim about the counters holds, which user space
// publishes once a batch, and returns the status in which it did.
func (f *firewall) eventually(tb testing.TB, what string, claim func(status) bool) status {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		s := f.status()
		if claim(s) {
			return s
		}
		if time.Now().After(deadline) {
			tb.Fatalf("never: %s; the last status was %+v", what, s)
		}
	}
}
