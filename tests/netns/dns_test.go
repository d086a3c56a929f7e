package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// question is a DNS query as a resolver sends it.
func question(tb testing.TB, id uint16, name string, typ dnsmessage.Type) []byte {
	tb.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}},
	}
	query, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return query
}

// ask sends a query and reads the response.
func ask(tb testing.TB, conn net.Conn, query []byte) dnsmessage.Message {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	if _, err := conn.Write(query); err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	if err != nil {
		tb.Fatalf("waiting for a response: %v", err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:n]); err != nil {
		tb.Fatalf("the response does not parse: %v", err)
	}
	return m
}

// TestEachQuestionIsJudgedByItself: a socket of a resolver carries many names.
func TestEachQuestionIsJudgedByItself(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := newBench(t, testnet.RoutedOptions{}, basePolicy, m.flags()...)
		eachFamily(t, func(t *testing.T, fam family) {
			server := b.serveDNS(t, fam)
			conn := b.Client.MustDial(t, "udp", server.Addr.String())
			before := b.f.status()
			for i := range uint16(10) {
				name := "good.example."
				if i%2 == 1 {
					name = "denied.example."
					if _, err := conn.Write(question(t, i, name, dnsmessage.TypeA)); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if m := ask(t, conn, question(t, i, name, dnsmessage.TypeA)); m.ID != i || len(m.Answers) != 1 {
					t.Errorf("question %d has the response %+v", i, m)
				}
			}
			after := b.f.eventually(t, "all questions are judged", func(s status) bool { return s.since(before, "user") == 10 })
			// Questions are queued, each; the responses pass in the kernel.
			expect(t, before, after, counts{
				"tc queue rule": 1, "tc queue flow": 9, "tc pass undecided": 5, "judged": 15, "queued": 10, "* drop *": 0,
			})
			if n := after.User.Dropped - before.User.Dropped; n != 5 {
				t.Errorf("user space dropped %d, want 5", n)
			}
			if good, denied := server.Asked("good.example"), server.Asked("denied.example"); good != 5 || denied != 0 {
				t.Errorf("the server was asked %d times for the good name and %d times for the denied one, want 5 and 0", good, denied)
			}
		})
	})
}

func TestDeniedQuestionNeverArrives(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	arrived := b.Server.MustCapture(t, "eth0")
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		denied := []string{"denied.example.", "DENIED.example.", "EvIl.AdS.ExAmPlE.", "ads.example.", "deep.x.ads.example."}
		before := b.f.status()
		for i, name := range denied {
			for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS} {
				// All stay open, so that each has a port of its own.
				conn := b.Client.MustDial(t, "udp", server.Addr.String())
				if _, err := conn.Write(question(t, uint16(i), name, typ)); err != nil {
					t.Fatal(err)
				}
			}
		}
		n := uint64(3 * len(denied))
		after := b.f.eventually(t, "all questions are dropped", func(s status) bool { return s.User.Dropped == before.User.Dropped+n })
		expect(t, before, after, counts{"queued": n, "user": n, "tc queue rule": n})
		// Names that only look like denied ones.
		for _, name := range []string{"notdenied.example.", "badads.example."} {
			conn := b.Client.MustDial(t, "udp", server.Addr.String())
			if m := ask(t, conn, question(t, 1, name, dnsmessage.TypeA)); m.RCode != dnsmessage.RCodeNameError {
				t.Errorf("%s: got %v, want the server's answer that there is no such name", name, m.RCode)
			}
		}
		asked := server.Queries()
		if len(asked) != 2 {
			t.Errorf("the server was asked %+v, want the two other names only", asked)
		}
		isQuestion := func(p testnet.Packet) bool { return p.Dst.Port() == 53 && p.Dst.Addr() == fam.server }
		if n := serverSees(arrived, isQuestion); n != 2 {
			t.Errorf("%d questions arrived, want 2", n)
		}
		// Without any answer Go's resolver gives up when its context does.
		ctx, cancel := context.WithTimeout(testnet.Patience(t), 50*time.Millisecond)
		defer cancel()
		addrs, err := b.Client.Resolver(server.Addr).LookupNetIP(ctx, "ip", "denied.example.")
		var dnsErr *net.DNSError
		if !errors.As(err, &dnsErr) || !dnsErr.IsTimeout {
			t.Errorf("the resolver says %v, %v; want a timeout", addrs, err)
		}
	})
}

const sinkPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps:
      - { qname: "four.sink.example", action: rewrite, answer: 192.0.2.99 }
      - { qname: "six.sink.example", action: rewrite, answer: "2001:db8::99" }
      - { action: accept }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`

// TestRewrittenAnswerIsAccepted asks Go's resolver, and looks at the packets
// that it got.
func TestRewrittenAnswerIsAccepted(t *testing.T) {
	for name, o := range map[string]testnet.RoutedOptions{"offloads on": {}, "offloads off": {NoOffload: true}} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, twoModes, func(t *testing.T, m mode) {
				b := newBench(t, o, sinkPolicy, m.flags()...)
				eachFamily(t, func(t *testing.T, fam family) { rewritten(t, b, fam) })
			})
		})
	}
}

// sinks are what the resolver must find under each name, by network.
var sinks = []struct {
	name, network string
	want          []netip.Addr
}{
	{"four.sink.example.", "ip4", []netip.Addr{netip.MustParseAddr("192.0.2.99")}},
	{"FOUR.sink.Example.", "ip4", []netip.Addr{netip.MustParseAddr("192.0.2.99")}},
	{"four.sink.example.", "ip6", nil},
	{"six.sink.example.", "ip6", []netip.Addr{netip.MustParseAddr("2001:db8::99")}},
	{"six.sink.example.", "ip4", nil},
	{"good.example.", "ip", names["good.example"]},
}

func rewritten(t *testing.T, b *bench, fam family) {
	server := b.serveDNS(t, fam)
	received := b.Client.MustCapture(t, "eth0")
	before := b.f.status()
	for _, sink := range sinks {
		got, err := b.Client.Resolver(server.Addr).LookupNetIP(testnet.Patience(t), sink.network, sink.name)
		var dnsErr *net.DNSError
		if err != nil && (sink.want != nil || !errors.As(err, &dnsErr) || !dnsErr.IsNotFound) {
			t.Errorf("%s %s: %v", sink.name, sink.network, err)
		}
		for i := range got {
			got[i] = got[i].Unmap()
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, sink.want) {
			t.Errorf("%s %s: got %v, want %v", sink.name, sink.network, got, sink.want)
		}
	}
	// Seven questions, one for each but the last name's two; and their responses.
	after := b.f.eventually(t, "all is judged", func(s status) bool { return s.since(before, "user") == 14 })
	expect(t, before, after, counts{"queued": 14, "tc queue *": 14, "tc pass undecided": 0, "* drop *": 0})
	if n := after.User.Rewritten - before.User.Rewritten; n != 5 {
		t.Errorf("%d responses rewritten, want 5", n)
	}
	responses := 0
	for _, f := range received.Frames() {
		p, ok := testnet.Dissect(f.Data)
		if !ok || f.Out || p.Src.Port() != 53 || p.Src.Addr() != fam.server {
			continue
		}
		responses++
		var m dnsmessage.Message
		if err := m.Unpack(p.Payload); err != nil {
			t.Fatalf("a response does not parse: %v", err)
		}
		asked := m.Questions[0].Name.String()
		// What was changed must be whole; what was not may be left unfinished by
		// the server's own kernel.
		sunk := strings.HasSuffix(strings.ToLower(asked), "sink.example.")
		if f.ChecksumUnfinished && sunk {
			t.Errorf("the response for %s has an unfinished checksum", asked)
		}
		if !f.ChecksumUnfinished && !testnet.ChecksumsOK(f.Data) {
			t.Errorf("the response for %s has a wrong checksum: % x", asked, f.Data)
		}
		for _, a := range m.Answers {
			if a.Header.Name.String() != asked {
				t.Errorf("the answer is for %q, the question was for %q", a.Header.Name, asked)
			}
		}
	}
	if responses != 7 {
		t.Errorf("the client received %d responses, want 7", responses)
	}
}

// TestQuestionsAreJudgedByTheirType: of the questions that a client sends at once
// from one socket those of a denied type do not arrive.
func TestQuestionsAreJudgedByTheirType(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ qname: good.example, qtype: [HTTPS, aaaa], action: drop }, { qtype: TXT, action: drop }, { action: accept }]
  - { name: echo, from: lan, to: wan, proto: udp, dport: 7, action: accept }
`)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		conn := b.Client.MustDial(t, "udp", server.Addr.String())
		for i, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeTXT} {
			if _, err := conn.Write(question(t, uint16(i), "good.example.", typ)); err != nil {
				t.Fatal(err)
			}
		}
		if m := ask(t, conn, question(t, 9, "good.example.", dnsmessage.TypeA)); m.ID != 9 || len(m.Answers) != 1 {
			t.Errorf("the answer to A is %+v", m)
		}
		if m := ask(t, conn, question(t, 10, "other.example.", dnsmessage.TypeAAAA)); m.ID != 10 {
			t.Errorf("the answer about another name is %+v", m)
		}
		var got []string
		for _, q := range server.Queries() {
			got = append(got, q.Name+" "+q.Type.String())
		}
		if want := []string{"good.example TypeA", "other.example TypeAAAA"}; !slices.Equal(got, want) {
			t.Errorf("the server was asked %q, want %q", got, want)
		}
	})
}

// TestResponsesAreJudged: a step on responses lets the question through and stops its
// answer.
func TestResponsesAreJudged(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ direction: response, qname: .ads.example, action: drop }, { action: accept }]
  - { name: echo, from: lan, to: wan, proto: udp, dport: 7, action: accept }
`)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		conn := b.Client.MustDial(t, "udp", server.Addr.String())
		before := b.f.status()
		if _, err := conn.Write(question(t, 1, "x.ads.example.", dnsmessage.TypeA)); err != nil {
			t.Fatal(err)
		}
		b.f.eventually(t, "the response is dropped", func(s status) bool { return s.User.Dropped > before.User.Dropped })
		if m := ask(t, conn, question(t, 2, "good.example.", dnsmessage.TypeA)); m.ID != 2 || len(m.Answers) != 1 {
			t.Errorf("the answer about another name is %+v", m)
		}
		if got := server.Queries(); len(got) != 2 || got[0].Name != "x.ads.example" {
			t.Errorf("the server was asked %+v", got)
		}
	})
}

// TestAnswersOfEachKind: Go's resolver understands each kind of answer as what it is,
// and the server has been asked each time.
func TestAnswersOfEachKind(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps:
      - { qname: good.example, action: rewrite, answer: nxdomain }
      - { qname: denied.example, action: rewrite, answer: refused }
      - { qname: x.ads.example, action: rewrite, answer: nodata }
      - { qname: four.sink.example, action: rewrite, answer: [192.0.2.98, 192.0.2.99, "2001:db8::99"], ttl: 5 }
      - { action: accept }
  - { name: echo, from: lan, to: wan, proto: udp, dport: 7, action: accept }
`)
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		for _, c := range []struct {
			network, name string
			addrs         string
			err           string // what the resolver says of it
		}{
			{"ip", "good.example.", "[]", "no such host"},
			{"ip", "denied.example.", "[]", "server misbehaving"},
			{"ip", "x.ads.example.", "[]", "no such host"},
			{"ip4", "four.sink.example.", "[192.0.2.98 192.0.2.99]", ""},
			{"ip6", "four.sink.example.", "[2001:db8::99]", ""},
			{"ip4", "six.sink.example.", "[203.0.113.11]", ""},
		} {
			asked := server.Asked(strings.TrimSuffix(c.name, "."))
			addrs, err := b.Client.Resolver(server.Addr).LookupNetIP(testnet.Patience(t), c.network, c.name)
			slices.SortFunc(addrs, netip.Addr.Compare)
			if fmt.Sprint(addrs) != c.addrs || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s %s: %v, %v; want %s, %q", c.network, c.name, addrs, err, c.addrs, c.err)
			}
			if server.Asked(strings.TrimSuffix(c.name, ".")) == asked {
				t.Errorf("%s: the server was not asked", c.name)
			}
		}
		conn := b.Client.MustDial(t, "udp", server.Addr.String())
		if m := ask(t, conn, question(t, 1, "good.example.", dnsmessage.TypeA)); m.RCode != dnsmessage.RCodeNameError || len(m.Answers) != 0 {
			t.Errorf("the answer is %+v, want that there is no such name", m)
		}
	})
}
