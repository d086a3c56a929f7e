package userspace

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// newTestReplay is a replay that tells what it sees.
func newTestReplay(tb testing.TB, rules string) (*Replay, *told, *policy.Policy) {
	tb.Helper()
	seen, p := &told{}, mustPolicy(tb, "", rules)
	r, err := NewReplay(seen.options(p))
	if err != nil {
		tb.Fatal(err)
	}
	return r, seen, p
}

// TestReplayJudgesAsAWorkerDoes, by the rule that it is told.
func TestReplayJudgesAsAWorkerDoes(t *testing.T) {
	r, seen, p := newTestReplay(t, tlsRule+otherwiseAccept+rewriteRule)
	at := time.Unix(1000, 0)
	judge := func(rule int, ip []byte) policy.Action {
		at = at.Add(time.Second)
		action, _ := r.Judge(ip, rule, len(ip), at)
		return action
	}
	bad := hello(sni("a.bad.example"))
	if judge(0, tcpPacket(1, bad[:40])) != policy.ActionAccept || judge(0, tcpPacket(41, bad[40:])) != policy.ActionDrop {
		t.Error("a denied hello in two segments is accepted")
	}
	other := ipPacket(netip.AddrPortFrom(clientAddr.Addr(), 50000), serverAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, bad)
	if judge(LookForNames, other) != policy.ActionAccept {
		t.Error("without a rule it is dropped")
	}
	response := dnsQuery("four.example", 1)
	response[2] |= 0x80
	if got := judge(1, ipPacket(dnsAddr, clientAddr, nil, response)); got != policy.ActionRewrite {
		t.Errorf("a response to be rewritten: %v", got)
	}
	if judge(LookForQuestions, ipPacket(clientAddr, netip.MustParseAddrPort("224.0.0.251:5353"), nil, dnsQuery("a.local", 1))) != policy.ActionAccept {
		t.Error("a question to many is dropped")
	}
	want := []Sighting{
		{Kind: "tls", Name: "a.bad.example", Rule: 0, Action: policy.ActionDrop, Log: true, Queued: 2},
		{Kind: "tls", Name: "a.bad.example", Rule: -1, Action: policy.ActionAccept, Log: true, Queued: 1},
		{Kind: "dns", Name: "four.example", Rule: 1, Action: policy.ActionRewrite, Response: true, Queued: 1},
		{Kind: "dns", Name: "a.local", Rule: -1, Action: policy.ActionAccept, Log: true, Queued: 1},
	}
	if len(seen.sightings) != len(want) {
		t.Fatalf("%+v", seen.sightings)
	}
	for i, s := range seen.sightings {
		if s.Kind == "tls" {
			want[i].JA4, want[i].Versions = "t12d010100_0f2cb44170f4_000000000000", "1.2"
		}
		want[i].Flow, want[i].Policy, want[i].Reason = s.Flow, p, ReasonStep
		if !reflect.DeepEqual(s, want[i]) {
			t.Errorf("sighting %d: %+v, want %+v", i, s, want[i])
		}
	}
	if len(seen.decisions) != 0 {
		t.Errorf("decisions were handed over: %+v", seen.decisions)
	}
}

// TestReplayLearnsWhereStreamsBegin from their SYNs, and takes packets whose length
// is left to the sender's device, and cut ones.
func TestReplayLearnsWhereStreamsBegin(t *testing.T) {
	r, seen, _ := newTestReplay(t, tlsRule)
	b := hello(sni("good.example"))
	at := time.Unix(1000, 0)
	judge := func(ip []byte, wire int) Reason {
		_, reason := r.Judge(ip, LookForNames, wire, at)
		return reason
	}
	judge(ipPacket(clientAddr, serverAddr, &testnet.TCP{Seq: 99, Flags: 2}, nil), 40)
	if judge(tcpPacket(150, b[50:]), 0) != ReasonMore || judge(tcpPacket(100, b[:50]), 0) != ReasonStep {
		t.Errorf("segments in the other order: %+v", seen.sightings)
	}
	long := ipPacket(netip.AddrPortFrom(clientAddr.Addr(), 50000), serverAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, b)
	long[2], long[3] = 0, 0
	if judge(long, len(long)) != ReasonStep {
		t.Error("a packet with the length 0 is not read")
	}
	cut := ipPacket(netip.AddrPortFrom(clientAddr.Addr(), 50001), serverAddr, &testnet.TCP{Seq: 1, Ack: 1, Flags: 0x18}, b)
	if judge(cut[:80], len(cut)) != ReasonMore || judge(nil, 0) != ReasonMalformed || judge([]byte{0x60}, 1) != ReasonMalformed {
		t.Error("cut packets")
	}
	if len(seen.sightings) != 2 {
		t.Errorf("%+v", seen.sightings)
	}
	if c := r.Counters(); c.Step != 2 || c.Malformed != 2 {
		t.Errorf("%+v", c)
	}
	if _, err := NewReplay(Options{}); err == nil {
		t.Error("a replay without a policy")
	}
}
