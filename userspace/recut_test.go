package userspace

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/pktbuf"
)

// logRule logs every name.
const logRule = `  - name: all
    from: lan
    proto: [tcp, udp]
    action: inspect
    until: { packets: 1000, bytes: 1MiB }
    steps: [{ sni: never.example, action: drop }, { action: accept, log: true }]
`

// starts returns the first bytes of each stream in the captures that begin with
// something that has names, as far as they stand in one segment, and once each.
func starts(tb testing.TB) (all map[string][]byte) {
	all = make(map[string][]byte)
	known := make(map[string]bool)
	var tls tlsInspector
	var http httpInspector
	eachFrame(tb, corpusDir(tb), func(f frame) {
		if f.flow.Proto() != pktbuf.ProtoTCP || f.view.IsFragment() {
			return
		}
		b := f.view.Payload()
		if tls.inspect(b) != sawNames && http.inspect(b) != sawNames || known[string(b)] {
			return
		}
		known[string(b)] = true
		all[fmt.Sprintf("%s %d", f.file, f.number)] = slices.Clone(b)
	})
	return all
}

// recutter sends streams in pieces and says which names were seen.
type recutter struct {
	*streaming
}

func (c recutter) names(tb testing.TB, b []byte, cuts [][2]int) string {
	tb.Helper()
	c.another()
	if c.port < 1000 {
		c.port = 1000 // not DNS's
	}
	src := netip.AddrPortFrom(clientAddr.Addr(), c.port)
	dst := netip.AddrPortFrom(serverAddr.Addr(), uint16(2000+c.id>>16))
	for _, cut := range cuts {
		c.id++
		p := packet{proto: etherIPv4, mark: uint32(markOf(0)), payload: ipPacket(src, dst,
			&testnet.TCP{Seq: c.start + uint32(cut[0]), Ack: 1, Flags: 0x18}, b[cut[0]:cut[1]])}
		c.judge.verdict(&p, false)
	}
	return strings.Join(c.streaming.names(), " ")
}

// TestCorpusCutAnew cuts every hello and request of the captures at each byte in
// two, both ways around, into single bytes, shuffled, and into pieces that overlap.
func TestCorpusCutAnew(t *testing.T) {
	c := recutter{newStreaming(t, "", logRule, 1<<32-200)}
	c.judge.policy.Rules[0].Until.Packets = 1 << 20
	r := rand.New(rand.NewPCG(2026, 6))
	step := 1
	if testing.Short() {
		step = 29 // bytes: under the race detector
	}
	streams, ways := 0, 0
	for at, b := range starts(t) {
		want := c.names(t, b, [][2]int{{0, len(b)}})
		if len(c.sightings) == 0 {
			t.Fatalf("%s: no name in the whole", at)
		}
		streams++
		check := func(how string, cuts [][2]int) {
			t.Helper()
			ways++
			// Requests behind the first count only where they come with its end.
			got := c.names(t, b, cuts)
			if first, _, _ := strings.Cut(want, " "); got != want && got != first {
				t.Fatalf("%s, %s: names %q, want %q", at, how, got, want)
			}
		}
		var single [][2]int
		for i := range b {
			single = append(single, [2]int{i, i + 1})
			if i > 0 && i%step == 0 {
				check(fmt.Sprint("cut at ", i), [][2]int{{0, i}, {i, len(b)}})
				check(fmt.Sprint("swapped at ", i), [][2]int{{i, len(b)}, {0, i}})
			}
		}
		check("single bytes", single)
		r.Shuffle(len(single), func(i, k int) { single[i], single[k] = single[k], single[i] })
		check("shuffled bytes", single)
		for n := range 10 {
			check("overlapping pieces", pieces(r, len(b), 2+2*n))
		}
	}
	if streams < 60 {
		t.Errorf("only %d streams in the captures; there were more", streams)
	}
	t.Logf("%d streams in %d ways", streams, ways)
}

// TestCorpusQUICFramedAnew takes the CRYPTO streams out of the captures and puts
// them into other packets, their frames cut anew and shuffled.
func TestCorpusQUICFramedAnew(t *testing.T) {
	const known = 20
	r := rand.New(rand.NewPCG(9, 1))
	source := newTester(t, "", logRule)
	w := newTester(t, "", logRule)
	for _, o := range []*tester{source, w} {
		o.judge.policy.Rules[0].Until.Packets = 1 << 20
	}
	var hello []byte // the CRYPTO stream that a name was found in
	source.judge.o.Seen = func(seen Sighting) {
		source.sightings = append(source.sightings, seen)
		hello = slices.Clone(source.judge.flows.streams.prefix(source.judge.flows.find(&seen.Flow).stream))
	}
	found, port := 0, uint16(1000)
	eachFrame(t, corpusDir(t), func(f frame) {
		if f.flow.Proto() != pktbuf.ProtoUDP || f.view.IsFragment() || !isQUIC(f.view.Payload()) {
			return
		}
		source.sightings = nil
		p := packet{proto: etherIPv4, mark: uint32(markOf(0)), payload: ipPacket(f.flow.Src(), f.flow.Dst(), nil, f.view.Payload())}
		if f.flow.Src().Addr().Is6() {
			p.proto = etherIPv6
		}
		source.judge.verdict(&p, false)
		if len(source.sightings) == 0 {
			return
		}
		found++
		want := source.sightings[0].Name
		for range 20 {
			port++
			w.sightings = nil
			dcid := fmt.Sprintf("id %d", port)
			var frames []byte
			send := func(n int) {
				one := initial{version: quicVersion1, dcid: dcid, number: uint32(n), numLen: 2, frames: frames}
				q := packet{proto: etherIPv4, mark: uint32(markOf(0)),
					payload: ipPacket(netip.AddrPortFrom(clientAddr.Addr(), port), serverAddr, nil, one.seal(t))}
				w.judge.verdict(&q, false)
				frames = nil
			}
			for n, cut := range pieces(r, len(hello), 1+r.IntN(12)) {
				frames = slices.Concat(frames, padding(r.IntN(4)), []byte{1}, cryptoFrame(cut[0], hello[cut[0]:cut[1]]))
				if r.IntN(3) == 0 {
					send(n)
				}
			}
			send(1000)
			if len(w.sightings) != 1 || w.sightings[0].Name != want {
				w.tally.publish()
				t.Fatalf("%s %d: %+v, want %q; %+v", f.file, f.number, w.sightings, want, w.tally.snapshot())
			}
		}
	})
	if found < known {
		t.Errorf("%d names in the captures' QUIC, want at least %d", found, known)
	}
}
