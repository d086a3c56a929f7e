// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// Programs: fw_xdp and fw_tc (incoming), fw_tc_out (leaving), and those of decide.h.
#include "maps.h"
#include "parse.h"
#include "classify.h"
#include "count.h"
#include "decide.h"
#include "flow.h"
#include "reload.h"
#include "offload.h"
#include "rewrite.h"
#include "verdict.h"
#include "way.h"

enum {
	PULL = 2048, // bytes made readable where the headers are not
};

// judge_new judges a packet of a flow that has no entry, and makes the entry
// where the flow may go on.
static __always_inline struct judgement judge_new(struct __sk_buff *skb, struct packet *p,
						  const struct flow_id *id, struct way way,
						  const struct flow *old)
{
	__u32 in = way.in ? way.in : skb->ingress_ifindex;
	bool over;
	__u64 n = find_limited(skb, p, &way, true, &over);
	struct flow f = {
		.rule = n,
		.origin = id->sender,
		.last_seen = bpf_ktime_get_coarse_ns(),
		.generation = generation,
		.in = in,
	};
	__u8 reason = REASON_RULE;

	if (n >= MAX_RULES) {
		f.rule = RULE_NONE;
		f.action = default_action(way);
		reason = REASON_DEFAULT;
	} else {
		f.action = rule_at(n)->action;
		f.mark = rule_at(n)->mark;
		f.replies = rule_at(n)->replies;
		count_rule(n, p, way.source, way.target);
	}
	if (over)
		f.action = ACTION_DROP;
	if (f.action == ACTION_INSPECT && p->proto == IPPROTO_TCP && !starts_flow(p) &&
	    on_midstream != ACTION_INSPECT) {
		f.action = on_midstream;
		reason = REASON_MIDSTREAM;
	}
	// A dropped flow needs no entry: its next packet meets the same rule, and
	// a flood of them must not push others out.
	if (f.action == ACTION_DROP)
		return judged(VERDICT_DROP, reason);
	if (!is_icmp_error(p)) { // which has no replies
		account(&f, id->sender, p);
		// Without an entry the replies would be dropped: better not begun.
		if (begin(p, id, old, &f))
			return judged(VERDICT_DROP, REASON_FLOWS_FULL);
	}
	note_rule(p, &f, id->sender);
	if (f.action == ACTION_INSPECT)
		return uncertain(p, &f, id->sender, reason);
	return judged(VERDICT_PASS, reason);
}

static __always_inline struct judgement judge_later_fragment(struct packet *p)
{
	int action = first_fragment(p);

	// Without its first fragment nobody knows what it belongs to.
	return by_action(action == ACTION_NONE ? ACTION_DROP : action, REASON_FRAGMENT);
}

static __always_inline struct judgement note_fragment(struct packet *p, struct judgement j)
{
	// The rest of a queued datagram is harmless without its first fragment.
	__u8 action = j.verdict == VERDICT_DROP ? ACTION_DROP : ACTION_ACCEPT;

	return remember_fragment(p, action) ? judged(VERDICT_DROP, REASON_FLOWS_FULL) : j;
}

// A global function is verified once, by itself, not at each call.
__noinline int parse_skb(struct __sk_buff *skb, struct packet *p)
{
	if (!p)
		return PARSED_MALFORMED;
	struct cursor c = {
		.skb = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.frame_len = skb->len,
		.gso = skb->gso_size != 0,
	};

	__u32 ifindex = skb->ifindex;

	if (any_bare && bpf_map_lookup_elem(&bare, &ifindex)) {
		p->l3 = 0; // is so, and the verifier is to know it
		return parse_ip(&c, p, skb->protocol);
	}
	int parsed = parse_frame(&c, p, skb->vlan_present);

	if (skb->vlan_present)
		p->vlan = skb->vlan_tci & (MAX_VLAN - 1);
	return parsed;
}

// parse_quoted parses the packet inside an ICMP error.
__noinline int parse_quoted(struct __sk_buff *skb, __u32 offset, struct packet *p)
{
	if (!p)
		return PARSED_MALFORMED;
	struct cursor c = {
		.skb = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.frame_len = skb->len,
		.quoted = 1,
	};

	if (offset > PULL)
		return PARSED_MALFORMED;
	p->l3 = offset;
	__u8 *version = c.data + offset;
	if ((void *)(version + 1) > c.end)
		return PARSED_SHORT;
	return parse_ip(&c, p, bpf_htons((*version >> 4) == 4 ? ETH_P_IP : ETH_P_IPV6));
}

static __always_inline int read_skb(struct __sk_buff *skb, struct packet *p)
{
	int parsed = parse_skb(skb, p);

	if (parsed == PARSED_SHORT && (__u32)(skb->data_end - skb->data) < skb->len) {
		if (bpf_skb_pull_data(skb, skb->len < PULL ? skb->len : PULL))
			return PARSED_SHORT;
		__builtin_memset(p, 0, sizeof(*p));
		parsed = parse_skb(skb, p);
	}
	p->frame_len = skb->len;
	p->segments = skb->gso_segs > 1 ? skb->gso_segs : 1;
	return parsed;
}

// related is the verdict on an ICMP error about a known flow, or VERDICT_COUNT. It
// goes to the sender of what it quotes: otherwise one known flow would open the way
// to every host. Global, for its stack.
__noinline int related(struct __sk_buff *skb, struct packet *p)
{
	struct packet quoted = {};
	struct flow_id id;
	bool half;

	if (!p)
		return VERDICT_COUNT;
	bpf_skb_pull_data(skb, skb->len < PULL ? skb->len : PULL);
	if (parse_quoted(skb, p->l4 + 8, &quoted) != PARSED || quoted.later_fragment ||
	    !is_same(quoted.src, p->dst))
		return VERDICT_COUNT;
	flow_of(&quoted, &id);
	struct flow *f = find_flow(&quoted, &id, bpf_ktime_get_coarse_ns(), &half);
	if (!f)
		return VERDICT_COUNT;
	// Where an older policy has judged the flow its word stands until the flow's
	// own next packet.
	return f->action == ACTION_DROP ? VERDICT_DROP : VERDICT_PASS;
}

// judge_icmp judges what has a meaning of its own: errors about known flows, and
// what must not be dropped. It returns false for the rest.
static __always_inline bool judge_icmp(struct __sk_buff *skb, struct packet *p, struct judgement *j)
{
	if (is_icmp_error(p)) {
		int verdict = related(skb, p);

		if (verdict == VERDICT_PASS || verdict == VERDICT_DROP) {
			*j = judged(verdict, REASON_RELATED);
			return true;
		}
	}
	if (!is_vital_icmp(p))
		return false;
	*j = judged(VERDICT_PASS, REASON_ICMP);
	return true;
}

// unparsed judges what has no address to go by.
static __always_inline struct judgement unparsed(int parsed)
{
	if (parsed == PARSED_NON_IP)
		return judged(VERDICT_PASS, REASON_NON_IP);
	return by_action(on_malformed, REASON_MALFORMED);
}

static __always_inline struct judgement judge_incoming(struct __sk_buff *skb, struct packet *p)
{
	int parsed = read_skb(skb, p);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct judgement j;
	struct flow_id id;

	if (parsed != PARSED)
		return unparsed(parsed);
	if (p->later_fragment)
		return judge_later_fragment(p);
	if (judge_icmp(skb, p, &j))
		return j;

	bool half;
	flow_of(p, &id);
	struct flow *f = find_flow(p, &id, now, &half);
	// An entry that a packet got when it left speaks for replies only: what
	// let the packet come in may have been another process, or nobody.
	bool only_left = f && f->via && id.sender == f->origin;
	if (f && !only_left && !starts_flow(p)) {
		if (f->generation != generation && is_stale(f))
			rejudge(skb, p, f, id.sender, skb->ifindex);
		refresh(f, now);
		account(f, id.sender, p);
		note_rule(p, f, id.sender);
		j = judge_flow(p, f, id.sender);
		if (may_offload(p, f, id.sender)) {
			if (any_rewrite && p->rule)
				rewrite(skb, p, false);
			p->rule = 0; // that is done
			if (forward_skb(skb, p, id.sender ? f->out[1] : f->out[0]) ==
			    TC_ACT_REDIRECT)
				return judged(VERDICT_PASS, REASON_OFFLOADED);
		}
		track(skb, f, p, &id, half);
	} else {
		struct way way = {.from = zone_of(skb->ifindex), .in = skb->ifindex};

		j = judge_new(skb, p, &id, way, half ? NULL : f);
		// Then its replies have nothing to answer. From another zone it is
		// not the packet that left.
		if (only_left && j.verdict == VERDICT_DROP && zone_of(f->in) == way.from) {
			bpf_map_delete_elem(&flows, &id.key);
			bpf_map_delete_elem(&half_open, &id.key);
		}
	}
	return p->fragment ? note_fragment(p, j) : j;
}

// follow lets a flow that was judged when it came in leave, under whatever
// addresses NAT gave it, and its replies return.
static __always_inline struct judgement follow(struct __sk_buff *skb, const struct packet *p,
					       const struct flow_id *id, __u8 via,
					       const struct flow *old, __u64 now)
{
	__u32 judged_bit = mark_mask & ~(mark_mask >> 1);
	struct flow f = {
		.rule = RULE_NONE,
		.action = ACTION_ACCEPT,
		.origin = id->sender,
		.via = via,
		.last_seen = now,
		.generation = generation,
		.in = skb->ingress_ifindex,
	};

	// The user-space half leaves the rule's number on a packet whose replies it
	// wants.
	f.mark = (skb->mark & mark_mask & ~judged_bit) >> mark_shift;
	if (skb->mark & judged_bit && has_meaning(f.mark, generation)) {
		f.action = ACTION_INSPECT;
		f.replies = 1;
	} else {
		f.mark = 0;
	}
	if (begin(p, id, old, &f))
		return judged(VERDICT_DROP, REASON_FLOWS_FULL);
	return judged(VERDICT_PASS, REASON_FORWARDED);
}

static __always_inline struct judgement judge_leaving(struct __sk_buff *skb, struct packet *p)
{
	int parsed = read_skb(skb, p);
	__u64 now = bpf_ktime_get_coarse_ns();
	__u8 from = skb->ingress_ifindex ? zone_of(skb->ingress_ifindex) : ZONE_HOST;
	bool guarded = skb->ingress_ifindex && from != ZONE_NONE; // judged already, by fw_tc
	struct judgement j;
	struct flow_id id;

	if (parsed != PARSED)
		return unparsed(parsed);
	if (p->later_fragment)
		return guarded ? judged(VERDICT_PASS, REASON_FORWARDED) : judge_later_fragment(p);
	if (judge_icmp(skb, p, &j))
		return j;

	bool half;
	flow_of(p, &id);
	struct flow *f = find_flow(p, &id, now, &half);
	bool stale = f && f->generation != generation && is_stale(f);
	if (stale && !starts_flow(p))
		rejudge(skb, p, f, id.sender, skb->ingress_ifindex);
	if (f && f->action == ACTION_DROP && !starts_flow(p))
		return judged(VERDICT_DROP, REASON_FLOW);
	// What a guarded port of an unguarded bridge let in, or the like, was judged
	// there.
	if (!guarded && skb->ingress_ifindex && f && f->action != ACTION_DROP && !f->via && f->in &&
	    zone_of(f->in) != ZONE_NONE)
		guarded = true;
	if (guarded) {
		// A connection that begins anew has nothing of the dropped one's. A
		// judged packet says anew whether its replies are wanted.
		if (!f || f->action == ACTION_DROP || (stale && f->via && id.sender == f->origin))
			return follow(skb, p, &id, from, half ? NULL : f, now);
		refresh(f, now);
		if (!starts_flow(p))
			track(skb, f, p, &id, half);
		// The other side's packets have their rule here where NAT hid it
		// from fw_tc; this side's may have kept the hop that a bridge does
		// not take.
		note_rule(p, f, id.sender);
		note_forwarded(f, id.sender, skb->ifindex);
		return judged(VERDICT_PASS, REASON_FORWARDED);
	}
	if (f && !starts_flow(p)) {
		refresh(f, now);
		account(f, id.sender, p);
		track(skb, f, p, &id, half);
		// Nothing can be queued any more behind the last hook.
		note_rule(p, f, id.sender);
		j = judged(VERDICT_PASS, REASON_FLOW);
	} else {
		struct way way = {.from = from, .to = zone_of(skb->ifindex)};

		j = judge_new(skb, p, &id, way, half ? NULL : f);
	}
	return p->fragment ? note_fragment(p, j) : j;
}

static __always_inline void set_mark(struct __sk_buff *skb, __u16 field)
{
	__u32 mark = (skb->mark & ~mark_mask) | ((__u32)field << mark_shift & mark_mask);

	if (mark != skb->mark)
		skb->mark = mark;
}

// TC_ACT_UNSPEC lets the next program of the hook judge too; TCX calls it
// TCX_NEXT.
SEC("tc")
int fw_tc(struct __sk_buff *skb)
{
	struct packet p = {};
	struct judgement j = judge_incoming(skb, &p);

	count(HOOK_TC, j.verdict, j.reason, p.segments, p.frame_len);
	if (j.verdict == VERDICT_DROP)
		return TC_ACT_SHOT;
	set_mark(skb, j.verdict == VERDICT_QUEUE ? j.mark : MARK_NONE);
	if (any_offload && j.reason == REASON_OFFLOADED)
		return TC_ACT_REDIRECT;
	if (any_rewrite && p.rule)
		rewrite(skb, &p, false);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int fw_tc_out(struct __sk_buff *skb)
{
	struct packet p = {};
	struct judgement j = judge_leaving(skb, &p);

	count(HOOK_TC_OUT, j.verdict, j.reason, p.segments, p.frame_len);
	if (j.verdict == VERDICT_DROP)
		return TC_ACT_SHOT;
	// Behind this host the mark has done its work; below a tunnel it would
	// be taken for the outer packet's.
	set_mark(skb, MARK_NONE);
	if (any_rewrite && p.rule)
		rewrite(skb, &p, true);
	return TC_ACT_UNSPEC;
}

// judge_early drops what can be dropped without a route: flows decided so, and
// what the first matching rule drops whatever its zone out is. Replies of a known
// flow pass, wherever they come from.
static __always_inline struct judgement judge_early(struct xdp_md *ctx, struct packet *p)
{
	__u32 source = any_early ? source_number(p) : 0;
	__u8 lists = any_dynamic && any_early ? source_lists(p) : 0;
	struct flow_id id;
	struct sets s;
	bool half;

	if (lists & dynamic_early)
		source |= SET_EARLY;
	// Only user space decides that a flow is dropped; what a reload has denied is
	// left to fw_tc.
	if (p->later_fragment || (!any_inspect && !any_offload && !(source & SET_EARLY)))
		return judged(VERDICT_PASS, REASON_NEXT);
	if (!starts_flow(p)) {
		__u64 now = bpf_ktime_get_coarse_ns();

		flow_of(p, &id);
		struct flow *f = find_flow(p, &id, now, &half);
		if (f && f->action == ACTION_DROP && !is_stale(f))
			return judged(VERDICT_DROP, REASON_FLOW);
		if (f && may_offload(p, f, id.sender) && !is_rewritten(f, id.sender) &&
		    forward_frame(ctx, p, id.sender ? f->out[1] : f->out[0]) == XDP_REDIRECT) {
			refresh(f, now);
			account(f, id.sender, p);
			return judged(VERDICT_PASS, REASON_OFFLOADED);
		}
		if (f)
			return judged(VERDICT_PASS, REASON_NEXT);
	}
	if (!(source & SET_EARLY) || is_icmp_error(p) || is_vital_icmp(p))
		return judged(VERDICT_PASS, REASON_NEXT);
	__u32 target = target_number(p);
	__u8 from = zone_of(ctx->ingress_ifindex);
	__u64 n;
	if (any_dynamic) {
		struct set_numbers numbers;

		find_numbers(p, source, target, lists, target_lists(p), &numbers);
		n = first_listed(&numbers, from, ANY_ZONE);
	} else {
		if (!find_sets(p, source, target, &s))
			return judged(VERDICT_PASS, REASON_NEXT);
		n = first_match(&s, from, ANY_ZONE, 0);
	}
	if (n < MAX_RULES && rule_at(n)->any_zone && rule_at(n)->any_vlan &&
	    rule_at(n)->action == ACTION_DROP &&
	    (!any_limit || !rule_at(n)->limit || is_over(p, n, false))) {
		count_rule(n, p, source, target);
		return judged(VERDICT_DROP, REASON_RULE);
	}
	return judged(VERDICT_PASS, REASON_NEXT);
}

SEC("xdp")
int fw_xdp(struct xdp_md *ctx)
{
	struct packet p = {};
	struct judgement j = judged(VERDICT_PASS, REASON_NEXT);
	struct cursor c = {
		.xdp = ctx,
		.is_xdp = true,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.frame_len = ctx->data_end - ctx->data,
	};

	// What cannot be parsed here is left to fw_tc, which may see more of it.
	int parsed = parse_frame(&c, &p, false);
	p.frame_len = c.frame_len;
	p.segments = 1;
	// The device may have taken the outer tag off, and does not say so here.
	p.vlan = VLAN_UNKNOWN;
	if (parsed == PARSED)
		j = judge_early(ctx, &p);
	count(HOOK_XDP, j.verdict, j.reason, p.segments, p.frame_len);
	if (j.reason == REASON_OFFLOADED)
		return XDP_REDIRECT;
	return j.verdict == VERDICT_DROP ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
