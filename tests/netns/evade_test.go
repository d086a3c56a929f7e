package netns

import (
	wire "encoding/binary" // binary is the program under test
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// inFragments cuts an IPv4 frame in two, behind n bytes of what it carries.
func inFragments(frame []byte, n int) [][]byte {
	const header = 14 + 20
	piece := func(from, to int, more uint16) []byte {
		f := append(append([]byte(nil), frame[:header]...), frame[header+from:header+to]...)
		wire.BigEndian.PutUint16(f[16:], uint16(20+to-from))
		copy(f[18:20], frame[header:]) // the source port is as good an identification as any
		wire.BigEndian.PutUint16(f[20:], uint16(from/8)|more)
		wire.BigEndian.PutUint16(f[24:], 0)
		sum := uint32(0)
		for i := 14; i < header; i += 2 {
			sum += uint32(wire.BigEndian.Uint16(f[i:]))
		}
		sum = sum&0xffff + sum>>16
		wire.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16))
		return f
	}
	const moreFragments = 0x2000
	return [][]byte{piece(0, n, moreFragments), piece(n, len(frame)-header, 0)}
}

// TestQuestionInFragmentsNeverArrives: a question behind a first fragment that
// holds the UDP header alone is still a question.
func TestQuestionInFragmentsNeverArrives(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy)
	fam := families[0]
	server := b.serveDNS(t, fam)
	for i, n := range []int{8, 16, 24} {
		before := b.f.status()
		p := testnet.Packet{Src: b.from(fam.client), Dst: server.Addr, Payload: question(t, uint16(i), "denied.example.", 1),
			EthSrc: b.Client.MustMAC(t, "eth0"), EthDst: b.Firewall.MustMAC(t, b.Lan)}
		for _, frame := range inFragments(p.Frame(), n) {
			b.sendFrame(t, frame)
		}
		b.barrier(t, fam)
		after := b.f.eventually(t, "the first fragment is judged", func(s status) bool { return s.since(before, "user") == 1 })
		if got := after.User.Malformed - before.User.Malformed; got != 1 || after.User.Dropped != before.User.Dropped+1 {
			t.Errorf("cut behind %d bytes: user space %+v, before %+v, want one dropped as malformed", n, after.User, before.User)
		}
	}
	// The same cut gets through where nobody asks for names.
	p := testnet.Packet{Src: netip.AddrPortFrom(fam.client, 999), Dst: b.to(fam, 7), Payload: []byte("a message in two fragments"),
		EthSrc: b.Client.MustMAC(t, "eth0"), EthDst: b.Firewall.MustMAC(t, b.Lan)}
	echoed := b.Client.MustListenPacket(t, "udp", at(fam.client, 999))
	for _, frame := range inFragments(p.Frame(), 8) {
		b.sendFrame(t, frame)
	}
	if err := echoed.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, _, err := echoed.ReadFrom(buf); err != nil || string(buf[:n]) != string(p.Payload) {
		t.Errorf("the echo of an allowed datagram: %q, %v", buf[:n], err)
	}
	if n := len(server.Queries()); n != 0 {
		t.Errorf("%d denied questions arrived", n)
	}
}

// TestStreamFromBeforeTheStartIsJudged: what was under way when the programs were
// attached meets the policy like everything else.
func TestStreamFromBeforeTheStartIsJudged(t *testing.T) {
	eachMode(t, twoModes, func(t *testing.T, m mode) {
		b := &bench{Routed: testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})}
		stop, ended := make(chan struct{}), make(chan struct{}, len(families))
		for _, fam := range families {
			b.Client.MustListenPacket(t, "udp", at(fam.client, 5555)) // else ICMP errors go back
			conn := b.Server.MustDial(t, "udp", at(fam.client, 5555))
			go func() {
				defer func() { ended <- struct{}{} }()
				for send(conn, stop) {
				}
			}()
		}
		b.f = start(t, b.Firewall, basePolicy, m.flags()...)
		before := b.f.status()
		after := b.f.eventually(t, "what nobody asked for is dropped", func(s status) bool {
			return s.since(before, "tc drop default") >= 100
		})
		expect(t, before, after, counts{"tc pass flow": 0, "tc pass rule": 0})
		close(stop)
		for range families {
			<-ended
		}
	})
}

// send sends one datagram and waits a little, until it is told to stop.
func send(conn net.Conn, stop <-chan struct{}) bool {
	_, _ = conn.Write([]byte("nobody asked for this"))
	select {
	case <-stop:
		return false
	case <-time.After(50 * time.Microsecond):
		return true
	}
}

// TestFullFlowTableOpensNothing fills a small flow table while a question waits
// in the queue, so that its flow is forgotten before it leaves.
func TestFullFlowTableOpensNothing(t *testing.T) {
	b := newBench(t, testnet.RoutedOptions{}, basePolicy, "--flows", "64")
	eachFamily(t, func(t *testing.T, fam family) {
		server := b.serveDNS(t, fam)
		conn := b.Client.MustDial(t, "udp", server.Addr.String())
		b.f.signal(syscall.SIGSTOP)
		if _, err := conn.Write(question(t, 1, "good.example.", 1)); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			b.send(t, testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 7), Payload: []byte("x")})
		}
		b.f.signal(syscall.SIGCONT)
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1500)
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("waiting for the response: %v", err)
		}
		before := b.f.status()
		for i := range uint16(3) {
			if _, err := conn.Write(question(t, i, "denied.example.", 1)); err != nil {
				t.Fatal(err)
			}
		}
		b.f.eventually(t, "the denied questions are judged", func(s status) bool { return s.User.Dropped == before.User.Dropped+3 })
		if n := server.Asked("denied.example"); n != 0 {
			t.Errorf("%d denied questions arrived", n)
		}
	})
}
