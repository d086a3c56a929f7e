// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Offload: packets of decided flows that are only forwarded go from one interface to
// the other past the stack. Whatever is in doubt goes the ordinary way.
#pragma once

#include "classify.h"
#include "flow.h"
#include "maps.h"
#include "parse.h"
#include "reload.h"
#include <linux/pkt_cls.h>

// note_forwarded notes where a packet left under the addresses that it came in with.
// Where NAT or a tunnel changes them no entry that was judged is found here.
static __always_inline void note_forwarded(struct flow *f, __u8 sender, __u32 ifindex)
{
	if (!any_offload || f->via)
		return;
	if (sender && f->out[1] != ifindex)
		f->out[1] = ifindex;
	else if (!sender && f->out[0] != ifindex)
		f->out[0] = ifindex;
}

// may_offload tells whether a packet of a known flow may pass the stack by.
static __always_inline bool may_offload(const struct packet *p, const struct flow *f, __u8 sender)
{
	if (!any_offload || !(sender ? f->out[1] : f->out[0]) || f->action != ACTION_ACCEPT ||
	    !is_settled(f) || f->generation != generation)
		return false;
	if (f->rule < MAX_RULES ? !rule_at(f->rule)->offload : !offload_default)
		return false;
	if (p->fragment || p->hop_limit <= 1 || p->l3 != sizeof(struct ethhdr) ||
	    (p->vlan && p->vlan != VLAN_UNKNOWN))
		return false;
	if (p->proto == IPPROTO_TCP ? p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)
				    : p->proto != IPPROTO_UDP)
		return false;
	// Without IP options or extension headers.
	return p->l4 - p->l3 == (p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

// find_hop asks the kernel where it would send the packet: false where it would not
// do so at once, in pieces, or elsewhere than the flow's packets before it: rules for
// routes may look at what the kernel is not told here. len is that of the IP packet
// on the wire.
static __always_inline bool find_hop(void *ctx, const struct packet *p, __u32 in, __u32 out,
				     __u32 len, struct bpf_fib_lookup *fib)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = p->family == 4 ? AF_INET : AF_INET6;
	fib->l4_protocol = p->proto;
	fib->sport = p->sport;
	fib->dport = p->dport;
	fib->ifindex = in;
	if (len > 0xffff)
		return false;
	fib->tot_len = len;
	if (p->family == 4) {
		fib->tos = p->tos;
		__builtin_memcpy(&fib->ipv4_src, p->src + 12, 4);
		__builtin_memcpy(&fib->ipv4_dst, p->dst + 12, 4);
	} else {
		__builtin_memcpy(fib->ipv6_src, p->src, 16);
		__builtin_memcpy(fib->ipv6_dst, p->dst, 16);
	}
	// Not out by where it came in: the stack tells the sender of a better way.
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) == BPF_FIB_LKUP_RET_SUCCESS &&
	       fib->ifindex == out && out != in;
}

enum {
	TCP_CHECKSUM = 16, // offset
	UDP_CHECKSUM = 6,
	MACS = 12,	 // bytes of both, the destination's first
	PACKET_HOST = 0, // skb->pkt_type: for this host's own hardware address
};

// forward_skb sends a packet on and returns TC_ACT_REDIRECT, or -1. Global, for its
// stack.
__noinline int forward_skb(struct __sk_buff *skb, struct packet *p, __u32 out)
{
	struct bpf_fib_lookup fib;
	__u32 in = skb->ifindex;
	__u8 macs[MACS];

	if (!p || skb->pkt_type != PACKET_HOST || !bpf_map_lookup_elem(&ports, &in) ||
	    !bpf_map_lookup_elem(&ports, &out))
		return -1;
	__u32 len = skb->len - p->l3;
	if (skb->gso_size)
		len = p->l4 - p->l3 + p->l4_header + skb->gso_size;
	if (!find_hop(skb, p, in, out, len, &fib))
		return -1;
	__builtin_memcpy(macs, fib.dmac, 6);
	__builtin_memcpy(macs + 6, fib.smac, 6);
	if (p->family == 4) {
		struct {
			__u8 ttl;
			__u8 proto;
			__u16 check;
		} h;

		if (bpf_skb_load_bytes(skb, p->l3 + 8, &h, sizeof(h)) || h.ttl <= 1)
			return -1;
		__u32 check = (__u32)h.check + bpf_htons(0x0100); // RFC 1141
		h.check = check + (check >= 0xffff);
		h.ttl--;
		if (bpf_skb_store_bytes(skb, p->l3 + 8, &h, sizeof(h), 0))
			return -1;
	} else {
		__u8 hops;

		if (bpf_skb_load_bytes(skb, p->l3 + 7, &hops, 1) || hops <= 1)
			return -1;
		hops--;
		if (bpf_skb_store_bytes(skb, p->l3 + 7, &hops, 1, BPF_F_RECOMPUTE_CSUM))
			return -1;
	}
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), BPF_F_RECOMPUTE_CSUM))
		return -1; // cannot be: what is behind could be written
	return bpf_redirect(fib.ifindex, 0);
}

static __always_inline __u64 sum_words(const __u8 *bytes, int n)
{
	const __u32 *words = (const __u32 *)bytes;
	__u64 sum = 0;

	for (int i = 0; i < n; i++)
		sum += words[i];
	return sum;
}

// is_unfinished tells that a transport checksum may be no more than the sum of the
// pseudo-header: a sender on this machine has left the rest to a device, and in XDP
// nobody says so. One finished checksum in 65,536 looks the same.
static __always_inline bool is_unfinished(const struct packet *p, __u16 check)
{
	__u64 sum = bpf_htons(p->proto) + (__u64)bpf_htons(p->l4_len);

	if (p->family == 4)
		sum += sum_words(p->src + 12, 1) + sum_words(p->dst + 12, 1);
	else
		sum += sum_words(p->src, 4) + sum_words(p->dst, 4);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == check;
}

// forward_frame does so in XDP, and returns XDP_REDIRECT or -1. xdp_targets has the
// interfaces that take frames from XDP.
__noinline int forward_frame(struct xdp_md *ctx, struct packet *p, __u32 out)
{
	struct bpf_fib_lookup fib;
	__u32 in = ctx->ingress_ifindex;

	if (!p)
		return -1; // cannot be
	struct port *port = bpf_map_lookup_elem(&ports, &in);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	// A frame for another host on the link is none to be routed.
	if (!port || !port->xdp || (void *)(eth + 1) > end ||
	    __builtin_memcmp(eth->h_dest, port->mac, 6))
		return -1;
	__u16 *check = (void *)(eth + 1) +
		       (p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
		       (p->proto == IPPROTO_TCP ? TCP_CHECKSUM : UDP_CHECKSUM);
	if ((void *)(check + 1) > end || is_unfinished(p, *check))
		return -1;
	if (!find_hop(ctx, p, in, out, p->l4 - p->l3 + p->l4_len, &fib) ||
	    bpf_redirect_map(&xdp_targets, fib.ifindex, 0) != XDP_REDIRECT)
		return -1;
	if (p->family == 4) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end)
			return -1;
		__u32 check = (__u32)ip->check + bpf_htons(0x0100);
		ip->check = check + (check >= 0xffff);
		ip->ttl--;
	} else {
		struct ipv6hdr *ip6 = (void *)(eth + 1);

		if ((void *)(ip6 + 1) > end)
			return -1;
		ip6->hop_limit--;
	}
	__builtin_memcpy(eth->h_dest, fib.dmac, 6);
	__builtin_memcpy(eth->h_source, fib.smac, 6);
	return XDP_REDIRECT;
}
