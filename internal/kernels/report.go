package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// result is one test's outcome in a guest.
type result struct {
	pkg, test string // test is "" for what the package did outside of any test
	action    string // pass, fail or skip
	output    string
	again     bool // passed when it was run a second time
}

// report is what a guest said.
type report struct {
	release string // of the kernel that really ran
	results []result
}

// readConsole takes a guest's console apart. A guest that stopped early, in the
// middle of a test or without having said that it was done, is an error; the
// report then holds what had come.
func readConsole(ctx context.Context, console []byte) (report, error) {
	var r report
	var pkg string
	var section bytes.Buffer
	done := false
	for line := range strings.Lines(strings.ReplaceAll(string(console), "\r\n", "\n")) {
		mark, ok := strings.CutPrefix(line, "@@ ")
		fields := strings.Fields(mark)
		if !ok || len(fields) == 0 {
			if pkg != "" {
				section.WriteString(line)
			}
			continue
		}
		switch {
		case fields[0] == "kernel" && len(fields) == 2:
			r.release = fields[1]
		case fields[0] == "start" && len(fields) == 2:
			pkg = strings.TrimPrefix(fields[1], "/"+guestRoot+"/")
			section.Reset()
		case fields[0] == "end" && len(fields) == 2:
			if err := r.add(ctx, pkg, section.Bytes(), fields[1]); err != nil {
				return r, err
			}
			pkg = ""
		case fields[0] == "done":
			done = true
		default:
			return r, fmt.Errorf("the guest says: %s", strings.TrimSpace(mark))
		}
	}
	if pkg != "" {
		err := r.add(ctx, pkg, section.Bytes(), "none")
		return r, errors.Join(fmt.Errorf("the guest ended in the tests of %s", pkg), err)
	}
	if !done {
		return r, errors.New("the guest ended early")
	}
	return r, nil
}

// add turns one test program's output into results.
func (r *report) add(ctx context.Context, pkg string, output []byte, status string) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(output)
	events, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go tool test2json: %w", err)
	}
	printed := make(map[string]string)
	failed := false
	decoder := json.NewDecoder(bytes.NewReader(events))
	for {
		var e struct{ Action, Test, Output string }
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("reading test2json: %w", err)
		}
		switch e.Action {
		case "output":
			printed[e.Test] += e.Output
		case "pass", "fail", "skip":
			if e.Test != "" {
				failed = failed || e.Action == "fail"
				r.results = append(r.results, result{pkg: pkg, test: e.Test, action: e.Action, output: printed[e.Test]})
			}
		}
	}
	if status != "0" && !failed {
		r.results = append(r.results, result{pkg: pkg, action: "fail", output: tail(output, 60) + "\nexit status " + status + "\n"})
	}
	return nil
}

// failed names the top-level tests that failed. ok is false where something
// failed outside of any test.
func (r report) failed() (tests []string, ok bool) {
	for _, res := range r.results {
		if res.action != "fail" {
			continue
		}
		if res.test == "" {
			return nil, false
		}
		top, _, _ := strings.Cut(res.test, "/")
		if !slices.Contains(tests, top) {
			tests = append(tests, top)
		}
	}
	return tests, true
}

// settle takes over from a second run what passed there.
func (r *report) settle(second report) {
	for i := range r.results {
		res := &r.results[i]
		if res.action != "fail" {
			continue
		}
		for _, s := range second.results {
			if s.pkg == res.pkg && s.test == res.test && s.action == "pass" {
				res.action, res.again = "pass", true
			}
		}
	}
}

// summary writes a line for each failure, with what the test printed, and for
// each skip, then the counts. It reports whether all is well.
func (r report) summary(w io.Writer, corpus bool) bool {
	var passed, failed, skipped int
	for _, res := range r.results {
		switch {
		case res.action == "pass" && res.again:
			passed++
			fmt.Fprintf(w, "%s: passed at the second try %s %s, which failed at first\n%s", r.release, res.pkg, res.test, res.output)
		case res.action == "pass":
			passed++
		case res.action == "skip" && r.mayskip(res.output, corpus):
			skipped++
			fmt.Fprintf(w, "%s: skip %s %s: %s\n", r.release, res.pkg, res.test, reason(res.output))
		case res.action == "skip":
			failed++
			fmt.Fprintf(w, "%s: FAIL %s %s: skipped, which is not allowed here: %s\n",
				r.release, res.pkg, res.test, reason(res.output))
		default:
			failed++
			fmt.Fprintf(w, "%s: FAIL %s %s\n%s", r.release, res.pkg, res.test, res.output)
		}
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped\n", r.release, passed, failed, skipped)
	return failed == 0 && passed > 0
}

var needsLinux = regexp.MustCompile(`needs Linux (\d+)\.(\d+)`)

// mayskip says which skips no set-up of the guest could lift: of what came with a
// later kernel, and of captures that are not there.
func (r report) mayskip(output string, corpus bool) bool {
	if !corpus && strings.Contains(output, "HYBRIDFW_CORPUS") {
		return true
	}
	m := needsLinux.FindStringSubmatch(output)
	if m == nil {
		return false
	}
	var have, want [2]int
	if _, err := fmt.Sscanf(r.release, "%d.%d", &have[0], &have[1]); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(m[1]+"."+m[2], "%d.%d", &want[0], &want[1]); err != nil {
		return false
	}
	return have[0] < want[0] || have[0] == want[0] && have[1] < want[1]
}

// reason is the line in which a test says why it is skipped.
func reason(output string) string {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "    ") {
			return strings.TrimSpace(line)
		}
	}
	return "no reason given"
}
