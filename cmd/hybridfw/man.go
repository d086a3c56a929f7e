package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

//go:generate sh -c "go run . man > ../../docs/hybridfw.8"

// manCommand is not in the table that help shows: packagers call it, and
// docs/hybridfw.8 is what it prints.
var manCommand = command{
	name:  "man",
	about: "Prints the manual page in roff.",
	setup: func(*pflag.FlagSet) runFunc {
		return func(_ context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			printMan(e.stdout)
			return nil
		}
	},
}

// printMan writes the manual page from the command table.
func printMan(w io.Writer) {
	fmt.Fprint(w, `.\" Made by "hybridfw man" from the command table.
.TH HYBRIDFW 8
.SH NAME
hybridfw \- a firewall that judges in the kernel and asks user space only when uncertain
.SH SYNOPSIS
.B hybridfw
.I COMMAND
.RI [ FLAGS ]
.RI [ ARGUMENTS ]
.SH DESCRIPTION
Most packets are judged in the kernel, by programs at XDP and tc. Uncertain ones
go through a netfilter queue to a process that looks into them, decides their
flow, and writes the decision back into the kernel.
.SH COMMANDS
`)
	for _, c := range commands() {
		flags, _ := c.flags()
		fmt.Fprintf(w, ".SS %s\n%s\n", roff(strings.TrimSpace(c.name+" "+c.args)), roff(c.about))
		flags.VisitAll(func(f *pflag.Flag) {
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			value, usage := pflag.UnquoteUsage(f)
			fmt.Fprintf(w, ".TP\n.B %s\n%s", roff(strings.TrimSpace(name+" "+value)), roff(usage))
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
				fmt.Fprintf(w, " (default %s)", roff(f.DefValue))
			}
			fmt.Fprintln(w)
		})
	}
	fmt.Fprint(w, `.SH EXIT STATUS
0 success, 1 failure, 2 the command line or a policy is wrong.
.SH FILES
.TP
.I /sys/fs/bpf/hybridfw
links and counters, so that the kernel half outlives its process
.TP
.I /run/hybridfw
the lock and the control socket of the running process
.SH SEE ALSO
.BR nft (8),
.BR tc\-bpf (8)
`)
}

// roff escapes what has a meaning in roff.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		switch {
		case line == "":
			lines[i] = ".PP"
		case line[0] == '.' || line[0] == '\'':
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
