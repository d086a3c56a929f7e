package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits on a policy, which Parse refuses to exceed.
const (
	MaxRules    = 4096    // as many as the kernel half holds
	maxFile     = 4 << 20 // bytes of a policy file; long lists belong in list files
	maxListFile = 256 << 20
)

// defaultPolicy returns the values of all keys that a policy leaves out.
func defaultPolicy() *Policy {
	return &Policy{
		Defaults: Defaults{Input: ActionDrop, Forward: ActionDrop, Output: ActionAccept},
		Failure: Failure{
			NoListener: Closed,
			Overload:   Open,
			Undecided:  ActionAccept,
			Malformed:  ActionDrop,
			Midstream:  ActionInspect,
		},
		Queue:    defaultQueue,
		Timeouts: defaultTimeouts(),
		Marks:    Marks{Mask: 0x00ff_0000},
	}
}

// Budget of an inspecting rule that has no "until".
var defaultUntil = Until{Packets: 16, Bytes: 32 << 10}

// reader turns a tree into a policy.
type reader struct {
	report
	dir      string // list files are relative to it
	policy   *Policy
	zones    map[string]ZoneID
	lists    map[string]*List
	bad      map[string]bool // lists that are named in the policy but could not be read
	used     map[*List]bool
	prefixes int // in all lists
}

// Parse reads and checks a policy file and the list files it names. Its error
// is an *Errors with everything that is wrong.
func Parse(file string) (*Policy, error) {
	data, err := readFile(file, maxFile)
	if err != nil {
		return nil, &Errors{List: []*Error{err}}
	}
	return ParseBytes(file, data, filepath.Dir(file))
}

// ParseBytes is Parse for a policy that is in memory already. The name is the
// one that messages show, dir the folder to which list files are relative.
func ParseBytes(name string, data []byte, dir string) (*Policy, error) {
	p := &reader{
		report: report{file: name},
		dir:    dir,
		policy: defaultPolicy(),
		zones:  map[string]ZoneID{"host": ZoneHost},
		lists:  map[string]*List{},
		bad:    map[string]bool{},
		used:   map[*List]bool{},
	}
	p.policy.File = name
	if len(data) > maxFile {
		p.errorf(Pos{}, "is larger than %d MiB; put long lists into list files", maxFile>>20)
	} else if root := readYAML(&p.report, data); root != nil {
		p.read(root)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	p.policy.Warnings = p.sortWarnings()
	return p.policy, nil
}

// readFile reads a regular file. A FIFO or a device would block or never end.
func readFile(file string, most int64) ([]byte, *Error) {
	f, err := openFile(file, most)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The file may grow meanwhile: never read more than was allowed.
	data, cause := io.ReadAll(io.LimitReader(f, most))
	if cause != nil {
		return nil, fileError(file, cause)
	}
	return data, nil
}

// openFile opens a regular file of at most the given number of bytes.
func openFile(file string, most int64) (*os.File, *Error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fileError(file, err)
	}
	switch {
	case info.IsDir():
		return nil, &Error{File: file, Msg: "is a directory; expected a file"}
	case !info.Mode().IsRegular():
		return nil, &Error{File: file, Msg: "is a device, a socket or a pipe; expected a file"}
	case info.Size() > most:
		return nil, &Error{File: file, Msg: fmt.Sprintf("is larger than %d MiB", most>>20)}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fileError(file, err)
	}
	return f, nil
}

// fileError drops the name and the system call from the cause: the message has
// the name already.
func fileError(file string, err error) *Error {
	cause := err
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		cause = e.Err
	}
	return &Error{File: file, Msg: fmt.Sprintf("cannot be read: %v", cause), Err: err}
}

// read fills the policy. Zones and lists come first, whatever their order in
// the file, because rules name them.
func (p *reader) read(root *node) {
	top := p.keys(root, policyKeys)
	if top == nil {
		return
	}
	if v := top["version"]; v == nil {
		p.errorf(root.pos, "version is missing; expected version: 1")
	} else if v.kind != kindNumber {
		p.want(v, "the number 1")
	} else if v.text != "1" {
		p.invalid(v, "the number 1, which is the only version")
	}
	if v := top["zones"]; v == nil {
		p.errorf(root.pos, "zones is missing; expected at least one zone, such as zones: {wan: [eth0]}")
	} else {
		p.readZones(v)
	}
	if v := top["defaults"]; v != nil {
		p.readDefaults(v)
	}
	if v := top["failure"]; v != nil {
		p.readFailure(v)
	}
	if v := top["queue"]; v != nil {
		p.readQueue(v)
	}
	p.readOffload(top["offload"], &p.policy.Offload)
	if v := top["timeouts"]; v != nil {
		p.readTimeouts(v)
	}
	mask := root.pos
	if v := top["marks"]; v != nil {
		mask = p.readMarks(v)
	}
	if v := top["lists"]; v != nil {
		p.readLists(v)
	}
	if v := top["rules"]; v != nil {
		p.readRules(v)
	}
	p.checkMarks(mask)
	p.checkLimits()
	p.checkUse()
	p.checkDynamic()
}

// readDefaults lays the file's values over those that apply without it.
func (p *reader) readDefaults(n *node) {
	values := p.keys(n, defaultsKeys)
	d := &p.policy.Defaults
	p.action(values["input"], &d.Input, ActionAccept, ActionDrop)
	p.action(values["forward"], &d.Forward, ActionAccept, ActionDrop)
	p.action(values["output"], &d.Output, ActionAccept, ActionDrop)
}

// readFailure reads what happens on each kind of failure. The keys take
// different words: two are about all packets (open, closed), the others about
// one (accept, drop).
func (p *reader) readFailure(n *node) {
	values := p.keys(n, failureKeys)
	f := &p.policy.Failure
	p.mode(values["no_listener"], &f.NoListener)
	p.mode(values["overload"], &f.Overload)
	p.action(values["undecided"], &f.Undecided, ActionAccept, ActionDrop)
	p.action(values["malformed"], &f.Malformed, ActionAccept, ActionDrop)
	p.action(values["midstream"], &f.Midstream, ActionAccept, ActionDrop, ActionInspect)
}

// action reads one of the allowed actions; a missing key leaves the default.
func (p *reader) action(n *node, to *Action, allowed ...Action) bool {
	if n == nil {
		return true
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = a.String()
	}
	i := p.word(n, words, []string{"reject"})
	if i >= 0 {
		*to = allowed[i]
	}
	return i >= 0
}

// mode reads open or closed; a missing key leaves the default.
func (p *reader) mode(n *node, to *Mode) {
	if n == nil {
		return
	}
	switch p.word(n, []string{"open", "closed"}, nil) {
	case 0:
		*to = Open
	case 1:
		*to = Closed
	}
}

// readMarks returns the place of the mask, for what checkMarks has to say.
func (p *reader) readMarks(n *node) Pos {
	v := p.keys(n, marksKeys)["mask"]
	if v == nil {
		return n.pos
	}
	const want = "32 bits such as 0x00ff0000, with one run of at least two bits set"
	if !v.scalar() {
		p.want(v, want)
		return v.pos
	}
	mask, err := parseUint32(v.text)
	if err != nil {
		p.invalid(v, want)
		return v.pos
	}
	m := Marks{Mask: mask}
	if m.Bits() < 2 || mask>>m.Shift() != 1<<m.Bits()-1 {
		p.invalid(v, want)
		return v.pos
	}
	p.policy.Marks = m
	return v.pos
}

// parseUint32 reads a decimal or hexadecimal number. Octal is refused: 010
// means 8 to some programs and 10 to others.
func parseUint32(s string) (uint32, error) {
	if len(s) > 1 && s[0] == '0' && !strings.HasPrefix(s, "0x") && !strings.HasPrefix(s, "0X") {
		return 0, strconv.ErrSyntax
	}
	v, err := strconv.ParseUint(s, 0, 32)
	return uint32(v), err
}

// checkMarks refuses a mask without a value for each inspecting rule: user
// space knows by the mark which rule a packet has matched.
func (p *reader) checkMarks(pos Pos) {
	inspecting := 0
	for i := range p.policy.Rules {
		if p.policy.Rules[i].Action == ActionInspect {
			inspecting++
		}
	}
	if room := p.policy.Marks.Room(); inspecting > room {
		p.errorf(pos, "marks.mask 0x%08x has values for %d inspecting rules; expected a wider one for the policy's %d",
			p.policy.Marks.Mask, room, inspecting)
	}
}

// checkUse warns of lists without effect.
func (p *reader) checkUse() {
	for _, l := range p.policy.Lists {
		if !p.used[l] {
			p.warnf(l.Pos, "lists.%s is not used by any rule", l.Name)
		}
		if len(l.Prefixes) == 0 && l.Domains.Len() == 0 && l.Type != ListDynamic {
			p.warnf(l.Pos, "lists.%s is empty: what names it matches nothing", l.Name)
		}
	}
}
