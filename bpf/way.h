// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Ways: from which zone to which, and the rule that a packet meets on its way.
#pragma once

#include "classify.h"
#include "limit.h"
#include "maps.h"

// Where a packet comes from and goes to, as rules see it.
struct way {
	__u8 from;
	__u8 to;
	__u8 src_lists; // dynamic lists of the addresses
	__u8 dst_lists;
	__u32 in;     // ifindex to ask the route from; 0: the zone out is known
	__u32 after;  // number + 1 of the set of the rules that count; 0: all
	__u32 source; // numbers of the addresses' sets
	__u32 target;
};

static __always_inline __u8 default_action(struct way way)
{
	if (way.from == ZONE_HOST)
		return default_output;
	return way.to == ZONE_HOST ? default_input : default_forward;
}

// find_rule is the first rule that matches. Where the zone out is not known yet,
// the route is asked for only where it matters. Global, so that it is verified
// once, and for its stack.
__noinline int find_rule(struct __sk_buff *skb, struct packet *p, struct way *way)
{
	struct sets s;
	__u64 n;

	if (!p || !way)
		return RULE_NONE; // cannot be
	if (!find_sets(p, way->source, way->target, &s))
		return RULE_NONE; // cannot be: every number has its set
	if (any_limit && way->after)
		s.after = set(way->after - 1);
	if (!s.after)
		return RULE_NONE; // cannot be
	if (!way->in)
		return first_match(&s, way->from, way->to, 0);
	n = first_match(&s, way->from, ANY_ZONE, 0);
	if (n >= MAX_RULES) {
		if (default_input != default_forward)
			way->to = zone_out(skb, p, way->in);
	} else if (!rule_at(n)->any_zone) {
		way->to = zone_out(skb, p, way->in);
		// None before it matches any zone out.
		n = first_match(&s, way->from, way->to, n / 64);
	}
	return n;
}

// listed is the first rule that matches. It is read back from the packet, of whose
// fields the verifier knows nothing: otherwise it would follow what comes behind once
// for each word of a set.
static __always_inline __u64 listed(struct packet *p, const struct way *way, int to)
{
	struct set_numbers s; // made anew each time: the stack has no room for them and a route

	find_numbers(p, way->source, way->target, way->src_lists, way->dst_lists, &s);
	if (any_limit && way->after)
		s.n[IN_AFTER] = way->after - 1;
	volatile __u16 *found = &p->rule;
	*found = first_listed(&s, way->from, to);
	__u64 n = *found;
	*found = 0;
	return n;
}

// find_listed is find_rule where rules name dynamic lists.
__noinline int find_listed(struct __sk_buff *skb, struct packet *p, struct way *way)
{
	__u64 n = RULE_NONE;

	if (!p || !way || !any_dynamic)
		return RULE_NONE; // cannot be
	int to = way->in ? ANY_ZONE : way->to;

#pragma clang loop unroll(disable)
	for (int pass = 0; pass < 2; pass++) {
		asm volatile("" ::: "memory"); // or what both passes do would be kept over them
		n = listed(p, way, to);
		if (to != ANY_ZONE)
			break;
		if (n >= MAX_RULES ? default_input == default_forward : rule_at(n)->any_zone)
			break;
		way->to = to = zone_out(skb, p, way->in);
		if (n >= MAX_RULES)
			break;
	}
	return n;
}

static __always_inline __u64 find(struct __sk_buff *skb, struct packet *p, struct way *way)
{
	return any_dynamic ? find_listed(skb, p, way) : find_rule(skb, p, way);
}

// find_limited is find for a packet that takes tokens where take says so; else
// limits are taken for kept. A packet that is over very many limits is dropped.
static __always_inline __u64 find_limited(struct __sk_buff *skb, struct packet *p, struct way *way,
					  bool take, bool *over)
{
	// Here, not in find, for the stack.
	way->source = source_number(p);
	way->target = target_number(p);
	if (any_dynamic) {
		way->src_lists = source_lists(p);
		way->dst_lists = target_lists(p);
	}
	__u64 n = find(skb, p, way);

	*over = false;
	if (!any_limit)
		return n;
	for (int i = 0; i < LIMITS_TRIED; i++) {
		if (n >= MAX_RULES || !rule_at(n)->limit)
			return n;
		bool excess = take && is_over(p, n, true);
		if (excess == (rule_at(n)->action == ACTION_DROP))
			return n;
		way->after = rule_at(n)->after;
		n = find(skb, p, way);
	}
	*over = n < MAX_RULES && rule_at(n)->limit;
	return n;
}
