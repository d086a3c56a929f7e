package loader

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// mustAgree is how many pairs of a policy and a packet a whole run of the tests
// compares.
const mustAgree = 100_000

// TestProgramsAgreeWithThePolicy compares the programs with policy.Match, the
// slow and plain meaning, on random policies and packets.
func TestProgramsAgreeWithThePolicy(t *testing.T) {
	policies, packets := 100, mustAgree/100
	fewer := testing.Short() || testnet.InGuest() // an emulated machine is slow
	if fewer {
		policies = 10
	}
	b := newBench(t)
	pairs := 0
	b.host.MustDo(t, func() error {
		for seed := range uint64(policies) {
			pairs += b.agree(seed, packets)
		}
		return nil
	})
	t.Logf("%d pairs of policy and packet agree at all hooks", pairs)
	if pairs < mustAgree && !fewer {
		t.Errorf("%d pairs compared, want %d", pairs, mustAgree)
	}
}

// agree compares one random policy on some random packets, and reports a
// disagreement in the fewest words that still bring it about.
func (b *bench) agree(seed uint64, packets int) (pairs int) {
	b.tb.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	pol := randomPolicy(r)
	f := b.loadRandom(pol)
	defer b.closeNow(f)
	for range packets {
		p := randomPacket(r)
		if what := b.compare(f, pol, p); what != "" {
			small, packet := shrink(pol, p, func(pol *policy.Policy, p packet) bool {
				f := b.loadRandom(pol)
				defer b.closeNow(f)
				return b.compare(f, pol, p) != ""
			})
			f := b.loadRandom(small)
			defer b.closeNow(f)
			b.tb.Fatalf("seed %d: %s\nin its smallest form: %s\n%s\npacket %+v\nframe %s", seed, what,
				b.compare(f, small, packet), policyText(small), packet, hex.EncodeToString(packet.frame()))
		}
		pairs++
	}
	return pairs
}

// loadRandom is load for a firewall that is closed long before the test ends.
func (b *bench) loadRandom(p *policy.Policy) *Firewall {
	b.tb.Helper()
	f, err := Load(p, Options{Flows: 4096, HalfOpen: 4096})
	if err != nil {
		b.tb.Fatalf("loading: %+v", err)
	}
	b.enter(f)
	b.teach(f)
	return f
}

func (b *bench) closeNow(f *Firewall) {
	if err := f.Close(); err != nil {
		b.tb.Fatal(err)
	}
}

// compare judges one packet at all three hooks and says what differs, or "".
func (b *bench) compare(f *Firewall, pol *policy.Policy, p packet) string {
	b.tb.Helper()
	frame := p.frame()
	to := zoneOf[p.dst.String()]
	const foreignMark = 0x0000a500
	mask := pol.Marks.Mask
	for from, ifindex := range map[policy.ZoneID]uint32{zoneLan: b.lan, zoneWan: b.wan} {
		in := skb{Mark: foreignMark &^ mask, Ifindex: ifindex}
		code, out := b.tc(f.objs.FwTc, frame, in)
		f.dropEntry(b.tb, p.flow())
		got := judgement{code, out.Mark & mask >> pol.Marks.Shift()}
		if w := want(pol, &p, from, to); got != w {
			return fmt.Sprintf("fw_tc from %d to %d: got %+v, want %+v", from, to, got, w)
		}
		if out.Mark&^mask != in.Mark {
			return fmt.Sprintf("fw_tc changed foreign mark bits: %#x to %#x", in.Mark, out.Mark)
		}
		wantCode := uint32(xdpPass)
		if wantDrop(pol, &p, from) {
			wantCode = xdpDrop
		}
		if code := b.xdp(f, frame, in.Ifindex); code != wantCode {
			return fmt.Sprintf("fw_xdp from %d: got %d, want %d", from, code, wantCode)
		}
	}
	code, _ := b.tc(f.objs.FwTcOut, frame, skb{Ifindex: b.wan})
	f.dropEntry(b.tb, p.flow())
	if w := want(pol, &p, policy.ZoneHost, zoneWan); code != w.code {
		return fmt.Sprintf("fw_tc_out: got %d, want %d", int32(code), int32(w.code))
	}
	return ""
}
