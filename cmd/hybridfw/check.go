package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/policy"
)

var checkCommand = command{
	name:    "check",
	args:    "FILE",
	summary: "check a policy file",
	about: `Reads a policy and its list files and compiles them, without touching the
host. Everything that is wrong is printed, one line each, with file, line and
column; then the exit status is 2. Warnings are printed too, and do no harm.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		quiet := flags.BoolP("quiet", "q", false, "print errors only")
		return func(_ context.Context, e env, args []string) error {
			if len(args) != 1 {
				return usagef("expected one policy file")
			}
			p, err := policy.Parse(args[0])
			if err != nil {
				return err
			}
			if _, err := loader.Compile(p); err != nil {
				return err
			}
			if *quiet {
				return nil
			}
			for _, w := range p.Warnings {
				fmt.Fprintf(e.stderr, "%v\n", w)
			}
			fmt.Fprintf(e.stdout, "%s: good: %d zones, %d lists, %d rules\n", args[0], len(p.Zones), len(p.Lists), len(p.Rules))
			return nil
		}
	},
}
