// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Layout and numbers shared by the kernel half and the Go loader.
#pragma once

#include <linux/types.h>

// bpf2go makes Go types of everything here that a map or a variable uses.
// Sizes are asserted, so that a change of layout cannot slip in.

enum limits {
	LAYOUT = 2,	     // of what is pinned: the next number where an entry's meaning changes
	MAX_RULES = 4096,    // one bit each in a rule set
	MAX_WORDS = 64,	     // of a rule set
	MAX_MARKS = 8192,    // values of the mark field for rules: of two policies' worth of them
	SET_EARLY = 1 << 30, // flag beside a set's number
	MAX_PORT = 65536,    // index of "no ports" in the port tables
	MAX_FLAGS = 256,     // index of "no TCP flags" in the flag table
	MAX_VLAN = 4096,     // ids of a tag; 0: no tag
	VLAN_UNKNOWN = MAX_VLAN,  // index of "nobody can tell" in the VLAN table
	IP_FRAGMENT = 64,	  // flag beside a code point: of a fragmented datagram
	MAX_IP = 128,		  // code points with and without it
	ICMP_SETS = 65536,	  // types and codes of ICMP, before those of ICMPv6
	MAX_EXT_HEADERS = 8,	  // IPv6 extension headers walked
	MAX_VLAN_TAGS = 2,	  // tags walked in the frame
	IN_UNKNOWN = 0x7fffffff,  // in flow.in: nobody knows; no ifindex
	MAX_LIMITS = 256,	  // rules with a limit
	LIMITS_TRIED = 16,	  // that one packet may be over before it is dropped
	MAX_DYNAMIC = 8,	  // dynamic lists
	LIMIT_QUEUE = MAX_LIMITS, // index of the queue's limit for a source in rate_limits
	MSS_PMTU = 0xffff,	  // in rule.mss
	RULE_NONE = 0xffff,	  // no rule: a default or a built-in decided
};

// Of the tables of addresses.
enum addresses {
	RANGE_TREE = -0x7fffffff - 1, // flag: of a root, not a number
	RANGE_DEPTH = 28,	      // bits of a root behind which its depth stands
	RANGE_DEPTHS = 7,
	RANGE_LINE = (1 << RANGE_DEPTH) - 1, // bits of a root: its line
	NODE_KEYS = 14,
	LEAF_KEYS = 7,
	HOSTS4 = 7,
	HOSTS6 = 3,
	HOST_LINES = 4, // for one hash value at most
};

#define NO_HOST	    0xffffffff
#define HASH_FACTOR 0x9e3779b97f4a7c15 // 2^64 by the golden ratio

enum zone_id {
	ZONE_NONE = 0,	 // an interface outside every zone
	ZONE_HOST = 255, // the host itself
};

enum action {
	ACTION_NONE,
	ACTION_ACCEPT,
	ACTION_DROP,
	ACTION_INSPECT,
};

// The field under the mark mask; see policy.Marks.
enum mark_field {
	MARK_NONE = 0,
	MARK_INSPECT = 1, // + index of the inspecting rule; the highest bit: judged
};

// Where a packet was judged, what became of it there, and why. Each packet adds
// to exactly one counter of each program that it runs through.
enum hook {
	HOOK_XDP,
	HOOK_TC,
	HOOK_TC_OUT,
	HOOK_COUNT,
};

enum verdict {
	VERDICT_PASS,
	VERDICT_DROP,
	VERDICT_QUEUE,
	VERDICT_COUNT,
};

enum reason {
	REASON_RULE,	   // a rule of the policy
	REASON_DEFAULT,	   // no rule matched: a default of the policy
	REASON_FLOW,	   // the flow's entry
	REASON_RELATED,	   // an ICMP error about a known flow
	REASON_ICMP,	   // ICMP that must not be dropped
	REASON_NON_IP,	   // ARP and the like
	REASON_MALFORMED,  // could not be parsed: failure.malformed
	REASON_MIDSTREAM,  // TCP seen without its start: failure.midstream
	REASON_FRAGMENT,   // a later fragment follows its first
	REASON_UNDECIDED,  // of an uncertain flow, but nothing to inspect in it
	REASON_FORWARDED,  // leaving: was judged when it came in
	REASON_NEXT,	   // XDP: left to tc
	REASON_FLOWS_FULL, // the flow table took no entry
	REASON_OFFLOADED,  // sent on past the stack
	REASON_OVERLOAD,   // over a limit of the queue: failure.overload
	REASON_COUNT,
};

// How far a flow has come; each state has its timeout. From STATE_ESTABLISHED on
// both endpoints have spoken.
enum flow_state {
	STATE_SYN_SENT,
	STATE_SYN_RECV,
	STATE_MIDSTREAM, // TCP whose start or whose other endpoint was not seen
	STATE_FIN_WAIT,	 // one endpoint has finished
	STATE_TIME_WAIT, // both have
	STATE_CLOSE,	 // reset
	STATE_UDP_UNREPLIED,
	STATE_ICMP_UNREPLIED,
	STATE_OTHER_UNREPLIED,
	STATE_ESTABLISHED,
	STATE_UDP_REPLIED,
	STATE_ICMP_REPLIED,
	STATE_OTHER_REPLIED,
	STATE_COUNT = 16, // a power of two, beyond the last
};

struct flow_key {
	__u8 addr[2][16]; // IPv4 as ::ffff:a.b.c.d; the lower endpoint first
	__be16 port[2];	  // 0 without ports; ICMP echo: the identifier, twice
	__u8 proto;
	__u8 pad[3];
};
_Static_assert(sizeof(struct flow_key) == 40, "flow_key");

struct flow {
	__u64 last_seen;  // CLOCK_MONOTONIC_COARSE, ns, to about a second
	__u64 packets[2]; // by sender: endpoint 0, endpoint 1 of the key
	__u64 bytes[2];
	__u16 rule;	  // index into Policy.Rules, or RULE_NONE
	__u16 mark;	  // ACTION_INSPECT: the mark field, else 0
	__u8 action;	  // enum action
	__u8 origin;	  // the endpoint that sent the first packet: 0 or 1
	__u8 replies;	  // ACTION_INSPECT: replies are uncertain too
	__u8 via;	  // made when its packet left, not judged: the zone it came from, else 0
	__u32 generation; // of the policy that judged it
	__u32 decided_by; // id of the inspecting rule whose steps decided it, else 0
	__u32 in;	  // where its first packet came in: ifindex; 0: nowhere, it is the host's
	__u32 isn;	  // STATE_SYN_RECV: the sequence number of the SYN-ACK
	__u8 state;	  // enum flow_state
	__u8 ends;	  // who has sent FIN (bits 0, 1: endpoints) and RST (bits 2, 3)
	__u8 pad[2];
	__u32 start;  // where origin's stream begins, by the SYN-ACK; 0 where none was seen
	__u32 out[2]; // by sender: where its packets left as they came in: ifindex; 0: nowhere
};
_Static_assert(sizeof(struct flow) == 80, "flow");

struct fragment_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 id; // as on the wire
	__u8 proto;
	__u8 pad[3];
};
_Static_assert(sizeof(struct fragment_key) == 40, "fragment_key");

// A line of the tables of addresses, in one cache line; see addrs.h. Numbers are
// those of sets, in the sources' tables with SET_EARLY.
struct line {
	union {
		// A node of a tree of ranges, by a word of their addresses. Child i
		// has those from keys[i - 1] on.
		struct {
			__u32 keys[14]; // ascending; behind the last one the highest word
			__u32 first;	// child, a line; the others follow it
			__u32 last;	// child, counted from the first
		} node;
		// A leaf: from keys[i - 1] on it is numbers[i].
		struct {
			__u32 keys[7];
			__u32 numbers[8]; // or the root of a tree for the next word
			__u32 pad;
		} leaf;
		// Single addresses, all of one hash value. The free ones have NO_HOST.
		struct {
			__be32 addr[7];
			__u32 number[7];
			__u32 more; // the next line has some, too
			__u32 pad;
		} hosts4;
		struct {
			__be64 addr[3][2];
			__u32 number[3];
			__u32 more;
		} hosts6;
	};
};
_Static_assert(sizeof(struct line) == 64, "line");

// Where the tables of one address field begin.
struct address_table {
	__u32 root4;  // of the tree for the only word of IPv4
	__u32 root6;  // of the tree for the first word
	__u32 hosts4; // line of hash value 0
	__u32 hosts6;
	__u8 bits4; // of hash values; 0: no table
	__u8 bits6;
	__u8 pad[2];
};

// A guarded interface whose packets may be sent on past the stack.
struct port {
	__u8 mac[6];
	__u8 xdp; // also by fw_xdp
	__u8 pad;
};
_Static_assert(sizeof(struct port) == 8, "port");

struct counter {
	__u64 packets; // segments of a super-packet each count
	__u64 bytes;   // of frames
};

// Which of a rule's lists an address is in, where it names several.
struct list_key {
	__u32 set; // number of the address's set
	__u16 rule;
	__u8 dst; // of the destination
	__u8 pad;
};
_Static_assert(sizeof(struct list_key) == 8, "list_key");

// What a matched rule does; one entry per rule of the policy.
struct rule {
	__u16 mark; // ACTION_INSPECT: the mark field
	__u8 action;
	__u8 replies;  // ACTION_INSPECT: replies are uncertain too
	__u8 any_zone; // asks for no zone out
	__u8 any_vlan; // asks for no VLAN
	__u16 limit;   // index into rate_limits, + 1; 0: none
	__u32 id;      // ACTION_INSPECT: of the rule's text, the same in every policy that has it
	__u32 after;   // with a limit: number + 1 of the set of the rules behind this one
	__u16 mss;     // at most, in SYNs; 0: as it is, MSS_PMTU: what the routes take
	__u8 ttl;      // 0: as it is
	__u8 dscp;     // code point + 1; 0: as it is
	__u8 offload;  // decided flows may pass the stack by
	__u8 lists;    // it names several lists in one field: those are counted here
	__u8 pad[2];
};
_Static_assert(sizeof(struct rule) == 24, "rule");

// A rule's limit: a bucket of tokens, told by when it will be full.
struct limit {
	__u64 interval; // ns between two packets at the rate
	__u64 ahead;	// ns that the full moment may lie ahead: interval * (burst - 1)
	__u8 mask[16];	// of the addresses that share a bucket, IPv6
	__u8 mask4[16]; // likewise, IPv4
	__u8 per;	// enum limit_per
	__u8 pad[7];
};
_Static_assert(sizeof(struct limit) == 56, "limit");

enum limit_per {
	LIMIT_PER_ALL,
	LIMIT_PER_SRC,
	LIMIT_PER_DST,
};

struct limit_key {
	__u8 addr[16]; // under the mask; 0 with LIMIT_PER_ALL
	__u32 limit;   // index into rate_limits
};
_Static_assert(sizeof(struct limit_key) == 20, "limit_key");

struct address {
	__u8 addr[16]; // IPv4 as ::ffff:0:0/96
};

// Until when an address is in each dynamic list, CLOCK_MONOTONIC in ns; 0: it is not.
struct membership {
	__u64 until[MAX_DYNAMIC];
};
_Static_assert(sizeof(struct membership) == 64, "membership");

// What each place in struct membership stands for: policy.Dynamic.ID; 0: free.
struct list_places {
	__u64 id[MAX_DYNAMIC];
};
_Static_assert(sizeof(struct list_places) == 64, "list_places");

// The argument of fw_learn.
struct learning {
	struct address addr;
	__u64 until;
	__u32 list;
	__u32 pad;
};
_Static_assert(sizeof(struct learning) == 32, "learning");

// The argument of fw_decide.
struct decision {
	struct flow_key key;
	__u16 rule;
	__u8 action;
	__u8 origin; // for a flow without an entry
	__u16 mark;  // the mark field of the rule that decided
	__u16 pad;
	__u32 decided_by; // its id
	__u32 since;	  // the first generation in which the mark stood for this rule
	__u32 generation; // of the policy in force
	__u32 pad2;
};
_Static_assert(sizeof(struct decision) == 64, "decision");
