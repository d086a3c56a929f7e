package loader

import (
	"fmt"

	"github.com/hybridfw/hybridfw/gen"
)

// RuleHits are the packets that a rule has judged: those that began flows, and
// those that it dropped. What its known flows carry is not among them.
type RuleHits struct {
	Rule    string `json:"rule"` // its name, "" where it has none
	Line    int    `json:"line"` // of the policy file
	Action  string `json:"action"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of frames
}

// Hits lists all rules of the policy in force in their order. A rule that an
// earlier policy had with the same text goes on counting.
func (f *Firewall) Hits() ([]RuleHits, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hits, err := f.instance.hits()
	for i := range hits {
		before := f.hitsBefore[f.policy.Rules[i].ID]
		hits[i].Packets += before.Packets
		hits[i].Bytes += before.Bytes
	}
	return hits, err
}

// keepHits adds what an instance has counted that is no longer in force. The
// caller holds f.mu.
func (f *Firewall) keepHits(old *instance) error {
	hits, err := old.hits()
	if f.hitsBefore == nil {
		f.hitsBefore = make(map[uint32]RuleHits)
	}
	for i, h := range hits {
		id := old.policy.Rules[i].ID
		before := f.hitsBefore[id]
		before.Packets += h.Packets
		before.Bytes += h.Bytes
		f.hitsBefore[id] = before
	}
	return err
}

func (i *instance) hits() ([]RuleHits, error) {
	hits := make([]RuleHits, 0, len(i.policy.Rules))
	var perCPU []gen.FWCounter
	for n, r := range i.policy.Rules {
		if err := i.objs.RuleCounters.Lookup(uint32(n), &perCPU); err != nil {
			return nil, fmt.Errorf("reading the counter of rule %d: %w", n, err)
		}
		h := RuleHits{Rule: r.Name, Line: r.Pos.Line, Action: r.Action.String()}
		h.Packets, h.Bytes = sum(perCPU)
		hits = append(hits, h)
	}
	return hits, nil
}
