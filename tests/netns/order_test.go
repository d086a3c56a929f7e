package netns

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// rawStream is a connection of which the test itself sends the segments.
type rawStream struct {
	deniedStream
	b    *bench
	flow testnet.Packet // the next segment, without its payload
}

// rawStream connects and finds out where both streams begin.
func (b *bench) rawStream(tb testing.TB, fam family) *rawStream {
	tb.Helper()
	seen := b.Firewall.MustCapture(tb, b.Lan)
	s := &rawStream{deniedStream: b.connect(tb, fam, 443), b: b}
	src := netip.MustParseAddrPort(s.client.LocalAddr().String())
	for deadline := time.Now().Add(patience); s.flow.TCP == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal("the handshake's end is not seen")
		}
		serverSees(seen, func(p testnet.Packet) bool {
			const onlyAck = 16
			if p.TCP != nil && p.Src == src && p.TCP.Flags == onlyAck {
				s.flow = testnet.Packet{Src: p.Src, Dst: p.Dst, TCP: p.TCP}
			}
			return false
		})
	}
	return s
}

// clientHello is what a client of that configuration sends first.
func clientHello(tb testing.TB, config *tls.Config) []byte {
	tb.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, config).Handshake() // ends when the server closes
		_ = client.Close()
	}()
	record := make([]byte, 5)
	if _, err := io.ReadFull(server, record); err != nil {
		tb.Fatal(err)
	}
	record = append(record, make([]byte, int(record[3])<<8|int(record[4]))...)
	if _, err := io.ReadFull(server, record[5:]); err != nil {
		tb.Fatal(err)
	}
	return record
}

// send sends bytes that stand at an offset of the stream.
func (s *rawStream) send(tb testing.TB, at int, b []byte) {
	tb.Helper()
	p := s.flow
	tcp := *p.TCP
	const pushAck = 8 | 16
	tcp.Seq, tcp.Flags = tcp.Seq+uint32(at), pushAck
	p.TCP, p.Payload = &tcp, b
	s.b.send(tb, p)
}

// TestSegmentsInAnotherOrder: the second one first, and a forged hello far outside
// the window, do not hide a name.
func TestSegmentsInAnotherOrder(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{NoOffload: true}, basePolicy)
	eachFamily(t, func(t *testing.T, fam family) {
		denied := clientHello(t, postQuantum("denied.example"))
		allowed := clientHello(t, hello("good.example"))
		for name, send := range map[string]func(*rawStream){
			"swapped": func(s *rawStream) {
				s.send(t, 1000, denied[1000:])
				s.send(t, 0, denied[:1000])
			},
			"forged": func(s *rawStream) {
				s.send(t, 1<<20, allowed)
				s.send(t, -1<<20, allowed)
				s.send(t, 0, denied[:1000])
				s.send(t, 1000, denied[1000:])
			},
		} {
			s := b.rawStream(t, fam)
			before := b.f.status()
			send(s)
			b.f.eventually(t, name+": the segment that completes the hello is dropped", func(now status) bool {
				return now.User.Dropped == before.User.Dropped+1 && now.User.Step == before.User.Step+1
			})
		}
		// An allowed one arrives whole, however it comes.
		s := b.rawStream(t, fam)
		s.send(t, 100, allowed[100:])
		s.send(t, 0, allowed[:100])
		expectBytes(t, s.server, allowed)
	})
}
