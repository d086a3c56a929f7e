// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Flows: keys, entries and their upkeep; fragments.
#pragma once

#include "maps.h"
#include "parse.h"
#include <stdbool.h>

#define SECOND 1000000000ULL

enum {
	ENDS_FIN = 1,	   // of endpoint 0 in flow.ends; endpoint 1: one bit up
	ENDS_RST = 4,	   // likewise
	ACK_ROOM = 1 << 20 // bytes that an endpoint may have sent behind its SYN-ACK
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

// live looks an entry up that still counts.
static __always_inline struct flow *live(void *table, const struct flow_key *key, __u64 now)
{
	struct flow *f = bpf_map_lookup_elem(table, key);

	return f && now <= f->last_seen + timeouts[f->state & (STATE_COUNT - 1)] ? f : NULL;
}

static __always_inline bool is_settled(const struct flow *f)
{
	return f->state >= STATE_ESTABLISHED;
}

static __always_inline bool is_syn_ack(const struct packet *p)
{
	return p->proto == IPPROTO_TCP &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK);
}

// move makes a half-open flow a known one. It is in one of the tables at any time.
static __always_inline bool move(const struct flow_key *key, const struct flow *half)
{
	if (bpf_map_update_elem(&flows, key, half, BPF_ANY))
		return false;
	bpf_map_delete_elem(&half_open, key);
	return true;
}

// find_flow looks up the entry that a packet belongs to. half tells that it is in
// half_open. A SYN in an established flow leaves the entry alone, since anybody
// can send one; it is the SYN-ACK that tells that the flow begins anew.
static __always_inline struct flow *find_flow(const struct packet *p, const struct flow_id *id,
					      __u64 now, bool *half)
{
	struct flow *f = live(&flows, &id->key, now);

	*half = false;
	if (f && !is_syn_ack(p))
		return f;
	struct flow *h = live(&half_open, &id->key, now);
	if (!f) {
		*half = h != NULL;
		return h;
	}
	if (h && h->state == STATE_SYN_SENT && h->origin != id->sender && move(&id->key, h))
		return bpf_map_lookup_elem(&flows, &id->key);
	return f;
}

static __always_inline __u8 first_state(const struct packet *p)
{
	switch (p->proto) {
	case IPPROTO_TCP:
		return starts_flow(p) ? STATE_SYN_SENT : STATE_MIDSTREAM;
	case IPPROTO_UDP:
		return STATE_UDP_UNREPLIED;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return STATE_ICMP_UNREPLIED;
	}
	return STATE_OTHER_UNREPLIED;
}

// begin enters a new flow, or one that begins anew. old is its entry in flows, if
// it has one there: an established one stays until the other endpoint agrees (see
// find_flow), one that has ended or is dropped has nothing to keep.
// Not a global function: Linux 6.1 takes no key from the memory of a caller.
static __always_inline int begin(const struct packet *p, const struct flow_id *id,
				 const struct flow *old, struct flow *f)
{
	if (old && !starts_flow(p)) {
		f->state = old->state;
		f->ends = old->ends;
		f->start = old->start;
		return bpf_map_update_elem(&flows, &id->key, f, BPF_ANY);
	}
	f->state = first_state(p);
	int err = bpf_map_update_elem(&half_open, &id->key, f, BPF_ANY);
	if (!err && old && (!is_settled(old) || old->action == ACTION_DROP))
		bpf_map_delete_elem(&flows, &id->key);
	return err;
}

// numbers are the sequence numbers of a TCP header, at offset 4.
struct numbers {
	__be32 seq;
	__be32 ack;
};

// handshake is the state behind a packet of a flow that neither endpoint has begun
// to end. A SYN-ACK is easily provoked by a forged SYN, so only an answer to its
// sequence number establishes.
static __always_inline __u8 handshake(struct __sk_buff *skb, struct flow *f, const struct packet *p,
				      bool reply)
{
	struct numbers n;

	switch (f->state) {
	case STATE_SYN_SENT:
		if (!reply)
			return starts_flow(p) ? STATE_SYN_SENT : STATE_MIDSTREAM;
		if (!is_syn_ack(p) || bpf_skb_load_bytes(skb, p->l4 + 4, &n, sizeof(n)))
			return STATE_SYN_SENT;
		f->isn = bpf_ntohl(n.seq);
		f->start = bpf_ntohl(n.ack);
		return STATE_SYN_RECV;
	case STATE_SYN_RECV:
		if (reply || bpf_skb_load_bytes(skb, p->l4 + 4, &n, sizeof(n)))
			return STATE_SYN_RECV;
		return bpf_ntohl(n.ack) - f->isn - 1 < ACK_ROOM ? STATE_ESTABLISHED
								: STATE_SYN_RECV;
	case STATE_MIDSTREAM:
		return reply ? STATE_ESTABLISHED : STATE_MIDSTREAM;
	}
	return STATE_ESTABLISHED;
}

// progress follows a flow's progress and tells that it is settled. An endpoint that
// goes on sending has not sent the reset that came under its address.
// A global function is verified once, by itself, not at each call.
__noinline int progress(struct __sk_buff *skb, struct flow *f, const struct packet *p, __u8 sender,
			bool half)
{
	if (!f || !p)
		return 0; // cannot be
	__u8 state = f->state, ends = f->ends;
	bool reply = sender != f->origin;

	if (p->proto != IPPROTO_TCP) {
		if (!reply)
			return 0;
		state += STATE_UDP_REPLIED - STATE_UDP_UNREPLIED;
	} else {
		sender &= 1; // for the verifier
		ends &= ~(ENDS_RST << sender);
		if (p->tcp_flags & TCP_RST)
			ends |= ENDS_RST << sender;
		else if (p->tcp_flags & TCP_FIN)
			ends |= ENDS_FIN << sender;
		if (ends >= ENDS_RST)
			state = STATE_CLOSE;
		else if (ends)
			state = ends == (ENDS_FIN | ENDS_FIN << 1) ? STATE_TIME_WAIT
								   : STATE_FIN_WAIT;
		else if (state == STATE_CLOSE && half)
			state = STATE_MIDSTREAM;
		else
			state = handshake(skb, f, p, reply);
	}
	if (ends != f->ends)
		f->ends = ends;
	if (state != f->state)
		f->state = state;
	return is_settled(f);
}

// track is progress, where there can be any, and moves a flow that is settled by it.
static __always_inline void track(struct __sk_buff *skb, struct flow *f, const struct packet *p,
				  const struct flow_id *id, bool half)
{
	if (is_settled(f) && !(p->tcp_flags & (TCP_FIN | TCP_RST)))
		return;
	if (progress(skb, f, p, id->sender, half) && half)
		move(&id->key, f);
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

// first_fragment is what became of the first fragment of a datagram: enum action.
// Global, like remember_fragment, for its stack.
__noinline int first_fragment(struct packet *p)
{
	struct fragment_key key;

	if (!p)
		return ACTION_NONE;
	fragment_of(p, &key);
	__u8 *action = bpf_map_lookup_elem(&fragments, &key);
	return action ? *action : ACTION_NONE;
}

__noinline int remember_fragment(struct packet *p, __u8 action)
{
	struct fragment_key key;

	if (!p)
		return -1; // cannot be
	fragment_of(p, &key);
	return bpf_map_update_elem(&fragments, &key, &action, BPF_ANY);
}
