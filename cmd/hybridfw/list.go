package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
)

var listCommand = command{
	name:    "list",
	args:    "rules",
	summary: "show the running policy's rules with their counters",
	about: `Shows the rules of the policy in force, in their order, and how many packets
each has judged: those that began flows, and those that it dropped. What the
flows carried afterwards is not among them. A reload goes on counting where a
rule's text is the same.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var p places
		asJSON := flags.Bool("json", false, "print JSON")
		p.declare(flags)
		return func(ctx context.Context, e env, args []string) error {
			if len(args) != 1 || args[0] != "rules" {
				return usagef("expected what to list: rules")
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, ok, err := askStatus(ctx, p.runDir)
			if err != nil {
				return err
			}
			if !ok {
				return errors.New("hybridfw is not running: its rules are known to the process alone")
			}
			return printRules(e.stdout, s.Hits, *asJSON)
		}
	},
}

func printRules(w io.Writer, hits []loader.RuleHits, asJSON bool) error {
	if asJSON {
		return printJSON(w, hits)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LINE\tRULE\tACTION\tPACKETS\tBYTES")
	for _, h := range hits {
		name := h.Rule
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%d\n", h.Line, name, h.Action, h.Packets, h.Bytes)
	}
	return t.Flush()
}
