package userspace

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

const learnRules = `  - name: dns
    from: lan
    proto: [udp, tcp]
    dport: 53
    action: inspect
    steps:
      - { qname: denied.cdn.example, action: drop }
      - { action: accept }
  - { name: cdn, from: lan, dst: ["@cdn", "@fixed"], action: accept }
lists:
  cdn: { type: dynamic, from: "*.cdn.example" }
  none: { type: domain, entries: [a.example] }
  fixed: { type: dynamic, from: [www.example, "@none"], ttl: 5 }
`

// records are those of an answer, as "name A addr ttl" or "name CNAME name ttl".
func dnsAnswer(tb testing.TB, query []byte, records ...string) []byte {
	tb.Helper()
	m := mustUnpack(tb, query)
	m.Response, m.Additionals = true, nil
	for _, r := range records {
		var name, typ, value string
		var ttl uint32
		if _, err := fmt.Sscan(r, &name, &typ, &value, &ttl); err != nil {
			tb.Fatal(err)
		}
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET, TTL: ttl}
		switch typ {
		case "CNAME":
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(value + ".")}})
		case "A":
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(value).As4()}})
		case "AAAA":
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(value).As16()}})
		case "TXT":
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{value}}})
		}
	}
	b, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// learning is a worker that notes what it learns as "list addr ttl".
type learning struct {
	*tester
	learned []string
	fail    error
}

func newLearning(tb testing.TB) *learning {
	tb.Helper()
	l := &learning{tester: newTester(tb, "", learnRules)}
	l.judge.o.Learned = func(list *policy.List, addr netip.Addr, ttl time.Duration) error {
		l.learned = append(l.learned, fmt.Sprint(list.Name, " ", addr, " ", ttl))
		return l.fail
	}
	return l
}

func (l *learning) sees(tb testing.TB, payload []byte) bool {
	tb.Helper()
	l.id++
	return l.packet(tb, queued{id: l.id, mark: uint32(markOf(0)), payload: payload}).accept
}

func response(msg []byte) []byte { return ipPacket(dnsAddr, clientAddr, nil, msg) }

func TestListsLearnFromAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		ask     string
		typ     dnsmessage.Type
		records []string
		want    []string
	}{
		"an address":          {"x.cdn.example", dnsmessage.TypeA, []string{"x.cdn.example A 192.0.2.7 300"}, []string{"cdn 192.0.2.7 5m0s"}},
		"case does not count": {"X.CDN.example", dnsmessage.TypeA, []string{"x.cdn.EXAMPLE A 192.0.2.7 300"}, []string{"cdn 192.0.2.7 5m0s"}},
		"both families": {"x.cdn.example", dnsmessage.TypeAAAA, []string{"x.cdn.example AAAA 2001:db8::7 3600", "x.cdn.example A 192.0.2.7 3600"},
			[]string{"cdn 2001:db8::7 1h0m0s", "cdn 192.0.2.7 1h0m0s"}},
		"short":         {"x.cdn.example", dnsmessage.TypeA, []string{"x.cdn.example A 192.0.2.7 0"}, []string{"cdn 192.0.2.7 1m0s"}},
		"for ever":      {"x.cdn.example", dnsmessage.TypeA, []string{"x.cdn.example A 192.0.2.7 4294967295"}, []string{"cdn 192.0.2.7 168h0m0s"}},
		"an own time":   {"www.example", dnsmessage.TypeA, []string{"www.example A 192.0.2.8 300"}, []string{"fixed 192.0.2.8 5s"}},
		"from a list":   {"a.example", dnsmessage.TypeA, []string{"a.example A 192.0.2.8 300"}, []string{"fixed 192.0.2.8 5s"}},
		"by its alias":  {"shop.example", dnsmessage.TypeA, []string{"shop.example CNAME s.cdn.example 60", "s.cdn.example A 192.0.2.9 60"}, []string{"cdn 192.0.2.9 1m0s"}},
		"through alias": {"s.cdn.example", dnsmessage.TypeA, []string{"s.cdn.example CNAME other.example 60", "other.example A 192.0.2.9 60"}, []string{"cdn 192.0.2.9 1m0s"}},
		"in two lists": {"www.example", dnsmessage.TypeA, []string{"www.example CNAME s.cdn.example 60", "s.cdn.example A 192.0.2.9 60"},
			[]string{"cdn 192.0.2.9 1m0s", "fixed 192.0.2.9 5s"}},
		"another's record": {"x.cdn.example", dnsmessage.TypeA, []string{"y.cdn.example A 192.0.2.66 60", "x.cdn.example TXT hello 60", "x.cdn.example A 192.0.2.7 60"},
			[]string{"cdn 192.0.2.7 1m0s"}},
		"not wanted":   {"other.example", dnsmessage.TypeA, []string{"other.example A 192.0.2.7 300"}, nil},
		"IPv4 in IPv6": {"x.cdn.example", dnsmessage.TypeAAAA, []string{"x.cdn.example AAAA ::ffff:192.0.2.7 300"}, nil},
	} {
		l := newLearning(t)
		query := dnsQuery(c.ask, c.typ)
		if !l.sees(t, udpPacket(query)) || !l.sees(t, response(dnsAnswer(t, query, c.records...))) {
			t.Errorf("%s: did not pass", name)
		}
		if !slices.Equal(l.learned, c.want) {
			t.Errorf("%s: learned %q, want %q", name, l.learned, c.want)
		}
	}
}

// TestOnlyAnswersAreLearnedFrom: nobody fills a list who has not seen the question, and
// nothing is learned from what does not pass.
func TestOnlyAnswersAreLearnedFrom(t *testing.T) {
	query := dnsQuery("x.cdn.example", dnsmessage.TypeA)
	answer := dnsAnswer(t, query, "x.cdn.example A 192.0.2.7 300")
	change := func(at int, to byte) []byte {
		b := slices.Clone(answer)
		b[at] = to
		return b
	}
	denied := dnsQuery("denied.cdn.example", dnsmessage.TypeA)
	other := dnsQuery("y.cdn.example", dnsmessage.TypeA)
	for name, c := range map[string]struct {
		packets [][]byte
		unasked uint64
	}{
		"no question":     {[][]byte{response(answer)}, 1},
		"another id":      {[][]byte{udpPacket(query), response(change(1, 0x99))}, 1},
		"another name":    {[][]byte{udpPacket(other), response(answer)}, 1},
		"another client":  {[][]byte{udpPacket(query), ipPacket(dnsAddr, netip.MustParseAddrPort("192.0.2.1:40001"), nil, answer)}, 1},
		"another server":  {[][]byte{udpPacket(query), ipPacket(netip.MustParseAddrPort("198.51.100.54:53"), clientAddr, nil, answer)}, 1},
		"an error":        {[][]byte{udpPacket(query), response(change(3, answer[3]|3))}, 0},
		"a denied name":   {[][]byte{udpPacket(denied), response(dnsAnswer(t, denied, "denied.cdn.example A 192.0.2.7 300"))}, 0},
		"cut in a record": {[][]byte{udpPacket(query), response(answer[:len(answer)-2])}, 0},
	} {
		l := newLearning(t)
		for _, p := range c.packets {
			l.sees(t, p)
		}
		if l.tally.publish(); len(l.learned) != 0 || l.tally.snapshot().Unasked != c.unasked {
			t.Errorf("%s: learned %q, %d unasked, want %d", name, l.learned, l.tally.snapshot().Unasked, c.unasked)
		}
	}
	// The second of two answers is one too many; an error is counted.
	l := newLearning(t)
	l.fail = errors.New("no")
	for _, p := range [][]byte{udpPacket(query), response(answer), response(answer)} {
		if !l.sees(t, p) {
			t.Error("it did not pass")
		}
	}
	l.tally.publish()
	if c := l.tally.snapshot(); len(l.learned) != 1 || c.Learned != 1 || c.LearnedErrors != 1 || c.Unasked != 1 {
		t.Errorf("learned %q, counted %+v", l.learned, c)
	}
}

// TestListsLearnOverTCP: question and answer have their length in front, and may come
// in pieces.
func TestListsLearnOverTCP(t *testing.T) {
	l := newLearning(t)
	query := dnsQuery("x.cdn.example", dnsmessage.TypeA)
	framed := func(msg []byte) []byte { return append([]byte{byte(len(msg) >> 8), byte(len(msg))}, msg...) }
	answer := framed(dnsAnswer(t, query, "x.cdn.example A 192.0.2.7 300"))
	segment := func(from, to netip.AddrPort, seq uint32, b []byte) {
		t.Helper()
		if !l.sees(t, ipPacket(from, to, &testnet.TCP{Seq: seq, Ack: 1, Flags: 0x18}, b)) {
			t.Error("a segment was dropped")
		}
	}
	segment(clientAddr, dnsAddr, 1, framed(query))
	segment(dnsAddr, clientAddr, 1, answer[:20])
	segment(dnsAddr, clientAddr, 21, answer[20:])
	if want := []string{"cdn 192.0.2.7 5m0s"}; !slices.Equal(l.learned, want) {
		t.Errorf("learned %q, want %q", l.learned, want)
	}
}

func TestLearningDoesNotAllocate(t *testing.T) {
	l := newLearning(t)
	l.judge.o.Learned = func(*policy.List, netip.Addr, time.Duration) error { return nil }
	l.judge.o.Seen = nil // which makes strings of names
	query := udpPacket(dnsQuery("shop.example", dnsmessage.TypeA))
	answer := response(dnsAnswer(t, dnsQuery("shop.example", dnsmessage.TypeA), "shop.example CNAME s.cdn.example 60", "s.cdn.example A 192.0.2.9 60"))
	p := packet{proto: etherIPv4, mark: uint32(markOf(0))}
	if n := testing.AllocsPerRun(100, func() {
		p.payload = query
		l.judge.verdict(&p, false)
		p.payload = answer
		l.judge.verdict(&p, false)
	}); n != 0 {
		t.Errorf("%v allocations for a question and its answer", n)
	}
	if l.tally.publish(); l.tally.snapshot().Learned == 0 {
		t.Error("nothing was learned")
	}
}

// TestNothingIsLearnedFromADroppedSegment: an answer in front of what is not let through.
func TestNothingIsLearnedFromADroppedSegment(t *testing.T) {
	query := dnsQuery("x.cdn.example", dnsmessage.TypeA)
	answer := dnsAnswer(t, query, "x.cdn.example A 192.0.2.7 300")
	for name, c := range map[string]struct {
		b    []byte
		want int
	}{
		"alone":                {framed(answer), 1},
		"a denied name behind": {framed(answer, dnsQuery("denied.cdn.example", dnsmessage.TypeA)), 0},
		"junk behind":          {framed(answer, bytes.Repeat([]byte{0xff}, 20)), 0},
	} {
		l := newLearning(t)
		asked := l.sees(t, ipPacket(clientAddr, dnsAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, framed(query)))
		passed := l.sees(t, ipPacket(dnsAddr, clientAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, c.b))
		if !asked || passed != (c.want > 0) || len(l.learned) != c.want {
			t.Errorf("%s: question passed %v, answer %v, learned %q", name, asked, passed, l.learned)
		}
	}
}
