package userspace

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// patientRule asks for names in TCP streams, however small their segments are.
const patientRule = `  - name: web
    from: lan
    proto: tcp
    action: inspect
    until: { packets: 1000, bytes: 1MiB }
    steps:
      - { sni: "*.bad.example", action: drop }
      - { action: accept }
`

// streaming is a tester whose streams start at a known number.
type streaming struct {
	*tester
	start uint32
	port  uint16
}

func newStreaming(tb testing.TB, failure, rules string, start uint32) *streaming {
	s := &streaming{start: start, port: 1000}
	s.tester = newTester(tb, failure, rules)
	s.judge.policy.Rules[0].Until.Packets = 1 << 20 // more than a policy may say: single bytes
	s.judge.o.Start = func(pktbuf.Flow) (uint32, bool) { return s.start, true }
	return s
}

// segment sends bytes at an offset of the current stream.
func (s *streaming) segment(tb testing.TB, at int, b []byte, flags uint8) bool {
	tb.Helper()
	src := netip.AddrPortFrom(clientAddr.Addr(), s.port)
	return s.judged(tb, 0, ipPacket(src, serverAddr, &testnet.TCP{Seq: s.start + uint32(at), Ack: 1, Flags: 0x18 | flags}, b))
}

// another begins another stream.
func (s *streaming) another() {
	s.port++
	s.decisions, s.sightings = nil, nil
}

// names are those seen in the current stream.
func (s *streaming) names() (all []string) {
	for _, seen := range s.sightings {
		all = append(all, seen.Name)
	}
	return all
}

// recut sends a stream in many ways and expects the same names each time, one
// decision, and that no segment passes which completes a denied hello.
func (s *streaming) recut(tb testing.TB, b []byte, want string, action policy.Action) {
	tb.Helper()
	check := func(how string, detail int) {
		tb.Helper()
		if got := s.names(); len(got) != 1 || got[0] != want || len(s.decisions) != 1 || s.decisions[0].Action != action {
			tb.Fatalf("%s %d: names %q, decisions %+v; want %q", how, detail, got, s.decisions, want)
		}
		s.another()
	}
	r := rand.New(rand.NewPCG(uint64(len(b)), 7))
	step := 1
	if testing.Short() {
		step = 13 // bytes: under the race detector
	}
	for cut := 1; cut < len(b); cut += step {
		s.segment(tb, 0, b[:cut], 0)
		s.segment(tb, cut, b[cut:], 0)
		check("cut at", cut)
		s.segment(tb, cut, b[cut:], 0)
		s.segment(tb, 0, b[:cut], 0)
		check("swapped at", cut)
	}
	for i := range b {
		s.segment(tb, i, b[i:i+1], 0)
	}
	check("single bytes", 1)
	for _, i := range r.Perm(len(b)) {
		s.segment(tb, i, b[i:i+1], 0)
	}
	check("shuffled bytes", 1)
	for round := range 20 {
		for _, c := range pieces(r, len(b), 2+round) {
			s.segment(tb, c[0], b[c[0]:c[1]], 0)
		}
		check("overlapping pieces, round", round)
	}
}

func TestHelloInPieces(t *testing.T) {
	real := realHello(t, "a.bad.example")
	for name, start := range map[string]uint32{"plain": 1, "wrap": 1<<32 - 700} {
		t.Run(name, func(t *testing.T) {
			s := newStreaming(t, "", patientRule, start)
			s.recut(t, real, "a.bad.example", policy.ActionDrop)
			s.recut(t, hello(sni("good.example")), "good.example", policy.ActionAccept)
			s.recut(t, twoRecords(hello(sni("a.bad.example")), 30), "a.bad.example", policy.ActionDrop)
			if n := s.judge.flows.streams.unused; n != len(s.judge.flows.streams.chunks) {
				t.Errorf("%d chunks are left of %d", n, len(s.judge.flows.streams.chunks))
			}
		})
	}
}

// TestLastPieceOfADeniedHelloIsDropped, and nothing before it.
func TestLastPieceOfADeniedHelloIsDropped(t *testing.T) {
	b := realHello(t, "a.bad.example")
	s := newStreaming(t, "", patientRule, 1)
	for at := 0; at < len(b); at += 100 {
		end := min(at+100, len(b))
		if passed := s.segment(t, at, b[at:end], 0); passed != (end < len(b)) {
			t.Errorf("bytes %d to %d of %d passed: %v", at, end, len(b), passed)
		}
	}
	if s.segment(t, len(b)-50, b[len(b)-50:], 0) {
		t.Error("sent again, the last piece passed")
	}
}

// TestConflictingOverlapIsMalformed: bytes that come twice and differ are never
// anything else, whichever half comes first.
func TestConflictingOverlapIsMalformed(t *testing.T) {
	good, bad := hello(sni("x.good.example")), hello(sni("xx.bad.example"))
	type piece struct {
		at int
		b  []byte
	}
	for name, pieces := range map[string][]piece{
		"stray zeros first":       {{0, []byte{0, 0}}, {0, good}},
		"start replaced":          {{0, bad[:66]}, {0, good[:70]}},
		"later part replaced":     {{0, bad[:20]}, {40, bad[40:]}, {20, good[20:]}},
		"one byte in a gap's end": {{10, good[10:30]}, {5, append(append([]byte{}, good[5:15]...), good[15]+1)}},
	} {
		for setting, accept := range map[string]bool{"malformed: drop": false, "malformed: accept": true} {
			s := newStreaming(t, setting, patientRule, 1)
			passed := true
			for _, p := range pieces {
				passed = s.segment(t, p.at, p.b, 0)
			}
			if passed != accept || len(s.decisions) != 1 || s.decisions[0].Reason != ReasonMalformed || len(s.sightings) != 0 {
				t.Errorf("%s, %s: passed %v, decisions %+v, names %q", name, setting, passed, s.decisions, s.names())
			}
		}
	}
}

// TestBytesOutsideTheStreamDecideNothing: forged hellos far from the stream's
// start, and probes in front of it.
func TestBytesOutsideTheStreamDecideNothing(t *testing.T) {
	good, bad := hello(sni("good.example")), hello(sni("a.bad.example"))
	for name, at := range map[string]int{"far behind": 1 << 20, "far in front": -1 << 20, "just outside": streamMax, "a probe": -1, "later": 9000} {
		s := newStreaming(t, "", patientRule, 5)
		forged := good
		if name == "a probe" {
			forged = []byte{0}
		}
		if !s.segment(t, at, forged, 0) || len(s.decisions) != 0 {
			t.Errorf("%s: decided as %+v", name, s.decisions)
		}
		if s.segment(t, 0, bad, 0) || len(s.decisions) != 1 || s.decisions[0].Action != policy.ActionDrop {
			t.Errorf("%s: the real hello: %+v", name, s.decisions)
		}
	}
}

// TestStreamThatEnds: with a FIN nothing more comes.
func TestStreamThatEnds(t *testing.T) {
	const fin = 1
	b := hello(sni("good.example"))
	s := newStreaming(t, "", patientRule, 1)
	if s.segment(t, 0, b[:30], fin) || len(s.decisions) != 1 || s.decisions[0].Reason != ReasonUndecided {
		t.Errorf("half a hello with a FIN: %+v", s.decisions)
	}
	s.another()
	if !s.segment(t, 30, b[30:], fin) || len(s.decisions) != 0 || !s.segment(t, 0, b[:30], 0) || s.names()[0] != "good.example" {
		t.Errorf("the end in front of the start: %+v", s.decisions)
	}
	s.another()
	if !s.segment(t, 0, []byte("\x01\x02"), fin) || len(s.decisions) != 1 || s.decisions[0].Reason != ReasonStep {
		t.Errorf("two bytes and the end: %+v", s.decisions)
	}
	s.another()
	if !s.segment(t, 0, []byte("\x01\x02"), 0) || len(s.decisions) != 0 || !s.segment(t, 2, []byte(" there"), 0) || len(s.decisions) != 1 {
		t.Errorf("two bytes, and more: %+v", s.decisions)
	}
}

// TestFullStreamMemoryIsOverload, and idle flows give theirs back.
func TestFullStreamMemoryIsOverload(t *testing.T) {
	b := hello(sni("a.bad.example"))
	for setting, accept := range map[string]bool{"overload: open": true, "overload: closed": false} {
		s := newStreaming(t, setting, patientRule, 1)
		s.judge.flows = newFlows(1024, streamMax)
		for range streamMax / chunkLen {
			s.segment(t, 0, b[:20], 0)
			s.another()
		}
		if got := s.segment(t, 0, b[:20], 0); got != accept || s.tally.snapshot().Overload != 1 {
			t.Errorf("%s: passed %v, %+v", setting, got, s.tally.snapshot())
		}
		s.another()
		if s.segment(t, 0, b, 0) {
			t.Errorf("%s: a whole hello, which needs no memory, passed", setting)
		}
		s.another()
		s.judge.now += flowIdle + 1
		s.segment(t, 0, b[:20], 0)
		if s.segment(t, 20, b[20:], 0) || s.tally.snapshot().Overload != 1 {
			t.Errorf("%s: idle flows keep their memory: %+v", setting, s.tally.snapshot())
		}
	}
}

// TestUrgentBytesAreMalformed: whether they are part of the stream depends on who
// reads it.
func TestUrgentBytesAreMalformed(t *testing.T) {
	const urg = 0x20
	b := hello(sni("a.bad.example"))
	s := newStreaming(t, "", patientRule, 1)
	if !s.segment(t, 0, b[:70], 0) || s.segment(t, 70, []byte("x"), urg) || s.decisions[0].Reason != ReasonMalformed {
		t.Errorf("%+v", s.decisions)
	}
	// What is decided is none of it.
	s.another()
	if !s.segment(t, 0, hello(sni("good.example")), 0) || !s.segment(t, 200, []byte("x"), urg) || len(s.decisions) != 1 {
		t.Errorf("%+v", s.decisions)
	}
}

// TestLaterHellosAreJudged: a protocol that changes to TLS, a request behind
// another, and a new connection on the old ports, whole or in pieces.
func TestLaterHellosAreJudged(t *testing.T) {
	bad := hello(sni("a.bad.example"))
	s := newStreaming(t, "", patientRule, 100)
	if !s.segment(t, 0, []byte("EHLO a.example\r\n"), 0) || !s.segment(t, 16, []byte("STARTTLS\r\n"), 0) {
		t.Errorf("%+v", s.decisions)
	}
	if !s.segment(t, 26, bad[:30], 0) || s.segment(t, 56, bad[30:], 0) {
		t.Errorf("a hello behind STARTTLS: %+v", s.decisions)
	}
	s.another()
	s.segment(t, 0, hello(sni("good.example")), 0)
	s.start = 70000 // the kernel half has seen another handshake
	if !s.segment(t, 40, bad[40:], 0) || s.segment(t, 0, bad, 0) {
		t.Errorf("another connection: %+v", s.decisions)
	}
}
