package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// console is what a guest prints, with the line ends of a serial line.
func console(lines ...string) []byte {
	return []byte(strings.Join(lines, "\r\n") + "\r\n")
}

// Lines of a test program under -test.v=test2json carry this mark.
const v = "\x16"

var goodRun = []string{
	"[    0.1] kernel says something",
	"@@ kernel 6.1.0-57-cloud-amd64",
	"@@ start /src/loader",
	v + "=== RUN   TestA",
	v + "--- PASS: TestA (0.01s)",
	v + "=== NAME  ",
	v + "=== RUN   TestB",
	"    b_test.go:7: TCX needs Linux 6.6, this is 6.1",
	v + "--- SKIP: TestB (0.00s)",
	v + "=== NAME  ",
	"PASS",
	"",
	"@@ end 0",
	"@@ start /src/tests/netns",
	v + "=== RUN   TestC",
	v + "=== RUN   TestC/sub",
	v + "--- PASS: TestC/sub (0.01s)",
	v + "=== NAME  TestC",
	v + "--- PASS: TestC (0.01s)",
	v + "=== NAME  ",
	"PASS",
	"@@ end 0",
	"@@ done",
	"[    9.9] reboot: Restarting system",
}

func TestGoodRunIsCounted(t *testing.T) {
	r, err := readConsole(context.Background(), console(goodRun...))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if !r.summary(&text, true) {
		t.Error("the run is said to have failed")
	}
	want := "6.1.0-57-cloud-amd64: skip loader TestB: b_test.go:7: TCX needs Linux 6.6, this is 6.1\n" +
		"6.1.0-57-cloud-amd64: 3 passed, 0 failed, 1 skipped\n"
	if text.String() != want {
		t.Errorf("summary\n%s\nwant\n%s", &text, want)
	}
}

// changed is goodRun with some lines replaced.
func changed(t *testing.T, from string, to ...string) []string {
	t.Helper()
	at := slices.Index(goodRun, from)
	if at < 0 {
		t.Fatalf("the good run has no line %q", from)
	}
	return slices.Concat(goodRun[:at], to, goodRun[at+1:])
}

func TestFailuresAreShownWithWhatTheTestPrinted(t *testing.T) {
	r, err := readConsole(context.Background(), console(changed(t, v+"--- PASS: TestA (0.01s)",
		"    a_test.go:3: the cause", v+"--- FAIL: TestA (0.01s)")...))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if r.summary(&text, true) {
		t.Error("the run is said to be good")
	}
	for _, part := range []string{"FAIL loader TestA\n", "the cause", ": 2 passed, 1 failed, 1 skipped\n"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("summary lacks %q:\n%s", part, &text)
		}
	}
}

func TestExitStatusCountsWhereNoTestFailed(t *testing.T) {
	r, err := readConsole(context.Background(), console(changed(t, "@@ end 0", "testnet: no test was run", "@@ end 1")...))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if r.summary(&text, true) || !strings.Contains(text.String(), "FAIL loader") || !strings.Contains(text.String(), "exit status 1") {
		t.Errorf("summary\n%s", &text)
	}
}

func TestPanicIsAFailure(t *testing.T) {
	r, err := readConsole(context.Background(), console(changed(t, v+"--- PASS: TestA (0.01s)",
		"panic: test timed out after 4m0s", "", "goroutine 1 [running]:", "@@ end 2", "@@ start /src/userspace")...))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if r.summary(&text, true) || !strings.Contains(text.String(), "test timed out") {
		t.Errorf("summary\n%s", &text)
	}
}

func TestSkipsThatSetUpCouldLiftAreFailures(t *testing.T) {
	const reason = "    b_test.go:7: TCX needs Linux 6.6, this is 6.1"
	for line, corpus := range map[string]bool{
		"    b_test.go:7: this kernel has no queue":                true,
		"    b_test.go:7: TCX needs Linux 6.1, this is odd":        true,
		"    b_test.go:7: TCX needs Linux 5.19":                    true,
		"    b_test.go:7: no captures: HYBRIDFW_CORPUS":            true,
		"    b_test.go:7: there are captures, but no HYBRIDFW_BIN": false,
	} {
		r, err := readConsole(context.Background(), console(changed(t, reason, line)...))
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if r.summary(&text, corpus) || !strings.Contains(text.String(), "not allowed here: "+strings.TrimSpace(line)) {
			t.Errorf("skip for %q is accepted:\n%s", line, &text)
		}
	}
	r, err := readConsole(context.Background(), console(changed(t, reason, "    b_test.go:7: no captures: HYBRIDFW_CORPUS")...))
	if err != nil {
		t.Fatal(err)
	}
	if !r.summary(&bytes.Buffer{}, false) {
		t.Error("a skip for the lack of captures that were not there is not accepted")
	}
}

func TestGuestThatEndsEarlyIsAnError(t *testing.T) {
	for n := range len(goodRun) - 2 {
		if _, err := readConsole(context.Background(), console(goodRun[:n]...)); err == nil {
			t.Errorf("a console that ends before %q is accepted", goodRun[n])
		}
	}
	_, err := readConsole(context.Background(), console("@@ error loading module veth.ko: no memory"))
	if err == nil || !strings.Contains(err.Error(), "loading module veth.ko: no memory") {
		t.Errorf("error %v, want the guest's", err)
	}
}

func TestRunWithoutAnyTestIsAFailure(t *testing.T) {
	r, err := readConsole(context.Background(), console("@@ kernel 6.1.0", "@@ start /src/x", "testing: warning: no tests to run", "PASS", "@@ end 0", "@@ done"))
	if err != nil {
		t.Fatal(err)
	}
	if r.summary(&bytes.Buffer{}, true) {
		t.Error("no test has run and all is said to be well")
	}
}

func TestGuestsOfOneKernelAreCountedTogether(t *testing.T) {
	one, other := kernel{release: "6.1.0"}, kernel{release: "6.12.1"}
	pass, fail := result{pkg: "a", test: "TestA", action: "pass", output: ""}, result{pkg: "b", test: "TestB", action: "fail", output: "    the cause\n"}
	guests := []*guest{
		{kernel: one, test: testPackage{path: "a"}, report: report{results: []result{pass, pass}}, took: time.Second},
		{kernel: one, test: testPackage{path: "b"}, report: report{results: []result{pass}}, took: time.Minute},
		{kernel: other, test: testPackage{path: "a"}, report: report{results: []result{pass, fail}}, took: time.Second},
	}
	var text bytes.Buffer
	if err := summarize(&text, guests[:2], true); err != nil {
		t.Error(err)
	}
	want := "6.1.0: 3 passed, 0 failed, 0 skipped\n6.1.0: time with booting: a 1s, b 1m0s\n"
	if text.String() != want {
		t.Errorf("summary\n%s\nwant\n%s", &text, want)
	}
	text.Reset()
	if err := summarize(&text, guests, true); !errors.Is(err, errTests) {
		t.Errorf("error %v, want %v", err, errTests)
	}
	if !strings.Contains(text.String(), "the cause") || !strings.Contains(text.String(), "6.12.1: 1 passed, 1 failed, 0 skipped\n") {
		t.Errorf("summary\n%s", &text)
	}
	guests[1].err = errors.New("the guest was killed")
	if err := summarize(&text, guests[:2], true); err == nil || !strings.Contains(err.Error(), "the guest was killed") {
		t.Errorf("error %v, want the guest's", err)
	}
}

func TestGuestThatHangsIsKilled(t *testing.T) {
	fakePrograms(t, map[string]string{"qemu-system-x86_64": "echo started\nexec sleep 600\n"})
	start := time.Now()
	out, err := machine{limit: 300 * time.Millisecond}.boot(context.Background())
	if err == nil || !strings.Contains(err.Error(), "not done in 300ms and was killed") {
		t.Errorf("error %v", err)
	}
	if string(out) != "started\n" {
		t.Errorf("console %q, want what was printed until then", out)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s to kill it", took)
	}
}

func TestMachineThatDoesNotStartIsAnError(t *testing.T) {
	fakePrograms(t, map[string]string{"qemu-system-x86_64": "exit 1\n"})
	if _, err := (machine{limit: time.Minute}).boot(context.Background()); err == nil || !strings.Contains(err.Error(), "running qemu") {
		t.Errorf("error %v", err)
	}
}

func TestSecondTryCountsWhereItPassed(t *testing.T) {
	first := report{release: "6.1.0", results: []result{
		{pkg: "a", test: "TestGood", action: "pass"},
		{pkg: "a", test: "TestSlow", action: "fail", output: "late\n"},
		{pkg: "a", test: "TestSlow/IPv6", action: "fail"},
		{pkg: "a", test: "TestBad", action: "fail"},
	}}
	if tests, ok := first.failed(); !ok || strings.Join(tests, " ") != "TestSlow TestBad" {
		t.Errorf("failed: %v, %v", tests, ok)
	}
	first.settle(report{results: []result{
		{pkg: "a", test: "TestSlow", action: "pass"}, {pkg: "a", test: "TestSlow/IPv6", action: "pass"},
		{pkg: "a", test: "TestBad", action: "fail"},
	}})
	var out strings.Builder
	if first.summary(&out, true) {
		t.Error("a test that failed twice is forgiven")
	}
	for _, want := range []string{"passed at the second try a TestSlow,", "late\n", "FAIL a TestBad", "3 passed, 1 failed, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	outside := report{results: []result{{pkg: "a", action: "fail"}}}
	if _, ok := outside.failed(); ok {
		t.Error("a failure outside of any test can be tried again")
	}
}
