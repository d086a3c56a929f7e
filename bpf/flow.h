// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Flows: keys, entries and their upkeep; fragments.
#pragma once

#include "maps.h"
#include "parse.h"
#include <stdbool.h>

#define SECOND 1000000000ULL

enum {
	IDLE_TCP = 432000, // seconds without a packet until an entry is void
	IDLE_UDP = 180,
	IDLE_OTHER = 60,
};

// A flow's key, and which of its endpoints sent the packet at hand.
struct flow_id {
	struct flow_key key;
	__u8 sender;
};

static __always_inline __u64 word(const __u8 *bytes)
{
	return bpf_be64_to_cpu(*(const __be64 *)bytes);
}

static __always_inline bool is_same(const __u8 a[16], const __u8 b[16])
{
	return word(a) == word(b) && word(a + 8) == word(b + 8);
}

// is_lower orders endpoints by address, then port.
static __always_inline bool is_lower(const __u8 a[16], __be16 aport, const __u8 b[16], __be16 bport)
{
	if (word(a) != word(b))
		return word(a) < word(b);
	if (word(a + 8) != word(b + 8))
		return word(a + 8) < word(b + 8);
	return bpf_ntohs(aport) < bpf_ntohs(bport);
}

static __always_inline void flow_of(const struct packet *p, struct flow_id *id)
{
	struct flow_key *k = &id->key;

	__builtin_memset(id, 0, sizeof(*id));
	k->proto = p->proto;
	if (is_lower(p->dst, p->dport, p->src, p->sport)) {
		id->sender = 1;
		__builtin_memcpy(k->addr[0], p->dst, 16);
		__builtin_memcpy(k->addr[1], p->src, 16);
		k->port[0] = p->dport;
		k->port[1] = p->sport;
	} else {
		__builtin_memcpy(k->addr[0], p->src, 16);
		__builtin_memcpy(k->addr[1], p->dst, 16);
		k->port[0] = p->sport;
		k->port[1] = p->dport;
	}
}

// starts_flow is a first SYN. A SYN in a known flow starts it anew: otherwise a
// connection that reuses the ports of an old one would inherit its verdict.
static __always_inline bool starts_flow(const struct packet *p)
{
	return p->proto == IPPROTO_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

static __always_inline bool is_idle(const struct flow *f, const struct packet *p, __u64 now)
{
	__u64 limit = p->proto == IPPROTO_TCP	? IDLE_TCP * SECOND
		      : p->proto == IPPROTO_UDP ? IDLE_UDP * SECOND
						: IDLE_OTHER * SECOND;

	return now > f->last_seen + limit;
}

static __always_inline void account(struct flow *f, __u8 sender, const struct packet *p)
{
	// Two stores with constant offsets: atomics take no computed ones.
	if (sender) {
		__sync_fetch_and_add(&f->packets[1], p->segments);
		__sync_fetch_and_add(&f->bytes[1], p->frame_len);
	} else {
		__sync_fetch_and_add(&f->packets[0], p->segments);
		__sync_fetch_and_add(&f->bytes[0], p->frame_len);
	}
}

// find_flow looks an entry up that still counts for the packet.
static __always_inline struct flow *find_flow(const struct packet *p, const struct flow_id *id,
					      __u64 now)
{
	struct flow *f = bpf_map_lookup_elem(&flows, &id->key);

	return f && !is_idle(f, p, now) ? f : NULL;
}

static __always_inline void refresh(struct flow *f, __u64 now)
{
	// The entry's cache line is shared by CPUs: write it only when it is old.
	if (now > f->last_seen + SECOND)
		f->last_seen = now;
}

static __always_inline void fragment_of(const struct packet *p, struct fragment_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->src, p->src, 16);
	__builtin_memcpy(key->dst, p->dst, 16);
	key->id = p->fragment_id;
	// The header behind an IPv6 fragment header is known in the first
	// fragment only; there the identifier alone must do (RFC 8200 4.5).
	key->proto = p->family == 4 ? p->proto : 0;
}
