package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/userspace"
)

// Status is what the status command prints: a snapshot of a running firewall, or
// of what a killed one has left.
type Status struct {
	Running    bool                     `json:"running"` // the process answers; else only kernel and hooks are known
	Version    string                   `json:"version,omitempty"`
	PID        int                      `json:"pid,omitempty"`
	Since      time.Time                `json:"since,omitzero"`
	Policy     string                   `json:"policy,omitempty"`
	Rules      int                      `json:"rules,omitempty"`
	Interfaces []loader.Interface       `json:"interfaces,omitempty"`
	Kernel     loader.Stats             `json:"kernel"`         // by hook, verdict and reason
	Hits       []loader.RuleHits        `json:"hits,omitempty"` // by rule
	Lists      []loader.ListHits        `json:"lists,omitempty"`
	Hooks      []userspace.HookCounters `json:"hooks"` // by netfilter hook: queued, and past the queue
	User       *userspace.Stats         `json:"user,omitempty"`
	NamesLost  uint64                   `json:"names_lost"` // not logged
}

var statusCommand = command{
	name:    "status",
	summary: "show what is guarded, and count packets by path",
	about: `Shows the running firewall: its interfaces, how many packets were judged where
and why, and what user space did with those that it was asked about. When the
process is gone but its kernel half still guards, that part is shown, and the
exit status is 1, as it is where nothing runs.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var p places
		asJSON := flags.Bool("json", false, "print JSON")
		p.declare(flags)
		return func(ctx context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			s, err := findStatus(ctx, p)
			if err != nil {
				return err
			}
			if err := printStatus(e.stdout, s, *asJSON); err != nil {
				return err
			}
			if !s.Running {
				return errors.New("the process is gone, its kernel half still guards: start it again, or remove it with 'hybridfw detach'")
			}
			return nil
		}
	},
}

// findStatus asks the process, or else reads what it left in the kernel.
func findStatus(ctx context.Context, p places) (Status, error) {
	s, ok, err := askStatus(ctx, p.runDir)
	if ok || err != nil {
		return s, err
	}
	if s.Kernel, err = loader.ReadStats(p.pinDir); err != nil {
		return s, err
	}
	var steering userspace.Steering
	if there, err := steering.Installed(); err != nil || !there {
		return s, err
	}
	s.Hooks, err = steering.Counters()
	return s, err
}

// status is the running process's own view.
func (d *daemon) status() (Status, error) {
	kernel, err := d.kernel.Stats()
	if err != nil {
		return Status{}, err
	}
	var hooks []userspace.HookCounters
	if d.steers.Load() {
		if hooks, err = d.steering.Load().Counters(); err != nil {
			return Status{}, err
		}
	}
	hits, err := d.kernel.Hits()
	if err != nil {
		return Status{}, err
	}
	lists, err := d.kernel.Lists()
	if err != nil {
		return Status{}, err
	}
	user := d.stage.Stats()
	p := d.policy.Load()
	return Status{
		Running:    true,
		Version:    versionText(),
		PID:        os.Getpid(),
		Since:      d.since,
		Policy:     p.File,
		Rules:      len(p.Rules),
		Interfaces: d.kernel.Interfaces(),
		Kernel:     kernel,
		Hits:       hits,
		Lists:      lists,
		Hooks:      hooks,
		User:       &user,
		NamesLost:  d.names.lost.Load(),
	}, nil
}

func printStatus(w io.Writer, s Status, asJSON bool) error {
	if asJSON {
		return printJSON(w, s)
	}
	if s.Running {
		fmt.Fprintf(w, "running: process %d since %s, policy %s with %d rules\n\n",
			s.PID, s.Since.Format(time.DateTime), s.Policy, s.Rules)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(s.Interfaces) > 0 {
		fmt.Fprintln(t, "INTERFACE\tZONE\tXDP\tTC")
		for _, i := range s.Interfaces {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", i.Name, i.Zone, i.XDP, i.TC)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "PATH\tVERDICT\tREASON\tPACKETS\tBYTES")
	for _, c := range s.Kernel {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\n", c.Hook, c.Verdict, c.Reason, c.Packets, c.Bytes)
	}
	for _, h := range s.Hooks {
		printCount(t, "nft "+h.Hook, "queue", "mark", h.Queued)
		printCount(t, "nft "+h.Hook, "pass", "not queued", h.Past)
	}
	if s.User != nil {
		printUser(t, s.User.Counters)
	}
	return t.Flush()
}

// printJSON prints what a command shows for programs to read.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printUser prints the verdicts of user space, then the reasons for them.
func printUser(w io.Writer, c userspace.Counters) {
	for _, v := range []struct {
		verdict, reason string
		packets         uint64
	}{
		{"accept", "all", c.Accepted}, {"drop", "all", c.Dropped}, {"rewrite", "all", c.Rewritten},
		{"all", "step", c.Step}, {"all", "more", c.More}, {"all", "undecided", c.Undecided},
		{"all", "malformed", c.Malformed}, {"all", "overload", c.Overload}, {"all", "unmarked", c.Unmarked},
	} {
		printCount(w, "user", v.verdict, v.reason, v.packets)
	}
}

func printCount(w io.Writer, path, verdict, reason string, packets uint64) {
	if packets > 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t-\n", path, verdict, reason, packets)
	}
}
