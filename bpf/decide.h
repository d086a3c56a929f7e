// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Programs that user space runs: fw_decide writes a decision into a flow's entry,
// fw_learn an address into a dynamic list. They write where the kernel does, too, so
// that nothing that it counts or notes is lost.
#pragma once

#include "flow.h"
#include "maps.h"

// fw_decide sets a flow's action where the kernel counts it too, so that no
// packet is lost from its counters. A flow whose entry is gone gets a new one.
SEC("syscall")
int fw_decide(struct decision *d)
{
	struct flow_key key = d->key;
	struct flow *f = bpf_map_lookup_elem(&flows, &key);

	if (!f)
		f = bpf_map_lookup_elem(&half_open, &key);
	if (f) {
		// A newer policy has judged the flow by another rule: its word stands.
		if (f->generation == d->generation && !f->via && f->mark != d->mark &&
		    f->decided_by != d->decided_by)
			return 0;
		f->rule = d->rule;
		f->mark = 0;
		f->replies = 0;
		f->via = 0;
		f->decided_by = d->decided_by;
		f->action = d->action;
		return 0;
	}
	struct packet p = {.proto = key.proto};
	struct flow fresh = {
		.last_seen = bpf_ktime_get_ns(), // the same clock; the coarse one is not had here
		.rule = d->rule,
		.action = d->action,
		.origin = d->origin,
		// Where the rule is older than the policy, the flow is judged again.
		.generation = d->since,
		.in = IN_UNKNOWN,
		.decided_by = d->decided_by,
		.state = first_state(&p),
	};
	return bpf_map_update_elem(&half_open, &key, &fresh, BPF_ANY);
}

// fw_learn notes until when an address is in a list, unless it is so for longer
// already; 0 takes it out.
SEC("syscall")
int fw_learn(struct learning *l)
{
	struct address key = l->addr;
	struct membership fresh = {};
	__u32 list = l->list & (MAX_DYNAMIC - 1);

	for (int tries = 0; tries < 2; tries++) {
		struct membership *known = bpf_map_lookup_elem(&learned, &key);

		if (known) {
			if (!l->until || l->until > known->until[list])
				known->until[list] = l->until;
			return 0;
		}
		if (!l->until)
			return 0;
		fresh.until[list] = l->until;
		// Another CPU may have learned it meanwhile.
		if (!bpf_map_update_elem(&learned, &key, &fresh, BPF_NOEXIST))
			return 0;
	}
	return -1;
}
