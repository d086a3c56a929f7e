package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDependenciesAreReadFromModinfo(t *testing.T) {
	for info, want := range map[string][]string{
		"license=GPL\x00depends=a,b_c\x00name=x\x00": {"a", "b_c"},
		"depends=\x00name=x\x00":                     nil,
		"name=x\x00":                                 nil,
		"description=depends=no\x00":                 nil,
		"":                                           nil,
	} {
		if got := parseModinfo([]byte(info)); !slices.Equal(got, want) {
			t.Errorf("%q needs %q, want %q", info, got, want)
		}
	}
}

// elfModule is the smallest object file with a section .modinfo.
func elfModule(info string) []byte {
	names := "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	infoAt := header
	namesAt := infoAt + len(info)
	sectionsAt := (namesAt + len(names) + 7) &^ 7
	le := binary.LittleEndian
	b := make([]byte, sectionsAt+3*section)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 1)  // ET_REL
	le.PutUint16(b[18:], 62) // EM_X86_64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], uint64(sectionsAt))
	le.PutUint16(b[52:], header)
	le.PutUint16(b[58:], section)
	le.PutUint16(b[60:], 3)
	le.PutUint16(b[62:], 2)
	copy(b[infoAt:], info)
	copy(b[namesAt:], names)
	for i, s := range []struct{ name, kind, at, size int }{{1, 1, infoAt, len(info)}, {10, 3, namesAt, len(names)}} {
		h := b[sectionsAt+(i+1)*section:]
		le.PutUint32(h, uint32(s.name))
		le.PutUint32(h[4:], uint32(s.kind))
		le.PutUint64(h[24:], uint64(s.at))
		le.PutUint64(h[32:], uint64(s.size))
	}
	return b
}

// writeModules makes a lib/modules/<release> of modules that need each other.
func writeModules(t *testing.T, needs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for file, depends := range needs {
		path := filepath.Join(dir, "kernel", "net", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, elfModule("depends="+depends+"\x00"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	builtin := []byte("kernel/lib/built-in.ko\nkernel/net/other.ko\n")
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), builtin, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	dir := writeModules(t, map[string]string{
		"top.ko": "left,right", "left.ko": "bottom-one", "right.ko": "bottom_one,built_in",
		"bottom-one.ko": "", "unused.ko": "",
	})
	tree, err := openModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := tree.load(context.Background(), []string{"top", "left", "other"})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range modules {
		order = append(order, m.name)
		if !bytes.HasPrefix(m.image, []byte("\x7fELF")) {
			t.Errorf("module %s is no object file", m.name)
		}
	}
	if want := []string{"bottom_one", "left", "right", "top"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
}

func TestMissingModuleIsNamedWithWhoNeedsIt(t *testing.T) {
	tree, err := openModules(writeModules(t, map[string]string{"top.ko": "gone"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = tree.load(context.Background(), []string{"top"})
	if err == nil || !strings.Contains(err.Error(), "no module gone (needed by top)") {
		t.Errorf("error %v", err)
	}
}

func TestCompressedModulesAreUnpacked(t *testing.T) {
	fakePrograms(t, map[string]string{"xz": `echo "xz $@"`, "zstd": `echo "zstd $@"`})
	for path, want := range map[string]string{
		"/m/a.ko.xz":  "xz -dc /m/a.ko.xz\n",
		"/m/a.ko.zst": "zstd -qdc /m/a.ko.zst\n",
	} {
		if got, err := readModule(context.Background(), path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := readModule(context.Background(), "/m/a.ko.gz"); err == nil {
		t.Error("an unknown compression is no error")
	}
}
