package userspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// tlsRule is inspecting rule 0 where a test needs names; dnsRule is rule 1.
const tlsRule = `  - name: web
    from: lan
    proto: [tcp, udp]
    dport: [80, 443]
    action: inspect
    until: { packets: 4, bytes: 4KiB }
    steps:
      - { sni: "*.bad.example", action: drop, log: true }
      - { sni: .good.example, action: accept }
      - { sni: .watched.example, log: true }
`

const otherwiseAccept = "      - { action: accept }\n"

// told collects what a stage tells.
type told struct {
	decisions []Decision
	sightings []Sighting
	fail      error
}

func (c *told) options(p *policy.Policy) Options {
	return Options{
		Policy: p, Queues: 1, Flows: 64,
		Decided: func(d Decision) error { c.decisions = append(c.decisions, d); return c.fail },
		Seen:    func(s Sighting) { c.sightings = append(c.sightings, s) },
	}
}

// tester is a worker with ids counted up.
type tester struct {
	*offline
	told
	id uint32
}

func newTester(tb testing.TB, failure, rules string) *tester {
	tb.Helper()
	t := &tester{}
	t.offline = newOffline(tb, t.told.options(mustPolicy(tb, failure, rules)))
	t.judge.now = 1e9
	return t
}

// judged sends a packet for a rule and returns whether it was accepted.
func (w *tester) judged(tb testing.TB, rule int, payload []byte) bool {
	tb.Helper()
	w.id++
	v := w.packet(tb, queued{id: w.id, mark: uint32(markOf(rule)), payload: payload})
	want := uint32(testForeign | testJudged)
	for i := range w.judge.policy.Rules {
		// Where the rule rewrites its number stays, for the replies' sake.
		if r := &w.judge.policy.Rules[i]; r.Rewrites() && r.Inspect == rule {
			want |= uint32(markOf(rule))
		}
	}
	if v.accept && v.mark != want {
		tb.Fatalf("accepted with mark %#x, want %#x", v.mark, want)
	}
	return v.accept
}

func TestHelloDecidesItsFlow(t *testing.T) {
	for name, c := range map[string]struct {
		hello  []byte
		accept bool
		reason Reason
		names  string
	}{
		"denied":        {hello(sni("Ads.Bad.example")), false, ReasonStep, "ads.bad.example"},
		"allowed":       {hello(sni("good.example")), true, ReasonStep, "good.example"},
		"other":         {hello(sni("other.example")), false, ReasonUndecided, "other.example"},
		"none":          {hello(), false, ReasonUndecided, ""},
		"not tls":       {[]byte("hello, server\r\n"), false, ReasonUndecided, "-"},
		"malformed":     {hello(sni("good.example"), sni("a.bad.example")), false, ReasonMalformed, "-"},
		"two in record": {twoRecords(hello(sni("good.example")), 30), true, ReasonStep, "good.example"},
	} {
		w := newTester(t, "", tlsRule)
		if got := w.judged(t, 0, tcpPacket(1, c.hello)); got != c.accept {
			t.Errorf("%s: accepted %v, want %v", name, got, c.accept)
		}
		flow := pktbuf.FlowOf(clientAddr, serverAddr, 6)
		action := policy.ActionDrop
		if c.accept {
			action = policy.ActionAccept
		}
		want := Decision{Flow: flow, Action: action, Rule: 0, Mark: 1, Reason: c.reason}
		if len(w.decisions) != 1 || w.decisions[0] != want {
			t.Errorf("%s: decisions %+v, want %+v", name, w.decisions, want)
		}
		if c.names == "-" {
			if len(w.sightings) != 0 {
				t.Errorf("%s: sightings %+v", name, w.sightings)
			}
			continue
		}
		seen := Sighting{Policy: w.judge.policy, Flow: flow, Kind: "tls", Name: c.names, Action: action, Reason: c.reason, Log: name == "denied", Queued: 1,
			Versions: "1.2", JA4: map[string]string{"denied": "t12d010100_0f2cb44170f4_000000000000"}[name]} // of what is logged
		if len(w.sightings) != 1 || !reflect.DeepEqual(w.sightings[0], seen) {
			t.Errorf("%s: sightings %+v, want %+v", name, w.sightings, seen)
		}
	}
}

// The bytes behind an unfinished hello are more of it, and never "not TLS".
func TestUnfinishedHelloRunsIntoTheBudget(t *testing.T) {
	whole := hello(sni("a.bad.example"))
	for undecided, accept := range map[string]bool{"undecided: accept": true, "undecided: drop": false} {
		w := newTester(t, undecided, tlsRule+otherwiseAccept)
		for i := range 3 {
			part := whole[10*i : 10*i+10]
			if !w.judged(t, 0, tcpPacket(uint32(1+10*i), part)) || len(w.decisions) != 0 {
				t.Fatalf("packet %d: dropped, or decided as %+v", i, w.decisions)
			}
		}
		// until: 4 packets
		if got := w.judged(t, 0, tcpPacket(31, whole[30:40])); got != accept {
			t.Errorf("%s: the last packet was accepted: %v", undecided, got)
		}
		if len(w.decisions) != 1 || w.decisions[0].Reason != ReasonUndecided || len(w.sightings) != 0 {
			t.Errorf("%s: decisions %+v", undecided, w.decisions)
		}
		if c := w.tally.snapshot(); c.More != 3 || c.Undecided != 1 {
			t.Errorf("%+v", c)
		}
	}
	w := newTester(t, "undecided: drop", tlsRule)
	big := record(tlsHandshake, append([]byte{1, 0, 0x30, 0}, make([]byte, 5000)...))
	if w.judged(t, 0, tcpPacket(1, big[:1000])) != true || w.judged(t, 0, tcpPacket(1001, big[1000:4200])) {
		t.Error("more bytes than the budget passed")
	}
}

// A first segment that comes again whole decides; a hello placed elsewhere in the
// stream does not, nor one that comes after a drop.
func TestOnlyTheStreamsStartCounts(t *testing.T) {
	bad, good := hello(sni("a.bad.example")), hello(sni("good.example"))
	w := newTester(t, "", tlsRule)
	w.judged(t, 0, tcpPacket(1, bad[:20]))
	if w.judged(t, 0, tcpPacket(500, good)); len(w.decisions) != 0 {
		t.Errorf("a hello out of the middle decided: %+v", w.decisions)
	}
	if w.judged(t, 0, tcpPacket(1, bad)) || len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionDrop {
		t.Errorf("the whole first segment did not decide: %+v", w.decisions)
	}
	if w.sightings[0].Queued != 3 {
		t.Errorf("queued %d, want 3", w.sightings[0].Queued)
	}
	if w.judged(t, 0, tcpPacket(900, good)) || w.judged(t, 0, tcpPacket(901, []byte("more"))) {
		t.Error("a drop was undone by another hello")
	}
}

// Packets queued before the decision was known follow it, whatever they hold.
func TestPacketsAlreadyQueuedFollowTheDecision(t *testing.T) {
	for name, accept := range map[string]bool{"a.bad.example": false, "good.example": true} {
		w := newTester(t, "", tlsRule)
		w.judged(t, 0, tcpPacket(1, hello(sni(name))))
		next := [][]byte{[]byte("early data"), record(20, []byte{1}), record(23, make([]byte, 99)), {20}, record(21, []byte{1, 0})}
		for i := range 10 {
			if got := w.judged(t, 0, tcpPacket(uint32(1000+i), next[i%len(next)])); got != accept {
				t.Errorf("%s: packet %d accepted: %v", name, i, got)
			}
		}
		if len(w.decisions) != 1 {
			t.Errorf("%s: %d decisions", name, len(w.decisions))
		}
		// Much later, with the socket empty in between, it is a new connection.
		w.judge.now += 1e9
		w.judge.empty = w.judge.now - 1
		if w.judged(t, 0, tcpPacket(9, []byte("not tls"))); len(w.decisions) != 2 {
			t.Errorf("%s: %d decisions after the flow was forgotten", name, len(w.decisions))
		}
	}
}

// A connection that reuses the ports of an accepted one is inspected again.
func TestReusedPortsAreInspectedAgain(t *testing.T) {
	for name, next := range map[string][]byte{
		"denied": hello(sni("a.bad.example")), "malformed": hello(sni("a"), sni("b")), "cut": hello(sni("a.bad.example"))[:30],
	} {
		w := newTester(t, "", tlsRule)
		w.judged(t, 0, tcpPacket(1, hello(sni("good.example"))))
		if got := w.judged(t, 0, tcpPacket(70000, next)); got != (name == "cut") {
			t.Errorf("%s: accepted %v", name, got)
		}
		if name == "cut" && w.judged(t, 0, tcpPacket(70030, []byte("rest"))) && w.judged(t, 0, tcpPacket(70034, []byte("rest"))) &&
			w.judged(t, 0, tcpPacket(70038, []byte("rest"))) {
			t.Error("the second connection was accepted by the first one's decision")
		}
	}
	w := newTester(t, "", tlsRule)
	w.judged(t, 0, tcpPacket(1, hello(sni("a.bad.example"))))
	syn := ipPacket(clientAddr, serverAddr, &testnet.TCP{Seq: 5000, Flags: 2}, nil)
	if !w.judged(t, 0, syn) || !w.judged(t, 0, tcpPacket(5001, hello(sni("good.example")))) {
		t.Error("a SYN does not start anew")
	}
	fastOpen := ipPacket(clientAddr, serverAddr, &testnet.TCP{Seq: 9000, Flags: 2}, hello(sni("good.example"))[:20])
	if !w.judged(t, 0, fastOpen) || !w.judged(t, 0, tcpPacket(9001, hello(sni("good.example")))) || len(w.decisions) != 3 {
		t.Errorf("data in a SYN is not the stream's start: %+v", w.decisions)
	}
}

func TestRefusedDecisionIsOfferedAgain(t *testing.T) {
	w := newTester(t, "", tlsRule)
	w.fail = errors.New("map is full")
	if w.judged(t, 0, tcpPacket(1, hello(sni("a.bad.example")))) {
		t.Error("accepted")
	}
	w.judge.now += 1e12
	w.judge.empty = w.judge.now - 1e9
	if w.judged(t, 0, tcpPacket(900, []byte("x"))) {
		t.Error("the flow's decision was forgotten though nobody else knows it")
	}
	w.fail = nil
	w.judged(t, 0, tcpPacket(901, []byte("x")))
	w.judged(t, 0, tcpPacket(902, []byte("x")))
	if c := w.tally.snapshot(); len(w.decisions) != 3 || c.DecidedErrors != 2 || c.Decided != 3 {
		t.Errorf("%d decisions, %+v", len(w.decisions), c)
	}
	for _, d := range w.decisions {
		if d != w.decisions[0] {
			t.Errorf("decision %+v, first %+v", d, w.decisions[0])
		}
	}
}

func TestBareAcksPassUndecided(t *testing.T) {
	w := newTester(t, "", tlsRule)
	if !w.judged(t, 0, tcpPacket(1, nil)) || len(w.decisions) != 0 {
		t.Error("a segment without data was judged")
	}
	w.judged(t, 0, tcpPacket(1, hello(sni("a.bad.example"))))
	if w.judged(t, 0, tcpPacket(1, nil)) {
		t.Error("a segment of a dropped flow passed")
	}
}

// When there is no room to remember a flow, failure.overload decides.
func TestFullTableIsOverload(t *testing.T) {
	for setting, accept := range map[string]bool{"overload: open": true, "overload: closed": false} {
		w := newTester(t, setting, tlsRule)
		w.judge.flows = newFlows(ways, streamMax)
		part := hello(sni("good.example"))[:30]
		segment := func(port int, b []byte) []byte {
			src := netip.AddrPortFrom(clientAddr.Addr(), uint16(port))
			return ipPacket(src, serverAddr, &testnet.TCP{Seq: 1, Flags: 0x18}, b)
		}
		for i := range ways {
			if !w.judged(t, 0, segment(1000+i, part)) {
				t.Fatalf("flow %d was dropped", i)
			}
		}
		if got := w.judged(t, 0, segment(3000, part)); got != accept {
			t.Errorf("%s: accepted %v", setting, got)
		}
		if c := w.tally.snapshot(); c.Overload != 1 || c.More != ways {
			t.Errorf("%+v", c)
		}
		// A whole hello needs no memory.
		if w.judged(t, 0, segment(3001, hello(sni("a.bad.example")))) || !w.judged(t, 0, segment(3002, hello(sni("good.example")))) {
			t.Error("whole hellos are judged wrongly when the table is full")
		}
		// Flows that never went on give way in the end.
		w.judge.now += flowIdle + 1
		if !w.judged(t, 0, segment(3003, part)) || w.tally.snapshot().Overload != 1 {
			t.Error("idle flows keep their place")
		}
	}
}

func TestQuestionsAreJudgedOneByOne(t *testing.T) {
	rule := tlsRule + rewriteRule
	two := func(first, second string) []byte {
		return dnsRaw(2, append(asked(wireName(first)), asked(wireName(second))...)...)
	}
	for name, c := range map[string]struct {
		msg    []byte
		accept bool
		reason Reason
		names  string
	}{
		"accepted":        {dnsQuery("www.good.example", 1), true, ReasonStep, "www.good.example"},
		"denied":          {dnsQuery("x.bad.example", 1), false, ReasonStep, "x.bad.example"},
		"mixed case":      {dnsQuery("X.bAd.ExAmPlE", 1), false, ReasonStep, "x.bad.example"},
		"unknown":         {dnsQuery("other.example", 1), false, ReasonUndecided, "other.example"},
		"to be rewritten": {dnsQuery("four.example", 1), true, ReasonStep, "four.example"},
		"second denied":   {two("good.example", "x.bad.example"), false, ReasonStep, "good.example x.bad.example"},
		"first denied":    {two("x.bad.example", "good.example"), false, ReasonStep, "x.bad.example good.example"},
		"second unknown":  {two("good.example", "other.example"), false, ReasonUndecided, "good.example other.example"},
		"a dotted label":  {dnsRaw(1, asked(append([]byte{13}, "x.bad.example\x00"...))...), false, ReasonUndecided, `x\bad\example`},
		"12 zero bytes":   {make([]byte, 12), false, ReasonMalformed, ""},
		"counted, absent": {dnsRaw(1), false, ReasonMalformed, ""},
		"nothing":         {nil, false, ReasonMalformed, ""},
		"no question":     {append(dnsRaw(0)[:10], 0, 1), false, ReasonUndecided, ""},
	} {
		w := newTester(t, "", rule)
		for range 3 {
			if got := w.judged(t, 1, udpPacket(c.msg)); got != c.accept {
				t.Errorf("%s: accepted %v, want %v", name, got, c.accept)
			}
		}
		if len(w.decisions) != 0 {
			t.Errorf("%s: the flow was decided: %+v", name, w.decisions)
		}
		if n := w.tally.own[countReason+int(c.reason)-1]; n != 3 {
			t.Errorf("%s: %d packets by reason %v: %+v", name, n, c.reason, w.tally.snapshot())
		}
		var names []string
		for _, s := range w.sightings {
			if s.Kind != "dns" || s.Rule != 1 || s.Reason != c.reason {
				t.Errorf("%s: sighting %+v", name, s)
			}
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != strings.TrimSpace(strings.Repeat(c.names+" ", 3)) {
			t.Errorf("%s: names %q", name, got)
		}
	}
}

func TestResponsesAreRewrittenWithRightChecksums(t *testing.T) {
	client6, dns6 := netip.MustParseAddrPort("[2001:db8::1]:40000"), netip.MustParseAddrPort("[2001:db8::53]:53")
	for _, ends := range [][2]netip.AddrPort{{dnsAddr, clientAddr}, {dns6, client6}} {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			w := newTester(t, "", tlsRule+rewriteRule)
			w.id++
			in := ipPacket(ends[0], ends[1], nil, mustPack(t, fullResponse(typ)))
			v := w.packet(t, queued{id: w.id, mark: uint32(markOf(1)), payload: in})
			if !v.accept || v.payload == nil {
				t.Fatalf("verdict %+v", v)
			}
			frame := append(make([]byte, 12), 0x08, 0)
			if ends[0].Addr().Is6() {
				frame[12], frame[13] = 0x86, 0xdd
			}
			frame = append(frame, v.payload...)
			p, ok := testnet.Dissect(frame)
			if !ok || !testnet.ChecksumsOK(frame) || p.Src != ends[0] || p.Dst != ends[1] {
				t.Fatalf("rewritten packet %x: %+v", v.payload, p)
			}
			m := mustUnpack(t, p.Payload)
			if typ == dnsmessage.TypeA && (len(m.Answers) != 1 || addrOf(m.Answers[0]) != netip.MustParseAddr("192.0.2.99")) ||
				typ == dnsmessage.TypeAAAA && len(m.Answers) != 0 {
				t.Errorf("%s", m.GoString())
			}
			if c := w.tally.snapshot(); c.Rewritten != 1 || c.Received != 1 || len(w.sightings) != 0 {
				t.Errorf("%+v", c)
			}
		}
	}
}

// A checksum that comes out as 0 is sent as 0xffff (RFC 768, RFC 8200 section
// 8.1); one that the sender left out stays out on IPv4.
func TestRewrittenChecksumIsNeverZero(t *testing.T) {
	w := newTester(t, "", tlsRule+rewriteRule)
	m := mustPack(t, fullResponse(dnsmessage.TypeA))
	client6, dns6 := netip.MustParseAddrPort("[2001:db8::1]:40000"), netip.MustParseAddrPort("[2001:db8::53]:53")
	for at, ends := range map[int][2]netip.AddrPort{26: {dnsAddr, clientAddr}, 46: {dns6, client6}} {
		checksum := func(id uint16) uint16 {
			binary.BigEndian.PutUint16(m, id)
			w.id++
			v := w.packet(t, queued{id: w.id, mark: uint32(markOf(1)), payload: ipPacket(ends[0], ends[1], nil, m)})
			return binary.BigEndian.Uint16(v.payload[at:])
		}
		// The message's id is part of the sum: the id that makes it 0 is the
		// checksum of the same message with id 0.
		zero := checksum(0)
		if got := checksum(zero); got != 0xffff {
			t.Errorf("%v: checksum %#x, want 0xffff", ends, got)
		}
		if got := checksum(zero - 1); got != 1 {
			t.Errorf("%v: checksum %#x, want 1", ends, got)
		}
	}
	without := ipPacket(dnsAddr, clientAddr, nil, m)
	without[26], without[27] = 0, 0
	w.id++
	if v := w.packet(t, queued{id: w.id, mark: uint32(markOf(1)), payload: without}); v.payload[26] != 0 || v.payload[27] != 0 {
		t.Error("a packet without checksum got one")
	}
}

func TestWhatCannotBeRewrittenIsMalformed(t *testing.T) {
	in := ipPacket(dnsAddr, clientAddr, nil, mustPack(t, fullResponse(dnsmessage.TypeA)))
	fragment := bytes.Clone(in)
	fragment[6] = 0x20 // more follow
	for name, q := range map[string]queued{
		"cut":      {payload: in[:len(in)-9], capLen: uint32(len(in))},
		"super":    {payload: in, info: skbGSO},
		"fragment": {payload: fragment},
	} {
		w := newTester(t, "", tlsRule+rewriteRule)
		q.id, q.mark = 1, uint32(markOf(1))
		if v := w.packet(t, q); v.accept || v.payload != nil {
			t.Errorf("%s: %+v", name, v)
		}
		if c := w.tally.snapshot(); c.Malformed != 1 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// Fragments are not judged by what is in them, first ones neither.
func TestFragmentsAreMalformed(t *testing.T) {
	for name, in := range map[string][]byte{
		"hello": tcpPacket(1, hello(sni("good.example"))), "query": udpPacket(dnsQuery("www.good.example", 1)),
	} {
		for _, field := range []byte{0x20, 0x21, 0x01} { // first, middle, last
			w := newTester(t, "", tlsRule+otherwiseAccept+rewriteRule)
			fragment := bytes.Clone(in)
			fragment[6] = field
			if w.judged(t, 0, fragment) || len(w.decisions) != 0 || w.tally.own[countReason+int(ReasonMalformed)-1] != 1 {
				t.Errorf("%s, fragment field %#x: decisions %+v, %+v", name, field, w.decisions, w.tally.snapshot())
			}
		}
	}
}

func TestPacketsThatNobodyAskedFor(t *testing.T) {
	for setting, accept := range map[string]bool{"malformed: accept": true, "malformed: drop": false} {
		w := newTester(t, setting, tlsRule)
		for _, mark := range []uint32{0, testForeign, testForeign | testJudged, testForeign | 3<<16, testForeign | 0xff<<16} {
			w.id++
			v := w.packet(t, queued{id: w.id, mark: mark, payload: tcpPacket(1, hello(sni("good.example")))})
			if v.accept != accept || accept && v.mark != mark&^testMask|testJudged {
				t.Errorf("%s, mark %#x: %+v", setting, mark, v)
			}
		}
		if c := w.tally.snapshot(); c.Unmarked != 5 {
			t.Errorf("%+v", c)
		}
	}
}

func TestPacketsThatDoNotParse(t *testing.T) {
	good := tcpPacket(1, hello(sni("good.example")))
	for n := range len(good) {
		w := newTester(t, "", tlsRule)
		if w.judged(t, 0, good[:n]) {
			t.Fatalf("%d bytes of %d were accepted", n, len(good))
		}
		if c := w.tally.snapshot(); c.Malformed != 1 || c.Panics != 0 {
			t.Fatalf("%d bytes: %+v", n, c)
		}
	}
}

// panicking is an inspector at fault.
type panicking struct{ inspector }

func (panicking) inspect(b []byte) outcome { _ = b[len(b)]; return sawNone }

func TestPanicIsMalformed(t *testing.T) {
	for setting, accept := range map[string]bool{"malformed: accept": true, "malformed: drop": false} {
		w := newTester(t, setting, tlsRule)
		w.judge.onTCP = []inspector{panicking{}}
		for range 3 {
			if w.judged(t, 0, tcpPacket(1, []byte("x"))) != accept {
				t.Errorf("%s does not hold", setting)
			}
		}
		if c := w.tally.snapshot(); c.Panics != 3 || c.Malformed != 3 || c.Received != 3 {
			t.Errorf("%+v", c)
		}
	}
}
