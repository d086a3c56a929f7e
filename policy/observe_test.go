package policy

import (
	"net/netip"
	"testing"
)

// TestObserve holds what the embedded policy promises: whatever happens, each
// packet passes, and names are logged.
func TestObserve(t *testing.T) {
	p := Observe()
	if len(p.Warnings) != 0 {
		t.Errorf("warnings: %v", p.Warnings)
	}
	if p.Defaults != (Defaults{ActionAccept, ActionAccept, ActionAccept}) {
		t.Errorf("defaults: %+v", p.Defaults)
	}
	if p.Failure != (Failure{Open, Open, ActionAccept, ActionAccept, ActionAccept}) {
		t.Errorf("failure: %+v", p.Failure)
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		for _, kind := range []NameKind{NameNone, NameSNI, NameQName} {
			step, log := r.MatchStep(&Sight{Kind: kind, Name: []byte("www.example.com")})
			if r.Action != ActionInspect || step < 0 || r.Steps[step].Action != ActionAccept || !log {
				t.Errorf("rule %s does not log and accept kind %d", r.Name, kind)
			}
		}
	}
	net := p.Zone("eth0")
	if p.ZoneName(net) != "net" || p.Zone("wg-anything.1") != net {
		t.Errorf("zones: %+v", p.Zones)
	}
	for _, test := range []struct {
		proto  uint8
		port   uint16
		action Action
	}{
		{protoUDP, 53, ActionInspect}, {protoTCP, 443, ActionInspect}, {protoTCP, 853, ActionInspect},
		{protoUDP, 443, ActionInspect}, {protoTCP, 53, ActionInspect}, {protoTCP, 80, ActionInspect},
		{protoUDP, 80, ActionAccept}, {protoTCP, 22, ActionAccept}, {protoICMP, 0, ActionAccept},
	} {
		pkt := Packet{From: net, To: ZoneHost, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
			Proto: test.proto, HasPorts: test.port != 0, Dport: test.port}
		if got := p.Match(&pkt); got.Action != test.action {
			t.Errorf("proto %d port %d: %v, want %v", test.proto, test.port, got.Action, test.action)
		}
	}
}

func TestObserveIsEachTimeItsOwn(t *testing.T) {
	a := Observe()
	a.Zones[0].Interfaces = []string{"eth7"}
	if b := Observe(); b.Zone("eth0") == ZoneNone {
		t.Error("a change of one shows in the next")
	}
}
