package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func limitOf(t *testing.T, text string) Limit {
	t.Helper()
	p, err := ParseBytes("t.yaml", []byte(zonesOnly+"rules:\n  - { name: r, action: drop, limit: "+text+" }\n"), "")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p.Rules[0].Limit
}

func TestLimits(t *testing.T) {
	for text, want := range map[string]Limit{
		"{ rate: 200/s, burst: 400, per: src }":         {5 * time.Millisecond, 400, LimitPerSrc, 32, 64},
		"{ rate: 30/m }":                                {2 * time.Second, 30, LimitPerAll, 32, 64},
		"{ rate: 1/h, per: dst, v4: 24, v6: 48 }":       {time.Hour, 1, LimitPerDst, 24, 48},
		"{ rate: 1000000/s, burst: 1000000, per: all }": {time.Microsecond, 1000000, LimitPerAll, 32, 64},
		"{ rate: 3600000000/h, per: src, v4: 1 }":       {time.Microsecond, maxBurst, LimitPerSrc, 1, 64},
	} {
		if got := limitOf(t, text); got != want || !got.Limited() {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// Where a limit is kept, a rule that drops what is over it drops nothing, and
// hides no rule behind it.
func TestLimitsAreTakenForKept(t *testing.T) {
	p, err := ParseBytes("t.yaml", []byte(zonesOnly+`rules:
  - { name: over, action: drop, limit: { rate: 5/s } }
  - { name: within, proto: udp, action: accept, limit: { rate: 5/s } }
  - { name: rest, action: drop }
`), "")
	if err != nil || len(p.Warnings) != 0 {
		t.Fatalf("%v, %v", err, p.Warnings)
	}
	pkt := &Packet{From: 1, To: ZoneHost, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Proto: protoUDP}
	if got := p.Match(pkt); got.Rule != 1 {
		t.Errorf("UDP meets rule %d, want 1", got.Rule)
	}
	pkt.Proto = protoTCP
	if got := p.Match(pkt); got.Rule != 2 {
		t.Errorf("TCP meets rule %d, want 2", got.Rule)
	}
}

func TestQueueLimits(t *testing.T) {
	src := Limit{5 * time.Millisecond, 400, LimitPerSrc, 24, 48}
	for text, want := range map[string]Queue{
		"":                                defaultQueue,
		"queue: {}":                       defaultQueue,
		"queue: { per_src: none }":        {Total: defaultQueue.Total},
		"queue: { total: none }":          {PerSrc: defaultQueue.PerSrc},
		"queue: { total: { rate: 2/s } }": {PerSrc: defaultQueue.PerSrc, Total: Limit{500 * time.Millisecond, 2, LimitPerAll, 32, 64}},
		"queue: { per_src: { rate: 200/s, burst: 400, v4: 24, v6: 48 } }": {PerSrc: src, Total: defaultQueue.Total},
	} {
		p, err := ParseBytes("t.yaml", []byte(zonesOnly+text+"\n"), "")
		if err != nil || p.Queue != want {
			t.Errorf("%q: %+v, %v, want %+v", text, p.Queue, err, want)
		}
	}
	for text, want := range map[string]string{
		"queue: { per_src: no }":                    `t.yaml:3:19: queue.per_src is`,
		"queue: { total: { rate: 1/s, v4: 3 } }":    `t.yaml:3:30: queue.total.v4 is unknown; expected one of`,
		"queue: { per_src: { burst: 3 } }":          `t.yaml:3:19: queue.per_src.rate is missing`,
		"queue: { all: none }":                      `t.yaml:3:10: queue.all is unknown`,
		"queue: { per_src: { rate: 1/s, v4: 33 } }": `t.yaml:3:36: queue.per_src.v4 is 33`,
	} {
		_, err := ParseBytes("t.yaml", []byte(zonesOnly+text+"\n"), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
