// Kernels runs test programs inside other kernels: it gets Debian's, boots each
// in an emulated machine whose initial file system holds nothing but the tests
// and what they need, and reports what they said.
//
//	go run ./internal/kernels [flags] PACKAGE...
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
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
	pflag.DurationVar(&o.limit, "timeout", 20*time.Minute, "time for one package on one kernel, from start to end")
	pflag.IntVar(&o.memory, "memory", 1024, "memory of a guest in MiB")
	pflag.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "guests that run at the same time")
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

	guests, err := o.guests(ctx, p)
	if err != nil {
		return err
	}
	slots := make(chan struct{}, max(o.jobs, 1))
	var wg sync.WaitGroup
	for _, g := range guests {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			g.err = o.runTwice(ctx, p, g)
		})
	}
	wg.Wait()
	return summarize(os.Stdout, guests, p.corpus != "")
}

// guest is one package's tests on one kernel. Each has a machine of its own: what
// hangs or crashes takes no other tests with it, and the work spreads evenly.
type guest struct {
	kernel  kernel
	modules []module
	test    testPackage

	report report
	took   time.Duration
	err    error
}

// guests gets the kernels and lists what is to be run on each.
func (o options) guests(ctx context.Context, p *programs) ([]*guest, error) {
	var all []*guest
	for _, series := range o.series {
		k, err := findKernel(ctx, series, o.cache)
		if err != nil {
			return nil, err
		}
		tree, err := openModules(k.modules)
		if err != nil {
			return nil, err
		}
		modules, err := tree.load(ctx, wantedModules)
		if err != nil {
			return nil, err
		}
		for _, t := range p.tests {
			all = append(all, &guest{kernel: k, modules: modules, test: t})
		}
	}
	return all, nil
}

// runTwice runs one guest, and what failed there once more: an emulated machine
// is so slow at times that packets meet timers which they never meet elsewhere.
// What passes then is reported as such; what a machine did outside of its tests is
// not forgiven.
func (o options) runTwice(ctx context.Context, p *programs, g *guest) error {
	if err := o.run1(ctx, p, g); err != nil {
		return err
	}
	first, took := g.report, g.took
	failed, ok := first.failed()
	if !ok || len(failed) == 0 {
		return nil
	}
	o.run = "^(" + strings.Join(failed, "|") + ")$"
	err := o.run1(ctx, p, g)
	first.settle(g.report)
	g.report, g.took = first, took+g.took
	return err
}

// run1 runs one guest and fills its report.
func (o options) run1(ctx context.Context, p *programs, g *guest) error {
	m := machine{kernel: g.kernel, memory: o.memory, limit: o.limit}
	m.initrd = filepath.Join(p.dir, g.kernel.release+"-"+g.test.name+".cpio")
	if o.verbose {
		m.console = os.Stderr
	}
	if err := p.writeInitrd(m.initrd, *g, o.testArgs()); err != nil {
		return fmt.Errorf("writing the initrd for %s: %w", g.kernel.release, err)
	}
	start := time.Now()
	console, bootErr := m.boot(ctx)
	g.took = since(start)
	rep, err := readConsole(ctx, console)
	if err = errors.Join(bootErr, err, os.Remove(m.initrd)); err != nil {
		err = fmt.Errorf("%s on kernel %s: %w; the end of its console:\n%s", g.test.path, g.kernel.release, err, tail(console, 40))
	}
	if rep.release != "" && rep.release != g.kernel.release {
		err = errors.Join(err, fmt.Errorf("kernel %s ran where %s was started", rep.release, g.kernel.release))
	}
	rep.release = g.kernel.release
	g.report = rep
	return err
}

// summarize writes what each kernel's guests said. It is an error if anything
// failed anywhere.
func summarize(w io.Writer, guests []*guest, corpus bool) error {
	var errs []error
	for len(guests) > 0 {
		release := guests[0].kernel.release
		all := report{release: release}
		var times []string
		for len(guests) > 0 && guests[0].kernel.release == release {
			g := guests[0]
			guests = guests[1:]
			all.results = append(all.results, g.report.results...)
			errs = append(errs, g.err)
			times = append(times, fmt.Sprintf("%s %s", g.test.path, g.took))
		}
		if !all.summary(w, corpus) {
			errs = append(errs, fmt.Errorf("kernel %s: %w", release, errTests))
		}
		fmt.Fprintf(w, "%s: time with booting: %s\n", release, strings.Join(times, ", "))
	}
	return errors.Join(errs...)
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
