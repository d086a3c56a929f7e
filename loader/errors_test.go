package loader

import (
	"math/rand/v2"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// TestICMPErrorsAgreeWithThePolicy sends errors that quote packets of random flows,
// known and unknown, to their senders and to others. One about a known flow passes
// to the sender of what it quotes; every other is a packet like any.
func TestICMPErrorsAgreeWithThePolicy(t *testing.T) {
	policies := 60
	if testing.Short() {
		policies = 10
	}
	b := newBench(t)
	related, judged := 0, 0
	b.host.MustDo(t, func() error {
		for seed := range uint64(policies) {
			r := rand.New(rand.NewPCG(seed, 21))
			pol := randomPolicy(r)
			f := b.loadRandom(pol)
			for range 40 {
				if b.errorAgrees(f, pol, r) {
					related++
				} else {
					judged++
				}
			}
			b.closeNow(f)
		}
		return nil
	})
	if related < policies || judged < policies {
		t.Errorf("%d errors were about known flows, %d were not: too few of one kind", related, judged)
	}
}

// errorAgrees lets a random flow begin, and compares the verdict on an error that may
// be about it.
func (b *bench) errorAgrees(f *Firewall, pol *policy.Policy, r *rand.Rand) (related bool) {
	b.tb.Helper()
	p := randomPacket(r)
	for isError(&p) || isVital(&p) || p.later() || p.moreFrags || p.src == p.dst || zoneOf[p.src.String()] == policy.ZoneNone {
		p = randomPacket(r)
	}
	p.vlans, p.ipOptions, p.extensions = nil, 0, nil
	known := false
	if r.IntN(4) > 0 {
		b.tc(f.objs.FwTc, p.frame(), skb{Ifindex: b.lan})
		e, ok := f.entry(b.tb, p.flow())
		known = ok && policy.Action(e.Action) != policy.ActionDrop
	}
	quoted := p
	if r.IntN(3) == 0 {
		quoted = p.reply()
	}
	e := icmpError(quoted, 8)
	e.icmpType, e.icmpCode = pick[uint8](r, 3, 11, 12), uint8(r.IntN(3))
	if p.src.Is6() {
		e.icmpType = pick[uint8](r, 1, 2, 3, 4)
	}
	other := r.IntN(3) == 0
	if other {
		e.dst = pick(r, targets4...)
		if p.src.Is6() {
			e.dst = pick(r, targets6...)
		}
		other = e.dst != quoted.src
	}
	from, ifindex := zoneWan, b.wan
	if r.IntN(4) == 0 {
		from, ifindex = zoneLan, b.lan
	}
	to, ok := zoneOf[e.dst.String()]
	if !ok {
		to = policy.ZoneHost // no route
	}
	related = known && !other
	wanted := want(pol, &e, from, to)
	if related {
		wanted = judgement{code: tcNext}
	}
	code, out := b.tc(f.objs.FwTc, e.frame(), skb{Ifindex: ifindex})
	got := judgement{code: code}
	if code == tcNext {
		got.mark = (out.Mark & pol.Marks.Mask) >> pol.Marks.Shift()
	}
	if got.code != wanted.code || got.code == tcNext && got.mark != wanted.mark {
		b.tb.Fatalf("an error about %+v\n(known: %v, to another host: %v): got %+v, want %+v\n%s\n%+v", quoted, known, other, got, wanted, policyText(pol), e)
	}
	f.dropEntry(b.tb, p.flow())
	f.dropEntry(b.tb, e.flow())
	return related
}
