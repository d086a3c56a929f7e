package userspace

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// overTCPRule asks for names in DNS over TCP.
const overTCPRule = `  - name: dns
    from: lan
    proto: tcp
    action: inspect
    until: { packets: 40, bytes: 1MiB }
    steps:
      - { qname: "*.bad.example", action: drop }
      - { action: accept }
`

// framed puts its length in front of each message.
func framed(messages ...[]byte) (b []byte) {
	for _, m := range messages {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(m))), m...)
	}
	return b
}

func queries(names ...string) (all [][]byte) {
	for _, n := range names {
		all = append(all, dnsQuery(n, 1))
	}
	return all
}

// TestQuestionsOverTCP: three in a segment, one in several, cut anywhere.
func TestQuestionsOverTCP(t *testing.T) {
	want := []string{"one.example", "two.good.example", "three.example"}
	b := framed(queries(want...)...)
	s := newStreaming(t, "", overTCPRule, 1<<32-40)
	check := func(how string, at int) {
		t.Helper()
		if got := s.names(); !slices.Equal(got, want) || len(s.decisions) != 0 {
			t.Fatalf("%s %d: names %q, decisions %+v", how, at, got, s.decisions)
		}
		if m := s.judge.flows.streams; m.unused != len(m.chunks) {
			t.Fatalf("%s %d: memory is kept", how, at)
		}
		s.another()
	}
	s.segment(t, 0, b, 0)
	check("whole", 0)
	for cut := 1; cut < len(b); cut++ {
		s.segment(t, 0, b[:cut], 0)
		s.segment(t, cut, b[cut:], 0)
		check("cut at", cut)
		s.segment(t, cut, b[cut:], 0)
		s.segment(t, 0, b[:cut], 0)
		check("swapped at", cut)
	}
	s.judge.policy.Rules[0].Until.Packets = 1000
	for i := range b {
		if !s.segment(t, i, b[i:i+1], 0) {
			t.Fatal("dropped")
		}
	}
	check("single bytes", 0)
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		for _, c := range pieces(r, len(b), 1+r.IntN(20)) {
			s.segment(t, c[0], b[c[0]:c[1]], 0)
		}
		if got := s.names(); !slices.Equal(got, want) {
			t.Fatalf("round %d: %q", round, got)
		}
		s.another()
	}
}

// TestDeniedQuestionOverTCP drops the segment that completes the question, and
// what comes behind it.
func TestDeniedQuestionOverTCP(t *testing.T) {
	s := newStreaming(t, "", overTCPRule, 1)
	b := framed(queries("good.example", "x.bad.example")...)
	end := len(framed(queries("good.example")...)) + 5
	if !s.segment(t, 0, b[:end], 0) || s.segment(t, end, b[end:], 0) || s.segment(t, len(b), framed(queries("more.example")...), 0) {
		t.Error("a denied question passed, or the one before it did not")
	}
	if len(s.decisions) != 1 || s.decisions[0].Action != policy.ActionDrop || !slices.Equal(s.names(), []string{"good.example", "x.bad.example"}) {
		t.Errorf("decisions %+v, names %q", s.decisions, s.names())
	}
	s.another()
	if s.segment(t, 0, b, 0) {
		t.Error("both in one segment passed")
	}
}

func TestWhatIsNoDNSOverTCP(t *testing.T) {
	for name, b := range map[string][]byte{
		"short length":  {0, 5, 1, 2, 3, 4, 5},
		"length 0":      {0, 0},
		"no question":   framed(make([]byte, 12)),
		"a request":     framed([]byte("GET / HTTP/1.1\r\n")),
		"behind a good": append(framed(queries("good.example")...), 0, 3, 9),
	} {
		s := newStreaming(t, "", overTCPRule, 1)
		if s.segment(t, 0, b, 0) || s.decisions[0].Reason != ReasonMalformed {
			t.Errorf("%s: %+v", name, s.decisions)
		}
	}
	// A question that never ends spends the budget.
	s := newStreaming(t, "", overTCPRule, 1)
	s.judge.policy.Rules[0].Until.Packets = 3
	long := framed(make([]byte, 5000))
	for i := range 3 {
		if passed := s.segment(t, 100*i, long[100*i:100*i+100], 0); passed != (i < 2) {
			t.Errorf("part %d passed: %v", i, passed)
		}
	}
	// Good questions renew it.
	s = newStreaming(t, "", overTCPRule, 1)
	s.judge.policy.Rules[0].Until.Packets = 3
	at := 0
	for range 200 {
		q := framed(queries("good.example")...)
		if !s.segment(t, at, q[:7], 0) || !s.segment(t, at+7, q[7:], 0) {
			t.Fatalf("dropped at %d: %+v", at, s.decisions)
		}
		at += len(q)
	}
	if len(s.names()) != 200 || len(s.decisions) != 0 {
		t.Errorf("%d names, %+v", len(s.names()), s.decisions)
	}
}
