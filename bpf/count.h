// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Counting.
#pragma once

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

static __always_inline void count_rule(__u32 rule, const struct packet *p)
{
	struct counter *c = bpf_map_lookup_elem(&rule_counters, &rule);

	if (!c)
		return; // cannot be: there is one for each rule
	c->packets += p->segments;
	c->bytes += p->frame_len;
}
