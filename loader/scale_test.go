package loader

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/policy"
)

// TestProgramsVerifyAtEverySize loads policies up to the largest, and holds a
// ceiling over what the verifier has to look at: it allows a million.
func TestProgramsVerifyAtEverySize(t *testing.T) {
	// With dynamic lists the verifier follows the lookup of each set for each of its
	// words, Linux 6.1 some four times. The kernel's own limit is a million.
	ceilings := map[bool]uint32{false: 100_000, true: 600_000}
	b := newBench(t)
	for _, c := range []struct {
		rules   int
		dynamic bool
	}{{0, false}, {1, false}, {64, false}, {65, true}, {1024, false}, {policy.MaxRules, false}, {policy.MaxRules, true}} {
		n := c.rules
		p := randomPolicy(rand.New(rand.NewPCG(1, 1)))
		p.Rules = nil
		r := rand.New(rand.NewPCG(uint64(n), 2))
		for range n {
			rule := randomRule(r)
			if rule.Action == policy.ActionInspect {
				rule.Action = policy.ActionDrop
			}
			p.Rules = append(p.Rules, rule)
		}
		if !c.dynamic {
			withoutDynamic(p.Rules)
		}
		began := time.Now()
		f := b.load(p)
		took := time.Since(began)
		for _, prog := range []*ebpf.Program{f.objs.FwXdp, f.objs.FwTc, f.objs.FwTcOut, f.objs.FwDecide, f.objs.FwLearn} {
			info, err := prog.Info()
			if err != nil {
				t.Fatal(err)
			}
			verified, ok := info.VerifiedInstructions()
			if !ok {
				t.Fatal("this kernel does not tell how many instructions it verified, which Linux does since 5.16")
			}
			t.Logf("%d rules (loaded in %v): %s: %d instructions verified", n, took.Round(time.Millisecond), info.Name, verified)
			if ceiling := ceilings[c.dynamic]; verified > ceiling {
				t.Errorf("%s with %d rules: %d instructions verified, more than %d", info.Name, n, verified, ceiling)
			}
		}
	}
}
