package userspace

import (
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// TestSegmentThatItsReceiverDiscardsDecidesNothing forges a hello with an allowed
// name in front of the real one.
func TestSegmentThatItsReceiverDiscardsDecidesNothing(t *testing.T) {
	good, bad := hello(sni("www.good.example")), hello(sni("denied.example"))
	forged := tcpPacket(1, good)
	forged[20+16] ^= 1 // its checksum
	for name, c := range map[string]struct {
		first    []byte
		info     uint32
		decided  policy.Action // by the first packet
		accepted bool          // the denied hello behind it, in its place
	}{
		"wrong checksum":         {forged, skbUnverified, policy.ActionNone, false},
		"right checksum":         {tcpPacket(1, good), skbUnverified, policy.ActionAccept, true},
		"unfinished by us":       {forged, skbUnfinished, policy.ActionAccept, true},
		"verified by the device": {forged, 0, policy.ActionAccept, true},
	} {
		w := newTester(t, "", "  - { name: tls, from: lan, proto: tcp, dport: 443, action: inspect, steps: [{ sni: www.good.example, action: accept }, { action: drop }] }\n")
		v := w.packet(t, queued{id: 1, mark: uint32(markOf(0)), info: c.info, payload: c.first})
		if c.decided == policy.ActionNone {
			if v.accept || len(w.decisions) != 0 || w.tally.snapshot().Malformed != 1 {
				t.Errorf("%s: accepted %v, decisions %+v", name, v.accept, w.decisions)
			}
		} else if len(w.decisions) != 1 || w.decisions[0].Action != c.decided {
			t.Errorf("%s: decisions %+v, want %v", name, w.decisions, c.decided)
		}
		if got := w.judged(t, 0, tcpPacket(1, bad)); got != c.accepted {
			t.Errorf("%s: the hello behind it accepted: %v, want %v", name, got, c.accepted)
		}
	}
}
