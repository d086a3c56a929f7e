package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// guestRoot is where the project's tree lies in the guest, such that the corpus
// lies beside it as it does outside.
const (
	guestRoot   = "src"
	guestCorpus = "shared/corpus"
)

// programs is what is built once for all kernels.
type programs struct {
	dir     string // holds guest, bin/ and tests/
	tests   []testPackage
	corpus  string // "" when there is none
	project string // the project's root
}

// testPackage is a package with tests, as go list shows it.
type testPackage struct {
	path string // below the project's root, with slashes
	name string // of the test program
}

// build compiles the guest's first process, a command for the tests that start
// it and the test programs of the packages, all static.
func build(ctx context.Context, dir, command string, packages []string) (*programs, error) {
	root, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	p := &programs{dir: dir, project: strings.TrimSpace(string(root))}
	if p.tests, err = p.list(ctx, packages); err != nil {
		return nil, err
	}
	steps := [][]string{
		{"build", "-o", filepath.Join(dir, "guest"), "./internal/kernels/guest"},
		append([]string{"test", "-c", "-o", filepath.Join(dir, "tests") + "/"}, packages...),
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	if command != "" {
		steps = append(steps, []string{"build", "-o", filepath.Join(dir, "bin") + "/", command})
	}
	for _, step := range steps {
		args := append([]string{step[0], "-trimpath", "-ldflags=-s -w"}, step[1:]...)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = p.project
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	p.corpus = os.Getenv("HYBRIDFW_CORPUS")
	if p.corpus == "" {
		p.corpus = filepath.Join(p.project, "..", guestCorpus)
	}
	// Without a symbolic link at its end, which walking would not follow.
	p.corpus, err = filepath.EvalSymlinks(p.corpus)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("looking for captures: %w", err)
	}
	return p, nil
}

// list finds the packages that have tests.
func (p *programs) list(ctx context.Context, packages []string) ([]testPackage, error) {
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}"
	out, err := output(ctx, "go", append([]string{"list", "-f", format}, packages...)...)
	if err != nil {
		return nil, err
	}
	var tests []testPackage
	for _, dir := range strings.Fields(string(out)) {
		rel, err := filepath.Rel(p.project, dir)
		if err != nil {
			return nil, err
		}
		tests = append(tests, testPackage{path: filepath.ToSlash(rel), name: filepath.Base(dir) + ".test"})
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("no package of %s has tests", strings.Join(packages, " "))
	}
	return tests, nil
}

// writeInitrd writes all that a guest needs for one package's tests into a file.
func (p *programs) writeInitrd(name string, g guest, testArgs []string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a := newArchive(f)
	// The console must be there before /init can make it.
	a.dir("dev")
	a.device("dev/console", 5, 1)
	for i, m := range g.modules {
		a.file(fmt.Sprintf("modules/%03d-%s.ko", i, m.name), 0o644, m.image)
	}
	program := path.Join("bin", g.test.name)
	if err := a.copyFile(program, filepath.Join(p.dir, "tests", g.test.name)); err != nil {
		return err
	}
	list := fmt.Sprintln(path.Join("/", guestRoot, g.test.path), path.Join("/", program), strings.Join(testArgs, " "))
	a.file("tests", 0o644, []byte(list))
	if err := a.copyFile("init", filepath.Join(p.dir, "guest")); err != nil {
		return err
	}
	if err := a.copyTree("bin", filepath.Join(p.dir, "bin")); err != nil {
		return err
	}
	if err := a.copyTree(guestRoot, p.project); err != nil {
		return err
	}
	if p.corpus != "" {
		if err := a.copyTree(guestCorpus, p.corpus); err != nil {
			return err
		}
	}
	return a.close()
}

// copyFile adds a file with its contents and permissions.
func (a *archive) copyFile(name, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	a.file(name, info.Mode(), data)
	return nil
}

// copyTree adds a folder, without what git and the tools keep in it: hidden
// folders and a top-level bin/.
func (a *archive) copyTree(name, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (rel == "bin" || rel != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.Type().IsRegular():
			return a.copyFile(path.Join(name, filepath.ToSlash(rel)), file)
		default:
			return nil
		}
	})
}
