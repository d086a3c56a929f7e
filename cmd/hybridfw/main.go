// Command hybridfw is a firewall for Linux edge hosts: it judges most packets in
// the kernel and sends only the uncertain ones to user space.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, env{stdout: os.Stdout, stderr: os.Stderr}, os.Args[1:]))
}
