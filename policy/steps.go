package policy

import (
	"slices"
	"strings"
)

// NameKind says what an inspector has seen.
type NameKind uint8

const (
	NameNone  NameKind = iota // nothing that has a name: neither a TLS hello nor a DNS question
	NameSNI                   // a ClientHello, its server name or, empty, that it has none
	NameQName                 // a DNS question; the root has the empty name
	NameHost                  // an HTTP request, its host or, empty, that it names none
)

// Sight is one thing that an inspector has seen. Its bytes are the inspector's,
// and good until it looks at the next packet.
type Sight struct {
	Kind NameKind
	L7   L7     // the protocol
	Name []byte // in any case, with or without a final dot; empty where there is none

	// NameQName: the question's type, and whether it is that of a response.
	QType    uint16
	Response bool

	// Of an HTTP request. The path has its escapes decoded and no query.
	Method, Path, Agent []byte

	// Of a hello: its body, the protocols and the versions offered as in the
	// extensions, whether an encrypted hello is offered, in which case Name is the
	// outer one, and whether it asks to resume a session.
	Hello    []byte
	ALPN     []byte
	Versions []byte // empty where there is no such extension
	ECH      bool
	Resumes  bool
	JA4      string // the fingerprint, filled in where a step asks for it
}

// MatchStep returns the first step that decides about what was seen, or -1, and
// whether a step up to it says log. Where no step decides, the flow stays
// undecided.
//
// A step on sni matches nothing but a hello with a name in its pattern or list, one
// on alpn, ech or ja4 nothing but such a hello, one on qname or qtype nothing but
// such a DNS question, one on host or path nothing but such an HTTP request, one on
// list nothing without a name; a step without a condition matches everything.
// MatchStep does not allocate.
func (r *Rule) MatchStep(seen *Sight) (step int, log bool) {
	for i := range r.Steps {
		s := &r.Steps[i]
		if !s.match(seen) {
			continue
		}
		log = log || s.Log
		if s.Action != ActionNone {
			return i, log
		}
	}
	return -1, log
}

// match tells whether the step's conditions hold for what was seen.
func (s *Step) match(seen *Sight) bool {
	return (s.SNI.Any() || seen.Kind == NameSNI && s.SNI.Match(seen.Name)) &&
		(s.QName.Any() || seen.Kind == NameQName && s.QName.Match(seen.Name)) &&
		(len(s.QType) == 0 || seen.Kind == NameQName && slices.Contains(s.QType, seen.QType)) &&
		(s.Host.Any() || seen.Kind == NameHost && s.Host.Match(seen.Name)) &&
		(s.Path == "" || seen.Kind == NameHost && matchPath(s.Path, seen.Path)) &&
		(s.ALPN == "" || seen.Kind == NameSNI && offers(seen.ALPN, s.ALPN)) &&
		(s.ECH == nil || seen.Kind == NameSNI && *s.ECH == seen.ECH) &&
		(len(s.JA4) == 0 || seen.Kind == NameSNI && matchJA4(s.JA4, seen.JA4)) &&
		(s.List.Any() || seen.Kind != NameNone && s.List.Match(seen.Name)) &&
		(s.L7 == 0 || s.L7.Has(seen.L7)) &&
		(s.Direction == 0 || (s.Direction == DirectionResponse) == seen.Response)
}

// HasCondition tells whether the step does not match everything.
func (s *Step) HasCondition() bool {
	return s.AsksForHello() || s.AsksForQuestion() || s.AsksForRequest() || !s.List.Any() || s.L7 != 0 || s.Direction != 0
}

// AsksForHello tells whether the step has a condition on what a hello says.
func (s *Step) AsksForHello() bool {
	return !s.SNI.Any() || s.ALPN != "" || s.ECH != nil || len(s.JA4) > 0
}

// AsksForQuestion tells whether the step has a condition on DNS questions.
func (s *Step) AsksForQuestion() bool { return !s.QName.Any() || len(s.QType) > 0 }

// AsksForJA4 tells whether a step of the rule has a condition on a hello's
// fingerprint, which costs more than all others to look at.
func (r *Rule) AsksForJA4() bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool { return len(s.JA4) > 0 })
}

// AsksForRequest tells whether the step has a condition on HTTP requests.
func (s *Step) AsksForRequest() bool { return !s.Host.Any() || s.Path != "" }

// offers tells whether a protocol is in the list of a hello's ALPN extension.
func offers(list []byte, protocol string) bool {
	for len(list) > 0 && int(list[0]) < len(list) {
		end := 1 + int(list[0])
		if string(list[1:end]) == protocol {
			return true
		}
		list = list[end:]
	}
	return false
}

// matchJA4 tells whether a fingerprint is one of those given, or begins like one.
func matchJA4(all []string, fingerprint string) bool {
	for _, one := range all {
		begin, cut := strings.CutSuffix(one, "*")
		if fingerprint == one || cut && strings.HasPrefix(fingerprint, begin) {
			return true
		}
	}
	return false
}

// matchPath tells whether a path is the pattern, or begins with what stands in
// front of the pattern's final "*".
func matchPath(pattern string, path []byte) bool {
	n := len(pattern) - 1
	if pattern[n] == '*' {
		return len(path) >= n && string(path[:n]) == pattern[:n]
	}
	return string(path) == pattern
}

// Any tells whether there is no condition on the name.
func (m *NameMatch) Any() bool { return m.Domains == nil && m.Pattern == "" }

// Match tells whether the name matches the pattern or is in the list. The
// empty name does so only where there is no condition.
func (m *NameMatch) Match(name []byte) bool {
	return m.Any() || m.Domains != nil && m.Domains.Match(name)
}

// IsReply tells, where a rule wants replies, whether a packet between two ports is one.
func (r *Rule) IsReply(sport, dport uint16) bool {
	return matchPort(r.Dport, sport, true) && !matchPort(r.Dport, dport, true)
}

// WantsReplies tells whether what the other side sends is looked at, too.
func (r *Rule) WantsReplies() bool {
	return r.Learns || r.Rewrites() || slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Direction == DirectionResponse })
}

// Rewrites tells whether a step of the rule changes packets.
func (r *Rule) Rewrites() bool {
	for i := range r.Steps {
		if r.Steps[i].Action == ActionRewrite {
			return true
		}
	}
	return false
}

var stepActions = []Action{ActionAccept, ActionDrop, ActionRewrite}

// readSteps reads all steps and warns of those that come too late.
func (p *reader) readSteps(r *Rule, n *node) {
	decided := ""
	for _, item := range n.items {
		values := p.keys(item, stepKeys)
		if values == nil {
			continue
		}
		s := Step{Pos: item.pos}
		p.readStep(&s, item, values)
		p.checkStep(r, &s, values)
		if s.Action == ActionRewrite {
			p.checkRewrite(r, item)
		}
		if decided != "" {
			p.warnf(item.pos, "%s can never match: %s before it decides everything", item.path(), decided)
		}
		if !s.HasCondition() && values["action"] != nil && decided == "" {
			decided = item.path()
		}
		r.Steps = append(r.Steps, s)
	}
}

// readStep reads a step and checks its keys against each other.
func (p *reader) readStep(s *Step, n *node, values map[string]*node) {
	p.nameMatch(values["sni"], &s.SNI)
	p.nameMatch(values["qname"], &s.QName)
	p.qtype(values["qtype"], s)
	p.nameMatch(values["host"], &s.Host)
	p.pathMatch(values["path"], s)
	p.helloMatch(values, s)
	p.ja4Match(values["ja4"], s)
	p.listMatch(values["list"], &s.List)
	p.l7(values["proto_l7"], s)
	p.direction(values["direction"], s)
	sound := p.action(values["action"], &s.Action, stepActions...)
	if v := values["log"]; v != nil {
		if v.kind != kindBool {
			p.want(v, "true or false")
			sound = false
		} else {
			s.Log = strings.EqualFold(v.text, "true")
		}
	}
	p.checkTogether(n, s, values)
	if sound && s.Action == ActionNone && !s.Log {
		p.errorf(n.pos, "%s has no effect; expected an action, log: true or both", n.path())
	}
	answer := values["answer"]
	if answer != nil {
		s.Answer = p.answer(answer)
	}
	if v := values["ttl"]; v != nil {
		var ttl int
		p.number(v, &ttl, maxAnswerTTL)
		if s.Answer == nil {
			p.errorf(v.pos, "%s has no effect without an answer; expected action: rewrite and an answer", v.path())
		} else if s.Answer.TTL = ttl; len(s.Answer.Addrs) == 0 {
			p.errorf(v.pos, "%s has no effect on an answer without records; expected addresses in answer", v.path())
		}
	}
	switch {
	case !sound:
	case s.Action == ActionRewrite && answer == nil:
		p.errorf(n.pos, "%s.answer is missing; expected addresses, nxdomain, nodata or refused, which action: rewrite needs", n.path())
	case s.Action == ActionRewrite && values["qname"] == nil:
		p.errorf(n.pos, "%s.qname is missing; expected a name or a list, which action: rewrite needs", n.path())
	case s.Action != ActionRewrite && answer != nil:
		p.errorf(answer.pos, "%s has no effect without action: rewrite; expected that", answer.path())
	}
}

// helloMatch reads conditions on what a hello offers.
func (p *reader) helloMatch(values map[string]*node, s *Step) {
	if n := values["alpn"]; n != nil {
		switch {
		case !n.scalar():
			p.want(n, "a protocol's name, such as h2")
		case n.text == "" || len(n.text) > 255:
			p.invalid(n, "a protocol's name, such as h2")
		default:
			s.ALPN = n.text
		}
	}
	if n := values["ech"]; n != nil {
		if n.kind != kindBool {
			p.want(n, "true or false")
			return
		}
		offered := strings.EqualFold(n.text, "true")
		s.ECH = &offered
	}
}

// pathMatch reads a path of HTTP requests.
func (p *reader) pathMatch(n *node, s *Step) {
	const want = `a path such as "/admin", or "/admin/*" for all that begin so`
	switch {
	case n == nil:
	case !n.scalar():
		p.want(n, want)
	case !strings.HasPrefix(n.text, "/") || strings.Contains(strings.TrimSuffix(n.text, "*"), "*") || strings.ContainsAny(n.text, "?#%"):
		p.invalid(n, want)
	default:
		s.Path = n.text
	}
}

// nameMatch reads a pattern or the name of a list.
func (p *reader) nameMatch(n *node, to *NameMatch) {
	if n == nil {
		return
	}
	if !n.scalar() {
		p.want(n, `a name, "*.name", ".name" or a list such as "@ads"`)
		return
	}
	to.Pattern = n.text
	if name, ok := strings.CutPrefix(n.text, "@"); ok {
		if l := p.list(n, name, ListDomain); l != nil {
			to.Domains = &l.Domains
		}
		return
	}
	to.Domains = new(Domains)
	if err := to.Domains.Add(n.text); err != nil {
		p.errorf(n.pos, "%s: %s %v", n.path(), quote(n.text), err)
	}
}

// listMatch reads the name of a list, for names of every kind.
func (p *reader) listMatch(n *node, to *NameMatch) {
	const want = `a list such as "@ads"`
	switch {
	case n == nil:
	case !n.scalar():
		p.want(n, want)
	case !strings.HasPrefix(n.text, "@"):
		p.invalid(n, want)
	default:
		p.nameMatch(n, to)
	}
}

// checkRewrite tells that what the host itself answers leaves no more by a hook
// where it could be rewritten.
func (p *reader) checkRewrite(r *Rule, step *node) {
	if len(r.Proto) == 1 && r.Proto[0] == protoTCP {
		p.errorf(step.pos, "%s: rewriting over TCP is not built yet; expected proto: udp in this rule", step.path())
	}
	switch {
	case r.To == ZoneHost && !r.NotTo:
		p.errorf(step.pos, "%s: rewriting the host's own answers is not built yet; expected a rule to: a zone", step.path())
	case len(r.Dport) == 0:
		p.errorf(step.pos, "%s: replies are told by the port that they come from; expected dport in this rule", step.path())
	case r.MatchTo(ZoneHost):
		p.warnf(step.pos, "%s does not rewrite the host's own answers: for questions to it failure.undecided decides; expected a rule to: a zone", step.path())
	}
}

// checkStep refuses conditions that the rule's protocols never have.
func (p *reader) checkStep(r *Rule, s *Step, values map[string]*node) {
	if s.Direction == DirectionResponse && !r.onlyDNS() {
		p.errorf(values["direction"].pos, "%s: responses are looked at in rules for DNS alone; expected dport: 53 in this rule", values["direction"].path())
	}
	if len(r.Proto) != 1 {
		return
	}
	over, name := l7OverTCP, "tcp"
	if r.Proto[0] == protoUDP {
		over, name = l7OverUDP, "udp"
	}
	if s.L7 != 0 && s.L7&over == 0 {
		p.errorf(values["proto_l7"].pos, "%s: there is no %v over %s; expected one of %v", values["proto_l7"].path(), s.L7, name, over)
	}
	if r.Proto[0] != protoUDP {
		return
	}
	for _, key := range []string{"host", "path"} {
		if v := values[key]; v != nil {
			p.errorf(v.pos, "%s is for HTTP over TCP; expected proto: tcp in this rule", v.path())
		}
	}
}
