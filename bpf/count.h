// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Counting.
#pragma once

#include "classify.h"
#include "maps.h"
#include "parse.h"

// Global: Linux 6.1 takes the wrong branches behind a call of a static function
// for dead.
__noinline int count(enum hook hook, enum verdict verdict, enum reason reason, __u32 segments,
		     __u32 bytes)
{
	__u32 i = (hook * VERDICT_COUNT + verdict) * REASON_COUNT + reason;
	struct counter *c = bpf_map_lookup_elem(&counters, &i);

	if (!c)
		return -1; // cannot be: the index is inside the array
	c->packets += segments;
	c->bytes += bytes;
	return 0;
}

static __always_inline void count_list(const struct packet *p, __u16 rule, __u32 set, bool dst)
{
	struct list_key key = {.set = set & ~SET_EARLY, .rule = rule, .dst = dst};
	__u32 *number = bpf_map_lookup_elem(&list_numbers, &key);

	if (!number)
		return; // the address is in none of the rule's lists
	struct counter *c = bpf_map_lookup_elem(&list_counters, number);
	if (!c)
		return; // cannot be: there is one for each list
	c->packets += p->segments;
	c->bytes += p->frame_len;
}

__noinline int count_lists(struct packet *p, __u32 rule, __u32 source, __u32 target)
{
	if (!p)
		return -1; // cannot be
	count_list(p, rule, source, false);
	count_list(p, rule, target, true);
	return 0;
}

// count_rule counts a packet for a rule that has judged it; source and target are
// the numbers of its addresses' sets.
static __always_inline void count_rule(__u32 rule, struct packet *p, __u32 source, __u32 target)
{
	struct counter *c = bpf_map_lookup_elem(&rule_counters, &rule);

	if (!c)
		return; // cannot be: there is one for each rule
	c->packets += p->segments;
	c->bytes += p->frame_len;
	if (any_lists && rule_at(rule)->lists)
		count_lists(p, rule, source, target);
}
