package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/userspace"
)

var detachCommand = command{
	name:    "detach",
	summary: "remove everything from this host",
	about: `Takes the programs off all interfaces and removes pins and the nftables table,
also when the process that made them was killed. A process that still runs is
asked to stop first. Packets pass unjudged afterwards. Where there is nothing
to remove, nothing is done.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var p places
		p.declare(flags)
		patience := flags.Duration("timeout", 15*time.Second, "how long a running process may take to stop")
		return func(ctx context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, *patience)
			defer cancel()
			return detach(ctx, e, p)
		}
	},
}

func detach(ctx context.Context, e env, p places) error {
	stopped, err := stopRunning(ctx, p.runDir)
	if err != nil {
		return err
	}
	if stopped {
		fmt.Fprintln(e.stdout, "stopped the running process")
	}
	// In the order of the packet's way: first nothing is marked any more, then
	// nothing is queued. The table may go though packets are queued: nobody is
	// there to judge them.
	var steering userspace.Steering
	err = loader.Detach(p.pinDir)
	if errors.Is(err, loader.ErrInUse) {
		return err // by a process with another run folder: its table stays too
	}
	if err := errors.Join(err, steering.Remove(), cleanRunDir(p.runDir)); err != nil {
		return err
	}
	fmt.Fprintln(e.stdout, "nothing of hybridfw is attached")
	return nil
}
