package netns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// TestFloodLeavesEstablishedConnectionsKnown: beginnings from everywhere, several
// times as many as any table holds, neither push an open connection out of the
// flow table nor keep an honest client from connecting.
func TestFloodLeavesEstablishedConnectionsKnown(t *testing.T) {
	const size = 512
	b := newBench(t, testnet.RoutedOptions{}, basePolicy, "--flows", "512", "--half-open", "512")
	eachFamily(t, func(t *testing.T, fam family) {
		if _, err := b.Server.ServeTCPEcho(at(fam.server, 7)); err != nil {
			t.Fatal(err)
		}
		open := map[string]func(int){}
		for _, network := range []string{"tcp", "udp"} {
			conn := b.Client.MustDial(t, network, at(fam.server, 7))
			open[network] = func(n int) { t.Helper(); exchange(t, conn, n) }
			open[network](2)
		}
		flood := testnet.Packet{Dst: b.to(fam, 7), EthSrc: b.Client.MustMAC(t, "eth0"), EthDst: b.Firewall.MustMAC(t, b.Lan)}
		source := fam.client.Next()
		for i := range 4 * size {
			flood.Src = netip.AddrPortFrom(source, uint16(1024+i))
			flood.TCP, flood.Payload = nil, []byte("x")
			if i%2 == 0 {
				flood.TCP, flood.Payload = &testnet.TCP{Flags: 0x02}, nil
			}
			frame := flood.Frame()
			if flood.TCP == nil {
				frame[len(frame)-1]++ // not answered: the server finds the checksum wrong
			}
			b.sendFrame(t, frame)
		}
		b.reaches(t, fam)
		before := b.f.status()
		for network, exchange := range open {
			exchange(3)
			t.Log(network, "is as open as before")
		}
		after := b.f.status()
		// Answers to beginnings that were pushed out are late, and the default's.
		expect(t, before, after, counts{"tc pass rule": 0, "tc drop flow": 0, "tc drop rule": 0})
		if n := after.since(before, "tc pass flow"); n < 12 {
			t.Errorf("%d packets of known flows, want those of 6 exchanges", n)
		}
		late := b.Client.MustDial(t, "tcp", at(fam.server, 7))
		exchange(t, late, 1)
	})
}

// reaches returns when a datagram has come back from the server: its socket is as
// full as a flood makes it, so several may be lost there.
func (b *bench) reaches(tb testing.TB, fam family) {
	tb.Helper()
	for range 100 {
		conn := b.Client.MustDial(tb, "udp", at(fam.server, 7))
		if _, err := conn.Write([]byte("is there room again?")); err != nil {
			tb.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience / 100)); err != nil {
			tb.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 100)); err == nil {
			return
		}
	}
	tb.Fatal("no datagram comes back from the server any more")
}
