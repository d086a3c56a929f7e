// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Dynamic lists: addresses that user space has learned from DNS answers, each with the
// moment until which it is in a list. Which rules that adds or takes away does not
// depend on the tables of addresses: for each field and each choice of lists there are
// two sets, of the rules that it adds and of those that it leaves.
#pragma once

#include "maps.h"
#include "parse.h"
#include <stdbool.h>

// lists_of is the dynamic lists that an address is in, a bit each.
static __always_inline __u32 lists_of(const __u8 addr[16])
{
	struct address key;
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 lists = 0;

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	struct membership *l = bpf_map_lookup_elem(&learned, &key);
	if (!l)
		return 0;
	for (int i = 0; i < MAX_DYNAMIC; i++) {
		__u64 over = now - l->until[i]; // its sign: it is still in the list

		asm volatile("" : "+r"(over)); // or it would be made a branch
		lists |= (over >> 63) << i;
	}
	return lists;
}

// source_lists and target_lists are those of a packet's addresses. Global, so that
// they are verified once.
__noinline int source_lists(struct packet *p)
{
	return p ? lists_of(p->src) : 0;
}

__noinline int target_lists(struct packet *p)
{
	return p ? lists_of(p->dst) : 0;
}
