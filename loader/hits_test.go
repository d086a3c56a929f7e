package loader

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// wantHits compares the packets that each rule has judged, in the rules' order.
func (f *Firewall) wantHits(t *testing.T, when string, want ...uint64) {
	t.Helper()
	hits, err := f.Hits()
	if err != nil {
		t.Fatal(err)
	}
	if len(hits) != len(want) || len(hits) != len(f.policy.Rules) {
		t.Fatalf("%s: %d rules have counters, want %d", when, len(hits), len(want))
	}
	for i, h := range hits {
		r := f.policy.Rules[i]
		if h.Packets != want[i] || h.Rule != r.Name || h.Line != r.Pos.Line || h.Action != r.Action.String() {
			t.Errorf("%s: %+v, want %d packets of rule %s at line %d", when, h, want[i], r.Name, r.Pos.Line)
		}
	}
}

func TestRulesCountWhatTheyJudge(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, basePolicy, func(b *bench, f *Firewall) {
			f.wantHits(t, "at first", 0, 0, 0, 0)
			telnet := tcp(client, server, 40000, 23, syn)
			for range 3 {
				b.arrives(f, b.lan, telnet)
			}
			if code := b.xdp(f, telnet.frame(), b.lan); code != xdpDrop {
				t.Errorf("fw_xdp returned %d", code)
			}
			web := tcp(client, server, 40000, 443, syn)
			b.arrives(f, b.lan, web)
			b.arrives(f, b.wan, web.reply())
			for range 5 { // of a known flow
				b.arrives(f, b.lan, tcp(client, server, 40000, 443, ack))
			}
			b.arrives(f, b.lan, udp(client, server, 40000, 99))
			b.arrives(f, b.wan, tcp(server, client, 7, 7, syn)) // the default's
			f.wantHits(t, "then", 4, 1, 0, 1)
			hits, err := f.Hits()
			if err != nil || hits[0].Bytes != 4*uint64(len(telnet.frame())) {
				t.Errorf("%+v, %v: want the bytes of 4 frames of %d", hits, err, len(telnet.frame()))
			}
		})
	})
}

func TestRulesGoOnCountingAcrossPolicies(t *testing.T) {
	on(t, basePolicy, func(b *bench, f *Firewall) {
		telnet, other := tcp(client4, server4, 40000, 23, syn), udp(client4, server4, 40000, 99)
		b.arrives(f, b.lan, telnet)
		b.arrives(f, b.lan, other)
		next := func(text string) *policy.Policy { return mustPolicy(t, text) }
		// Another rule stands in front, and "out" says something else.
		text := replace(t, basePolicy, "rules:\n", "rules:\n  - { name: first, from: lan, proto: gre, action: drop }\n")
		text = replace(t, text, "{ name: out, from: lan, action: accept }", "{ name: out, from: lan, action: drop }")
		if err := f.Apply(next(text)); err != nil {
			t.Fatal(err)
		}
		b.enter(f)
		f.wantHits(t, "after a change", 0, 1, 0, 0, 0)
		b.arrives(f, b.lan, telnet)
		f.wantHits(t, "after a packet more", 0, 2, 0, 0, 0)
		if err := f.Apply(next(basePolicy)); err != nil {
			t.Fatal(err)
		}
		f.wantHits(t, "with the first policy again", 2, 0, 0, 1)
	})
}
