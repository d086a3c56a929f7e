package userspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/policy"
)

// realAddr4 and realAddr6 are what a rewritten response must not tell.
var (
	realAddr4 = [4]byte{203, 0, 113, 77}
	realAddr6 = [16]byte{0x20, 1, 0x0d, 0xb8, 0xde, 0xad, 15: 0x77}
)

func header(name string, ttl uint32) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET, TTL: ttl}
}

// fullResponse has all that could tell the real address: a chain of CNAMEs, both
// families, HTTPS hints, signatures, name servers, glue, and an OPT record that
// is neither the first nor the last additional.
func fullResponse(typ dnsmessage.Type) dnsmessage.Message {
	name := "FoUr.ExAmPlE"
	hint := append([]byte{0, 1, 0, 0, 4, 0, 4}, realAddr4[:]...)
	a, aaaa := &dnsmessage.AResource{A: realAddr4}, &dnsmessage.AAAAResource{AAAA: realAddr6}
	return dnsmessage.Message{
		Header: dnsmessage.Header{ID: 0xbeef, Response: true, Authoritative: true, RecursionDesired: true,
			RecursionAvailable: true, AuthenticData: true, CheckingDisabled: true},
		Questions: []dnsmessage.Question{question(name, typ)},
		Answers: []dnsmessage.Resource{
			{Header: header(name, 250), Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("real.cdn.example.")}},
			{Header: header("real.cdn.example", 120), Body: a},
			{Header: header("real.cdn.example", 100), Body: aaaa},
			{Header: header(name, 90), Body: &dnsmessage.UnknownResource{Type: 65, Data: hint}},
			{Header: header(name, 90), Body: &dnsmessage.UnknownResource{Type: 46, Data: make([]byte, 90)}},
		},
		Authorities: []dnsmessage.Resource{
			{Header: header("example", 10), Body: &dnsmessage.NSResource{NS: dnsmessage.MustNewName("ns.real.example.")}},
		},
		Additionals: []dnsmessage.Resource{
			{Header: header("ns.real.example", 10), Body: a}, optRecord(), {Header: header("ns.real.example", 10), Body: aaaa},
		},
	}
}

func mustPack(tb testing.TB, m dnsmessage.Message) []byte {
	tb.Helper()
	b, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// answerOf is an answer of addresses.
func answerOf(addrs ...string) *policy.Answer {
	a := new(policy.Answer)
	for _, addr := range addrs {
		a.Addrs = append(a.Addrs, netip.MustParseAddr(addr))
	}
	return a
}

func mustRewrite(tb testing.TB, msg []byte, addr string) dnsmessage.Message {
	tb.Helper()
	b, err := rewriteDNS(make([]byte, 0, payloadMax), msg, answerOf(addr))
	if err != nil {
		tb.Fatal(err)
	}
	for _, real := range [][]byte{realAddr4[:], realAddr6[:], []byte("real"), []byte("cdn")} {
		if bytes.Contains(b, real) {
			tb.Errorf("%q is in the rewritten message", real)
		}
	}
	return mustUnpack(tb, b)
}

func TestRewrittenResponses(t *testing.T) {
	const a, aaaa = dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, c := range []struct {
		typ     dnsmessage.Type
		addr    string
		answers int
	}{
		{a, "192.0.2.99", 1}, {aaaa, "192.0.2.99", 0}, {a, "2001:db8::99", 0}, {aaaa, "2001:db8::99", 1},
		{dnsmessage.TypeALL, "192.0.2.99", 1}, {dnsmessage.TypeALL, "2001:db8::99", 1},
		{dnsmessage.TypeCNAME, "192.0.2.99", 0}, {65, "192.0.2.99", 0}, {64, "2001:db8::99", 0},
		{dnsmessage.TypeTXT, "192.0.2.99", 0}, {dnsmessage.TypeMX, "192.0.2.99", 0}, {46, "192.0.2.99", 0},
	} {
		before := fullResponse(c.typ)
		m := mustRewrite(t, mustPack(t, before), c.addr)
		want := before.Header
		want.AuthenticData = false
		if m.Header != want {
			t.Errorf("%v: header %+v, want %+v", c.typ, m.Header, want)
		}
		if len(m.Questions) != 1 || m.Questions[0] != before.Questions[0] {
			t.Errorf("%v: questions %v", c.typ, m.Questions)
		}
		if len(m.Answers) != c.answers || len(m.Authorities) != 0 || len(m.Additionals) != 1 {
			t.Fatalf("%v: %d answers, %d authorities, %d additionals", c.typ, len(m.Answers), len(m.Authorities), len(m.Additionals))
		}
		if opt, ok := m.Additionals[0].Body.(*dnsmessage.OPTResource); !ok || string(opt.Options[0].Data) != "cookies!" ||
			m.Additionals[0].Header.Class != 1232 || !m.Additionals[0].Header.DNSSECAllowed() {
			t.Errorf("%v: OPT is %v", c.typ, m.Additionals[0])
		}
		for _, r := range m.Answers {
			if got := addrOf(r); got != netip.MustParseAddr(c.addr) || r.Header.Name.String() != "FoUr.ExAmPlE." || r.Header.TTL != 90 {
				t.Errorf("%v: answer %v", c.typ, r.GoString())
			}
		}
	}
}

func addrOf(r dnsmessage.Resource) netip.Addr {
	switch b := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA)
	}
	return netip.Addr{}
}

func TestFailuresAreAnsweredToo(t *testing.T) {
	for name, change := range map[string]func(*dnsmessage.Message){
		"does not exist": func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeNameError, nil },
		"server failure": func(m *dnsmessage.Message) { m.RCode, m.Answers = dnsmessage.RCodeServerFailure, nil },
		"cut":            func(m *dnsmessage.Message) { m.Truncated, m.Answers = true, nil },
		"no records": func(m *dnsmessage.Message) {
			m.Answers, m.Authorities, m.Additionals = nil, nil, nil
		},
		"extended code": func(m *dnsmessage.Message) { m.Additionals[1].Header.TTL |= 1 << 24 },
	} {
		before := fullResponse(dnsmessage.TypeA)
		change(&before)
		m := mustRewrite(t, mustPack(t, before), "192.0.2.99")
		if m.RCode != 0 || m.Truncated || len(m.Answers) != 1 || addrOf(m.Answers[0]) != netip.MustParseAddr("192.0.2.99") {
			t.Errorf("%s: %s", name, m.GoString())
		}
		if len(before.Answers) == 0 && m.Answers[0].Header.TTL != dnsTTL {
			t.Errorf("%s: TTL %d", name, m.Answers[0].Header.TTL)
		}
		if len(m.Additionals) == 1 && m.Additionals[0].Header.TTL>>24 != 0 {
			t.Errorf("%s: extended response code %d", name, m.Additionals[0].Header.TTL>>24)
		}
	}
}

// Records that do not parse hide no address: what was found before them stays,
// nothing else does.
func TestBrokenRecordsDoNotLeak(t *testing.T) {
	whole := mustPack(t, fullResponse(dnsmessage.TypeA))
	questionEnd := dnsHeaderLen + len("FoUr.ExAmPlE") + 2 + 4
	for n := questionEnd; n <= len(whole); n++ {
		m := mustRewrite(t, whole[:n], "192.0.2.99")
		if len(m.Answers) != 1 || len(m.Additionals) > 1 {
			t.Fatalf("%d bytes: %s", n, m.GoString())
		}
	}
	for n := range questionEnd {
		if b, err := rewriteDNS(make([]byte, 0, payloadMax), whole[:n], answerOf("192.0.2.99")); err == nil {
			t.Fatalf("%d bytes without a whole question were rewritten to %x", n, b)
		}
	}
}

func TestNotEveryMessageCanBeRewritten(t *testing.T) {
	update := mustPack(t, fullResponse(dnsmessage.TypeA))
	update[2] |= 5 << 3
	whole := mustPack(t, fullResponse(dnsmessage.TypeA))
	for name, c := range map[string]struct {
		msg  []byte
		room int
	}{"update": {update, payloadMax}, "no room for the question": {whole, 20}, "no room for the answer": {whole, 40}, "no room for OPT": {whole, 50}} {
		if b, err := rewriteDNS(make([]byte, 0, c.room), c.msg, answerOf("192.0.2.99")); err == nil {
			t.Errorf("%s: rewritten to %x", name, b)
		}
	}
}

// Two questions that compress into each other are both answered.
func TestTwoQuestionsAreBothAnswered(t *testing.T) {
	b := dnsRaw(2, append(asked(wireName("four.example")), append([]byte{1, 'x', 0xc0, 12}, 0, 1, 0, 1)...)...)
	b[2] |= 0x80
	m := mustRewrite(t, b, "192.0.2.99")
	if len(m.Answers) != 2 || m.Answers[0].Header.Name.String() != "four.example." || m.Answers[1].Header.Name.String() != "x.four.example." {
		t.Errorf("%s", m.GoString())
	}
}

// checkRewritten holds what is true of every message with sound questions.
func checkRewritten(tb testing.TB, msg []byte, addr string) {
	tb.Helper()
	b, err := rewriteDNS(make([]byte, 0, payloadMax), msg, answerOf(addr))
	if err != nil {
		return
	}
	var in dnsInspector
	_, before := see(&in, msg)
	got, after := see(&in, b)
	if got != sawNames || len(before) != len(after) {
		tb.Fatalf("%d names before, %d after", len(before), len(after))
	}
	for i := range before {
		if before[i] != after[i] {
			tb.Fatalf("name %q became %q", before[i], after[i])
		}
	}
	if b[3]&0x2f != 0 || b[2]&2 != 0 || int(binary.BigEndian.Uint16(b[6:])) > len(before) || binary.BigEndian.Uint16(b[8:]) != 0 {
		tb.Fatalf("header % x", b[:dnsHeaderLen])
	}
}

// TestRewrittenAnswersOfEachKind: without records, with several, with a TTL of their own.
func TestRewrittenAnswersOfEachKind(t *testing.T) {
	several := answerOf("192.0.2.1", "2001:db8::1", "192.0.2.2")
	timed := answerOf("192.0.2.1")
	timed.TTL = 7
	for _, c := range []struct {
		answer *policy.Answer
		typ    dnsmessage.Type
		code   dnsmessage.RCode
		addrs  string
		ttl    uint32
	}{
		{&policy.Answer{RCode: policy.RCodeNXDomain}, dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]", 0},
		{&policy.Answer{RCode: policy.RCodeRefused}, dnsmessage.TypeAAAA, dnsmessage.RCodeRefused, "[]", 0},
		{new(policy.Answer), dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[]", 0},
		{several, dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[192.0.2.1 192.0.2.2]", 90},
		{several, dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, "[2001:db8::1]", 90},
		{several, dnsmessage.TypeALL, dnsmessage.RCodeSuccess, "[192.0.2.1 2001:db8::1 192.0.2.2]", 90},
		{several, 65, dnsmessage.RCodeSuccess, "[]", 0},
		{timed, dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[192.0.2.1]", 7},
	} {
		before := fullResponse(c.typ)
		b, err := rewriteDNS(make([]byte, 0, payloadMax), mustPack(t, before), c.answer)
		if err != nil {
			t.Fatal(err)
		}
		m := mustUnpack(t, b)
		addrs := []netip.Addr{}
		for _, r := range m.Answers {
			addrs = append(addrs, addrOf(r))
			if r.Header.TTL != c.ttl {
				t.Errorf("%v: TTL %d, want %d", c.answer, r.Header.TTL, c.ttl)
			}
		}
		if m.RCode != c.code || fmt.Sprint(addrs) != c.addrs || m.ID != before.ID || !m.RecursionDesired || len(m.Authorities) != 0 || len(m.Additionals) != 1 {
			t.Errorf("%v to %v: %v %v, want %v %v", c.answer, c.typ, m.RCode, addrs, c.code, c.addrs)
		}
	}
}
