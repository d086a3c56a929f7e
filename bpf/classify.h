// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Classification: which rule a packet meets, by rule sets (see maps.h).
#pragma once

#include "maps.h"
#include "parse.h"
#include <stdbool.h>

enum {
	ICMP_UNREACH = 3, // error types of ICMP
	ICMP_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMPV6_UNREACH = 1, // error types of ICMPv6
	ICMPV6_TOOBIG = 2,
	ICMPV6_EXCEEDED = 3,
	ICMPV6_PARAMETER = 4,
	AF_INET = 2,
	AF_INET6 = 10,
};

static __always_inline __u64 port_set(void *table, bool has_ports, __be16 port)
{
	__u32 i = has_ports ? bpf_ntohs(port) : MAX_PORT;
	__u64 *set = bpf_map_lookup_elem(table, &i);

	return set ? *set : 0;
}

static __always_inline __u64 address_set(void *trie, const __u8 addr[16])
{
	struct prefix_key key = {.prefixlen = 128};

	__builtin_memcpy(key.addr, addr, 16);
	__u64 *set = bpf_map_lookup_elem(trie, &key);
	return set ? *set : 0;
}

// matching_rules is the set of the rules that match in every field but the zone
// out. wanted are the rules that the caller cares for: the search ends early
// when none of them is left.
static __always_inline __u64 matching_rules(const struct packet *p, __u8 from, __u64 wanted)
{
	__u64 set = rules_from[from] & rules_proto[p->proto];
	__u32 flags = p->proto == IPPROTO_TCP ? p->tcp_flags : MAX_FLAGS;

	set &= rules_flags[flags];
	if (set & wanted)
		set &= port_set(&rules_dport, p->has_ports, p->dport);
	if (set & wanted)
		set &= port_set(&rules_sport, p->has_ports, p->sport);
	if (set & wanted)
		set &= address_set(&rules_src, p->src);
	if (set & wanted)
		set &= address_set(&rules_dst, p->dst);
	return set & wanted ? set : 0;
}

// first_rule is the index of the lowest rule of a set, or RULE_NONE.
static __always_inline __u16 first_rule(__u64 set)
{
	return set ? __builtin_ctzll(set) & (MAX_RULES - 1) : RULE_NONE;
}

static __always_inline __u8 zone_of(__u32 ifindex)
{
	__u8 *zone = bpf_map_lookup_elem(&zones, &ifindex);

	return zone ? *zone : ZONE_NONE;
}

// zone_out asks the kernel where it would send an incoming packet. Without a
// route the answer is the same as for this host's own addresses: the packet is
// judged as one to the host, and the stack drops it if the policy does not.
static __always_inline __u8 zone_out(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup fib = {
		.family = p->family == 4 ? AF_INET : AF_INET6,
		.l4_protocol = p->proto,
		.sport = p->sport,
		.dport = p->dport,
		.ifindex = skb->ifindex,
	};

	if (p->family == 4) {
		fib.tos = p->tos;
		__builtin_memcpy(&fib.ipv4_src, p->src + 12, 4);
		__builtin_memcpy(&fib.ipv4_dst, p->dst + 12, 4);
	} else {
		__builtin_memcpy(fib.ipv6_src, p->src, 16);
		__builtin_memcpy(fib.ipv6_dst, p->dst, 16);
	}
	switch (bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_NOT_FWDED:
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return ZONE_HOST;
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return zone_of(fib.ifindex);
	}
	return ZONE_NONE; // a route that drops
}

static __always_inline bool is_icmp_error(const struct packet *p)
{
	if (p->family == 4)
		return p->proto == IPPROTO_ICMP &&
		       (p->icmp_type == ICMP_UNREACH || p->icmp_type == ICMP_EXCEEDED ||
			p->icmp_type == ICMP_PARAMETER);
	// RFC 4443: types below 128 are errors.
	return p->proto == IPPROTO_ICMPV6 && p->icmp_type < 128;
}

// is_vital_icmp is RFC 4890's list of ICMPv6 that must not be dropped (4.3.1 and
// 4.4.1), without what only Mobile IPv6 needs.
static __always_inline bool is_vital_icmp(const struct packet *p)
{
	if (p->family != 6 || p->proto != IPPROTO_ICMPV6)
		return false;
	switch (p->icmp_type) {
	case ICMPV6_UNREACH:
	case ICMPV6_TOOBIG:
	case ICMPV6_ECHO:
	case ICMPV6_ECHO_REPLY:
	case 130: // multicast listener discovery
	case 131:
	case 132:
	case 143:
		return true;
	case ICMPV6_EXCEEDED:
		return p->icmp_code == 0;
	case ICMPV6_PARAMETER:
		return p->icmp_code == 1 || p->icmp_code == 2;
	case 133: // neighbour discovery: never from beyond the link (RFC 4861)
	case 134:
	case 135:
	case 136:
	case 137:
	case 141:
	case 142:
		return p->hop_limit == 255;
	}
	return false;
}
