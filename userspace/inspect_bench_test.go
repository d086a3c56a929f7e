package userspace

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// padded is a hello whose record has n bytes, the name last.
func padded(n int, name string) []byte {
	rest := n - len(hello(sni(name)))
	return hello(extension(0x0a0a, make([]byte, rest-4)), sni(name))
}

// lifetime is all that is judged of one flow.
type lifetime struct {
	rule    int
	packets [][]byte
}

// lifetimes are the flows whose cost is promised.
func lifetimes(tb testing.TB) map[string]lifetime {
	big := padded(1800, "www.good.example")
	return map[string]lifetime{
		"hello/517B":         {0, [][]byte{tcpPacket(1, padded(517, "www.good.example"))}},
		"hello/1800B":        {0, [][]byte{tcpPacket(1, big)}},
		"hello/1800B in two": {0, [][]byte{tcpPacket(1, big[:1400]), tcpPacket(1401, big[1400:])}},
		"hello/swapped":      {0, [][]byte{tcpPacket(1401, big[1400:]), tcpPacket(1, big[:1400])}},
		"hello/two records":  {0, [][]byte{tcpPacket(1, twoRecords(big, 600))}},
		"dns/query":          {1, [][]byte{udpPacket(dnsQuery("www.good.example", dnsmessage.TypeA))}},
	}
}

func fromOne(pktbuf.Flow) (uint32, bool) { return 1, true }

// live judges all packets of a flow with a new source address.
func (l lifetime) live(w *worker, n uint32, p *packet) {
	w.judge.now += 1e6
	w.judge.empty = w.judge.now
	for _, b := range l.packets {
		if b[0]>>4 == 4 {
			binary.BigEndian.PutUint32(b[12:], n)
		}
		*p = packet{mark: uint32(markOf(l.rule)), proto: etherIPv4, payload: b}
		w.judge.verdict(p, false)
	}
}

// TestNoAllocationPerFlow: from the first packet to the decision.
func TestNoAllocationPerFlow(t *testing.T) {
	for name, l := range lifetimes(t) {
		w := newSunk(t)
		w.judge.o.Start = fromOne
		var p packet
		n := uint32(0)
		allocs := testing.AllocsPerRun(1000, func() {
			n++
			l.live(w, n, &p)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations a flow", name, allocs)
		}
		w.tally.publish()
		if c := w.tally.snapshot(); c.Panics != 0 || c.Malformed != 0 || c.Step == 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func BenchmarkFlow(b *testing.B) {
	all := lifetimes(b)
	quic := initial{version: quicVersion1, dcid: "original", scid: "client"}
	big := quicHello("www.good.example", 1750)
	all["quic/1200B"] = lifetime{0, [][]byte{ipPacket(clientAddr, serverAddr, nil,
		initial{version: quicVersion1, dcid: "original", frames: slices.Concat(cryptoFrame(0, quicHello("www.good.example", 300)), padding(850))}.seal(b))}}
	quic.frames = cryptoFrame(0, big[:1150])
	first := quic.seal(b)
	quic.number, quic.frames = 1, slices.Concat(cryptoFrame(1150, big[1150:]), padding(550))
	all["quic/1750B in two"] = lifetime{0, [][]byte{ipPacket(clientAddr, serverAddr, nil, first), ipPacket(clientAddr, serverAddr, nil, quic.seal(b))}}
	for name, l := range all {
		b.Run(name, func(b *testing.B) {
			w := newSunk(b)
			w.judge.o.Start = fromOne
			var p packet
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				quicOf(w.judge).keys.peer = quicPeer{} // each flow has its own
				l.live(w, uint32(n), &p)
			}
		})
	}
}

// quicOf returns a judge's inspector of QUIC.
func quicOf(j *judge) *quicInspector {
	for _, in := range j.onUDP {
		if q, ok := in.(*quicInspector); ok {
			return q
		}
	}
	return nil
}
