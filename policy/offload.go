package policy

import "slices"

// Offload says whether packets of a decided flow that are only forwarded may pass
// the stack by.
type Offload uint8

const (
	OffloadNone    Offload = iota
	OffloadForward         // they may
)

var offloadWords = []string{"none", "forward"}

// Offloads tells whether some flows may pass the stack by.
func (p *Policy) Offloads() bool {
	return p.Offload == OffloadForward || slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Offload == OffloadForward })
}

// readOffload reads none or forward; a missing key leaves the default.
func (p *reader) readOffload(n *node, to *Offload) {
	if n == nil {
		return
	}
	if i := p.word(n, offloadWords, nil); i >= 0 {
		*to = Offload(i)
	}
}

// ruleOffload reads a rule's own word; without one it has the policy's.
func (p *reader) ruleOffload(r *Rule, n *node) {
	r.Offload = p.policy.Offload
	if n == nil {
		return
	}
	p.readOffload(n, &r.Offload)
	switch {
	case r.Offload == OffloadNone:
	case r.Action == ActionDrop:
		p.errorf(n.pos, "%s has no effect in a rule that drops", n.path())
	case r.To == ZoneHost && !r.NotTo || r.From == ZoneHost && !r.NotFrom:
		p.errorf(n.pos, "%s is for what is forwarded; expected a rule between zones", n.path())
	}
}
