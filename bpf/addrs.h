// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Addresses: the number of the set of the rules that an address satisfies. Single
// addresses are looked up in hash tables, all others by the ranges that they are
// in, in search trees. Both are made of lines of one cache line each, so that an
// answer among a million costs a few lines.
#pragma once

#include "maps.h"
#include "parse.h"
#include <bpf/bpf_endian.h>
#include <stdbool.h>

static __always_inline const struct line *line_at(__u32 i)
{
	return bpf_map_lookup_elem(&lines, &i);
}

// is_below is 1 where a < b, else 0, without a branch: which way it went could
// not be foreseen.
static __always_inline __u32 is_below(__u64 a, __u64 b)
{
	__u64 d = a - b;

	asm volatile("" : "+r"(d)); // or it would be made a branch again
	return d >> 63;
}

// find_range looks a word of an address up in the tree at a root: the number of
// its set, or the root of the tree for the next word (RANGE_TREE). Global, so that
// it is verified once.
__noinline int find_range(__u32 root, __u32 word)
{
	__u32 i = root & RANGE_LINE, depth = root >> RANGE_DEPTH & RANGE_DEPTHS;
	__u64 above = (__u64)word + 1;
	const struct line *l;

	for (__u32 d = 0; d < RANGE_DEPTHS && d < depth; d++) {
		__u32 n = 0;

		l = line_at(i);
		if (!l)
			return 0; // cannot be
		for (int k = 0; k < NODE_KEYS; k++)
			n += is_below(l->node.keys[k], above);
		// The keys behind the last are the highest word, which may be asked for.
		n -= (n - l->node.last) & -is_below(l->node.last, n);
		i = l->node.first + n;
	}
	l = line_at(i);
	if (!l)
		return 0; // cannot be
	__u64 n = 0;
	for (int k = 0; k < LEAF_KEYS; k++)
		n += is_below(l->leaf.keys[k], above);
	asm volatile("%0 &= %1" : "+r"(n) : "i"(LEAF_KEYS)); // a bound for Linux 6.1
	return l->leaf.numbers[n];
}

static __always_inline __u32 find_host4(const volatile struct address_table *t, __be32 addr)
{
	__u32 i = t->hosts4 + (__u32)(((__u64)addr * HASH_FACTOR) >> (64 - t->bits4));

	for (int tries = 0; tries < HOST_LINES; tries++) {
		const struct line *l = line_at(i + tries);

		if (!l)
			return NO_HOST; // cannot be
		for (int k = 0; k < HOSTS4; k++)
			if (l->hosts4.addr[k] == addr)
				return l->hosts4.number[k];
		if (!l->hosts4.more)
			return NO_HOST;
	}
	return NO_HOST;
}

static __always_inline __u32 find_host6(const volatile struct address_table *t, __u64 high,
					__u64 low)
{
	__u64 mixed = (high * HASH_FACTOR) ^ low;
	__u32 i = t->hosts6 + (__u32)((mixed * HASH_FACTOR) >> (64 - t->bits6));

	for (int tries = 0; tries < HOST_LINES; tries++) {
		const struct line *l = line_at(i + tries);

		if (!l)
			return NO_HOST; // cannot be
		for (int k = 0; k < HOSTS6; k++)
			if (l->hosts6.addr[k][0] == high && l->hosts6.addr[k][1] == low)
				return l->hosts6.number[k];
		if (!l->hosts6.more)
			return NO_HOST;
	}
	return NO_HOST;
}

static __always_inline __u32 find_address(const volatile struct address_table *t,
					  const __u8 addr[16], __u8 family)
{
	const __be32 *word = (const __be32 *)addr;
	__u32 number = NO_HOST;

	if (family == 4) {
		if (t->bits4)
			number = find_host4(t, word[3]);
		return number != NO_HOST ? number : find_range(t->root4, bpf_ntohl(word[3]));
	}
	if (t->bits6)
		number = find_host6(t, ((const __u64 *)addr)[0], ((const __u64 *)addr)[1]);
	if (number != NO_HOST)
		return number;
	number = find_range(t->root6, bpf_ntohl(word[0]));
	for (int i = 1; i < 4 && number & RANGE_TREE; i++)
		number = find_range(number, bpf_ntohl(word[i]));
	return number;
}

// source_number is the number of a source's set. Global, like target_number, so
// that it is verified once.
__noinline int source_number(struct packet *p)
{
	return p ? find_address(&sources, p->src, p->family) : 0;
}

__noinline int target_number(struct packet *p)
{
	return p ? find_address(&targets, p->dst, p->family) : 0;
}
