// Package testnet builds small networks out of Linux network namespaces, for
// tests and for the demo: hosts, links, addresses, routes, real sockets and raw
// frames, all over netlink and without any other program.
package testnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isolatedEnv carries the namespaces that Isolate made to the process that it
// becomes. It is compared with the namespaces the process is really in, so that
// a value inherited or set by hand proves nothing.
const isolatedEnv = "HYBRIDFW_ISOLATED"

// ErrNotRoot says that namespaces cannot be made because the process is not root.
var ErrNotRoot = errors.New("network namespaces need root: run it as root")

// bpfFS is where the BPF file system is mounted.
const bpfFS = "/sys/fs/bpf"

// Isolate moves the whole process into a mount and network namespace of its own
// by executing it again, same process id, same arguments. There it returns nil.
// Nothing done afterwards to interfaces, netfilter, /run or the BPF file system
// can touch the machine or stay on it when the process and its children are gone.
//
// Call it first thing in main or TestMain: what the process did before is done
// a second time.
func Isolate() error {
	if Isolated() {
		return nil
	}
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the own program: %w", err)
	}
	failed := make(chan error)
	go func() {
		// Never unlocked: should a step fail, the half-moved thread ends with
		// this goroutine. Executing keeps the namespaces of this thread alone.
		runtime.LockOSThread()
		failed <- becomeIsolated(self)
	}()
	return fmt.Errorf("isolating the process: %w", <-failed)
}

// Isolated reports whether the process already is where Isolate puts it.
func Isolated() bool {
	here, err := namespaces()
	return err == nil && os.Getenv(isolatedEnv) == here
}

// becomeIsolated only returns when it could not.
func becomeIsolated(self string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making namespaces: %w", err)
	}
	if err := mountOwn(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	here, err := namespaces()
	if err != nil {
		return err
	}
	if err := os.Setenv(isolatedEnv, here); err != nil {
		return err
	}
	return fmt.Errorf("executing %s: %w", self, syscall.Exec(self, os.Args, os.Environ()))
}

// mountOwn gives the calling thread's new mount namespace its own /sys, which
// shows the interfaces of the new network namespace, BPF file system and /run.
func mountOwn() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	for _, m := range []struct{ kind, at, data string }{
		{"sysfs", "/sys", ""},
		{"bpf", bpfFS, "mode=0700"},
		{"tmpfs", "/run", "mode=0755"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.kind, m.at, err)
		}
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking up lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}

// namespaces names the calling thread's mount and network namespaces.
func namespaces() (string, error) {
	mnt, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return "", fmt.Errorf("reading the mount namespace: %w", err)
	}
	net, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return "", fmt.Errorf("reading the network namespace: %w", err)
	}
	return mnt + " " + net, nil
}

// Main is the TestMain of a package whose tests all need namespaces. It isolates
// the process, runs the tests and exits. Without root it says so and runs
// nothing, which is a failure where CI is set.
func Main(m interface{ Run() int }) {
	if err := Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "testnet: no test was run:", err)
		if !errors.Is(err, ErrNotRoot) || inCI() {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// MainMixed is the TestMain of a package of which only some tests need
// namespaces: those call Need. Without root the others run where they are.
func MainMixed(m interface{ Run() int }) {
	if err := Isolate(); err != nil && !errors.Is(err, ErrNotRoot) {
		fmt.Fprintln(os.Stderr, "testnet: no test was run:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
