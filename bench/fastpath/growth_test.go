package fastpath

import (
	"fmt"
	"testing"
)

// sizes are numbers of rules, up to the most that a policy may have.
var sizes = []int{10, 100, 1000, 4096}

// A grower is a filter by its number of rules.
type grower struct {
	name  string
	scene scene
	set   func(n int) func(s *site)
}

var growers = []grower{
	{"no filter", passed, func(int) func(*site) { return none }},
	{"xdp-filter, addresses", passed, xdpFilter},
	{"hybridfw, known flows", passed, func(n int) func(*site) { return hybridfw("off", policyOf{rules: n}) }},
	{"hybridfw, each packet a new flow", begun, func(n int) func(*site) { return hybridfw("off", policyOf{rules: n}) }},
	{"nft, ct established first", passed, func(n int) func(*site) { return nftRules(n, true) }},
	{"nft", passed, func(n int) func(*site) { return nftRules(n, false) }},
	{"iptables-nft", passed, func(n int) func(*site) { return iptables("nft", n) }},
	{"iptables-legacy", passed, func(n int) func(*site) { return iptables("legacy", n) }},
}

// growthPart measures what a packet that passes costs by the number of rules, on
// one CPU.
func growthPart(b testing.TB, r *report) {
	grown := make([][]*measured, len(growers))
	var all []*measured
	for i, g := range growers {
		for _, n := range sizes {
			built := build(b, g.scene, []filter{{g.name, g.set(n)}})
			grown[i] = append(grown[i], built...)
			all = append(all, built...)
		}
	}
	measure(b, all, 1)
	r.heading("Cost by the number of rules")
	r.text("ns for each packet that passes, sending it included; one CPU. The last rule is the one that matches.")
	head := []string{"filter"}
	for _, n := range sizes {
		head = append(head, fmt.Sprintf("%d rules", n))
	}
	r.head(head...)
	chart := chart{title: "A packet that passes, by the number of rules", x: "rules", y: "ns a packet, sending it included", image: "fastpath.svg"}
	for i, g := range growers {
		row, l := []string{g.name}, line{name: g.name}
		for j, m := range grown[i] {
			row = append(row, m.together.spread())
			l.points = append(l.points, point{float64(sizes[j]), m.together.median()})
		}
		r.row(row...)
		chart.lines = append(chart.lines, l)
	}
	r.plot(chart)
}
