// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Ways: from which zone to which, and the rule that a packet meets on its way.
#pragma once

#include "classify.h"
#include "maps.h"

// Where a packet comes from and goes to, as rules see it.
struct way {
	__u8 from;
	__u8 to;
	__u32 in; // ifindex to ask the route from; 0: the zone out is known
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
	if (!find_sets(p, source_number(p), &s))
		return RULE_NONE; // cannot be: every number has its set
	if (!way->in)
		return first_match(&s, way->from, way->to);
	n = first_match(&s, way->from, ANY_ZONE);
	if (n >= MAX_RULES) {
		if (default_input != default_forward)
			way->to = zone_out(skb, p, way->in);
	} else if (!rule_at(n)->any_zone) {
		way->to = zone_out(skb, p, way->in);
		n = first_match(&s, way->from, way->to);
	}
	return n;
}
