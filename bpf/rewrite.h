// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Rewriting: header fields that a rule sets in the packets that it lets pass. Only
// header bytes are made writable; what the packet carries is not copied.
#pragma once

#include "classify.h"
#include "maps.h"
#include "offload.h"
#include "parse.h"

enum {
	TCP_HEADER = 20, // without options
	TCPOPT_END = 0,
	TCPOPT_NOP = 1,
	TCPOPT_MSS = 2,
	TCPOPT_MSS_LEN = 4,
	TCP_OPTIONS = 40, // bytes at most
	IPV4_TOS = 1,
	IPV4_TTL = 8,
	IPV4_CHECKSUM = 10,
	IPV6_HOP_LIMIT = 7,
	ECN = 3, // bits of the TOS
};

static __always_inline void set_tos(struct __sk_buff *skb, struct packet *p, __u8 tos)
{
	__u8 before = p->tos;

	if (tos == before)
		return;
	p->tos = tos; // what routes by it goes by the new one
	if (p->family == 4) {
		if (!bpf_skb_store_bytes(skb, p->l3 + IPV4_TOS, &tos, 1, 0))
			bpf_l3_csum_replace(skb, p->l3 + IPV4_CHECKSUM, bpf_htons(before),
					    bpf_htons(tos), 2);
		return;
	}
	__be16 word; // version, traffic class, the flow label's first bits
	if (bpf_skb_load_bytes(skb, p->l3, &word, 2))
		return;
	word = (word & bpf_htons(0xf00f)) | bpf_htons((__u16)tos << 4);
	bpf_skb_store_bytes(skb, p->l3, &word, 2, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void set_ttl(struct __sk_buff *skb, struct packet *p, __u8 ttl)
{
	if (ttl == p->hop_limit)
		return;
	if (p->family == 6)
		bpf_skb_store_bytes(skb, p->l3 + IPV6_HOP_LIMIT, &ttl, 1, BPF_F_RECOMPUTE_CSUM);
	else if (!bpf_skb_store_bytes(skb, p->l3 + IPV4_TTL, &ttl, 1, 0))
		bpf_l3_csum_replace(skb, p->l3 + IPV4_CHECKSUM, bpf_htons((__u16)p->hop_limit << 8),
				    bpf_htons((__u16)ttl << 8), 2);
}

// route_mtu is the MTU with which this host sends from one address to another, or
// 0: the interface's, or the route's own where that is locked. out says that the
// packet leaves by the interface; else it came in there.
static __always_inline __u32 route_mtu(struct __sk_buff *skb, const struct packet *p, bool back,
				       bool out)
{
	struct bpf_fib_lookup fib = {
		.family = p->family == 4 ? AF_INET : AF_INET6,
		.l4_protocol = IPPROTO_TCP,
		.tot_len = 1, // or the route's own MTU is not looked at
		.ifindex = skb->ifindex,
	};
	const __u8 *src = back ? p->dst : p->src, *dst = back ? p->src : p->dst;

	if (p->family == 4) {
		__builtin_memcpy(&fib.ipv4_src, src + 12, 4);
		__builtin_memcpy(&fib.ipv4_dst, dst + 12, 4);
	} else {
		__builtin_memcpy(fib.ipv6_src, src, 16);
		__builtin_memcpy(fib.ipv6_dst, dst, 16);
	}
	int result = bpf_fib_lookup(skb, &fib, sizeof(fib), out ? BPF_FIB_LOOKUP_OUTPUT : 0);
	if (result == BPF_FIB_LKUP_RET_SUCCESS)
		return fib.mtu_result;
	__u32 mtu = 0;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH) // then it does not say
		bpf_check_mtu(skb, fib.ifindex, &mtu, 0, 0);
	return mtu;
}

// path_mss is the largest segment that the routes to both ends take, or 0xffff.
// Global, like clamp_mss, for its stack.
__noinline int path_mss(struct __sk_buff *skb, struct packet *p, bool leaves)
{
	if (!p)
		return MSS_PMTU; // cannot be
	__u32 headers = (p->family == 4 ? 20 : 40) + TCP_HEADER;
	__u32 there = route_mtu(skb, p, false, leaves), back = route_mtu(skb, p, true, !leaves);
	__u32 mtu = there && (!back || there < back) ? there : back;

	if (mtu <= headers || mtu - headers > MSS_PMTU)
		return MSS_PMTU;
	return mtu - headers;
}

// find_mss is the offset of the MSS option's value from the transport header on,
// or 0.
__noinline int find_mss(struct __sk_buff *skb, struct packet *p)
{
	if (!p)
		return 0; // cannot be
	__u32 at = TCP_HEADER, end = p->l4_header;

	for (int i = 0; i < TCP_OPTIONS; i++) {
		__u8 option[2]; // kind, length

		if (at + TCPOPT_MSS_LEN > end || bpf_skb_load_bytes(skb, p->l4 + at, option, 2))
			return 0;
		if (option[0] == TCPOPT_MSS)
			return option[1] == TCPOPT_MSS_LEN ? at + 2 : 0;
		if (option[0] == TCPOPT_END)
			return 0;
		if (option[0] == TCPOPT_NOP)
			at++;
		else if (option[1] < 2)
			return 0;
		else
			at += option[1];
	}
	return 0;
}

// clamp_mss lowers what a SYN announces.
__noinline int clamp_mss(struct __sk_buff *skb, struct packet *p, __u32 most, bool leaves)
{
	__be16 before, after;

	if (!p)
		return -1; // cannot be
	__u32 at = find_mss(skb, p);
	if (!at || bpf_skb_load_bytes(skb, p->l4 + at, &before, 2))
		return 0;
	if (most == MSS_PMTU)
		most = path_mss(skb, p, leaves);
	if (most >= bpf_ntohs(before))
		return 0;
	after = bpf_htons(most);
	if (bpf_skb_store_bytes(skb, p->l4 + at, &after, 2, 0))
		return -1;
	if (at & 1) { // then each of its bytes stands in another word's half
		before = __builtin_bswap16(before);
		after = __builtin_bswap16(after);
	}
	return bpf_l4_csum_replace(skb, p->l4 + TCP_CHECKSUM, before, after, 2);
}

// is_rewritten tells whether a flow's rule sets fields in the packets of a side, SYNs
// aside. XDP leaves them to tc.
static __always_inline bool is_rewritten(const struct flow *f, __u8 sender)
{
	if (!any_rewrite || sender != f->origin || f->rule >= MAX_RULES)
		return false;
	return rule_at(f->rule)->ttl || rule_at(f->rule)->dscp;
}

// rewrite sets the fields of a packet's rule. What came in is not at the end of
// its way: the TTL that it leaves with is one less. Global, so that it is verified
// once.
__noinline int rewrite(struct __sk_buff *skb, struct packet *p, bool leaves)
{
	if (!p || p->rule > MAX_RULES)
		return 0; // no rule of a policy
	const volatile struct rule *r = rule_at(p->rule - 1);

	if (!p->reply && r->dscp)
		set_tos(skb, p, (__u8)((r->dscp - 1) << 2) | (p->tos & ECN));
	if (!p->reply && r->ttl)
		set_ttl(skb, p, leaves ? r->ttl : r->ttl + 1);
	if (r->mss && p->proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN && !p->later_fragment)
		clamp_mss(skb, p, r->mss, leaves);
	return 0;
}
