// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Parsing: from frame bytes to a struct packet, for XDP and tc alike.
#pragma once

#include "hybridfw.h"
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

enum parsed {
	PARSED,
	PARSED_NON_IP,
	PARSED_SHORT,	  // the readable bytes end first
	PARSED_MALFORMED, // the packet contradicts itself, or is out of budget
};

enum {
	IP_MF = 0x2000,
	IP_OFFSET = 0x1fff,
	ICMP_ECHO = 8,
	ICMP_ECHO_REPLY = 0,
	ICMPV6_ECHO = 128,
	ICMPV6_ECHO_REPLY = 129,
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
	PROTO_DCCP = 33,
	PROTO_SCTP = 132,
	PROTO_MOBILITY = 135,
	PROTO_UDPLITE = 136,
	PROTO_HIP = 139,
	PROTO_SHIM6 = 140,
};

struct packet {
	__u8 src[16]; // IPv4 as ::ffff:a.b.c.d
	__u8 dst[16];
	__u32 l3;	   // offset of the IP header
	__u32 l4;	   // offset of the transport header
	__u32 l4_len;	   // from there to the packet's end
	__u32 fragment_id; // as on the wire
	__u32 frame_len;
	__u32 segments; // of a super-packet, else 1
	__be16 sport;	// 0 without ports; ICMP echo: the identifier
	__be16 dport;
	__u16 vlan;  // id of the outer tag, 0 without one
	__u8 family; // 4 or 6
	__u8 proto;
	__u8 tos; // IPv4 TOS or IPv6 traffic class
	__u8 hop_limit;
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 l4_header; // bytes of the transport header; 0 where it is not taken apart
	__u8 has_ports;
	__u8 fragment;	     // of a fragmented datagram
	__u8 later_fragment; // not its first: no transport header
	__u8 reply;	     // with rule: not of the side that began the flow
	__u16 rule;	     // index + 1 of the one that rewrites it; 0: none
};

// Where the bytes are. Ethernet and IP headers are read in place; what stands at
// an offset that the packet chose is copied out by a helper, which also reaches
// the parts of a super-packet that are not linear, and which the verifier
// follows with far fewer states.
struct cursor {
	struct __sk_buff *skb; // this
	struct xdp_md *xdp;    // or, with is_xdp, this
	bool is_xdp;	       // a constant for each program
	void *data;
	void *end;
	__u32 frame_len;
	__u8 gso;    // a super-packet: its IP length may be 0 (beyond 64 KiB)
	__u8 quoted; // inside an ICMP error: cut short on purpose
};

struct icmp {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 id; // echo request and reply
	__be16 sequence;
};

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

// Any extension header; offset and id are the fragment header's. None is shorter
// than this (RFC 8200 4.2).
struct ipv6_ext {
	__u8 nexthdr;
	__u8 hdrlen;
	__be16 offset;
	__be32 id;
};

static __always_inline void map_v4(__u8 addr[16], __be32 v4)
{
	__builtin_memset(addr, 0, 10);
	addr[10] = 0xff;
	addr[11] = 0xff;
	__builtin_memcpy(addr + 12, &v4, 4);
}

static __always_inline bool read_at(const struct cursor *c, __u32 offset, void *to, __u32 len)
{
	if (c->is_xdp)
		return bpf_xdp_load_bytes(c->xdp, offset, to, len) == 0;
	return bpf_skb_load_bytes(c->skb, offset, to, len) == 0;
}

// read_l4 reads a transport header, in place where it is near enough.
static __always_inline bool read_l4(const struct cursor *c, __u32 offset, void *to, __u32 len)
{
	void *at = c->data + (offset & 0xff);

	if (offset > 0xff || at + len > c->end)
		return read_at(c, offset, to, len);
	__builtin_memcpy(to, at, len);
	return true;
}

static __always_inline int parse_icmp(const struct cursor *c, struct packet *p, __u8 request,
				      __u8 reply)
{
	struct icmp icmp;

	if (p->l4_len < sizeof(icmp) || !read_at(c, p->l4, &icmp, sizeof(icmp)))
		return PARSED_MALFORMED;
	p->icmp_type = icmp.type;
	p->icmp_code = icmp.code;
	if (icmp.type == request || icmp.type == reply) {
		p->sport = icmp.id;
		p->dport = icmp.id;
	}
	p->l4_header = sizeof(icmp);
	return PARSED;
}

static __always_inline int parse_tcp(const struct cursor *c, struct packet *p)
{
	struct tcphdr tcp;

	if (p->l4_len < sizeof(tcp) || !read_l4(c, p->l4, &tcp, sizeof(tcp)))
		return PARSED_MALFORMED;
	if (tcp.doff < 5 || tcp.doff * 4 > p->l4_len)
		return PARSED_MALFORMED;
	p->sport = tcp.source;
	p->dport = tcp.dest;
	p->has_ports = 1;
	p->tcp_flags = ((__u8 *)&tcp)[13];
	p->l4_header = tcp.doff * 4;
	return PARSED;
}

// parse_ports parses what begins like UDP. The quoted packet of an ICMP error
// needs to hold only these 8 bytes (RFC 792), so TCP is read like this there.
static __always_inline int parse_ports(const struct cursor *c, struct packet *p)
{
	struct udphdr udp;

	if (p->l4_len < sizeof(udp) || !read_l4(c, p->l4, &udp, sizeof(udp)))
		return PARSED_MALFORMED;
	p->sport = udp.source;
	p->dport = udp.dest;
	p->has_ports = 1;
	if (p->proto != IPPROTO_UDP)
		return PARSED;
	__u32 len = bpf_ntohs(udp.len);
	// A super-packet of many datagrams holds more than its header says, and
	// a first fragment less.
	if (len < sizeof(udp) || (len > p->l4_len && !p->fragment && !c->gso && !c->quoted))
		return PARSED_MALFORMED;
	p->l4_header = sizeof(udp);
	return PARSED;
}

static __always_inline int parse_l4(const struct cursor *c, struct packet *p)
{
	if (p->later_fragment)
		return PARSED;
	switch (p->proto) {
	case IPPROTO_TCP:
		return c->quoted ? parse_ports(c, p) : parse_tcp(c, p);
	case IPPROTO_UDP:
	case PROTO_SCTP:
	case PROTO_UDPLITE:
	case PROTO_DCCP:
		return parse_ports(c, p);
	case IPPROTO_ICMP:
		return p->family == 4 ? parse_icmp(c, p, ICMP_ECHO, ICMP_ECHO_REPLY) : PARSED;
	case IPPROTO_ICMPV6:
		return p->family == 6 ? parse_icmp(c, p, ICMPV6_ECHO, ICMPV6_ECHO_REPLY) : PARSED;
	}
	return PARSED;
}

// parse_ipv4 parses up to the transport header, like parse_ipv6.
static __always_inline int parse_ipv4(const struct cursor *c, struct packet *p)
{
	struct iphdr *ip = c->data + p->l3;

	if ((void *)(ip + 1) > c->end)
		return PARSED_SHORT;
	__u32 hlen = ip->ihl * 4, tot_len = bpf_ntohs(ip->tot_len), room = c->frame_len - p->l3;
	if (tot_len == 0 && c->gso)
		tot_len = room;
	if (ip->version != 4 || hlen < sizeof(*ip) || tot_len < hlen)
		return PARSED_MALFORMED;
	if (tot_len > room && !c->quoted)
		return PARSED_MALFORMED;

	p->family = 4;
	map_v4(p->src, ip->saddr);
	map_v4(p->dst, ip->daddr);
	p->proto = ip->protocol;
	p->tos = ip->tos;
	p->hop_limit = ip->ttl;
	p->l4 = p->l3 + hlen;
	p->l4_len = tot_len - hlen;
	__u16 frag = bpf_ntohs(ip->frag_off);
	p->fragment = (frag & (IP_MF | IP_OFFSET)) != 0;
	p->later_fragment = (frag & IP_OFFSET) != 0;
	p->fragment_id = ip->id;
	return PARSED;
}

// is_mapped is an IPv4-mapped address. On the wire it has no meaning (RFC 4291
// 2.5.5.2); here it stands for IPv4, so that it would pass for another packet.
static __always_inline bool is_mapped(const __u8 addr[16])
{
	return *(__be64 *)addr == 0 && *(__be32 *)(addr + 8) == bpf_htonl(0xffff);
}

// is_ipv6_ext is the allow-list of headers that are walked.
static __always_inline bool is_ipv6_ext(__u8 proto)
{
	switch (proto) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_AH:
	case IPPROTO_DSTOPTS:
	case PROTO_MOBILITY:
	case PROTO_HIP:
	case PROTO_SHIM6:
		return true;
	}
	return false;
}

static __always_inline __u32 ext_len(__u8 proto, const struct ipv6_ext *ext)
{
	if (proto == IPPROTO_FRAGMENT)
		return sizeof(*ext);
	if (proto == IPPROTO_AH) // counts in words of 4 bytes (RFC 4302 2.2)
		return (ext->hdrlen + 2) * 4;
	return (ext->hdrlen + 1) * 8;
}

static __always_inline int parse_ipv6(const struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip6 = c->data + p->l3;

	if ((void *)(ip6 + 1) > c->end)
		return PARSED_SHORT;
	__u32 plen = bpf_ntohs(ip6->payload_len), room = c->frame_len - p->l3 - sizeof(*ip6);
	if (plen == 0 && c->gso)
		plen = room;
	if (ip6->version != 6 || (plen > room && !c->quoted))
		return PARSED_MALFORMED;

	p->family = 6;
	__builtin_memcpy(p->src, &ip6->saddr, 16);
	__builtin_memcpy(p->dst, &ip6->daddr, 16);
	if (is_mapped(p->src) || is_mapped(p->dst))
		return PARSED_MALFORMED;
	p->proto = ip6->nexthdr;
	p->tos = bpf_ntohs(*(__be16 *)ip6) >> 4;
	p->hop_limit = ip6->hop_limit;
	p->l4 = p->l3 + sizeof(*ip6);
	p->l4_len = plen;

	for (int i = 0; i < MAX_EXT_HEADERS; i++) {
		struct ipv6_ext ext;
		__u32 len;

		if (!is_ipv6_ext(p->proto))
			return PARSED;
		if (p->l4_len < sizeof(ext) || !read_at(c, p->l4, &ext, sizeof(ext)))
			return PARSED_MALFORMED;
		len = ext_len(p->proto, &ext);
		if (len > p->l4_len)
			return PARSED_MALFORMED;
		if (p->proto == IPPROTO_FRAGMENT) {
			if (p->fragment)
				return PARSED_MALFORMED;
			// Offset 0 with no more to come is a whole packet (RFC 6946).
			p->fragment = (ext.offset & bpf_htons(0xfff9)) != 0;
			p->later_fragment = (ext.offset & bpf_htons(0xfff8)) != 0;
			p->fragment_id = ext.id;
		}
		p->proto = ext.nexthdr;
		p->l4 += len;
		p->l4_len -= len;
		// What follows in a later fragment is data, whatever it looks like.
		if (p->later_fragment)
			return PARSED;
	}
	// One more would be out of budget.
	return is_ipv6_ext(p->proto) ? PARSED_MALFORMED : PARSED;
}

static __always_inline int parse_ip(const struct cursor *c, struct packet *p, __be16 proto)
{
	int parsed = PARSED_NON_IP;

	if (proto == bpf_htons(ETH_P_IP))
		parsed = parse_ipv4(c, p);
	else if (proto == bpf_htons(ETH_P_IPV6))
		parsed = parse_ipv6(c, p);
	return parsed == PARSED ? parse_l4(c, p) : parsed;
}

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

// parse_frame parses from the Ethernet header on. stripped says that the outer
// VLAN tag is in the metadata, no more in the frame.
static __always_inline int parse_frame(const struct cursor *c, struct packet *p, bool stripped)
{
	struct ethhdr *eth = c->data;

	if ((void *)(eth + 1) > c->end)
		return PARSED_SHORT;
	__be16 proto = eth->h_proto;
	p->l3 = sizeof(*eth);
	for (int i = 0; i < MAX_VLAN_TAGS && is_vlan(proto); i++) {
		struct vlan_tag *tag = c->data + p->l3;

		if ((void *)(tag + 1) > c->end)
			return PARSED_SHORT;
		if (i == 0)
			p->vlan = bpf_ntohs(tag->tci) & (MAX_VLAN - 1);
		proto = tag->proto;
		p->l3 += sizeof(*tag);
	}
	// A deeper tag would hide the packet from every rule.
	if (is_vlan(proto) ||
	    (stripped && p->l3 == sizeof(*eth) + MAX_VLAN_TAGS * sizeof(struct vlan_tag)))
		return PARSED_MALFORMED;
	return parse_ip(c, p, proto);
}
