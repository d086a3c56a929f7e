// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Classification: which rule a packet meets, by rule sets (see maps.h).
#pragma once

#include "addrs.h"
#include "lists.h"
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

// The sets of a packet's fields, but for its zones.
struct sets {
	const __u64 *l4;
	const __u64 *sport;
	const __u64 *dport;
	const __u64 *src;
	const __u64 *dst;
	const __u64 *ip; // code point and fragments
	const __u64 *vlan;
	const __u64 *after; // rules behind a limit that the packet is over
};

static __always_inline const __u64 *set(__u32 number)
{
	number &= ~SET_EARLY;
	return bpf_map_lookup_elem(&rule_sets, &number);
}

static __always_inline __u32 table_number(void *table, __u32 i)
{
	__u32 *number = bpf_map_lookup_elem(table, &i);

	return number ? *number : 0;
}

static __always_inline __u32 port_number(void *table, bool has_ports, __be16 port)
{
	return table_number(table, has_ports ? bpf_ntohs(port) : MAX_PORT);
}

// l4_number is the set of a packet's protocol, and of what the protocol has.
static __always_inline __u32 l4_number(const struct packet *p)
{
	if (p->proto == IPPROTO_TCP)
		return flag_sets[p->tcp_flags];
	// The one in the other's IP version means nothing, and has no type.
	if (any_icmp && p->proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return table_number(&rules_icmp, (p->family == 4 ? 0 : ICMP_SETS) +
							 p->icmp_type * 256 + p->icmp_code);
	return l4_sets[p->proto];
}

// ip_number is the set of a packet's code point, and of whether it is a fragment.
// Linux 6.1 must see the bound on what the table is read with.
static __always_inline __u32 ip_number(const struct packet *p)
{
	__u64 i = p->tos >> 2 | (p->fragment ? IP_FRAGMENT : 0);

	asm volatile("%0 &= %1" : "+r"(i) : "i"(MAX_IP - 1));
	return ip_sets[i];
}

// find_sets looks up the sets of a packet, given those of its addresses.
static __always_inline bool find_sets(const struct packet *p, __u32 source, __u32 target,
				      struct sets *s)
{
	s->l4 = set(l4_number(p));
	s->src = set(source);
	s->dst = set(target);
	s->dport = any_dport ? set(port_number(&rules_dport, p->has_ports, p->dport)) : s->l4;
	s->sport = any_sport ? set(port_number(&rules_sport, p->has_ports, p->sport)) : s->l4;
	s->ip = any_ip ? set(ip_number(p)) : s->l4;
	s->vlan = any_vlan ? set(table_number(&rules_vlan, p->vlan)) : s->l4;
	s->after = s->l4;
	return s->l4 && s->src && s->dst && s->dport && s->sport && s->ip && s->vlan;
}

enum {
	ANY_ZONE = -1,
};

// first_match is the index of the first rule that is in all sets and in that of
// the zones, or RULE_NONE; word is that of the sets in which to begin. With
// ANY_ZONE as the zone out it is the first rule that matches for some zone out: the
// first match, if it asks for no zone out.
static __always_inline __u64 first_match(const struct sets *s, __u8 from, int to, __u32 word)
{
	__u32 class = to == ANY_ZONE ? zone_classes_to - 1 : zone_to[to & 0xff];
	const __u64 *zone = set(zone_sets + zone_from[from] * zone_classes_to + class);

	if (!zone)
		return RULE_NONE; // cannot be: each pair has its set
	for (__u32 w = word; w < MAX_WORDS && w < rule_words; w++) {
		__u64 all = zone[w] & s->l4[w] & s->src[w] & s->dst[w];

		if (any_dport)
			all &= s->dport[w];
		if (any_sport)
			all &= s->sport[w];
		if (any_ip)
			all &= s->ip[w];
		if (any_vlan)
			all &= s->vlan[w];
		if (any_limit)
			all &= s->after[w];
		if (all)
			return w * 64 + __builtin_ctzll(all);
	}
	return RULE_NONE;
}

// The same where rules name dynamic lists, by the sets' numbers: a pointer to each
// would not fit on the stack beside the others. What matches is in all of them, but
// the one that an address's lists add stands for itself or the one behind it.
struct set_numbers {
	__u32 n[13];
};

enum {
	IN_ZONES = 0, // places in set_numbers
	IN_AFTER = 6,
	IN_SRC = 7, // three: what its lists add, the table's, and what its lists leave
	IN_DST = 10,
	LISTS_SETS = 4, // of a choice of lists: two for each address
};

static __always_inline void find_numbers(const struct packet *p, __u32 source, __u32 target,
					 __u8 src_lists, __u8 dst_lists, struct set_numbers *s)
{
	s->n[IN_SRC] = dynamic_sets + src_lists * LISTS_SETS;
	s->n[IN_SRC + 1] = source;
	s->n[IN_SRC + 2] = s->n[IN_SRC] + 1;
	s->n[IN_DST] = dynamic_sets + dst_lists * LISTS_SETS + 2;
	s->n[IN_DST + 1] = target;
	s->n[IN_DST + 2] = s->n[IN_DST] + 1;
	asm volatile("" ::: "memory"); // they need not be kept elsewhere
	__u32 l4 = l4_number(p);
	s->n[1] = l4;
	s->n[2] = any_dport ? port_number(&rules_dport, p->has_ports, p->dport) : l4;
	s->n[3] = any_sport ? port_number(&rules_sport, p->has_ports, p->sport) : l4;
	s->n[4] = any_ip ? ip_number(p) : l4;
	s->n[5] = any_vlan ? table_number(&rules_vlan, p->vlan) : l4;
	s->n[IN_AFTER] = l4;
}

// in_all is word w of the set of the rules that are in all sets.
static __always_inline __u64 in_all(const struct set_numbers *s, __u32 w)
{
	__u64 all = -1, added = 0;

#pragma clang loop unroll(disable)
	for (int i = 0; i < 13; i++) {
		const __u64 *words = set(s->n[i]);
		__u64 adds = i == IN_SRC || i == IN_DST ? -1 : 0;

		if (!words)
			return 0; // cannot be: every number has its set
		all &= words[w] | added | adds;
		added = words[w] & adds;
	}
	return all;
}

// first_listed is first_match with dynamic lists.
static __always_inline __u64 first_listed(struct set_numbers *s, __u8 from, int to)
{
	__u32 class = to == ANY_ZONE ? zone_classes_to - 1 : zone_to[to & 0xff];

	s->n[IN_ZONES] = zone_sets + zone_from[from] * zone_classes_to + class;
	for (__u32 w = 0; w < MAX_WORDS && w < rule_words; w++) {
		__u64 all = in_all(s, w);

		if (all)
			return w * 64 + __builtin_ctzll(all);
	}
	return RULE_NONE;
}

// rule_at is rule n; what n is must have been looked at. Linux 6.1 takes a
// comparison of a copy for nothing, so the index is cut to the table here.
static __always_inline const volatile struct rule *rule_at(__u64 n)
{
	asm volatile("%0 &= %1" : "+r"(n) : "i"(MAX_RULES - 1));
	return &rules[n];
}

static __always_inline __u8 zone_of(__u32 ifindex)
{
	__u8 *zone = bpf_map_lookup_elem(&zones, &ifindex);

	return zone ? *zone : ZONE_NONE;
}

// zone_out asks the kernel where it would send a packet that came in there. Without a
// route the answer is the same as for this host's own addresses: the packet is
// judged as one to the host, and the stack drops it if the policy does not.
static __always_inline __u8 zone_out(struct __sk_buff *skb, const struct packet *p, __u32 in)
{
	struct bpf_fib_lookup fib = {
		.family = p->family == 4 ? AF_INET : AF_INET6,
		.l4_protocol = p->proto,
		.sport = p->sport,
		.dport = p->dport,
		.ifindex = in,
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
