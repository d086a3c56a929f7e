package netns

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// notDNS are payloads on DNS's port that are none, by what is wrong with them.
var notDNS = map[string][]byte{
	"12 zero bytes":               make([]byte, 12),
	"a question without anything": {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0},
	"29 bytes":                    bytes.Repeat([]byte{0xc3}, 29),
	"93 bytes":                    bytes.Repeat([]byte("not dns at all, "), 6)[:93],
	"one byte":                    {7},
	"a pointer to itself":         append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12, 0, 1, 0, 1),
}

func TestFailureMalformed(t *testing.T) {
	for _, setting := range []string{"drop", "accept"} {
		t.Run(setting, func(t *testing.T) {
			b := newBench(t, testnet.RoutedOptions{}, basePolicy+"failure: { malformed: "+setting+" }\n")
			arrived := b.Server.MustCapture(t, "eth0")
			eachFamily(t, func(t *testing.T, fam family) {
				b.Server.MustListenPacket(t, "udp", at(fam.server, 53)) // else ICMP errors come back
				for what, payload := range notDNS {
					t.Run(what, func(t *testing.T) {
						before := b.f.status()
						b.send(t, testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 53), Payload: payload})
						after := b.f.eventually(t, "it is judged", func(s status) bool { return s.since(before, "user") == 1 })
						dropped, accepted := uint64(1), uint64(0)
						if setting == "accept" {
							dropped, accepted = 0, 1
						}
						if after.User.Dropped-before.User.Dropped != dropped || after.User.Accepted-before.User.Accepted != accepted {
							t.Errorf("before %+v, after %+v", before.User.Counters, after.User.Counters)
						}
						if n := after.User.Malformed - before.User.Malformed; n != 1 || after.User.Panics != 0 {
							t.Errorf("%d counted as malformed, want 1; %d panics", n, after.User.Panics)
						}
						b.barrier(t, fam)
						n := serverSees(arrived, func(p testnet.Packet) bool { return p.Dst == b.to(fam, 53) && bytes.Equal(p.Payload, payload) })
						if n != int(accepted) {
							t.Errorf("%d arrived as they were sent, want %d", n, accepted)
						}
					})
				}
				malformedInKernel(t, b, fam, setting)
			})
		})
	}
}

// malformedInKernel sends what contradicts itself in its headers.
func malformedInKernel(t *testing.T, b *bench, fam family, setting string) {
	p := testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 7), Payload: []byte("longer than it is")}
	p.EthSrc, p.EthDst = b.Client.MustMAC(t, "eth0"), b.Firewall.MustMAC(t, b.Lan)
	frame := p.Frame()
	before := b.f.status()
	b.sendFrame(t, frame[:len(frame)-len(p.Payload)])
	b.barrier(t, fam)
	what := map[string]string{"drop": "tc drop malformed", "accept": "tc pass malformed"}[setting]
	expect(t, before, b.f.status(), counts{what: 1, "* * malformed": 1, "queued": 0})
}

// TestFailureUndecided spends a flow's budget on a hello that never ends.
func TestFailureUndecided(t *testing.T) {
	for _, setting := range []string{"drop", "accept"} {
		t.Run(setting, func(t *testing.T) {
			b := newBench(t, testnet.RoutedOptions{}, `
version: 1
zones: { lan: [lan0], wan: [wan0] }
failure: { undecided: `+setting+` }
rules:
  - name: packets
    from: lan
    to: wan
    proto: tcp
    dport: 443
    action: inspect
    until: { packets: 4 }
    steps: [{ action: accept }]
  - name: bytes
    from: lan
    to: wan
    proto: tcp
    dport: 444
    action: inspect
    until: { bytes: 30 }
    steps: [{ action: accept }]
  - { name: no-step, from: lan, to: wan, proto: udp, dport: 53, action: inspect, steps: [{ qname: other.example, action: drop }] }
  - { name: echo, from: lan, to: wan, proto: [tcp, udp], dport: 7, action: accept }
`)
			eachFamily(t, func(t *testing.T, fam family) {
				endless(t, b, fam, 443, setting)
				endless(t, b, fam, 444, setting)
				server := b.serveDNS(t, fam)
				before := b.f.status()
				conn := b.Client.MustDial(t, "udp", server.Addr.String())
				query := question(t, 1, "good.example.", dnsmessage.TypeA)
				if setting == "accept" {
					ask(t, conn, query)
				} else if _, err := conn.Write(query); err != nil {
					t.Fatal(err)
				}
				b.f.eventually(t, "no step matches: undecided", func(s status) bool {
					return s.User.Undecided == before.User.Undecided+1
				})
				b.barrier(t, fam)
				if n := server.Asked("good.example"); n != map[string]int{"drop": 0, "accept": 1}[setting] {
					t.Errorf("the question arrived %d times", n)
				}
			})
		})
	}
}

// endless sends the start of a hello of 512 bytes, 10 bytes a packet. The budget
// ends with the fourth packet, or with the third.
func endless(t *testing.T, b *bench, fam family, port uint16, setting string) {
	t.Helper()
	s := b.connect(t, fam, port)
	before := b.f.status()
	start := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3}, make([]byte, 50)...)
	budget := map[uint16]int{443: 4, 444: 3}[port]
	for i := range budget {
		if _, err := s.client.Write(start[10*i : 10*i+10]); err != nil {
			t.Fatal(err)
		}
		b.f.eventually(t, "the next part is judged", func(s status) bool { return s.since(before, "user") == uint64(i+1) })
	}
	after := b.f.status()
	more, undecided := after.User.More-before.User.More, after.User.Undecided-before.User.Undecided
	if more != uint64(budget-1) || undecided != 1 {
		t.Errorf("port %d: %d packets passed undecided, %d spent the budget; want %d and 1", port, more, undecided, budget-1)
	}
	if setting == "accept" {
		if _, err := s.client.Write(start[10*budget:]); err != nil {
			t.Fatal(err)
		}
		expectBytes(t, s.server, start)
		expect(t, before, b.f.status(), counts{"queued": uint64(budget), "* drop *": 0})
		return
	}
	expectBytes(t, s.server, start[:10*(budget-1)])
	b.f.eventually(t, "what is sent again is dropped in the kernel", func(s status) bool { return s.since(before, "* drop flow") > 0 })
	expect(t, before, b.f.status(), counts{"queued": uint64(budget)})
	expectSilence(t, s.server)
}

func expectBytes(tb testing.TB, conn net.Conn, want []byte) {
	tb.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		tb.Errorf("received % x, %v; want % x", got, err, want)
	}
}

// expectSilence sees that nothing more is there to be read.
func expectSilence(tb testing.TB, conn net.Conn) {
	tb.Helper()
	if err := conn.SetReadDeadline(time.Now()); err != nil {
		tb.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		tb.Errorf("read %d bytes, %v; want nothing", n, err)
	}
}

// TestFailureMidstream sends TCP data of a connection whose start nobody saw.
func TestFailureMidstream(t *testing.T) {
	for _, setting := range []string{"drop", "accept", "inspect"} {
		t.Run(setting, func(t *testing.T) {
			b := newBench(t, testnet.RoutedOptions{}, basePolicy+"failure: { midstream: "+setting+" }\n")
			arrived := b.Server.MustCapture(t, "eth0")
			eachFamily(t, func(t *testing.T, fam family) {
				const ackPush = 16 | 8
				p := testnet.Packet{Src: b.from(fam.client), Dst: b.to(fam, 443), Payload: []byte("no hello"),
					TCP: &testnet.TCP{Seq: 1000, Ack: 1, Flags: ackPush}}
				before := b.f.status()
				b.send(t, p)
				// The server knows no such connection and resets it.
				want := map[string]counts{
					"drop":    {"tc drop midstream": 1, "* drop *": 1, "judged": 1 + barrierPackets, "queued": 0},
					"accept":  {"tc pass midstream": 1, "tc pass flow": 1 + 1, "* drop *": 0, "queued": 0, "user": 0},
					"inspect": {"tc queue rule": 1, "* * midstream": 0, "* drop *": 0, "queued": 1, "user": 1},
				}[setting]
				if setting != "drop" {
					b.f.eventually(t, "the reset has passed", func(s status) bool { return s.since(before, "judged") == 2 })
				}
				b.barrier(t, fam)
				b.f.eventually(t, "all is judged", func(s status) bool { return s.since(before, "user") == want["user"] })
				expect(t, before, b.f.status(), want)
				n := serverSees(arrived, func(q testnet.Packet) bool { return q.Src == p.Src })
				if n != map[string]int{"drop": 0, "accept": 1, "inspect": 1}[setting] {
					t.Errorf("%d of 1 packets arrived", n)
				}
				if setting != "inspect" {
					return
				}
				// It was decided, so the next one stays in the kernel.
				before = b.f.status()
				p.TCP.Seq += uint32(len(p.Payload))
				b.send(t, p)
				b.barrier(t, fam)
				expect(t, before, b.f.status(), counts{"queued": 0, "* drop *": 0})
			})
		})
	}
}
