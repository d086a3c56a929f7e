package loader

import "maps"

// generation is the number of a policy among those that one firewall applies one
// after the other, and what the mark fields stand for under it. It is never
// changed once it is in use.
type generation struct {
	number uint32
	marks  map[uint16]meaning
}

// meaning is what a mark field stands for. That of a rule that is gone is kept:
// packets that were marked before may still wait for their decision.
type meaning struct {
	rule  uint16 // index into Policy.Rules, ruleNone where the rule is gone
	id    uint32 // policy.Rule.ID
	since uint32 // the first generation in which the field stood for this rule
}

// next is the generation of the policy that replaces g's. Its number is above all
// that were given before. A field that stood for
// a rule of the same text goes on doing so: who numbers the rules gives it to no
// other (policy.Policy.Succeed).
func (g *generation) next(t *Tables, number uint32) *generation {
	n := &generation{number: number, marks: maps.Clone(g.marks)}
	if n.marks == nil {
		n.marks = make(map[uint16]meaning)
	}
	for mark, m := range n.marks {
		m.rule = ruleNone
		n.marks[mark] = m
	}
	for i, r := range t.rules {
		if r.mark == 0 {
			continue
		}
		since := n.number
		if m, ok := g.marks[r.mark]; ok && m.rule != ruleNone && m.id == r.id {
			since = m.since
		}
		n.marks[r.mark] = meaning{rule: uint16(i), id: r.id, since: since}
	}
	return n
}
