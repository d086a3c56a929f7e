// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Reload: flows that an older policy has judged are judged by this one when their
// next packet comes.
#pragma once

#include "classify.h"
#include "flow.h"
#include "maps.h"
#include "way.h"

// is_stale tells that an older policy has judged the flow. While hooks are swapped
// one after the other the older programs meet entries of the newer policy: its
// word stands, else the two would take turns.
static __always_inline bool is_stale(const struct flow *f)
{
	return (__s32)(f->generation - generation) < 0;
}

// has_meaning tells that a mark field stood for the same rule in some older
// generation already.
static __always_inline bool has_meaning(__u32 mark, __u32 then)
{
	asm volatile("" : "+r"(mark)); // 6.1 must see the comparison of what is used
	if (mark >= MAX_MARKS)
		return false;
	__u32 since = mark_since[mark];

	return since && (__s32)(then - since) >= 0;
}

// first_packet makes a packet of the flow, turned into its originator's direction,
// look like the one that began it, which is what rules judge a flow by.
static __always_inline void first_packet(struct packet *p)
{
	p->fragment = 0;
	if (p->proto == IPPROTO_TCP)
		p->tcp_flags = TCP_SYN;
	else if (p->proto == IPPROTO_ICMP && p->icmp_type == ICMP_ECHO_REPLY)
		p->icmp_type = ICMP_ECHO;
	else if (p->proto == IPPROTO_ICMPV6 && p->icmp_type == ICMPV6_ECHO_REPLY)
		p->icmp_type = ICMPV6_ECHO;
}

// A policy's word on a flow.
struct word {
	__u32 decided_by;
	__u16 rule;
	__u16 mark;
	__u8 action;
	__u8 replies;
};

// write gives an entry its new word. Whoever reads the generation finds the rest
// written.
static __always_inline void write(struct flow *f, const struct word *word)
{
	f->rule = word->rule;
	f->mark = word->mark;
	f->replies = word->replies;
	f->decided_by = word->decided_by;
	f->action = word->action;
	__sync_lock_test_and_set(&f->generation, generation);
}

// continue_inspection says what an inspecting rule means to a flow that is known.
static __always_inline void continue_inspection(const struct packet *p, const struct flow *f,
						const volatile struct rule *r, struct word *word)
{
	if (f->decided_by && f->decided_by == r->id) {
		// The same rule has decided it already.
		word->action = f->action;
		word->decided_by = f->decided_by;
	} else if (f->action != ACTION_INSPECT && p->proto == IPPROTO_TCP &&
		   on_midstream != ACTION_INSPECT) {
		word->action = on_midstream; // its start has passed without this rule
	} else {
		word->mark = r->mark;
		word->replies = r->replies;
	}
}

// rejudge lets this policy judge a known flow by its first packet, whichever of
// its packets is at hand, and leaves the packet as it was. What it denies keeps
// its entry: without one, what the other side sends would begin the flow anew.
// What came in at in says so itself where its sender began the flow.
// Global, so that it is verified once.
__noinline int rejudge(struct __sk_buff *skb, struct packet *p, struct flow *f, __u8 sender,
		       __u32 in)
{
	struct word word = {.rule = RULE_NONE, .action = ACTION_ACCEPT};

	if (!p || !f)
		return -1; // cannot be
	if (f->via) {
		// It lets replies return; whether the flow may go on is asked where
		// it has its first addresses. User space is asked as long as there
		// is such a rule.
		if (f->action == ACTION_INSPECT && has_meaning(f->mark, f->generation)) {
			word.action = ACTION_INSPECT;
			word.mark = f->mark;
			word.replies = f->replies;
		}
		write(f, &word);
		return 0;
	}

	__u8 flags = p->tcp_flags, type = p->icmp_type, fragment = p->fragment;
	bool reply = sender != f->origin;
	if (!reply)
		f->in = in;
	else if (f->in == IN_UNKNOWN || any_ip || any_vlan)
		return 0; // the next packet from the other side will tell
	// The host's own flows leave and return by this interface.
	struct way way = {.from = ZONE_HOST, .to = zone_of(skb->ifindex)};

	if (f->in) {
		way.from = zone_of(f->in);
		way.in = f->in;
	}
	if (reply)
		turn(p);
	first_packet(p);
	bool over;
	__u64 n = find_limited(skb, p, &way, false, &over);
	p->tcp_flags = flags;
	p->icmp_type = type;
	p->fragment = fragment;
	if (reply)
		turn(p);

	if (n >= MAX_RULES) {
		word.action = default_action(way);
	} else {
		const volatile struct rule *r = rule_at(n);
		word.rule = n;
		word.action = r->action;
		if (word.action == ACTION_INSPECT)
			continue_inspection(p, f, r, &word);
	}
	write(f, &word);
	return 0;
}
