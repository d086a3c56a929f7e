package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// readArchive is the format's description the other way round: it returns the
// entries' names and modes in their order and the files' contents.
func readArchive(t *testing.T, b []byte) (entries []string, contents map[string]string) {
	t.Helper()
	contents = make(map[string]string)
	at := 0
	take := func(n int) string {
		if at+n > len(b) {
			t.Fatalf("archive ends at %d, wanted %d bytes from %d on", len(b), n, at)
		}
		s := string(b[at : at+n])
		at += n
		return s
	}
	for {
		if magic := take(6); magic != "070701" {
			t.Fatalf("magic %q at %d", magic, at-6)
		}
		var fields [13]int
		for i := range fields {
			v, err := strconv.ParseUint(take(8), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			fields[i] = int(v)
		}
		name := take(fields[11])
		if !strings.HasSuffix(name, "\x00") {
			t.Fatalf("name %q has no final zero", name)
		}
		name = strings.TrimSuffix(name, "\x00")
		at = (at + 3) &^ 3
		data := take(fields[6])
		at = (at + 3) &^ 3
		if name == "TRAILER!!!" {
			return entries, contents
		}
		entries = append(entries, fmt.Sprintf("%s %o %d,%d", name, fields[1], fields[9], fields[10]))
		contents[name] = data
	}
}

func TestArchiveHoldsWhatWasPutIn(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	a.device("dev/console", 5, 1)
	a.file("init", 0o755, []byte("program"))
	for _, n := range []int{0, 1, 2, 3, 4, 5} {
		a.file(fmt.Sprintf("a/b/%d", n), 0o644, bytes.Repeat([]byte{'x'}, n))
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	entries, contents := readArchive(t, b.Bytes())
	want := []string{
		"dev 40755 0,0", "dev/console 20600 5,1", "init 100755 0,0", "a 40755 0,0", "a/b 40755 0,0",
		"a/b/0 100644 0,0", "a/b/1 100644 0,0", "a/b/2 100644 0,0", "a/b/3 100644 0,0",
		"a/b/4 100644 0,0", "a/b/5 100644 0,0",
	}
	if got := strings.Join(entries, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("entries\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if contents["init"] != "program" || contents["a/b/5"] != "xxxxx" {
		t.Errorf("contents %q", contents)
	}
}

// fullWriter fails like a full disk.
type fullWriter struct{ room int }

func (w *fullWriter) Write(b []byte) (int, error) {
	if len(b) > w.room {
		return 0, os.ErrInvalid
	}
	w.room -= len(b)
	return len(b), nil
}

func TestArchiveReportsAFullDisk(t *testing.T) {
	a := newArchive(&fullWriter{room: 300})
	a.file("large", 0o644, make([]byte, 1000))
	if err := a.close(); err == nil {
		t.Error("no error")
	}
}

func TestTreeIsCopiedWithoutHiddenFoldersAndBin(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"go.mod", ".git/config", ".cache/k/x", "bin/hybridfw", "a/bin/kept", "a/testdata/f", ".hidden"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	a := newArchive(&b)
	if err := a.copyTree("src", root); err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	entries, contents := readArchive(t, b.Bytes())
	for _, kept := range []string{"go.mod", "a/bin/kept", "a/testdata/f", ".hidden"} {
		if contents["src/"+kept] != kept {
			t.Errorf("%s is missing: %q", kept, entries)
		}
	}
	for _, gone := range []string{".git", ".cache", "src/bin"} {
		if strings.Contains(strings.Join(entries, "\n"), gone) {
			t.Errorf("%s was copied: %q", gone, entries)
		}
	}
	if err := a.copyTree("src", filepath.Join(root, "missing")); err == nil {
		t.Error("a missing tree is no error")
	}
}
