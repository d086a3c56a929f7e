package testnet

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TB is the part of testing.TB that this package uses; naming it here keeps the
// testing package out of the hybridfw binary.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Logf(format string, args ...any)
}

// GuestEnv is set to 1 where tests run inside one of Debian's kernels.
const GuestEnv = "HYBRIDFW_GUEST"

func inCI() bool { return os.Getenv("CI") == "true" }

// InGuest reports whether the tests run inside one of Debian's kernels (make
// test-kernels), which have everything as modules that a distribution has.
func InGuest() bool { return os.Getenv(GuestEnv) == "1" }

// Need skips the test where the process is not isolated. In CI that is a
// failure, because it could be lifted there.
func Need(tb TB) {
	tb.Helper()
	if !Isolated() {
		SkipOrFail(tb, ErrNotRoot.Error())
	}
}

// SkipOrFail skips the test for a reason that a well set up machine does not
// have; in CI it fails instead.
func SkipOrFail(tb TB, reason string) {
	tb.Helper()
	if inCI() {
		tb.Fatalf("not skipped in CI: %s", reason)
	}
	tb.Skipf("skipped: %s", reason)
}

// NeedLinux skips the test on kernels older than major.minor, where what does
// not exist. No set-up can lift this, so it is a skip in CI too.
func NeedLinux(tb TB, major, minor int, what string) {
	tb.Helper()
	haveMajor, haveMinor, err := linuxVersion()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	if haveMajor < major || haveMajor == major && haveMinor < minor {
		tb.Skipf("%s needs Linux %d.%d, this is %d.%d", what, major, minor, haveMajor, haveMinor)
	}
}

// SkipUnlessGuest skips the test because this machine's kernel was built without
// what. Inside one of Debian's kernels, which have it, that is a failure.
func SkipUnlessGuest(tb TB, what string) {
	tb.Helper()
	if InGuest() {
		tb.Fatalf("%s is missing in a kernel that is known to have it", what)
	}
	tb.Skipf("skipped: this kernel was built without %s; make test-kernels tests it", what)
}

func linuxVersion() (major, minor int, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return 0, 0, fmt.Errorf("asking for the kernel's version: %w", err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("reading kernel release %q: %w", release, err)
	}
	return major, minor, nil
}
