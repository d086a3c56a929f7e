package loader

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// change applies another policy, numbered so that no mark means two things.
func (b *bench) change(f *Firewall, text string, inspect ...int) {
	b.tb.Helper()
	p := mustPolicy(b.tb, text)
	for i, n := 0, 0; i < len(p.Rules) && n < len(inspect); i++ {
		if p.Rules[i].Action == policy.ActionInspect {
			p.Rules[i].Inspect = inspect[n]
			n++
		}
	}
	if err := f.Apply(p); err != nil {
		b.tb.Fatal(err)
	}
}

const rejudgeHead = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { midstream: inspect }
rules:
  - { name: keep, from: lan, to: wan, proto: udp, dport: 9999, action: accept }
`

// TestReloadJudgesKnownFlowsAnew denies what was accepted, and accepts it again:
// the next packet counts, whichever side it is from.
func TestReloadJudgesKnownFlowsAnew(t *testing.T) {
	const accept = rejudgeHead + "  - { name: out, from: lan, to: wan, proto: tcp, dport: 80, flags: syn, action: accept }\n"
	const deny = rejudgeHead
	both(t, func(t *testing.T, client, server netip.Addr) {
		for name, first := range map[string]bool{"originator's packet first": false, "reply first": true} {
			t.Run(name, func(t *testing.T) {
				on(t, accept, func(b *bench, f *Firewall) {
					p := tcp(client, server, 40000, 80, syn)
					data := tcp(client, server, 40000, 80, ack)
					speak := func(what, want string) {
						t.Helper()
						if first {
							expect(t, what+": reply", b.arrives(f, b.wan, data.reply()), want)
						}
						expect(t, what+": data", b.arrives(f, b.lan, data), want)
						expect(t, what+": reply", b.arrives(f, b.wan, data.reply()), want)
						expect(t, what+": reply, leaving", b.leaves(f, b.lan, b.wan, data.reply()), want)
					}
					expect(t, "SYN", b.arrives(f, b.lan, p), passes)
					speak("accepted", passes)
					b.change(f, accept)
					speak("accepted again", passes)
					b.change(f, deny)
					speak("denied", drops)
					b.change(f, accept)
					if code := b.xdp(f, data.frame(), b.lan); code != xdpPass {
						t.Errorf("fw_xdp returned %d by the word of an older policy, want %d", code, xdpPass)
					}
					speak("accepted after all", passes)
					if e, ok := f.entry(t, p.flow()); !ok || e.Packets[0]+e.Packets[1] < 9 {
						t.Errorf("entry %+v, want one with the packets of all policies", e)
					}
				})
			})
		}
	})
}

func TestReloadJudgesTheHostsOwnFlows(t *testing.T) {
	both(t, func(t *testing.T, _, server netip.Addr) {
		host := netip.MustParseAddr("198.51.100.1")
		if server.Is6() {
			host = netip.MustParseAddr("2001:db8:2::1")
		}
		on(t, rejudgeHead, func(b *bench, f *Firewall) {
			query := udp(host, server, 40000, 123)
			expect(t, "query", b.leaves(f, b.wan, 0, query), passes)
			b.change(f, rejudgeHead)
			expect(t, "reply after a change", b.arrives(f, b.wan, query.reply()), passes)
			b.change(f, rejudgeHead+"  - { name: no, from: host, to: wan, proto: udp, dport: 123, action: drop }\n")
			expect(t, "reply of a denied flow", b.arrives(f, b.wan, query.reply()), drops)
			expect(t, "denied query", b.leaves(f, b.wan, 0, query), drops)
		})
		on(t, rejudgeHead+"  - { name: in, from: wan, to: host, proto: udp, dport: 123, action: accept }\n", func(b *bench, f *Firewall) {
			query := udp(server, host, 40000, 123)
			expect(t, "query", b.arrives(f, b.wan, query), passes)
			b.change(f, rejudgeHead)
			expect(t, "the host's reply", b.leaves(f, b.wan, 0, query.reply()), drops)
			expect(t, "what the host sends does not begin the flow anew", b.arrives(f, b.wan, query), drops)
		})
	})
}

const webRule = "  - { name: web, from: lan, proto: tcp, dport: 443, action: inspect, steps: [{ action: accept }] }\n"

// TestReloadKeepsDecisionsOfTheSameRule: what user space has decided it is not
// asked again, unless the rule has changed.
func TestReloadKeepsDecisionsOfTheSameRule(t *testing.T) {
	const changed = "  - { name: web, from: lan, proto: tcp, dport: 443, action: inspect, steps: [{ action: drop }] }\n"
	both(t, func(t *testing.T, client, server netip.Addr) {
		for _, c := range []struct {
			action    policy.Action
			want      string
			midstream string
			after     string // with the changed rule
		}{
			{policy.ActionAccept, passes, "inspect", queues},
			{policy.ActionDrop, drops, "inspect", queues},
			{policy.ActionAccept, passes, "drop", drops},
			{policy.ActionDrop, drops, "accept", passes},
		} {
			head := replace(t, rejudgeHead, "midstream: inspect", "midstream: "+c.midstream)
			on(t, head+webRule, func(b *bench, f *Firewall) {
				hello := tcp(client, server, 40000, 443, psh|ack).with(100)
				expect(t, "SYN", b.arrives(f, b.lan, tcp(client, server, 40000, 443, syn)), passes)
				// The hello may come after the reload: the flow is no stranger.
				b.change(f, head+webRule, 0)
				expect(t, "hello after a reload", b.arrives(f, b.lan, hello), queues)
				if err := f.Decide(hello.flow(), c.action, 1); err != nil {
					t.Fatal(err)
				}
				expect(t, "decided", b.arrives(f, b.lan, hello), c.want)
				// The same rule with another number, as behind another rule.
				b.change(f, head+webRule, 5)
				expect(t, "the same rule", b.arrives(f, b.lan, hello), c.want)
				b.change(f, head+changed, 6)
				expect(t, "a changed rule, midstream: "+c.midstream, b.arrives(f, b.lan, hello), c.after)
			})
		}
	})
}

// TestLateDecisionDoesNotOverruleANewerPolicy: user space may decide about a packet
// that was queued before the reload.
func TestLateDecisionDoesNotOverruleANewerPolicy(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, rejudgeHead+webRule, func(b *bench, f *Firewall) {
			hello := tcp(client, server, 40000, 443, psh|ack).with(100)
			late := func() {
				t.Helper()
				if err := f.Decide(hello.flow(), policy.ActionAccept, 1); err != nil {
					t.Fatal(err)
				}
			}
			b.arrives(f, b.lan, tcp(client, server, 40000, 443, syn))
			expect(t, "hello", b.arrives(f, b.lan, hello), queues)
			b.change(f, rejudgeHead)
			expect(t, "denied", b.arrives(f, b.lan, hello), drops)
			late()
			expect(t, "still denied", b.arrives(f, b.lan, hello), drops)

			const other = "  - { name: other, from: lan, proto: tcp, dport: 443, action: inspect, steps: [{ sni: x.example, action: drop }] }\n"
			b.change(f, rejudgeHead+other, 1)
			expect(t, "to be inspected by another rule", b.arrives(f, b.lan, hello), queues)
			late()
			expect(t, "still to be inspected", b.arrives(f, b.lan, hello), queues)

			// Where nothing has judged the flow since, the decision is the older
			// policy's word, which the next packet has judged anew.
			b.change(f, rejudgeHead)
			f.dropEntry(t, hello.flow())
			late()
			expect(t, "a decision without an entry", b.arrives(f, b.lan, hello), drops)
		})
	})
}

// TestReloadStopsFlowsBehindNAT: the reply of a flow with translated addresses
// comes back by an entry of its own, and is judged under its first addresses.
func TestReloadStopsFlowsBehindNAT(t *testing.T) {
	const accept = rejudgeHead + "  - { name: out, from: lan, to: wan, proto: udp, dport: 7, action: accept }\n"
	both(t, func(t *testing.T, client, server netip.Addr) {
		public := netip.MustParseAddr("198.51.100.1")
		if server.Is6() {
			public = netip.MustParseAddr("2001:db8:2::1")
		}
		on(t, accept, func(b *bench, f *Firewall) {
			inner, outer := udp(client, server, 40000, 7), udp(public, server, 50000, 7)
			expect(t, "arrives", b.arrives(f, b.lan, inner), passes)
			expect(t, "leaves", b.leaves(f, b.wan, b.lan, outer), passes)
			b.change(f, accept)
			expect(t, "reply", b.arrives(f, b.wan, outer.reply()), passes)
			expect(t, "reply leaves", b.leaves(f, b.lan, b.wan, inner.reply()), passes)
			b.change(f, rejudgeHead)
			// It may come in, to get its first addresses back; no further.
			b.arrives(f, b.wan, outer.reply())
			expect(t, "reply of a denied flow leaves", b.leaves(f, b.lan, b.wan, inner.reply()), drops)
			expect(t, "denied", b.arrives(f, b.lan, inner), drops)
		})
	})
}

// TestReloadKeepsRepliesQueuedBehindNAT: replies that a rule rewrites are wanted
// as long as there is the rule.
func TestReloadKeepsRepliesQueuedBehindNAT(t *testing.T) {
	const dns = `  - { name: dns, from: lan, to: wan, proto: udp, dport: 53, action: inspect,
      steps: [{ qname: "ads.example", action: rewrite, answer: 0.0.0.0 }, { action: accept }] }
`
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, rejudgeHead+dns, func(b *bench, f *Firewall) {
			outer := udp(client.Next(), server, 50000, 53)
			const judged = 0x00810000 // by the first inspecting rule
			b.tc(f.objs.FwTcOut, outer.frame(), skb{Ifindex: b.wan, IngressIfindex: b.lan, Mark: judged})
			expect(t, "reply", b.arrives(f, b.wan, outer.reply()), queues)
			b.change(f, rejudgeHead+dns, 0)
			expect(t, "reply, the rule is there", b.arrives(f, b.wan, outer.reply()), queues)
			b.change(f, rejudgeHead+webRule, 1)
			expect(t, "reply, the rule is gone", b.arrives(f, b.wan, outer.reply()), passes)
			b.tc(f.objs.FwTcOut, outer.frame(), skb{Ifindex: b.wan, IngressIfindex: b.lan, Mark: judged})
			b.change(f, rejudgeHead+webRule, 0)
			expect(t, "reply, its number is another rule's", b.arrives(f, b.wan, outer.reply()), passes)
		})
	})
}

// TestReloadFindsTheZonesAnew: an interface may be in another zone than when the
// flow began.
func TestReloadFindsTheZonesAnew(t *testing.T) {
	const rule = "  - { name: out, from: lan, to: wan, proto: udp, dport: 7, action: accept }\n"
	moved := replace(t, rejudgeHead, "lan: [lan0], wan: [wan0]", "dmz: [wan0], wan: [eth7*], lan: [lan0]")
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, rejudgeHead+rule, func(b *bench, f *Firewall) {
			p := udp(client, server, 40000, 7)
			expect(t, "first", b.arrives(f, b.lan, p), passes)
			b.change(f, moved+rule)
			expect(t, "reply from what is dmz now", b.arrives(f, b.wan, p.reply()), drops)
			b.change(f, moved+replace(t, rule, "to: wan", "to: dmz"))
			expect(t, "reply, accepted from lan to dmz", b.arrives(f, b.wan, p.reply()), passes)
			expect(t, "and the other way", b.arrives(f, b.lan, p), passes)
		})
	})
}

// TestReloadJudgesByTheSideThatBegan: what only its packets have, the replies do not
// tell.
func TestReloadJudgesByTheSideThatBegan(t *testing.T) {
	for name, c := range map[string]struct{ same, other string }{
		"vlan":     {"vlan: 10", "vlan: 20"},
		"dscp":     {"dscp: be", "dscp: ef"},
		"fragment": {"fragment: false", "fragment: true"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, client, server netip.Addr) {
				rule := rejudgeHead + "  - { name: out, from: lan, to: wan, proto: udp, dport: 80, CONDITION, action: accept }\n"
				on(t, replace(t, rule, "CONDITION", c.same), func(b *bench, f *Firewall) {
					p := udp(client, server, 40000, 80)
					reply := p.reply()
					p.vlans = []uint16{10}
					expect(t, "first", b.arrives(f, b.lan, p), passes)
					b.change(f, replace(t, rule, "CONDITION", c.same))
					expect(t, "reply", b.arrives(f, b.wan, reply), passes)
					expect(t, "next", b.arrives(f, b.lan, p), passes)
					b.change(f, replace(t, rule, "CONDITION", c.other))
					expect(t, "reply before the other side has been heard", b.arrives(f, b.wan, reply), passes)
					expect(t, "next", b.arrives(f, b.lan, p), drops)
					expect(t, "reply", b.arrives(f, b.wan, reply), drops)
				})
			})
		})
	}
}
