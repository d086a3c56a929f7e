// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Maps and settings. The loader fills everything here before a program runs.
#pragma once

#include "hybridfw.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

// Settings: constants for a loaded program, set by loader/encode.go.
const volatile __u32 mark_mask;
const volatile __u8 mark_shift;
const volatile enum action default_input;
const volatile enum action default_forward;
const volatile enum action default_output;
const volatile enum action on_malformed;
const volatile enum action on_midstream;
const volatile enum action on_overload;
const volatile struct rule rules[MAX_RULES];
const volatile struct limit rate_limits[MAX_LIMITS + 1];
const volatile struct limit queue_limit; // of all packets together; interval 0: none
const volatile __u32 generation;	 // of the policy; each that replaces another has the next
// By mark field: the first generation in which it stood for the rule that it
// stands for now; 0 where it stands for none.
const volatile __u32 mark_since[MAX_MARKS];
const volatile __u64 timeouts[STATE_COUNT]; // ns without a packet until a flow is forgotten

// Classification. A set of rules is a bit vector of rule_words words, bit i for
// rule i; for each field of a packet a table gives the number of the set of the
// rules that its value satisfies. A rule that does not look at a field is in
// every set of that field, so the AND over all fields is the set of rules that
// match, and its lowest bit is the first.
const volatile __u32 rule_words;
const volatile __u16 zone_from[256];	   // class of a zone as the zone in
const volatile __u16 zone_to[256];	   // class of a zone as the zone out
const volatile __u32 zone_classes_to;	   // their number; the last is "any"
const volatile __u32 zone_sets;		   // number of the set of the first pair of classes
const volatile __u32 l4_sets[256];	   // by IP protocol, for all but TCP
const volatile __u32 flag_sets[MAX_FLAGS]; // by TCP flags
const volatile bool any_early;		   // some rule drops whatever the zone out is
const volatile bool any_inspect;	   // some rule inspects
const volatile bool any_limit;		   // some rule has a limit
const volatile bool any_offload;	   // some flows may pass the stack by
const volatile bool offload_default;	   // those that no rule has judged
const volatile bool any_lists;		   // some rule names several lists in one field
const volatile bool any_dynamic;	   // some rule names a dynamic list
const volatile __u8 dynamic_early; // those that rules name which fw_xdp may apply, a bit each
const volatile __u32 dynamic_sets; // number of the first set of the first choice of them
const volatile bool any_rewrite;   // some rule rewrites
const volatile bool limit_queue;   // rate_limits[LIMIT_QUEUE] holds
const volatile bool any_sport, any_dport;
const volatile bool any_icmp, any_ip, any_vlan;
const volatile __u32 ip_sets[MAX_IP]; // by code point (DSCP) and IP_FRAGMENT

// The sets. The loader makes values as long as rule_words says.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} rule_sets SEC(".maps");

// Sets by port; entry MAX_PORT is for packets that have none.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT + 1);
	__type(key, __u32);
	__type(value, __u32);
} rules_sport SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT + 1);
	__type(key, __u32);
	__type(value, __u32);
} rules_dport SEC(".maps");

// Sets by VLAN id of the outer tag. Entry VLAN_UNKNOWN has all rules.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VLAN + 1);
	__type(key, __u32);
	__type(value, __u32);
} rules_vlan SEC(".maps");

// Sets by type * 256 + code, of ICMP and behind them of ICMPv6.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * ICMP_SETS);
	__type(key, __u32);
	__type(value, __u32);
} rules_icmp SEC(".maps");

// The tables of addresses.
const volatile struct address_table sources, targets;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct line);
} lines SEC(".maps");

// Guarded interfaces: ifindex to zone.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} zones SEC(".maps");

// Guarded interfaces whose packets have no Ethernet header, such as tun. Looked at
// only where any_bare says that there is one: interfaces come while programs run.
volatile __u8 any_bare;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} bare SEC(".maps");

// Guarded interfaces whose packets may be sent on past the stack.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

// By ifindex, the guarded interfaces that take frames from XDP.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} xdp_targets SEC(".maps");

// Known flows, both directions in one entry. A flow begins in half_open and moves
// to flows when both endpoints have spoken, so that no flood of beginnings can
// push out what is established.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} half_open SEC(".maps");

// Addresses in dynamic lists. Where there are too many, those go first that have not
// been seen for longest.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct address);
	__type(value, struct membership);
} learned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct list_places);
} list_ids SEC(".maps");

// What became of the first fragment of a datagram: enum action.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fragment_key);
	__type(value, __u8);
} fragments SEC(".maps");

// Counters by hook, verdict and reason.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, HOOK_COUNT *VERDICT_COUNT *REASON_COUNT);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

// Packets that a rule has judged: those that began flows, and those that it drops.
// What known flows carry is counted in their entries.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} rule_counters SEC(".maps");

// Packets that a rule with several lists in one field has judged, by the list of the
// address. Where a rule names one list alone its own counter is the list's.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} list_counters SEC(".maps");

// Index into list_counters.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct list_key);
	__type(value, __u32);
} list_numbers SEC(".maps");

// Buckets: the moment at which each will be full, CLOCK_MONOTONIC in ns.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct limit_key);
	__type(value, __u64);
} buckets SEC(".maps");

// The bucket of queue_limit: the moment at which it will be full.
__u64 queue_full;

// A type that only inlined code uses is lost from BTF, and so from the Go
// bindings, unless something names it.
const enum addresses *unused_addresses __attribute__((unused));
const enum limits *unused_limits __attribute__((unused));
const enum flow_state *unused_flow_state __attribute__((unused));
