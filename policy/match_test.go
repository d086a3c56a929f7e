package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

const matchPolicy = `
version: 1
zones: {wan: [eth0], lan: [eth1]}
defaults: {input: drop, forward: accept, output: drop}
lists:
  admins: {type: cidr, entries: [192.0.2.0/24, "2001:db8:a::/48"]}
  none: {type: cidr, entries: []}
rules:
  - {name: ssh, from: wan, to: host, proto: tcp, dport: 22, src: "@admins", action: accept}
  - {name: none, src: "@none", action: drop}
  - {name: syn, from: wan, proto: tcp, flags: syn, action: drop}
  - {name: odd, from: wan, proto: tcp, flags: [fin, "!ack"], action: drop}
  - {name: web, from: lan, to: wan, proto: [tcp, udp], dport: [80, 443, 8000-8080], action: inspect, steps: [{sni: a.example, action: drop}]}
  - {name: dns, from: lan, sport: 53, proto: udp, src: [198.51.100.1, "2001:db8::53"], action: drop}
  - {name: esp, proto: esp, dst: 203.0.113.0/25, action: accept}
  - {name: out, from: host, to: wan, action: accept}
`

func TestMatch(t *testing.T) {
	p := mustParse(t, matchPolicy)
	const wan, lan, host = 1, 2, ZoneHost
	addr := netip.MustParseAddr
	base := Packet{From: wan, To: host, Src: addr("192.0.2.9"), Dst: addr("203.0.113.1"), Proto: 6,
		HasPorts: true, Sport: 40000, Dport: 22, TCPFlags: flagSYN}
	with := func(change func(*Packet)) Packet {
		pkt := base
		change(&pkt)
		return pkt
	}
	for _, test := range []struct {
		name   string
		pkt    Packet
		rule   string // "" for the default
		action Action
		reason Reason
	}{
		{"all of a rule's conditions", base, "ssh", ActionAccept, ReasonRule},
		{"IPv6 in the same list", with(func(p *Packet) { p.Src, p.Dst = addr("2001:db8:a::1"), addr("2001:db8::1") }), "ssh", ActionAccept, ReasonRule},
		{"source outside the list", with(func(p *Packet) { p.Src = addr("192.0.3.9") }), "syn", ActionDrop, ReasonRule},
		{"IPv4 in IPv6 is IPv6", with(func(p *Packet) { p.Src = addr("::ffff:192.0.2.9") }), "syn", ActionDrop, ReasonRule},
		{"other port", with(func(p *Packet) { p.Dport = 23 }), "syn", ActionDrop, ReasonRule},
		{"forwarded", with(func(p *Packet) { p.To = lan }), "syn", ActionDrop, ReasonRule},
		{"no ports, so neither port nor flags", with(func(p *Packet) { p.HasPorts = false }), "", ActionDrop, ReasonInput},
		{"SYN and ACK is no first packet", with(func(p *Packet) { p.Dport, p.TCPFlags = 1, flagSYN|flagACK }), "", ActionDrop, ReasonInput},
		{"SYN with flags that do not matter", with(func(p *Packet) { p.Dport, p.TCPFlags = 1, flagSYN|0xc0 }), "syn", ActionDrop, ReasonRule},
		{"FIN without ACK", with(func(p *Packet) { p.Dport, p.TCPFlags = 1, flagFIN }), "odd", ActionDrop, ReasonRule},
		{"FIN with ACK", with(func(p *Packet) { p.Dport, p.TCPFlags = 1, flagFIN|flagACK }), "", ActionDrop, ReasonInput},
		{"first port of a range", with(func(p *Packet) { p.From, p.To, p.Dport = lan, wan, 8000 }), "web", ActionInspect, ReasonRule},
		{"last port of a range", with(func(p *Packet) { p.From, p.To, p.Dport = lan, wan, 8080 }), "web", ActionInspect, ReasonRule},
		{"behind a range", with(func(p *Packet) { p.From, p.To, p.Dport = lan, wan, 8081 }), "", ActionAccept, ReasonForward},
		{"second protocol", with(func(p *Packet) { p.From, p.To, p.Proto, p.Dport = lan, wan, 17, 443 }), "web", ActionInspect, ReasonRule},
		{"third protocol", with(func(p *Packet) { p.From, p.To, p.Proto, p.Dport = lan, wan, 132, 443 }), "", ActionAccept, ReasonForward},
		{"source port, address", with(func(p *Packet) { p.From, p.Proto, p.Sport, p.Src = lan, 17, 53, addr("198.51.100.1") }), "dns", ActionDrop, ReasonRule},
		{"source port, IPv6 address", with(func(p *Packet) { p.From, p.Proto, p.Sport, p.Src = lan, 17, 53, addr("2001:db8::53") }), "dns", ActionDrop, ReasonRule},
		{"source port, next address", with(func(p *Packet) { p.From, p.Proto, p.Sport, p.Src = lan, 17, 53, addr("198.51.100.2") }), "", ActionDrop, ReasonInput},
		{"any zone, none", with(func(p *Packet) { p.From, p.To, p.Proto, p.HasPorts = ZoneNone, ZoneNone, 50, false }), "esp", ActionAccept, ReasonRule},
		{"any zone, the host", with(func(p *Packet) { p.From, p.To, p.Proto, p.HasPorts = host, lan, 50, false }), "esp", ActionAccept, ReasonRule},
		{"outside the destination", with(func(p *Packet) { p.Proto, p.HasPorts, p.Dst = 50, false, addr("203.0.113.128") }), "", ActionDrop, ReasonInput},
		{"from the host", with(func(p *Packet) { p.From, p.To = host, wan }), "out", ActionAccept, ReasonRule},
		{"from the host, elsewhere", with(func(p *Packet) { p.From, p.To = host, lan }), "", ActionDrop, ReasonOutput},
		{"no zone is no zone's packet", with(func(p *Packet) { p.From = ZoneNone }), "", ActionDrop, ReasonInput},
		{"through, without zones", with(func(p *Packet) { p.From, p.To = ZoneNone, ZoneNone }), "", ActionAccept, ReasonForward},
	} {
		got := p.Match(&test.pkt)
		name := ""
		if got.Rule >= 0 {
			name = p.Rules[got.Rule].Name
		}
		if name != test.rule || got.Action != test.action || got.Reason != test.reason {
			t.Errorf("%s: rule %q, %v, %v; want rule %q, %v, %v",
				test.name, name, got.Action, got.Reason, test.rule, test.action, test.reason)
		}
	}
}

// generator makes random policies and packets out of so few values that they
// meet often.
type generator struct{ *rand.Rand }

var (
	someAddrs = []string{"10.0.0.0", "10.0.0.1", "10.0.1.0", "10.128.0.0", "::", "2001:db8::", "2001:db8::1", "2001:db8:8000::", "::ffff:10.0.0.1"}
	somePorts = []uint16{0, 1, 22, 53, 80, 65535}
	someProto = []uint8{1, 6, 17, 58, 132}
)

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

func (g generator) chance(n int) bool { return g.IntN(n) == 0 }

func (g generator) zone() string { return pick(g, []string{"a", "b", "host"}) }

func (g generator) prefix() string {
	for {
		addr := netip.MustParseAddr(pick(g, someAddrs[:8]))
		prefix, err := addr.Prefix(pick(g, []int{0, 1, 8, 9, 24, 31, 32, 33, 48, 127, 128}))
		if err == nil {
			return fmt.Sprintf("%q", prefix)
		}
	}
}

// sequence writes one to three values; with one, half of the time as a scalar.
func (g generator) sequence(value func() string) string {
	var values []string
	for range 1 + g.IntN(3) {
		if v := value(); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	if len(values) == 1 && g.chance(2) {
		return values[0]
	}
	return "[" + strings.Join(values, ", ") + "]"
}

func (g generator) port() string {
	a, b := pick(g, somePorts), pick(g, somePorts)
	if g.chance(2) {
		return fmt.Sprint(a)
	}
	return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
}

func (g generator) rule(i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  - {name: r%d, action: %s", i, pick(g, []string{"accept", "drop"}))
	add := func(key, value string) { fmt.Fprintf(&b, ", %s: %s", key, value) }
	from := g.zone()
	if g.chance(2) {
		add("from", from)
	}
	if to := g.zone(); g.chance(3) && to != from {
		add("to", to)
	}
	target := func() string {
		if g.chance(3) {
			return pick(g, []string{`"@one"`, `"@two"`, `"@none"`})
		}
		return g.prefix()
	}
	if g.chance(2) {
		add(pick(g, []string{"src", "dst"}), g.sequence(target))
	}
	switch g.IntN(4) {
	case 0:
		add("proto", g.sequence(func() string { return fmt.Sprint(pick(g, someProto)) }))
	case 1:
		add("proto", pick(g, []string{"tcp", "udp", "[tcp, udp]"}))
		add(pick(g, []string{"sport", "dport"}), g.sequence(g.port))
	case 2:
		add("proto", "tcp")
		add("flags", pick(g, []string{"syn", "[ack]", `[fin, "!ack"]`, `["!syn"]`, `[syn, ack, "!psh"]`}))
	}
	b.WriteString("}\n")
	return b.String()
}

func (g generator) policy(tb testing.TB) *Policy {
	text := "version: 1\nzones: {a: [a0], b: [b0]}\nlists:\n  none: {type: cidr, entries: []}\n"
	text += fmt.Sprintf("  one: {type: cidr, entries: [%s]}\n  two: {type: cidr, entries: [%s, %s]}\nrules:\n",
		g.prefix(), g.prefix(), g.prefix())
	for i := range 1 + g.IntN(12) {
		text += g.rule(i)
	}
	return mustParse(tb, text)
}

func (g generator) packet() Packet {
	pkt := Packet{
		From: pick(g, []ZoneID{ZoneNone, 1, 2, ZoneHost}),
		To:   pick(g, []ZoneID{ZoneNone, 1, 2, ZoneHost}),
		Src:  netip.MustParseAddr(pick(g, someAddrs)), Dst: netip.MustParseAddr(pick(g, someAddrs)),
		Proto: pick(g, someProto),
	}
	if (pkt.Proto == protoTCP || pkt.Proto == protoUDP) && !g.chance(4) {
		pkt.HasPorts, pkt.Sport, pkt.Dport = true, pick(g, somePorts), pick(g, somePorts)
		if pkt.Proto == protoTCP {
			pkt.TCPFlags = uint8(g.IntN(256))
		}
	}
	return pkt
}

// TestMatchTwin compares Match on random policies with a twin that shares no
// code with it: it works on the bits of addresses written out as text.
func TestMatchTwin(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(9, 10))}
	byRule := 0
	const policies, packets = 500, 100
	for range policies {
		p := g.policy(t)
		for range packets {
			pkt := g.packet()
			got, want := p.Match(&pkt), twinMatch(p, pkt)
			if got != want {
				t.Fatalf("%+v: %+v, want %+v\n%s", pkt, got, want, dump(p))
			}
			if got.Rule >= 0 {
				byRule++
			}
		}
	}
	if all := policies * packets; byRule < all/10 || byRule > all*19/20 {
		t.Errorf("%d of %d packets met a rule: the test tests little", byRule, all)
	}
}

func twinMatch(p *Policy, pkt Packet) Result {
	for i, r := range p.Rules {
		failed := 0
		if r.From != 0 && r.From != pkt.From || r.To != 0 && r.To != pkt.To {
			failed++
		}
		failed += twinAddr(r.Src, pkt.Src) + twinAddr(r.Dst, pkt.Dst)
		if r.Proto != nil && strings.IndexByte(string(r.Proto), pkt.Proto) < 0 {
			failed++
		}
		failed += twinPorts(r.Sport, pkt, pkt.Sport) + twinPorts(r.Dport, pkt, pkt.Dport)
		for bit := range 8 {
			asked, want, is := r.Flags.Mask>>bit&1 == 1, r.Flags.Value>>bit&1, pkt.TCPFlags>>bit&1
			if asked && (!pkt.HasPorts || want != is) {
				failed++
			}
		}
		if failed == 0 {
			return Result{i, r.Action, ReasonRule}
		}
	}
	if pkt.From == ZoneHost {
		return Result{-1, p.Defaults.Output, ReasonOutput}
	}
	if pkt.To == ZoneHost {
		return Result{-1, p.Defaults.Input, ReasonInput}
	}
	return Result{-1, p.Defaults.Forward, ReasonForward}
}

func bitText(a netip.Addr) string {
	text := fmt.Sprint(a.Is4()) + ":"
	for _, b := range a.AsSlice() {
		text += fmt.Sprintf("%08b", b)
	}
	return text
}

// twinAddr returns how many conditions on an address fail.
func twinAddr(m AddrMatch, addr netip.Addr) int {
	prefixes := slices.Clone(m.Prefixes)
	for _, l := range m.Lists {
		prefixes = append(prefixes, l.Prefixes...)
	}
	for _, p := range prefixes {
		start := bitText(p.Addr())
		start = start[:strings.IndexByte(start, ':')+1+p.Bits()]
		if strings.HasPrefix(bitText(addr), start) {
			return 0
		}
	}
	if m.Prefixes == nil && m.Lists == nil {
		return 0
	}
	return 1
}

func twinPorts(ranges []PortRange, pkt Packet, port uint16) int {
	if ranges == nil {
		return 0
	}
	ok := map[bool]int{}
	for _, r := range ranges {
		ok[pkt.HasPorts && int(port)-int(r.First) >= 0 && int(r.Last)-int(port) >= 0]++
	}
	if ok[true] > 0 {
		return 0
	}
	return 1
}

// TestShadowedIsSound: a rule that is called shadowed never decides a packet.
func TestShadowedIsSound(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(11, 12))}
	shadowed, together := 0, 0
	for range 3000 {
		p := g.policy(t)
		hidden := map[int]bool{}
		s := shadows{spans: make(map[*List]addrRanges), left: maxCompare, joins: maxJoined}
		var rules []condition
		for i := range p.Rules {
			rules = append(rules, s.condition(&p.Rules[i]))
			by := s.shadowing(rules, i)
			if hidden[i] = len(by) > 0; hidden[i] {
				shadowed++
			}
			if len(by) > 1 {
				together++
			}
		}
		for range 60 {
			pkt := g.packet()
			if got := p.Match(&pkt); hidden[got.Rule] {
				t.Fatalf("rule %d is called shadowed and decides %+v\n%s", got.Rule, pkt, dump(p))
			}
		}
	}
	if shadowed < 150 || together < 3 {
		t.Errorf("%d shadowed rules, %d by several: the test tests little", shadowed, together)
	}
}

// TestCovers names the reasons for which a rule leaves something to a later one.
func TestCovers(t *testing.T) {
	for _, test := range []struct {
		early, late string
		want        bool
	}{
		{"", "", true},
		{"", ", from: lan, proto: tcp, dport: 80", true},
		{", from: lan", "", false},
		{", from: lan", ", from: wan", false},
		{", to: lan", ", from: lan", false},
		{", src: 10.0.0.0/8", ", src: [10.1.0.0/16, 10.2.0.1]", true},
		{", src: 10.0.0.0/24", ", src: 10.0.0.0/8", false}, // has its first address
		{", src: 10.0.0.0/8", ", src: [10.1.0.0/16, 11.0.0.0/8]", false},
		{", src: 10.0.0.0/8", "", false},
		{", src: 10.0.0.0/8", ", dst: 10.0.0.0/8", false},
		{`, src: "@one"`, `, src: "@one"`, true},
		{`, src: ["@one", 10.0.0.1]`, `, src: "@one"`, true},
		{`, src: "@one"`, `, src: ["@one", 10.0.0.1]`, true},
		{`, src: "@one"`, `, src: ["@one", 11.0.0.1]`, false},
		{", src: [10.0.0.0/9, 10.128.0.0/9]", ", src: 10.0.0.0/8", true}, // together
		{`, src: "!10.0.0.0/8"`, `, src: "!10.0.0.0/7"`, true},
		{`, src: "!10.0.0.0/7"`, `, src: "!10.0.0.0/8"`, false},
		{`, src: "!10.0.0.0/8"`, ", src: [11.0.0.0/8, '::/0']", true},
		{`, src: "!10.0.0.0/8"`, ", src: 10.0.0.1", false},
		{`, src: "!10.0.0.1"`, ", src: 10.0.0.0/8", false},
		{", src: 10.0.0.0/8", `, src: "!10.0.0.0/8"`, false},
		{`, from: "!lan"`, ", from: wan", true},
		{`, from: "!lan"`, ", from: lan", false},
		{`, from: "!lan"`, `, from: "!lan"`, true},
		{`, from: "!lan"`, `, from: "!wan"`, false},
		{", from: lan", `, from: "!wan"`, false},
		{", proto: icmp", ", icmp: echo-request", true},
		{", icmp: echo-request", ", proto: icmp", false},
		{", icmp: [3, 8]", ", icmp: 3/port-unreachable", true},
		{", icmp: 3/port-unreachable", ", icmp: 3", false},
		{", icmp: 8", ", icmpv6: 8", false},
		{`, icmp: "!3/1"`, ", icmp: [8, 3/2]", true},
		{`, icmp: "!3/1"`, ", icmp: 3", false},
		{`, icmp: "!3/1"`, `, icmp: "!3"`, true},
		{`, icmp: "!3"`, `, icmp: "!3/1"`, false},
		{", icmp: 3", `, icmp: "!8"`, false},
		{", vlan: 1-10", ", vlan: [2, 5-6]", true},
		{`, vlan: "!none"`, ", vlan: 7", true},
		{`, vlan: "!none"`, ", vlan: [7, none]", false},
		{", vlan: 7", "", false},
		{`, dscp: "!ef"`, ", dscp: [cs1, be]", true},
		{`, dscp: "!ef"`, ", dscp: [cs1, ef]", false},
		{", dscp: ef", "", false},
		{", fragment: true", ", fragment: true, proto: udp", true},
		{", fragment: true", ", fragment: false", false},
		{", fragment: true", "", false},
		{`, src: "@one"`, `, src: "@two"`, true},
		{", proto: [tcp, udp]", ", proto: udp", true},
		{", proto: tcp", ", proto: [tcp, udp]", false},
		{", proto: tcp", "", false},
		{", proto: tcp, dport: 1-10", ", proto: tcp, dport: [1, 9-10]", true},
		{", proto: tcp, dport: [1-5, 6-10]", ", proto: tcp, dport: 4-7", true}, // together
		{", proto: tcp, dport: 1-10", ", proto: tcp, dport: [1, 9-11]", false},
		{", proto: tcp, dport: 1-10", ", proto: tcp", false},
		{", proto: tcp, dport: 1", ", proto: tcp, sport: 1", false},
		{`, proto: tcp, flags: ["!ack"]`, ", proto: tcp, flags: syn", true},
		{", proto: tcp, flags: [ack]", ", proto: tcp, flags: syn", false},
		{", proto: tcp, flags: syn", ", proto: tcp, flags: [syn]", false},
		{", proto: tcp, flags: syn", ", proto: tcp", false},
	} {
		p := mustParse(t, "version: 1\nzones: {wan: [eth0], lan: [eth1]}\n"+
			"lists: {one: {type: cidr, entries: [10.0.0.0/8]}, two: {type: cidr, entries: [10.0.0.0/8]}}\n"+
			"rules:\n  - {name: a, action: drop"+test.early+"}\n  - {name: b, action: drop"+test.late+"}\n")
		if got := coversRule(&p.Rules[0], &p.Rules[1]); got != test.want {
			t.Errorf("%q covers %q: %t, want %t", test.early, test.late, got, test.want)
		}
	}
}

func TestReasonNames(t *testing.T) {
	for r, want := range map[Reason]string{0: "none", ReasonRule: "rule", ReasonInput: "default input",
		ReasonForward: "default forward", ReasonOutput: "default output", 99: "unknown"} {
		if r.String() != want {
			t.Errorf("reason %d is %q, want %q", r, r, want)
		}
	}
}

func coversRule(a, b *Rule) bool {
	s := shadows{spans: make(map[*List]addrRanges), left: maxCompare}
	x, y := s.condition(a), s.condition(b)
	rest, ok := s.rest(&x, &y)
	return ok && rest == dims
}
