package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxErrors is how many errors of one policy are shown. Whoever mends twenty
// runs the check again anyway.
const maxErrors = 20

// Error is one thing that is wrong with a policy or one of its list files. It
// is one line: file:line:column, what is wrong, what was expected.
type Error struct {
	File string
	Pos  Pos // zero where the whole file is meant; Column is 0 in list files
	Msg  string
	Err  error // the cause where the operating system gave one, else nil
}

// Error returns the error as one line.
func (e *Error) Error() string { return line(e.File, e.Pos, e.Msg) }

// Unwrap returns the cause, so that errors.Is finds fs.ErrNotExist and the like.
func (e *Error) Unwrap() error { return e.Err }

// Errors is all that is wrong with a policy, in order of position. Parse
// returns no other type of error.
type Errors struct {
	List []*Error
	More int // errors found beyond those in List
}

// Error returns one line per error.
func (e *Errors) Error() string {
	lines := make([]string, 0, len(e.List)+1)
	for _, one := range e.List {
		lines = append(lines, one.Error())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", e.More))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single errors.
func (e *Errors) Unwrap() []error {
	errs := make([]error, len(e.List))
	for i, one := range e.List {
		errs[i] = one
	}
	return errs
}

// Warning is something in a valid policy that has no effect or is unlikely to
// be meant.
type Warning struct {
	File string
	Pos  Pos
	Msg  string
}

// String returns the warning as one line, in the form of an Error.
func (w Warning) String() string { return line(w.File, w.Pos, w.Msg) }

// String returns "line:column", or "line" alone where there is no column.
func (p Pos) String() string {
	if p.Column == 0 {
		return fmt.Sprint(p.Line)
	}
	return fmt.Sprintf("%d:%d", p.Line, p.Column)
}

// compare orders by line, then by column.
func (p Pos) compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// line is the form of all messages: editors find the place in it.
func line(file string, pos Pos, msg string) string {
	if pos.Line == 0 {
		return file + ": " + msg
	}
	return fmt.Sprintf("%s:%v: %s", file, pos, msg)
}

// report collects what Parse finds.
type report struct {
	file     string
	errs     []*Error // the first maxErrors in order of position
	count    int      // of all errors
	warnings []Warning
}

// add keeps the error if it belongs to the first. A wrong file may have a
// million.
func (r *report) add(e *Error) {
	r.count++
	at := len(r.errs)
	for at > 0 && r.compare(e, r.errs[at-1]) < 0 {
		at--
	}
	if at < maxErrors {
		r.errs = slices.Insert(r.errs, at, e)
		r.errs = r.errs[:min(len(r.errs), maxErrors)]
	}
}

// compare orders by position. What is wrong in the policy itself comes before
// what is wrong in its list files.
func (r *report) compare(a, b *Error) int {
	switch {
	case a.File == b.File:
		return a.Pos.compare(b.Pos)
	case a.File == r.file:
		return -1
	case b.File == r.file:
		return 1
	}
	return cmp.Compare(a.File, b.File)
}

// errorf adds an error at a place in the policy.
func (r *report) errorf(pos Pos, format string, args ...any) {
	r.add(&Error{File: r.file, Pos: pos, Msg: fmt.Sprintf(format, args...)})
}

// warnf adds a warning at a place in the policy.
func (r *report) warnf(pos Pos, format string, args ...any) {
	r.warnings = append(r.warnings, Warning{File: r.file, Pos: pos, Msg: fmt.Sprintf(format, args...)})
}

// err returns what was found as an *Errors, or nil.
func (r *report) err() error {
	if r.count == 0 {
		return nil
	}
	return &Errors{List: r.errs, More: r.count - len(r.errs)}
}

// sortWarnings returns the warnings in order of position.
func (r *report) sortWarnings() []Warning {
	slices.SortStableFunc(r.warnings, func(a, b Warning) int { return a.Pos.compare(b.Pos) })
	return r.warnings
}

// quote shows a value in a message: on one line, and not longer than a line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%.*q...", most, s)
	}
	return fmt.Sprintf("%q", s)
}
