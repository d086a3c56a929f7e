package policy

import (
	"strings"
	"time"
)

// LimitPer says what shares one bucket of tokens.
type LimitPer uint8

const (
	LimitPerAll LimitPer = iota // all packets that meet the rule
	LimitPerSrc                 // those of one source
	LimitPerDst                 // those to one destination
)

var limitPers = []string{"all", "src", "dst"}

// Limit bounds how many packets a second a rule lets begin flows. The zero value
// is no limit. Packets are counted that no known flow carries: the first of each
// flow, every SYN, and all that are dropped.
//
// A rule that accepts or inspects matches what is within its limit; what is over
// goes on to the next rule. A rule that drops matches what is over its limit; what
// is within goes on.
type Limit struct {
	Interval time.Duration // between two packets at the rate asked for
	Burst    int           // packets at once after a silence
	Per      LimitPer
	V4, V6   int // bits of an address that tell sources (or destinations) apart
}

// Limited tells whether there is a limit.
func (l Limit) Limited() bool { return l.Burst > 0 }

// Queue bounds how many packets a second go to user space: those of flows from one
// source, and all. What is over is Failure.Overload's.
type Queue struct {
	PerSrc Limit
	Total  Limit
}

// defaultQueue leaves a core of user space half of its time, and one source a tenth
// of that.
var defaultQueue = Queue{
	PerSrc: Limit{Interval: 100 * time.Microsecond, Burst: 10_000, Per: LimitPerSrc, V4: 32, V6: 64},
	Total:  Limit{Interval: 10 * time.Microsecond, Burst: 20_000, V4: 32, V6: 64},
}

// What Parse accepts.
const (
	maxLimits    = 256 // rules with a limit
	maxLimitRate = 1_000_000
	maxBurst     = 1_000_000
)

var limitKeys = schema{built: []string{"rate", "burst", "per", "v4", "v6"}}

var limitPeriods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

var (
	queueKeys      = schema{built: []string{"per_src", "total"}}
	queueSrcKeys   = schema{built: []string{"rate", "burst", "v4", "v6"}}
	queueTotalKeys = schema{built: []string{"rate", "burst"}}
)

// readQueue lays the file's values over those that apply without it.
func (p *reader) readQueue(n *node) {
	values := p.keys(n, queueKeys)
	q := &p.policy.Queue
	p.readQueueLimit(values["per_src"], queueSrcKeys, LimitPerSrc, &q.PerSrc)
	p.readQueueLimit(values["total"], queueTotalKeys, LimitPerAll, &q.Total)
}

func (p *reader) readQueueLimit(n *node, s schema, per LimitPer, to *Limit) {
	switch {
	case n == nil:
	case n.scalar() && n.text == "none":
		*to = Limit{}
	case n.scalar():
		p.invalid(n, "none, or a limit such as { rate: 5000/s, burst: 10000 }")
	default:
		if values := p.keys(n, s); values != nil {
			p.readTokens(n, values, per, to)
		}
	}
}

func (p *reader) readLimit(n *node, to *Limit) {
	values := p.keys(n, limitKeys)
	if values == nil {
		return
	}
	per := LimitPerAll
	if v := values["per"]; v != nil {
		per = LimitPer(max(0, p.word(v, limitPers, nil)))
	}
	p.readTokens(n, values, per, to)
}

// readTokens reads what all limits have.
func (p *reader) readTokens(n *node, values map[string]*node, per LimitPer, to *Limit) {
	l := Limit{Per: per, V4: 32, V6: 64}
	if v := values["rate"]; v == nil {
		p.errorf(n.pos, "%s.rate is missing; expected a rate such as 200/s", n.path())
	} else {
		l.Interval, l.Burst = p.rate(v)
	}
	if v := values["burst"]; v != nil {
		p.number(v, &l.Burst, maxBurst)
	}
	for key, to := range map[string]struct {
		bits *int
		most int
	}{"v4": {&l.V4, 32}, "v6": {&l.V6, 128}} {
		if v := values[key]; v != nil {
			p.number(v, to.bits, to.most)
			if l.Per == LimitPerAll {
				p.errorf(v.pos, "%s has no effect; expected it with per: src or per: dst", v.path())
			}
		}
	}
	*to = l
}

// rate reads packets per second, minute or hour. The burst, if none is given, is
// that number.
func (p *reader) rate(n *node) (interval time.Duration, burst int) {
	const want = "a rate such as 200/s, 30/m or 10/h, of 1000000/s at most"
	if !n.scalar() {
		p.want(n, want)
		return 0, 0
	}
	count, unit, _ := strings.Cut(n.text, "/")
	v, err := parseUint32(count)
	period := limitPeriods[unit]
	if err != nil || period == 0 || v == 0 || int64(v) > maxLimitRate*int64(period/time.Second) {
		p.invalid(n, want)
		return 0, 0
	}
	return period / time.Duration(v), min(int(v), maxBurst)
}

// checkLimits refuses more limits than the kernel half holds.
func (p *reader) checkLimits() {
	limits := 0
	for i := range p.policy.Rules {
		if r := &p.policy.Rules[i]; r.Limit.Limited() {
			if limits++; limits == maxLimits+1 {
				p.errorf(r.Pos, "rules[%d] is one limit too many; expected at most %d rules with a limit", i, maxLimits)
			}
		}
	}
}
