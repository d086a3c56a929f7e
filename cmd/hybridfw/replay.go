package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/internal/pcap"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

var replayCommand = command{
	name:    "replay",
	args:    "PCAP",
	summary: "show what would be seen in a capture, and decided",
	about: `Reads a capture (pcap or pcapng, "-" is standard input) and shows each name
that the inspectors see in it: in DNS questions, TLS, DTLS and QUIC hellos and
HTTP requests, on any port, and each connection of another known protocol, with
the frame at which it became known and the verdict that the policy has for it.
Nothing on the host is touched.

A capture knows no interfaces: conditions on zones hold for every packet, unless
--from and --to say which zones its connections go between. Fragments are put
together, though inspecting rules count them as malformed. With --json each
line is one object with packet, kind, name, proto, src, sport, dst, dport,
verdict and rule, and what else is known.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var o replayOptions
		flags.StringVar(&o.policy, "policy", "", "policy file; without one everything is accepted")
		flags.StringVar(&o.from, "from", "", "zone that connections come from")
		flags.StringVar(&o.to, "to", "", "zone that connections go to")
		flags.BoolVar(&o.json, "json", false, "print one JSON object a line")
		return func(ctx context.Context, e env, args []string) error {
			if len(args) != 1 {
				return usagef("expected one capture file")
			}
			return replay(ctx, e, o, args[0])
		}
	},
}

type replayOptions struct {
	policy, from, to string
	json             bool
}

// sightingLine is what is printed about a name.
type sightingLine struct {
	Packet   int    `json:"packet"` // number of the frame in the file, from 1
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Proto    string `json:"proto"`
	Src      string `json:"src"`
	Sport    uint16 `json:"sport"`
	Dst      string `json:"dst"`
	Dport    uint16 `json:"dport"`
	Verdict  string `json:"verdict"`
	Rule     string `json:"rule"` // "" where a default decides
	Response bool   `json:"response,omitempty"`

	Answers []netip.Addr `json:"answers,omitempty"` // the addresses in it

	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Agent    string `json:"agent,omitempty"`
	ALPN     string `json:"alpn,omitempty"`
	ECH      bool   `json:"ech,omitempty"`
	JA4      string `json:"ja4,omitempty"`
	Versions string `json:"versions,omitempty"`
	Resumes  bool   `json:"resumes,omitempty"`
}

// replayer takes packets from a capture to the inspectors.
type replayer struct {
	policy   *policy.Policy
	engine   *userspace.Replay
	from, to policy.ZoneID

	out    *bufio.Writer
	json   *json.Encoder // nil for lines that people read
	failed error         // of writing

	fragments  fragments
	fragmented bool // the packet at hand was

	packet int // the frame at hand
	header policy.Result
	names  map[string]int // by kind
}

func replay(ctx context.Context, e env, o replayOptions, file string) error {
	r, err := newReplayer(e, o)
	if err != nil {
		return err
	}
	in := os.Stdin
	if file != "-" {
		if in, err = os.Open(file); err != nil {
			return fmt.Errorf("reading the capture: %w", err)
		}
		defer in.Close()
	}
	err = r.read(ctx, in, newProgress(e.stderr))
	if err != nil {
		err = fmt.Errorf("reading %s: %w", file, err)
	}
	err = errors.Join(err, r.out.Flush(), r.failed)
	r.summary(e.stderr)
	return err
}

func newReplayer(e env, o replayOptions) (r *replayer, err error) {
	r = &replayer{out: bufio.NewWriter(e.stdout), names: make(map[string]int)}
	if o.json {
		r.json = json.NewEncoder(r.out)
		r.json.SetEscapeHTML(false)
	}
	r.policy = &policy.Policy{Defaults: policy.Defaults{
		Input: policy.ActionAccept, Forward: policy.ActionAccept, Output: policy.ActionAccept},
		Failure: policy.Observe().Failure, Marks: policy.Observe().Marks}
	if o.policy != "" {
		if r.policy, err = policy.Parse(o.policy); err != nil {
			return nil, err
		}
	}
	if r.from, err = zoneNamed(r.policy, o.from); err != nil {
		return nil, err
	}
	if r.to, err = zoneNamed(r.policy, o.to); err != nil {
		return nil, err
	}
	for i := range r.policy.Rules {
		rule := &r.policy.Rules[i]
		if o.from == "" {
			rule.From = policy.ZoneNone
		}
		if o.to == "" {
			rule.To = policy.ZoneNone
		}
	}
	r.engine, err = userspace.NewReplay(userspace.Options{
		Policy: r.policy, Flows: 1 << 16, StreamMemory: 16 << 20, Seen: r.seen,
	})
	return r, err
}

// zoneNamed finds a zone that the command line names.
func zoneNamed(p *policy.Policy, name string) (policy.ZoneID, error) {
	switch name {
	case "":
		return policy.ZoneNone, nil
	case "host":
		return policy.ZoneHost, nil
	}
	var all []string
	for i, z := range p.Zones {
		if z.Name == name {
			return policy.ZoneID(i + 1), nil
		}
		all = append(all, z.Name)
	}
	return 0, usagef("the policy has no zone %q; expected host or one of its zones: %s", name, strings.Join(all, ", "))
}

// read takes all packets of a capture.
func (r *replayer) read(ctx context.Context, in io.Reader, progress *progress) error {
	defer progress.end()
	capture, err := pcap.NewReader(in)
	if err != nil {
		return err
	}
	for {
		p, err := capture.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("packet %d: %w", r.packet+1, err)
		}
		r.packet++
		if r.packet%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress.show(r.packet)
		}
		if _, ip, ok := p.IP(); ok {
			r.take(ip, len(ip)+p.Len-len(p.Data), p.Time)
		}
		if r.failed != nil {
			return nil // it is reported once
		}
	}
}

// take judges a packet, or a datagram of which it is the last fragment.
func (r *replayer) take(ip []byte, wire int, at time.Time) {
	piece, ok := readFragment(ip)
	if r.fragmented = ok; !ok {
		r.judge(ip, wire, at)
		return
	}
	if whole, ok := r.fragments.add(&piece); ok {
		r.judge(whole, len(whole), at)
	}
}

// questions are ports on which datagrams are DNS, with what it is called there.
var questions = map[uint16]string{53: "dns", 5353: "mdns", 5355: "llmnr", 8053: "dns"}

// judge matches a packet's headers and shows its content to the inspectors.
func (r *replayer) judge(ip []byte, wire int, at time.Time) {
	var v pktbuf.View
	family := pktbuf.IPv4
	if ip[0]>>4 == 6 {
		family = pktbuf.IPv6
	}
	how := userspace.LookForNames
	r.header = policy.Result{Rule: -1, Action: r.policy.Defaults.Forward}
	if v.Init(family, ip, nil) == nil && v.Parse() == nil {
		if flow, ok := v.Flow(); ok && !v.IsFragment() {
			r.header = r.match(flow)
			if questions[flow.DstPort()] != "" || questions[flow.SrcPort()] != "" {
				how = userspace.LookForQuestions
			}
		}
	}
	if r.header.Action == policy.ActionInspect {
		how = r.header.Rule
	}
	r.engine.Judge(ip, how, wire, at)
}

// match finds the rule for the first packet of a flow. A response is judged as
// the question was that it answers.
func (r *replayer) match(flow pktbuf.Flow) policy.Result {
	if questions[flow.SrcPort()] != "" && questions[flow.DstPort()] == "" {
		flow = flow.Reverse()
	}
	p := policy.Packet{From: r.from, To: r.to, Src: flow.Src().Addr(), Dst: flow.Dst().Addr(), Proto: flow.Proto(),
		Sport: flow.SrcPort(), Dport: flow.DstPort()}
	p.HasPorts = p.Proto == pktbuf.ProtoTCP || p.Proto == pktbuf.ProtoUDP
	if p.Proto == pktbuf.ProtoTCP {
		p.TCPFlags = pktbuf.FlagSYN
	}
	return r.policy.Match(&p)
}

// seen prints a name.
func (r *replayer) seen(s userspace.Sighting) {
	line := sightingLine{
		Packet: r.packet, Kind: s.Kind, Name: s.Name, Proto: "tcp",
		Src: s.Flow.Src().Addr().String(), Sport: s.Flow.SrcPort(), Dst: s.Flow.Dst().Addr().String(), Dport: s.Flow.DstPort(),
		Verdict: s.Action.String(), Response: s.Response, Answers: s.Answers,
		Method: s.Method, Path: s.Path, Agent: s.Agent, ALPN: s.ALPN, ECH: s.ECH, JA4: s.JA4, Versions: s.Versions, Resumes: s.Resumes,
	}
	if s.Flow.Proto() == pktbuf.ProtoUDP {
		line.Proto = "udp"
	}
	if line.Kind == "dns" {
		for _, port := range []uint16{line.Dport, line.Sport} {
			if kind := questions[port]; kind != "" {
				line.Kind = kind
				break
			}
		}
	}
	switch {
	case s.Rule < 0:
		line.Verdict = r.header.Action.String()
	case r.fragmented:
		line.Verdict = r.policy.Failure.Malformed.String()
	}
	if r.header.Rule >= 0 {
		line.Rule = r.policy.Rules[r.header.Rule].Name
	}
	r.names[line.Kind]++
	if err := r.print(&line); err != nil && r.failed == nil {
		r.failed = fmt.Errorf("writing what was seen: %w", err)
	}
}

func (r *replayer) print(line *sightingLine) error {
	if r.json != nil {
		return r.json.Encode(line)
	}
	by := "default"
	if line.Rule != "" {
		by = line.Rule
	}
	kind := line.Kind
	if line.Response {
		kind += " response"
	}
	_, err := fmt.Fprintf(r.out, "%d %s %q %s %s port %d > %s port %d %s by %s\n", line.Packet, kind, line.Name, line.Proto,
		line.Src, line.Sport, line.Dst, line.Dport, line.Verdict, by)
	return err
}

// summary says how much there was.
func (r *replayer) summary(w io.Writer) {
	var kinds []string
	total := 0
	for kind, n := range r.names {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, n))
		total += n
	}
	sort.Strings(kinds)
	c := r.engine.Counters()
	fmt.Fprintf(w, "%d packets, %d names (%s), %d packets or messages malformed, %d flows undecided\n",
		r.packet, total, strings.Join(kinds, ", "), c.Malformed, c.Undecided)
}

// progress is a line on a terminal that says how far a long capture is read.
type progress struct {
	w    io.Writer // nil where there is no terminal
	next time.Time
	long bool // something has been shown
}

func newProgress(w io.Writer) *progress {
	file, ok := w.(*os.File)
	if !ok {
		return &progress{}
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return &progress{}
	}
	return &progress{w: w, next: time.Now().Add(time.Second)}
}

func (p *progress) show(packets int) {
	if p.w == nil || time.Now().Before(p.next) {
		return
	}
	p.next, p.long = time.Now().Add(time.Second/4), true
	fmt.Fprintf(p.w, "\r%d packets", packets)
}

func (p *progress) end() {
	if p.long {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
