// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Maps and settings. The loader fills everything here before a program runs.
#pragma once

#include "hybridfw.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Settings: constants for a loaded program, set by loader/encode.go.
const volatile __u32 mark_mask;
const volatile __u8 mark_shift;
const volatile enum action default_input;
const volatile enum action default_forward;
const volatile enum action default_output;
const volatile enum action on_malformed;
const volatile enum action on_midstream;
const volatile struct rule rules[MAX_RULES];

// Rule sets: bit i stands for rule i. A rule that does not look at a field is
// in every set of that field, so the AND over all fields is the set of rules
// that match, and its lowest bit is the first.
const volatile __u64 rules_from[256];		 // by zone
const volatile __u64 rules_to[256];		 // by zone
const volatile __u64 rules_proto[256];		 // by IP protocol
const volatile __u64 rules_flags[MAX_FLAGS + 1]; // by TCP flags
const volatile __u64 rules_early;		 // drop whatever the zone out is

// Rule sets by port; entry MAX_PORT is for packets that have none.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT + 1);
	__type(key, __u32);
	__type(value, __u64);
} rules_sport SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT + 1);
	__type(key, __u32);
	__type(value, __u64);
} rules_dport SEC(".maps");

// Rule sets by address: each prefix holds the rules of all prefixes around it
// too, so that the longest match is the whole answer. Both tries have ::/0.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u64);
} rules_src SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u64);
} rules_dst SEC(".maps");

// Guarded interfaces: ifindex to zone.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} zones SEC(".maps");

// Known flows, both directions in one entry.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

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

// A type that only inlined code uses is lost from BTF, and so from the Go
// bindings, unless something names it.
const enum limits *unused_limits __attribute__((unused));
