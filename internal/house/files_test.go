package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits of what is written by hand, in lines.
const (
	maxFile     = 500
	maxFunction = 80
)

// unwanted are names of packages that say nothing about what is in them.
var unwanted = []string{"util", "utils", "common", "types", "helpers", "misc"}

var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

// sources calls f for every source file that is written by hand.
func sources(t *testing.T, f func(name string, text []byte)) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	root := strings.TrimSpace(string(out))
	seen := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || name == "bin") {
			return filepath.SkipDir
		}
		switch filepath.Ext(name) {
		case ".go", ".c", ".h":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(parsed(name, text)) {
			seen++
			f(filepath.ToSlash(name), text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Fatalf("only %d source files found", seen)
	}
}

// parsed is a file as far as its comments say whether it is generated.
func parsed(name string, text []byte) *ast.File {
	if filepath.Ext(name) != ".go" {
		return &ast.File{}
	}
	// A broken file is the compiler's business; what could be read will do.
	file, _ := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.PackageClauseOnly)
	return file
}

func TestFilesAreShort(t *testing.T) {
	sources(t, func(name string, text []byte) {
		if n := strings.Count(string(text), "\n"); n > maxFile {
			t.Errorf("%s has %d lines, more than %d: split it", name, n, maxFile)
		}
	})
}

func TestNothingIsLeftUnfinished(t *testing.T) {
	sources(t, func(name string, text []byte) {
		for i, line := range strings.Split(string(text), "\n") {
			if found := unfinished.FindString(line); found != "" {
				t.Errorf("%s:%d: %s", name, i+1, found)
			}
		}
	})
}

func TestKernelHalfIsDualLicensed(t *testing.T) {
	const want = "SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause"
	sources(t, func(name string, text []byte) {
		if first, _, _ := strings.Cut(string(text), "\n"); strings.HasPrefix(name, "bpf/") && !strings.Contains(first, want) {
			t.Errorf("%s: the first line is %q, want one with %q", name, first, want)
		}
	})
}

func TestFunctionsAreShortAndPackagesWellNamed(t *testing.T) {
	sources(t, func(name string, text []byte) {
		if filepath.Ext(name) != ".go" {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			t.Error(err)
			return
		}
		for _, word := range unwanted {
			if file.Name.Name == word {
				t.Errorf("%s: a package named %s says nothing", name, word)
			}
		}
		for _, wrong := range longFunctions(fset, file) {
			t.Error(wrong)
		}
	})
}

// longFunctions names functions that are too long. A flat switch may be: its
// lines do not count.
func longFunctions(fset *token.FileSet, file *ast.File) []string {
	var wrong []string
	lines := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line + 1 }
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		n := lines(f)
		for _, s := range f.Body.List {
			switch s.(type) {
			case *ast.SwitchStmt, *ast.TypeSwitchStmt:
				n -= lines(s)
			}
		}
		if n > maxFunction {
			wrong = append(wrong, fmt.Sprintf("%s: function %s has %d lines, more than %d",
				fset.Position(f.Pos()), f.Name.Name, n, maxFunction))
		}
	}
	return wrong
}

func TestLongFunctionIsNoticedAndLongSwitchIsNot(t *testing.T) {
	for kind, body := range map[string]string{
		"plain":  strings.Repeat("\tprintln()\n", maxFunction),
		"switch": "\tswitch 1 {\n" + strings.Repeat("\tcase 2:\n", maxFunction) + "\t}\n",
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "x.go", "package x\n\nfunc f() {\n"+body+"}\n", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(longFunctions(fset, file)), map[string]int{"plain": 1, "switch": 0}[kind]; got != want {
			t.Errorf("%s: %d functions are too long, want %d", kind, got, want)
		}
	}
}
