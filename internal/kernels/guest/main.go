// Guest is process 1 of the machines that make test-kernels starts: it mounts
// what tests need, loads the kernel's modules, runs the test programs one after
// the other and reports on the console.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// runArg tells the second process of this program that it is to run the tests.
const runArg = "run"

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == runArg {
		err = runTests()
	} else {
		err = begin()
		defer end()
	}
	if err != nil {
		fmt.Println("@@ error", err)
	}
}

// begin prepares the machine and waits for the process that runs the tests, while
// it reaps every process that loses its parent: tests ask whether one is gone.
func begin() error {
	if err := prepare(); err != nil {
		return err
	}
	child := exec.Command("/proc/self/exe", runArg)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.Env = environment()
	if err := child.Start(); err != nil {
		return fmt.Errorf("starting the tests: %w", err)
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for the tests: %w", err)
		}
		if pid == child.Process.Pid {
			return nil
		}
	}
}

// end resets the machine, which is started such that a reset ends it.
func end() {
	_ = unix.IoctlSetInt(1, unix.TCSBRK, 1) // waits until the console has sent all
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Println("@@ error resetting:", err)
	}
}

func environment() []string {
	return []string{
		"PATH=/bin",
		"HOME=/tmp",
		"CI=true",
		testnet.GuestEnv + "=1",
		"HYBRIDFW_CORPUS=/shared/corpus",
		"HYBRIDFW_BIN=/bin/hybridfw",
	}
}

func prepare() error {
	for _, m := range []struct{ kind, at, data string }{
		{"devtmpfs", "/dev", ""},
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"bpf", "/sys/fs/bpf", ""},
		{"tracefs", "/sys/kernel/tracing", ""},
		{"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/run", "mode=0755"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/core/bpf_jit_enable", []byte("1"), 0); err != nil {
		return fmt.Errorf("switching the JIT on: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking up lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// loadModules loads the files of /modules in the order of their names.
func loadModules() error {
	paths, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("loading module %s: %w", filepath.Base(path), err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// runTests runs every program that /tests lists, one a line: the folder to run it
// in, the program and its arguments.
func runTests() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	fmt.Println("@@ kernel", unix.ByteSliceToString(name.Release[:]))
	list, err := os.Open("/tests")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		cmd := exec.Command(fields[1], fields[2:]...)
		cmd.Dir = fields[0]
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		fmt.Println("@@ start", fields[0])
		err := cmd.Run()
		if cmd.ProcessState == nil {
			return fmt.Errorf("starting %s: %w", fields[1], err)
		}
		fmt.Println("\n@@ end", cmd.ProcessState.ExitCode())
	}
	if err := lines.Err(); err != nil {
		return err
	}
	fmt.Println("@@ done")
	return list.Close()
}
