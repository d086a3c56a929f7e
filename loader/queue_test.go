package loader

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func queuePolicy(queue, overload string) string {
	return `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { overload: ` + overload + ` }
queue: ` + queue + `
rules:
  - { name: web, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: accept }] }
`
}

// uncertainFrom sends a datagram of a new flow from each source, and counts what
// becomes of them.
func (b *bench) uncertainFrom(f *Firewall, port *uint16, addrs ...netip.Addr) map[string]int {
	b.tb.Helper()
	got := map[string]int{}
	for _, a := range addrs {
		*port++
		dst := server4
		if a.Is6() {
			dst = server6
		}
		got[b.arrives(f, b.lan, udp(a, dst, *port, 80))]++
	}
	return got
}

// TestQueueIsLimitedPerSourceAndInTotal: what is over goes the way of
// failure.overload, and is counted so.
func TestQueueIsLimitedPerSourceAndInTotal(t *testing.T) {
	addr := netip.MustParseAddr
	two := append(repeated(addr("192.0.2.7"), 10), repeated(addr("192.0.2.8"), 2)...)
	six := []netip.Addr{addr("2001:db8::1"), addr("2001:db8::2"), addr("2001:db8::3"), addr("2001:db8:0:1::1")}
	for _, c := range []struct {
		queue string
		from  []netip.Addr
		want  int // packets queued
	}{
		{"{ per_src: { rate: 1/h, burst: 3 }, total: none }", two, 5},
		{"{ per_src: { rate: 1/h, burst: 3, v4: 24 }, total: none }", two, 3},
		{"{ per_src: { rate: 1/h, burst: 2 }, total: none }", six, 3},
		{"{ per_src: { rate: 1/h, burst: 2, v6: 128 }, total: none }", six, 4},
		{"{ per_src: none, total: { rate: 1/h, burst: 4 } }", two, 4},
		{"{ per_src: none, total: { rate: 1/h, burst: 1 } }", two, 1},
		{"{ per_src: { rate: 1/h, burst: 3 }, total: { rate: 1/h, burst: 4 } }", two, 4},
		{"{ per_src: none, total: none }", two, 12},
	} {
		for overload, over := range map[string]string{"open": passes, "closed": drops} {
			on(t, queuePolicy(c.queue, overload), func(b *bench, f *Firewall) {
				port := uint16(1000)
				got := b.uncertainFrom(f, &port, c.from...)
				want := map[string]int{queues: c.want}
				if len(c.from) > c.want {
					want[over] = len(c.from) - c.want
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, overload %s: %v, want %v", c.queue, overload, got, want)
				}
				if n := f.sum(t, "tc", over, "overload"); n != uint64(want[over]) {
					t.Errorf("%s, overload %s: %d counted as overload, want %d", c.queue, overload, n, want[over])
				}
			})
		}
	}
}

// TestQueueLimitOfASourceCountsItsFlows: replies count for the source that began
// the flow, and a flow that was over its limit stays uncertain.
func TestQueueLimitOfASourceCountsItsFlows(t *testing.T) {
	text := `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { overload: open }
queue: { per_src: { rate: 2/h, burst: 3 }, total: none }
rules:
  - { name: dns, from: lan, to: wan, proto: udp, dport: 53, action: inspect,
      steps: [{ qname: ads.example, action: rewrite, answer: 0.0.0.0 }, { action: accept }] }
`
	on(t, text, func(b *bench, f *Firewall) {
		query := udp(client4, server4, 40000, 53)
		expect(t, "a question", b.arrives(f, b.lan, query), queues)
		expect(t, "its answer", b.arrives(f, b.wan, query.reply()), queues)
		expect(t, "another answer", b.arrives(f, b.wan, query.reply()), queues)
		expect(t, "an answer over the client's limit", b.arrives(f, b.wan, query.reply()), passes)
		expect(t, "a question over it", b.arrives(f, b.lan, query), passes)
		other := query
		other.src = client4.Next()
		expect(t, "another client's", b.arrives(f, b.lan, other), queues)
		f.wait(t, 31*time.Minute)
		expect(t, "later", b.arrives(f, b.lan, query), queues)
	})
}
