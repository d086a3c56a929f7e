package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/policy"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // the command line or a policy is wrong
)

// env is what a command sees of the world outside its arguments.
type env struct {
	stdout, stderr io.Writer
}

// command is one row of the command table.
type command struct {
	name    string
	args    string // what follows the flags, as usage shows it
	summary string
	about   string
	// setup declares the flags and returns the function that runs with them
	// and the remaining arguments.
	setup func(*pflag.FlagSet) runFunc
}

type runFunc func(ctx context.Context, e env, args []string) error

// commands are all commands, in the order in which help shows them.
func commands() []command {
	return []command{runCommand, checkCommand, reloadCommand, statusCommand, listCommand, replayCommand, detachCommand, demoCommand, versionCommand}
}

// usageError is a mistake on the command line.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// execute runs one command line and returns the exit status.
func execute(ctx context.Context, e env, args []string) int {
	if len(args) == 0 {
		printHelp(e.stderr)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "--help":
		return help(e, args)
	case "--version":
		name = "version"
	}
	for _, c := range append(commands(), manCommand) {
		if c.name == name {
			return c.execute(ctx, e, args)
		}
	}
	fmt.Fprintf(e.stderr, "hybridfw: there is no command %q: 'hybridfw help' lists them\n", name)
	return exitUsage
}

func (c command) execute(ctx context.Context, e env, args []string) int {
	flags, run := c.flags()
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		c.printHelp(e.stdout)
		return exitOK
	}
	if err != nil {
		err = usagef("%v", err)
	} else {
		err = run(ctx, e, flags.Args())
	}
	return report(e.stderr, c.name, err)
}

func (c command) flags() (*pflag.FlagSet, runFunc) {
	flags := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {}
	return flags, c.setup(flags)
}

// report prints an error, a line for each thing that is wrong, and returns the
// exit status that it means.
func report(w io.Writer, name string, err error) int {
	var usage usageError
	var bad *policy.Errors
	var refused refusedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &bad):
		fmt.Fprintln(w, bad) // its lines begin with the file's name
		return exitUsage
	case errors.As(err, &refused):
		fmt.Fprintln(w, refused)
		return exitUsage
	case errors.As(err, &usage):
		fmt.Fprintf(w, "hybridfw %s: %v (see 'hybridfw help %s')\n", name, err, name)
		return exitUsage
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "hybridfw %s: %s\n", name, strings.TrimSuffix(line, "\n"))
	}
	return exitFailure
}

func help(e env, args []string) int {
	if len(args) == 0 {
		printHelp(e.stdout)
		return exitOK
	}
	for _, c := range commands() {
		if c.name == args[0] {
			c.printHelp(e.stdout)
			return exitOK
		}
	}
	fmt.Fprintf(e.stderr, "hybridfw: there is no command %q: 'hybridfw help' lists them\n", args[0])
	return exitUsage
}

func printHelp(w io.Writer) {
	fmt.Fprintf(w, "hybridfw guards an edge host: it judges most packets in the kernel and\nsends only the uncertain ones to user space.\n\nUsage: hybridfw COMMAND [FLAGS] [ARGUMENTS]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s  %s\n", c.name, c.summary)
	}
	fmt.Fprintf(w, "\n'hybridfw help COMMAND' says more about one.\nExit status: 0 success, 1 failure, 2 the command line or a policy is wrong.\n")
}

func (c command) printHelp(w io.Writer) {
	flags, _ := c.flags()
	fmt.Fprintf(w, "Usage: hybridfw %s\n\n%s\n", strings.TrimSpace(c.name+" [FLAGS] "+c.args), c.about)
	if usages := flags.FlagUsages(); usages != "" {
		fmt.Fprintf(w, "\nFlags:\n%s", usages)
	}
}

// noArgs refuses arguments where a command takes none.
func noArgs(args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// places says where a running firewall keeps what others find it by.
type places struct {
	pinDir, runDir string
}

const defaultRunDir = "/run/hybridfw"

func (p *places) declare(flags *pflag.FlagSet) {
	flags.StringVar(&p.pinDir, "pin-dir", loader.DefaultPinDir, "folder on a BPF file system for links and counters")
	flags.StringVar(&p.runDir, "run-dir", defaultRunDir, "folder for the lock and the control socket")
}
