// Kernels runs test programs inside other kernels: it gets Debian's, boots each
// in an emulated machine whose initial file system holds nothing but the tests
// and what they need, and reports what they said.
//
//	go run ./internal/kernels [flags] PACKAGE...
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// options are the command line.
type options struct {
	series  []string
	cache   string
	command string
	run     string
	short   bool
	limit   time.Duration
	memory  int
	jobs    int
	verbose bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	pflag.StringSliceVar(&o.series, "kernel", []string{"6.1", "6.12"}, "series of kernels to run on")
	pflag.StringVar(&o.cache, "cache", ".cache/kernels", "folder that keeps downloaded kernels")
	pflag.StringVar(&o.command, "command", "./cmd/hybridfw", "command to put into the guests, \"\" for none")
	pflag.StringVar(&o.run, "run", "", "run only tests that match, as go test -run")
	pflag.BoolVar(&o.short, "short", true, "run the tests with -short: emulation is some 20 times slower")
	pflag.DurationVar(&o.limit, "timeout", 5*time.Minute, "time for one kernel, from its start to its end")
	pflag.IntVar(&o.memory, "memory", 1024, "memory of a guest in MiB")
	pflag.IntVar(&o.jobs, "jobs", 2, "kernels that run at the same time")
	pflag.BoolVarP(&o.verbose, "verbose", "v", false, "show the guests' consoles")
	pflag.Parse()
	if pflag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "kernels: name the packages to test, such as ./internal/testnet")
		os.Exit(2)
	}
	err := runAll(ctx, o, pflag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

var errTests = errors.New("there were failures")

// runAll builds once and runs every kernel.
func runAll(ctx context.Context, o options, packages []string) (err error) {
	dir, err := os.MkdirTemp("", "hybridfw-kernels-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	start := time.Now()
	p, err := build(ctx, dir, o.command, packages)
	if err != nil {
		return err
	}
	fmt.Printf("kernels: built in %s\n", since(start))

	errs := make([]error, len(o.series))
	slots := make(chan struct{}, max(o.jobs, 1))
	var wg sync.WaitGroup
	var printing sync.Mutex
	for i, series := range o.series {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var text bytes.Buffer
			errs[i] = o.runOne(ctx, p, series, &text)
			printing.Lock()
			defer printing.Unlock()
			_, writeErr := text.WriteTo(os.Stdout)
			errs[i] = errors.Join(errs[i], writeErr)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// runOne runs the tests on the newest kernel of a series.
func (o options) runOne(ctx context.Context, p *programs, series string, w io.Writer) error {
	k, err := findKernel(ctx, series, o.cache)
	if err != nil {
		return err
	}
	tree, err := openModules(k.modules)
	if err != nil {
		return err
	}
	modules, err := tree.load(ctx, wantedModules)
	if err != nil {
		return err
	}
	m := machine{kernel: k, initrd: filepath.Join(p.dir, series+".cpio"), memory: o.memory, limit: o.limit}
	if o.verbose {
		m.console = os.Stderr
	}
	if err := p.writeInitrd(m.initrd, modules, o.testArgs()); err != nil {
		return fmt.Errorf("writing the initrd for %s: %w", k.release, err)
	}
	start := time.Now()
	console, bootErr := m.boot(ctx)
	rep, err := readConsole(ctx, console)
	if err = errors.Join(bootErr, err); err != nil {
		err = fmt.Errorf("kernel %s: %w; the end of its console:\n%s", k.release, err, tail(console, 40))
	}
	if rep.release != "" && rep.release != k.release {
		err = errors.Join(err, fmt.Errorf("kernel %s ran where %s was started", rep.release, k.release))
	}
	rep.release = k.release
	ok := rep.summary(w, p.corpus != "")
	fmt.Fprintf(w, "%s: ran %s", k.release, since(start))
	for _, t := range p.tests {
		fmt.Fprintf(w, ", %s %s", t.path, rep.took[t.path].Round(100*time.Millisecond))
	}
	fmt.Fprintln(w)
	if err == nil && !ok {
		err = fmt.Errorf("kernel %s: %w", k.release, errTests)
	}
	return err
}

// testArgs are given to every test program. It gives up before the guest is
// killed, so that it can say where it hung.
func (o options) testArgs() []string {
	args := []string{"-test.v=test2json", "-test.timeout=" + (o.limit * 4 / 5).String(), fmt.Sprintf("-test.short=%t", o.short)}
	if o.run != "" {
		args = append(args, "-test.run="+o.run)
	}
	return args
}

// tail is the end of a console, some lines of it.
func tail(console []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(console), "\r\n", "\n")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }
