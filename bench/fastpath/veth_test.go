package fastpath

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

var (
	parts = flag.String("parts", "drop,pass,forward,bulk,growth,apply", "measure these `parts`")
	only  = flag.String("only", "", "of the parts drop, pass and forward only what has this `text` in its name")
)

// BenchmarkVeth prints what packets cost a host behind a veth, by what it filters
// with, and whether that is what is wanted.
func BenchmarkVeth(b *testing.B) {
	r := newReport(b)
	for _, part := range strings.Split(*parts, ",") {
		measure, ok := map[string]func(testing.TB, *report){
			"drop": dropPart, "pass": passPart, "forward": forwardPart,
			"bulk": bulkPart, "growth": growthPart, "apply": applyPart,
		}[part]
		if !ok {
			b.Fatalf("there is no part %q", part)
		}
		// By itself, so that its networks are gone when the next one begins.
		if !b.Run(part, func(b *testing.B) { measure(b, r); r.endTable() }) {
			return
		}
	}
	r.end()
}

// Names that ratios are about.
const (
	dropAll       = "XDP drops everything (limit)"
	ownDrop       = "hybridfw XDP, list of 10,000"
	ownDropMany   = "hybridfw XDP, list of 1 million"
	nftSetMany    = "nft set of 1 million"
	legacyMany    = "iptables-legacy 1,000 rules"
	noFilter      = "no filter (limit)"
	ownPass       = "hybridfw tc, 10 rules, list of 10,000"
	ownKernelOnly = "hybridfw tc, the same, nothing inspected"
	nftKnown      = "nft ct established first, 10 rules"
	bareRedirect  = "bare XDP redirect (limit)"
	ownOffload    = "hybridfw XDP, offload: forward"
)

var dropFilters = []filter{
	{dropAll, xdpDropAll},
	{"tc drops everything (limit)", tcAll(tcShot)},
	{ownDrop, hybridfw("native", policyOf{rules: 10, list: 10_000})},
	{ownDropMany, hybridfw("native", policyOf{rules: 10, list: 1_000_000})},
	{"hybridfw tc, list of 10,000", hybridfw("off", policyOf{rules: 10, list: 10_000})},
	{"hybridfw tc, list of 1 million", hybridfw("off", policyOf{rules: 10, list: 1_000_000})},
	{"xdp-filter, 10,000 addresses", xdpFilter(10_000)},
	{"nft set of 10,000", nftSet(10_000)},
	{nftSetMany, nftSet(1_000_000)},
	{"nft set of 1 million, ingress", nftIngress(1_000_000)},
	{"nft 10 rules", nftRules(10, false)},
	{"nft 100 rules", nftRules(100, false)},
	{"nft 1,000 rules", nftRules(1000, false)},
	{"iptables-legacy 10 rules", iptables("legacy", 10)},
	{legacyMany, iptables("legacy", 1000)},
	{"iptables-nft 10 rules", iptables("nft", 10)},
	{"iptables-nft 1,000 rules", iptables("nft", 1000)},
}

var passFilters = []filter{
	{noFilter, none},
	{"tc passes everything (limit)", tcAll(tcNext)},
	{"XDP passes everything (limit)", xdpPassAll},
	{ownPass, hybridfw("off", policyOf{rules: 10, list: 10_000})},
	{"hybridfw XDP and tc, 10 rules, list of 10,000", hybridfw("native", policyOf{rules: 10, list: 10_000})},
	{ownKernelOnly, hybridfw("off", policyOf{rules: 10, list: 10_000, kernelOnly: true})},
	{"hybridfw tc, 1,000 rules", hybridfw("off", policyOf{rules: 1000})},
	{"xdp-filter, 10,000 addresses", xdpFilter(10_000)},
	{nftKnown, nftRules(10, true)},
	{nftSetMany, nftSet(1_000_000)},
	{"nft 10 rules", nftRules(10, false)},
	{"nft 100 rules", nftRules(100, false)},
	{"nft 1,000 rules", nftRules(1000, false)},
	{"iptables-legacy 10 rules", iptables("legacy", 10)},
	{legacyMany, iptables("legacy", 1000)},
	{"iptables-nft 1,000 rules", iptables("nft", 1000)},
}

var forwardFilters = []filter{
	{noFilter, none},
	{bareRedirect, xdpRedirect},
	{"hybridfw tc, 10 rules", hybridfw("off", policyOf{rules: 10})},
	{"hybridfw tc, the same, nothing inspected", hybridfw("off", policyOf{rules: 10, kernelOnly: true})},
	{"hybridfw tc, offload: forward", hybridfw("off", policyOf{rules: 10, also: ", offload: forward"})},
	{ownOffload, hybridfw("native", policyOf{rules: 10, also: ", offload: forward"})},
	{nftKnown, nftRules(10, true)},
	{"nft 1,000 rules", nftRules(1000, false)},
	{legacyMany, iptables("legacy", 1000)},
}

func dropPart(b testing.TB, r *report) {
	m := scenePart(b, r, "64 flows of listed sources, dropped", dropped, dropFilters)
	r.wantRatio("drop, list of 10,000: hybridfw XDP to a program that drops everything", m[ownDrop], m[dropAll], 1.3, true)
	r.wantRatio("drop: nft set of 1 million to hybridfw XDP with 1 million", m[nftSetMany], m[ownDropMany], 2.5, false)
	r.wantRatio("drop: iptables-legacy with 1,000 rules to hybridfw XDP", m[legacyMany], m[ownDrop], 30, false)
}

func passPart(b testing.TB, r *report) {
	m := scenePart(b, r, "64 known flows to the host, passed", passed, passFilters)
	r.wantRatio("pass: hybridfw tc and its nft table to no filter", m[ownPass], m[noFilter], 1.25, true)
	r.wantRatio("pass: hybridfw tc, nothing inspected, to no filter", m[ownKernelOnly], m[noFilter], 1.25, true)
	r.wantRatio("pass: nft with ct state established first to hybridfw", m[nftKnown], m[ownPass], 1, false)
}

func forwardPart(b testing.TB, r *report) {
	m := scenePart(b, r, "64 known flows through the host, forwarded", forwarded, forwardFilters)
	r.wantRatio("forward: hybridfw with offload: forward to a bare XDP redirect", m[ownOffload], m[bareRedirect], 1.3, true)
}

// scenePart measures a scene and returns what was measured by the filters' names.
func scenePart(b testing.TB, r *report, title string, sc scene, filters []filter) map[string]*measured {
	filters = slices.DeleteFunc(slices.Clone(filters), func(f filter) bool { return !strings.Contains(f.name, *only) })
	all := build(b, sc, filters)
	measure(b, all, runtime.NumCPU())
	r.heading(title)
	r.head("filter", "one CPU: ns a packet", "own CPU: ns a packet", "own CPU: 1,000 packets/s")
	named := map[string]*measured{}
	for _, m := range all {
		r.row(m.name, m.together.spread(), m.alone.spread(), m.rate.spread())
		named[m.name] = m
	}
	return named
}

// wantRatio notes a ratio of times, where both were measured.
func (r *report) wantRatio(what string, a, b *measured, limit float64, less bool) {
	if a == nil || b == nil {
		return
	}
	r.want(what+", one CPU", a.together.median()/b.together.median(), limit, less)
	if len(a.alone) > 0 {
		r.want(what+", own CPU", a.alone.median()/b.alone.median(), limit, less)
	}
}

// TestFilters holds each kind of filter that the benchmark compares against what
// it is said to do with packets, and measures it shortly.
func TestFilters(t *testing.T) {
	for _, command := range []string{"nft", "iptables-legacy-restore", "iptables-nft-restore", "xdp-filter"} {
		if !has(command) {
			testnet.SkipOrFail(t, command+" is not here")
		}
	}
	*rounds, *roundFor = 5, time.Millisecond
	for sc, filters := range map[*scene][]filter{
		&dropped: {
			{"XDP", xdpDropAll}, {"tc", tcAll(tcShot)}, {"hybridfw XDP", hybridfw("native", policyOf{rules: 4, list: 100})},
			{"hybridfw tc", hybridfw("off", policyOf{rules: 4, list: 100})}, {"xdp-filter", xdpFilter(100)},
			{"nft set", nftSet(100)}, {"nft ingress", nftIngress(100)}, {"nft", nftRules(4, false)},
			{"iptables-legacy", iptables("legacy", 4)}, {"iptables-nft", iptables("nft", 4)},
		},
		&passed: {
			{"none", none}, {"XDP", xdpPassAll}, {"tc", tcAll(tcNext)}, {"hybridfw XDP", hybridfw("native", policyOf{rules: 4, list: 100})},
			{"hybridfw tc", hybridfw("off", policyOf{rules: 4})}, {"xdp-filter", xdpFilter(100)},
			{"nft known", nftRules(4, true)}, {"nft set", nftSet(100)}, {"iptables-legacy", iptables("legacy", 4)},
		},
		&forwarded: {
			{"none", none}, {"redirect", xdpRedirect}, {"hybridfw tc", hybridfw("off", policyOf{rules: 4})},
			{"hybridfw, offload", hybridfw("native", policyOf{rules: 4, also: ", offload: forward"})},
			{"nft known", nftRules(4, true)}, {"iptables-nft", iptables("nft", 4)},
		},
	} {
		t.Run(sc.name, func(t *testing.T) {
			all := build(t, *sc, filters)
			measure(t, all, runtime.NumCPU())
			for _, m := range all {
				if m.together.median() < 10 || len(m.together) < 5 {
					t.Errorf("%s: %v ns a packet", m.name, m.together)
				}
			}
		})
	}
}

// TestFiltersAreProven sees that a filter that does not do what its scene says is
// noticed: one that lets through what should be dropped, and the other way round.
func TestFiltersAreProven(t *testing.T) {
	for _, c := range []struct {
		scene  scene
		filter filter
	}{{dropped, filter{"none", none}}, {passed, filter{"drops all", xdpDropAll}}, {forwarded, filter{"drops all", xdpDropAll}}} {
		m := &measured{filter: c.filter, site: newSite(t, c.scene)}
		c.filter.set(m.site)
		if err := m.prove(); err == nil {
			t.Errorf("%s, %s: nothing was noticed", c.scene.name, c.filter.name)
		}
	}
}
