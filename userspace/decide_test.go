package userspace

import (
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// TestStepsOnFingerprints: a hello by TLS, and the same by QUIC, have fingerprints
// that differ in their first letter.
func TestStepsOnFingerprints(t *testing.T) {
	b := hello(sni("a.example"))
	seen := policy.Sight{L7: policy.L7TLS, Hello: helloBody(sni("a.example")), Name: []byte("a.example")}
	mark := ja4(&seen)
	for pattern, dropped := range map[string]bool{
		mark: true, `"` + mark[:10] + `*"`: true, `"t*"`: true, `"q*"`: false,
		mark[:35] + "0": mark[35] == '0', `["t13d*", ` + mark + `]`: true,
	} {
		w := newTester(t, "", `  - name: web
    from: lan
    proto: tcp
    action: inspect
    steps: [{ ja4: `+pattern+`, action: drop }, { action: accept }]
`)
		if w.judged(t, 0, tcpPacket(1, b)) == dropped {
			t.Errorf("ja4: %s, the hello has %s: dropped %v", pattern, mark, !dropped)
		}
	}
}

// TestStepsOnNamesOfAnyKind: a list holds for hellos, requests and questions alike.
func TestStepsOnNamesOfAnyKind(t *testing.T) {
	const rule = `  - name: all
    from: lan
    proto: [tcp, udp]
    action: inspect
    steps: [{ list: "@ads", action: drop }, { action: accept }]
lists: { ads: { type: domain, entries: [.ads.example] } }
`
	for name, packet := range map[string]func(host string) []byte{
		"hello":    func(host string) []byte { return tcpPacket(1, hello(sni(host))) },
		"request":  func(host string) []byte { return tcpPacket(1, []byte("GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")) },
		"question": func(host string) []byte { return udpPacket(dnsQuery(host, dnsmessage.TypeA)) },
	} {
		for host, accept := range map[string]bool{"x.ads.example": false, "ads.example": false, "good.example": true} {
			if w := newTester(t, "", rule); w.judged(t, 0, packet(host)) != accept {
				t.Errorf("%s for %s: accepted %v", name, host, !accept)
			}
		}
	}
	if w := newTester(t, "", rule); !w.judged(t, 0, tcpPacket(1, []byte("SSH-2.0-x\r\n"))) {
		t.Error("what has no name is in a list")
	}
}

// TestStepsOnResponses: where a step is on responses, they come to user space, and
// the step is no word on questions.
func TestStepsOnResponses(t *testing.T) {
	const rule = `  - name: dns
    from: lan
    proto: udp
    dport: 53
    action: inspect
    steps:
      - { direction: response, qname: .ads.example, action: drop, log: true }
      - { direction: request, action: accept }
      - { action: accept }
`
	w := newTester(t, "", rule)
	if !w.judge.policy.Rules[0].WantsReplies() {
		t.Error("the rule does not want replies")
	}
	question := dnsQuery("x.ads.example", dnsmessage.TypeA)
	response := append([]byte{}, question...)
	response[2] |= 0x80
	v := w.packet(t, queued{id: 1, mark: uint32(markOf(0)), payload: udpPacket(question)})
	if !v.accept || v.mark&uint32(markOf(0)) != uint32(markOf(0)) {
		t.Errorf("the question: %+v, want it accepted with its rule's number", v)
	}
	if v := w.packet(t, queued{id: 2, mark: uint32(markOf(0)), payload: ipPacket(dnsAddr, clientAddr, nil, response)}); v.accept {
		t.Error("the response passed")
	}
	if len(w.sightings) != 2 || w.sightings[0].Response || !w.sightings[1].Response || !w.sightings[1].Log {
		t.Errorf("saw %+v", w.sightings)
	}
}

// TestRepliesOfOtherProtocolsDecideNothing: in a rule that wants replies of DNS, what a
// server says in front of its client's hello is no word on the hello.
func TestRepliesOfOtherProtocolsDecideNothing(t *testing.T) {
	w := newTester(t, "", `  - name: all
    from: lan
    proto: [tcp, udp]
    dport: [53, 443]
    action: inspect
    steps:
      - { qname: a.example, action: rewrite, answer: 192.0.2.99 }
      - { sni: .bad.example, action: drop }
      - { action: accept }
`)
	reply := ipPacket(serverAddr, clientAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, []byte("220 welcome\r\n"))
	if !w.judged(t, 0, reply) || len(w.decisions) != 0 {
		t.Fatalf("the server's first words: %+v", w.decisions)
	}
	if w.judged(t, 0, tcpPacket(1, hello(sni("www.bad.example")))) || len(w.decisions) != 1 {
		t.Errorf("the hello: %+v", w.decisions)
	}
	udp := ipPacket(serverAddr, clientAddr, nil, []byte("\xc0\x00\x00\x00\x01\x00\x00\x00\x00"))
	if !w.judged(t, 0, udp) || len(w.decisions) != 1 {
		t.Errorf("a server's QUIC packet: %+v", w.decisions)
	}
}

// Where no name can be seen only steps without a name condition match.
func TestUnconditionalStepMatchesWhatHasNoName(t *testing.T) {
	for name, payload := range map[string][]byte{
		"not tls": tcpPacket(1, []byte("SSH-2.0-x")), "no server name": tcpPacket(1, hello()),
	} {
		for rules, accept := range map[string]bool{tlsRule: false, tlsRule + otherwiseAccept: true} {
			w := newTester(t, "", rules)
			if got := w.judged(t, 0, payload); got != accept || len(w.decisions) != 1 {
				t.Errorf("%s: accepted %v, decisions %+v", name, got, w.decisions)
			}
		}
	}
}
