package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// machine is how a guest is started.
type machine struct {
	kernel  kernel
	initrd  string
	memory  int // MiB
	limit   time.Duration
	console io.Writer // gets a copy of what the guest prints; may be nil
}

// boot starts a guest and returns what it printed when it has ended by itself. A
// guest that is not done in time is killed, which is an error.
func (m machine) boot(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	// Emulated with one processor: with two, Debian's 6.12 panics when XDP
	// programs are swapped. A microvm has no power switch; the guest resets
	// itself, and -no-reboot makes an end of that and of a panic.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-machine", "microvm,acpi=off,pit=on,pic=on,rtc=on,isa-serial=on",
		"-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", fmt.Sprint(m.memory),
		"-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot",
		"-kernel", m.kernel.image, "-initrd", m.initrd,
		"-append", "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr random.trust_cpu=on")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var printed bytes.Buffer
	cmd.Stdout = &printed
	if m.console != nil {
		cmd.Stdout = io.MultiWriter(&printed, m.console)
	}
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return printed.Bytes(), fmt.Errorf("the guest was not done in %s and was killed", m.limit)
	}
	if err != nil {
		return printed.Bytes(), fmt.Errorf("running qemu: %w", err)
	}
	return printed.Bytes(), nil
}
