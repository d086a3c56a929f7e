package testnet

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// enterArg0 as name of the program makes a process that has this package linked
// in enter a namespace and become another program. It stands in the arguments,
// not in the environment, because callers replace a command's environment.
const enterArg0 = "hybridfw-testnet-enter"

// init is where a process started by Command goes on: before main and before any
// test, because it is this very program that is started.
func init() {
	if len(os.Args) < 3 || os.Args[0] != enterArg0 {
		return
	}
	err := enter(os.Args[1], os.Args[2:])
	fmt.Fprintf(os.Stderr, "testnet: starting %s: %v\n", os.Args[2], err)
	os.Exit(125)
}

// Command returns a command whose process runs on the host, with a /sys that
// shows the host's interfaces and the BPF file system of the caller. It is killed
// when the network is closed or the caller dies. Start and wait for it as usual.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	ns := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.ns))
	path, lookErr := exec.LookPath(name)
	cmd := exec.CommandContext(h.net.ctx, self, append([]string{ns, path}, args...)...)
	cmd.Args[0] = enterArg0
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if cmd.Err == nil {
		cmd.Err = err
	}
	if cmd.Err == nil {
		cmd.Err = lookErr
	}
	return cmd
}

// enter only returns when it could not execute argv inside the namespace.
func enter(nsPath string, argv []string) error {
	runtime.LockOSThread()
	ns, err := unix.Open(nsPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the namespace: %w", err)
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the namespace: %w", err)
	}
	if err := sysfsHere(); err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// sysfsHere mounts a /sys that shows the network namespace of this thread, in a
// mount namespace of its own, and keeps the BPF file system that was below it.
func sysfsHere() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	pins := -1
	var fs unix.Statfs_t
	if err := unix.Statfs(bpfFS, &fs); err == nil && uint32(fs.Type) == unix.BPF_FS_MAGIC {
		pins, err = unix.OpenTree(unix.AT_FDCWD, bpfFS, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("keeping %s: %w", bpfFS, err)
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	if pins < 0 {
		return nil
	}
	if err := unix.MoveMount(pins, "", unix.AT_FDCWD, bpfFS, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s again: %w", bpfFS, err)
	}
	return unix.Close(pins)
}
