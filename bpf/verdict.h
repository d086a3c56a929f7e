// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Verdicts on packets, and those that a flow's entry gives.
#pragma once

#include "flow.h"
#include "limit.h"
#include "maps.h"

// A verdict on one packet, before it is counted.
struct judgement {
	__u8 verdict; // enum verdict
	__u8 reason;  // enum reason
	__u16 mark;   // VERDICT_QUEUE: the mark field
};

static __always_inline struct judgement judged(__u8 verdict, __u8 reason)
{
	return (struct judgement){.verdict = verdict, .reason = reason};
}

// note_rule lets the rule of a flow rewrite its packet.
static __always_inline void note_rule(struct packet *p, const struct flow *f, __u8 sender)
{
	if (any_rewrite && f->generation == generation && !f->via) {
		p->rule = f->rule + 1;
		p->reply = sender != f->origin;
	}
}

static __always_inline struct judgement by_action(__u8 action, __u8 reason)
{
	return judged(action == ACTION_ACCEPT ? VERDICT_PASS : VERDICT_DROP, reason);
}

// uncertain says what a packet of an inspected flow needs: only what carries
// payload can decide it, and replies only where the rule changes them. The
// payload of a first fragment may stand in the later ones, which follow it.
static __always_inline struct judgement uncertain(struct packet *p, const struct flow *f,
						  __u8 sender, __u8 reason)
{
	if ((p->l4_len == p->l4_header && !p->fragment) || (sender != f->origin && !f->replies))
		return judged(VERDICT_PASS, REASON_UNDECIDED);
	if ((limit_queue || queue_limit.interval) && is_queue_over(p, sender != f->origin))
		return by_action(on_overload, REASON_OVERLOAD);
	return (struct judgement){VERDICT_QUEUE, reason, f->mark};
}

static __always_inline struct judgement judge_flow(struct packet *p, const struct flow *f,
						   __u8 sender)
{
	if (f->action == ACTION_INSPECT)
		return uncertain(p, f, sender, REASON_FLOW);
	return by_action(f->action, REASON_FLOW);
}
