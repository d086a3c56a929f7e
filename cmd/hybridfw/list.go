package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
)

var listCommand = command{
	name:    "list",
	args:    "rules|lists",
	summary: "show the running policy's rules or lists with their counters",
	about: `Shows the rules of the policy in force, in their order, and how many packets
each has judged: those that began flows, and those that it dropped. What the
flows carried afterwards is not among them. A reload goes on counting where a
rule's text is the same.

Or shows its lists, and what rules have judged by a list of addresses: a packet
counts for the first of a rule's lists that its source is in, and likewise for
its destination. A reload goes on counting where a list's name is the same.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var p places
		asJSON := flags.Bool("json", false, "print JSON")
		p.declare(flags)
		return func(ctx context.Context, e env, args []string) error {
			if len(args) != 1 || args[0] != "rules" && args[0] != "lists" {
				return usagef("expected what to list: rules or lists")
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, ok, err := askStatus(ctx, p.runDir)
			if err != nil {
				return err
			}
			if !ok {
				return errors.New("hybridfw is not running: its policy is known to the process alone")
			}
			if args[0] == "lists" {
				return printLists(e.stdout, s.Lists, *asJSON)
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

func printLists(w io.Writer, lists []loader.ListHits, asJSON bool) error {
	if asJSON {
		return printJSON(w, lists)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LINE\tLIST\tTYPE\tENTRIES\tPACKETS\tBYTES\tFILE")
	count := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(*n, 10)
	}
	for _, l := range lists {
		file := l.File
		if file == "" {
			file = "-"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%s\t%s\n", l.Line, l.List, l.Type, l.Entries, count(l.Packets), count(l.Bytes), file)
	}
	return t.Flush()
}
