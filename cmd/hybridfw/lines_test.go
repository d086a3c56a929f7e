package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLogThatNobodyReads: who logs does not wait, and the end waits only a while.
func TestLogThatNobodyReads(t *testing.T) {
	w := &slowWriter{begun: make(chan struct{}), goOn: make(chan struct{})}
	l := newLines(w)
	if n, err := l.Write([]byte("first\n")); n != 6 || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	<-w.begun
	const more = 3
	for i := range cap(l.queue) + more {
		_, err := l.Write([]byte("next\n"))
		if lost := i >= cap(l.queue); errors.Is(err, errLineLost) != lost {
			t.Errorf("line %d: %v, want it lost: %v", i, err, lost)
		}
	}
	began := time.Now()
	l.close()
	if took := time.Since(began); took < logPatience || took > 10*logPatience {
		t.Errorf("the end took %v, want about %v", took, logPatience)
	}
	close(w.goOn)
	<-l.ended
	got := strings.Split(strings.TrimSpace(w.buf.String()), "\n")
	if len(got) != 1+cap(l.queue)+1 || got[0] != "first" || got[1] != "next" || !strings.HasPrefix(got[len(got)-1], "hybridfw: 3 log lines were lost") {
		t.Errorf("%d lines, from %q to %q; want those that were not lost and how many were", len(got), got[0], got[len(got)-1])
	}
}

func TestLinesAreCopied(t *testing.T) {
	w := &slowWriter{begun: make(chan struct{}), goOn: make(chan struct{})}
	l := newLines(w)
	buf := []byte("first\n")
	for _, line := range []string{"first\n", "other\n"} {
		copy(buf, line)
		if _, err := l.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	copy(buf, "wrong\n")
	close(w.goOn)
	l.close()
	if got := w.buf.String(); got != "first\nother\n" {
		t.Errorf("wrote %q", got)
	}
}

func TestReadyFileIsWholeOrNotThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ready")
	if err := writeReady(path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || len(b) < 2 || b[len(b)-1] != '\n' {
		t.Errorf("the ready file has %q, %v", b, err)
	}
	occupied := filepath.Join(dir, "occupied")
	if err := os.Mkdir(occupied, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeReady(occupied); err == nil || !strings.HasPrefix(err.Error(), "writing the ready file: ") {
		t.Errorf("in the place of a folder: %v", err)
	}
	if err := writeReady(filepath.Join(dir, "missing", "ready")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left %v, %v; want the ready file and the folder", entries, err)
	}
}

// TestLockIsForItsOwnerOnly: whoever can open a file can lock it, and would keep
// hybridfw from starting, and have detach stop a process that is none of it.
func TestLockIsForItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(shortDir(t), "run")
	lock, err := lockRunDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if st, err := lock.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the lock has mode %v, %v; want 0600", st.Mode(), err)
	}
}
