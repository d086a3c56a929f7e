// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Limits: how many packets may begin flows by a rule. A bucket is one number, the
// moment at which it will be full again, so that CPUs share it by a compare and
// exchange and none takes a token twice.
#pragma once

#include "classify.h"
#include "maps.h"
#include "parse.h"

enum {
	TAKE_TRIES = 16, // while other CPUs take from the same bucket
};

static __always_inline void bucket_of(const struct packet *p, const volatile struct limit *l,
				      struct limit_key *key)
{
	const volatile __u32 *mask = (void *)(p->family == 4 ? l->mask4 : l->mask);
	const __u32 *addr = (void *)(l->per == LIMIT_PER_SRC ? p->src : p->dst);

	if (l->per == LIMIT_PER_ALL)
		return;
	for (int i = 0; i < 4; i++)
		((__u32 *)key->addr)[i] = addr[i] & mask[i];
}

// is_over tells whether a packet is over the limit of rule n; if it is not, and
// take says so, it takes a token. Global, for its stack and its verification.
__noinline int is_over(struct packet *p, __u32 n, bool take)
{
	struct limit_key key = {.rule = n};

	if (!p)
		return 1; // cannot be
	const volatile struct limit *l = &rate_limits[(rule_at(n)->limit - 1) & (MAX_LIMITS - 1)];
	__u64 now = bpf_ktime_get_ns(); // the coarse clock is too coarse

	bucket_of(p, l, &key);
	__u64 *full = bpf_map_lookup_elem(&buckets, &key);
	if (!full) {
		__u64 first = now + l->interval;

		if (!take || !bpf_map_update_elem(&buckets, &key, &first, BPF_NOEXIST))
			return 0;
		full = bpf_map_lookup_elem(&buckets, &key); // another CPU was faster
		if (!full)
			return 1;
	}
	for (int i = 0; i < TAKE_TRIES; i++) {
		__u64 seen = *(volatile __u64 *)full;
		// How far ahead it is, 0 if it is full. Without a branch: Linux 6.1
		// would follow both ways, each time.
		__s64 ahead = seen - now;

		ahead &= ~(ahead >> 63);
		if ((__u64)ahead > l->ahead)
			return 1;
		if (!take ||
		    __sync_val_compare_and_swap(full, seen, now + ahead + l->interval) == seen)
			return 0;
	}
	return 1;
}
