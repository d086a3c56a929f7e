package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

// sample has something in every field that is printed.
func sample() Status {
	return Status{
		Running: true, Version: "1.2.3", PID: 42, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Policy: "edge.yaml", Rules: 3,
		Interfaces: []loader.Interface{{Name: "eth0", Index: 2, Zone: "wan", XDP: "native", TC: "tcx"}},
		Kernel: loader.Stats{
			{Hook: "xdp", Verdict: "drop", Reason: "rule", Packets: 5, Bytes: 300},
			{Hook: "tc", Verdict: "queue", Reason: "flow", Packets: 7, Bytes: 900},
		},
		Hooks: []userspace.HookCounters{{Hook: "input"}, {Hook: "forward", Queued: 7, Past: 2}, {Hook: "output"}},
		User: &userspace.Stats{
			Counters: userspace.Counters{Received: 7, Accepted: 4, Dropped: 2, Rewritten: 1, Step: 6, Undecided: 1},
		},
	}
}

const sampleText = `running: process 42 since 2026-01-02 03:04:05, policy edge.yaml with 3 rules

INTERFACE  ZONE  XDP     TC
eth0       wan   native  tcx

PATH         VERDICT  REASON      PACKETS  BYTES
xdp          drop     rule        5        300
tc           queue    flow        7        900
nft forward  queue    mark        7        -
nft forward  pass     not queued  2        -
user         accept   all         4        -
user         drop     all         2        -
user         rewrite  all         1        -
user         all      step        6        -
user         all      undecided   1        -
`

func TestStatusText(t *testing.T) {
	var buf bytes.Buffer
	if err := printStatus(&buf, sample(), false); err != nil || buf.String() != sampleText {
		t.Errorf("printed, %v:\n%s\nwant:\n%s", err, buf.String(), sampleText)
	}
	// Of a killed process only the kernel's part is known.
	buf.Reset()
	left := Status{Kernel: loader.Stats{{Hook: "tc", Verdict: "pass", Reason: "flow", Packets: 1, Bytes: 60}}}
	want := "PATH  VERDICT  REASON  PACKETS  BYTES\ntc    pass     flow    1        60\n"
	if err := printStatus(&buf, left, false); err != nil || buf.String() != want {
		t.Errorf("printed %q, %v; want %q", buf.String(), err, want)
	}
}

// TestStatusJSON holds the names that programs read.
func TestStatusJSON(t *testing.T) {
	var buf bytes.Buffer
	if err := printStatus(&buf, sample(), true); err != nil {
		t.Fatal(err)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(buf.Bytes(), &top); err != nil {
		t.Fatal(err)
	}
	expectKeys(t, "status", top, "running", "version", "pid", "since", "policy", "rules", "interfaces", "kernel", "hooks", "user", "names_lost")
	for key, want := range map[string][]string{
		"interfaces": {"name", "index", "zone", "xdp", "tc"},
		"kernel":     {"hook", "verdict", "reason", "packets", "bytes"},
		"hooks":      {"hook", "queued", "past"},
	} {
		var rows []map[string]json.RawMessage
		if err := json.Unmarshal(top[key], &rows); err != nil || len(rows) == 0 {
			t.Fatalf("%s: %v", key, err)
		}
		expectKeys(t, key, rows[0], want...)
	}
	var user map[string]json.RawMessage
	if err := json.Unmarshal(top["user"], &user); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"received", "accepted", "dropped", "rewritten", "step", "undecided", "malformed", "more", "overload", "unmarked", "queues"} {
		if user[key] == nil {
			t.Errorf("user has no %s: %s", key, top["user"])
		}
	}
	// Without a process there is no part of it.
	buf.Reset()
	if err := printStatus(&buf, Status{}, true); err != nil {
		t.Fatal(err)
	}
	top = nil
	if err := json.Unmarshal(buf.Bytes(), &top); err != nil {
		t.Fatal(err)
	}
	expectKeys(t, "status without a process", top, "running", "kernel", "hooks", "names_lost")
}

func expectKeys(tb testing.TB, what string, object map[string]json.RawMessage, want ...string) {
	tb.Helper()
	var got []string
	for key := range object {
		got = append(got, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		tb.Errorf("%s has %v, want %v", what, got, want)
	}
}

func TestStatusWithNothingRunning(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root may look for what the kernel half has left")
	}
	dir := t.TempDir()
	for _, args := range [][]string{{"status"}, {"status", "--json"}} {
		got := runCommandLine(t, append(args, "--pin-dir", filepath.Join(dir, "pins"), "--run-dir", filepath.Join(dir, "run"))...)
		if got.status != exitFailure || got.stdout != "" || got.stderr != "hybridfw status: hybridfw is not running\n" {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// TestControlSocket asks as the status command does.
func TestControlSocket(t *testing.T) {
	dir := shortDir(t)
	if _, ok, err := askStatus(t.Context(), dir); ok || err != nil {
		t.Fatalf("without a socket: %v, %v", ok, err)
	}
	answer, failure := sample(), error(nil)
	server, err := serveControl(dir, func() (Status, error) { return answer, failure }, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socketPath(dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, %v; want 0600", info.Mode(), err)
	}
	got, ok, err := askStatus(t.Context(), dir)
	if !ok || err != nil || got.PID != 42 || got.User.Received != 7 || len(got.Kernel) != 2 || !got.Since.Equal(answer.Since) {
		t.Errorf("answered %+v, %v, %v", got, ok, err)
	}
	failure = errors.New("no counters")
	if _, ok, err := askStatus(t.Context(), dir); ok || err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a process that cannot tell: %v, %v", ok, err)
	}
	// A socket that a killed process has left belongs to nobody.
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: socketPath(dir)}), syscall.Close(fd)); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := askStatus(t.Context(), dir); ok || err != nil {
		t.Errorf("a socket of nobody: %v, %v", ok, err)
	}
	next, err := serveControl(dir, func() (Status, error) { return answer, nil }, nil)
	if err != nil {
		t.Fatalf("a new process over the old socket: %v", err)
	}
	defer next.Close()
	if _, ok, err := askStatus(t.Context(), dir); !ok || err != nil {
		t.Errorf("the new process: %v, %v", ok, err)
	}
}

// shortDir is a folder whose name leaves room for a socket's, which may have 107
// bytes.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "fw")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestRunFolderIsLocked(t *testing.T) {
	dir := filepath.Join(shortDir(t), "run")
	lock, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid := readPID(lock); pid == "" || pid != strconv.Itoa(os.Getpid()) {
		t.Errorf("the lock names process %q, want %d", pid, os.Getpid())
	}
	_, err = lockRunDir(dir)
	if err == nil || !strings.Contains(err.Error(), "already running (process "+strconv.Itoa(os.Getpid())+")") {
		t.Errorf("a second process: %v", err)
	}
	// The lock goes with the process; what is left of it does not matter.
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if stopped, err := stopRunning(t.Context(), dir); stopped || err != nil {
		t.Errorf("stopping a process that is gone: %v, %v", stopped, err)
	}
	again, err := lockRunDir(dir)
	if err != nil {
		t.Fatalf("locking what a killed process has left: %v", err)
	}
	if err := errors.Join(again.Close(), cleanRunDir(dir), cleanRunDir(dir)); err != nil {
		t.Errorf("cleaning twice: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if stopped, err := stopRunning(context.Background(), dir); stopped || err != nil {
		t.Errorf("stopping without a folder: %v, %v", stopped, err)
	}
}

// TestCleanRunDirKeepsFilesOfOthers: a folder that somebody shares stays.
func TestCleanRunDirKeepsFilesOfOthers(t *testing.T) {
	dir := shortDir(t)
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cleanRunDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another's file is gone: %v", err)
	}
}

// TestNamesThatTheLogCannotKeepUpWith are counted, and nobody waits for them.
func TestNamesThatTheLogCannotKeepUpWith(t *testing.T) {
	p := &policy.Policy{Rules: []policy.Rule{{Name: "dns"}}}
	w := &slowWriter{begun: make(chan struct{}), goOn: make(chan struct{})}
	n := newNameLog(slog.New(slog.NewJSONHandler(w, nil)))
	seen := func(name string) {
		n.seen(userspace.Sighting{Policy: p, Kind: "dns", Name: name, Action: policy.ActionAccept, Reason: userspace.ReasonStep, Log: true, Queued: 1})
	}
	n.seen(userspace.Sighting{Name: "not-to-be-logged"})
	seen("first.example")
	<-w.begun
	const more = 3
	for range cap(n.names) + more {
		seen("next.example")
	}
	if lost := n.lost.Load(); lost != more {
		t.Errorf("%d names lost, want %d", lost, more)
	}
	close(w.goOn)
	n.close()
	lines := strings.Split(strings.TrimSpace(w.buf.String()), "\n")
	if len(lines) != 1+cap(n.names)+1 {
		t.Fatalf("%d lines logged, want each name that was not lost, and how many were", len(lines))
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"msg": "name seen", "kind": "dns", "name": "first.example", "verdict": "accept", "reason": "step", "rule": "dns", "queued": 1.0} {
		if first[key] != want {
			t.Errorf("the log says %s %v, want %v", key, first[key], want)
		}
	}
	if last := lines[len(lines)-1]; !strings.Contains(last, `"names":3`) || strings.Contains(w.buf.String(), "not-to-be-logged") {
		t.Errorf("the last line is %s", last)
	}
}

// slowWriter waits in its first write until it is told to go on.
type slowWriter struct {
	buf         bytes.Buffer
	begun, goOn chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.buf.Len() == 0 {
		close(w.begun)
		<-w.goOn
	}
	return w.buf.Write(p)
}
