package loader

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// numbered is a segment's frame with the numbers set.
func numbered(p packet, seq, acknowledged uint32) []byte {
	frame := p.frame()
	tcp := frame[len(frame)-20:]
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], acknowledged)
	return frame
}

// TestStartOfAStreamIsThatOfTheHandshake, as long as the flow lives and whatever
// policy judges it.
func TestStartOfAStreamIsThatOfTheHandshake(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, openPolicy, func(b *bench, f *Firewall) {
			out, back := tcp(client, server, 40000, 443, syn), tcp(server, client, 443, 40000, syn|ack)
			flow := out.flow()
			starts := func(when string, want uint32, known bool) {
				t.Helper()
				if seq, ok := f.Start(flow); ok != known || known && seq != want {
					t.Errorf("%s: %d %v, want %d %v", when, seq, ok, want, known)
				}
				if _, ok := f.Start(flow.Reverse()); ok {
					t.Errorf("%s: the other direction has a start", when)
				}
			}
			starts("nothing seen", 0, false)
			b.arrivesFrame(f, b.lan, numbered(out, 0xfffffff0, 0))
			starts("SYN", 0, false)
			b.arrivesFrame(f, b.wan, numbered(back, 7000, 0xfffffff1))
			starts("SYN-ACK", 0xfffffff1, true)
			b.arrivesFrame(f, b.lan, numbered(tcp(client, server, 40000, 443, ack), 0xfffffff1, 7001))
			starts("established", 0xfffffff1, true)
			b.arrivesFrame(f, b.lan, numbered(tcp(client, server, 40000, 443, ack|psh), 500, 7001))
			starts("data elsewhere", 0xfffffff1, true)
			p, err := policy.ParseBytes("next.yaml", []byte(openPolicy), "")
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Apply(p); err != nil {
				t.Fatal(err)
			}
			starts("next policy", 0xfffffff1, true)
		})
	})
}
