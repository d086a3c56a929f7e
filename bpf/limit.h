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

// turn makes a reply of a packet, or a packet of a reply.
static __always_inline void turn(struct packet *p)
{
	__u32 *src = (__u32 *)p->src, *dst = (__u32 *)p->dst;
	__be16 port = p->sport;

	for (int i = 0; i < 4; i++) {
		__u32 word = src[i];
		src[i] = dst[i];
		dst[i] = word;
	}
	p->sport = p->dport;
	p->dport = port;
}

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

// take_from takes a token from a bucket, if take says so, and tells that there is
// none.
static __always_inline bool take_from(__u64 *full, const volatile struct limit *l, __u64 now,
				      bool take)
{
	for (int i = 0; i < TAKE_TRIES; i++) {
		__u64 seen = *(volatile __u64 *)full;
		// How far ahead it is, 0 if it is full. Without a branch: Linux 6.1
		// would follow both ways, each time.
		__s64 ahead = seen - now;

		ahead &= ~(ahead >> 63);
		if ((__u64)ahead > l->ahead)
			return true;
		if (!take ||
		    __sync_val_compare_and_swap(full, seen, now + ahead + l->interval) == seen)
			return false;
	}
	return true;
}

// is_over_at tells whether a packet is over a limit, by its index; if it is not,
// and take says so, it takes a token.
static __always_inline bool is_over_at(const struct packet *p, __u32 index, __u64 now, bool take)
{
	const volatile struct limit *l = &rate_limits[index];
	struct limit_key key = {.limit = index};

	bucket_of(p, l, &key);
	__u64 *full = bpf_map_lookup_elem(&buckets, &key);
	if (!full) {
		__u64 first = now + l->interval;

		if (!take || !bpf_map_update_elem(&buckets, &key, &first, BPF_NOEXIST))
			return false;
		full = bpf_map_lookup_elem(&buckets, &key); // another CPU was faster
		if (!full)
			return true;
	}
	return take_from(full, l, now, take);
}

// is_over is is_over_at for the limit of rule n. Global, for its stack and its
// verification.
__noinline int is_over(struct packet *p, __u32 n, bool take)
{
	if (!p)
		return 1; // cannot be
	return is_over_at(p, (rule_at(n)->limit - 1) & (MAX_LIMITS - 1), bpf_ktime_get_ns(),
			  take); // the coarse clock is too coarse
}

// is_queue_over tells whether a packet is over the queue's limits, that of the
// source of its flow and that of all; else it takes a token of each.
__noinline int is_queue_over(struct packet *p, bool reply)
{
	__u64 now = bpf_ktime_get_ns();

	if (!p)
		return 1; // cannot be
	if (limit_queue) {
		bool over;

		if (reply)
			turn(p);
		over = is_over_at(p, LIMIT_QUEUE, now, true);
		if (reply)
			turn(p);
		if (over)
			return 1;
	}
	return queue_limit.interval && take_from(&queue_full, &queue_limit, now, true);
}
