package userspace

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// traffic is one packet of each kind that a worker meets.
func traffic(tb testing.TB) map[string]queued {
	packet := func(rule int, payload []byte) queued {
		return queued{mark: uint32(markOf(rule)), payload: payload}
	}
	real := realHello(tb, "www.good.example")
	return map[string]queued{
		"hello accepted": packet(0, tcpPacket(1, real)),
		"hello dropped":  packet(0, tcpPacket(1, hello(sni("a.bad.example")))),
		"hello cut":      packet(0, tcpPacket(1, real[:100])),
		"two records":    packet(0, tcpPacket(1, twoRecords(real, 100))),
		"no tls":         packet(0, tcpPacket(1, make([]byte, 1400))),
		"query":          packet(1, udpPacket(dnsQuery("www.good.example", dnsmessage.TypeA))),
		"query dropped":  packet(1, udpPacket(dnsQuery("www.bad.example", dnsmessage.TypeA))),
		"response":       packet(1, ipPacket(dnsAddr, clientAddr, nil, mustPack(tb, fullResponse(dnsmessage.TypeA)))),
		"malformed":      packet(1, udpPacket(make([]byte, 12))),
		"unmarked":       {payload: tcpPacket(1, nil)},
	}
}

// newSunk is a worker whose verdicts go nowhere.
func newSunk(tb testing.TB) *worker {
	tb.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { null.Close() })
	o, err := Options{
		Policy:  mustPolicy(tb, "", tlsRule+rewriteRule),
		Decided: func(Decision) error { return nil },
	}.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	return newWorker(&queue{num: testQueue, fd: int(null.Fd()), room: 1 << 19}, &o)
}

// fill puts the packet into all slots, with ids and ports counted on.
func (w *worker) fill(q queued, n int) {
	for i := range n {
		q.id = uint32(i + 1)
		m := q.bytes()
		w.msgs[i].len = uint32(copy(w.slot(i, slotLen), m))
	}
}

// The whole handling of what was received, from the message to the sent verdict,
// allocates nothing.
func TestNoAllocationPerPacket(t *testing.T) {
	for name, q := range traffic(t) {
		w := newSunk(t)
		w.fill(q, batch)
		keep := make([]byte, slotLen)
		copy(keep, w.slot(0, slotLen))
		port := uint32(0)
		allocs := testing.AllocsPerRun(200, func() {
			for i := range batch {
				// A rewritten packet changes the memory it is in; a new port is a
				// new flow.
				copy(w.slot(i, int(w.msgs[i].len)), keep[:w.msgs[i].len])
				port++
				ip := w.slot(i, slotLen)[int(w.msgs[i].len)-len(q.payload):]
				binary.BigEndian.PutUint32(ip[12:], port)
			}
			w.judge.now += 1e6
			if err := w.handleBatch(batch); err != nil {
				t.Error(err)
			}
			w.tally.publish()
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations per %d packets", name, allocs, batch)
		}
		if c := w.tally.snapshot(); c.Received != 201*batch || c.Panics != 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func BenchmarkHandle(b *testing.B) {
	for name, q := range traffic(b) {
		b.Run(name, func(b *testing.B) {
			w := newSunk(b)
			w.fill(q, batch)
			keep := make([]byte, slotLen)
			copy(keep, w.slot(0, slotLen))
			b.ReportAllocs()
			for n := 0; n < b.N; n += batch {
				for i := range batch {
					copy(w.slot(i, int(w.msgs[i].len)), keep[:w.msgs[i].len])
				}
				if err := w.handleBatch(batch); err != nil {
					b.Fatal(err)
				}
				w.tally.publish()
			}
		})
	}
}
