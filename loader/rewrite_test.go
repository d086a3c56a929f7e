package loader

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// through runs a tc program over a frame and gives the frame that comes out.
func (b *bench) through(prog *ebpf.Program, frame []byte, in skb) (code uint32, out []byte) {
	b.tb.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: in, Repeat: 1}
	code, err := prog.Run(o)
	if err != nil {
		b.tb.Fatalf("running %v: %v", prog, err)
	}
	return code, o.DataOut
}

// checked is a packet's frame with correct checksums.
func (p *packet) checked(tb testing.TB) []byte {
	tb.Helper()
	frame := p.frame()
	var v pktbuf.View
	if err := v.Init(pktbuf.Bridge, frame, nil); err != nil {
		tb.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		tb.Fatalf("% x: %v", frame, err)
	}
	if err := v.Recompute(); err != nil {
		tb.Fatal(err)
	}
	return frame
}

// wantRewritten changes a frame by pktbuf, the plain way.
func wantRewritten(tb testing.TB, frame []byte, r policy.Rewrite, ttl int) []byte {
	tb.Helper()
	want := bytes.Clone(frame)
	var v pktbuf.View
	if err := v.Init(pktbuf.Bridge, want, nil); err != nil {
		tb.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		tb.Fatal(err)
	}
	if r.DSCP != 0 {
		if err := v.SetDSCP(uint8(r.DSCP - 1)); err != nil {
			tb.Fatal(err)
		}
	}
	if ttl != 0 {
		if err := v.SetTTL(uint8(ttl)); err != nil {
			tb.Fatal(err)
		}
	}
	if r.MSS != 0 && v.Proto() == protoTCP && v.TCP()[13]&syn != 0 {
		_ = v.ClampMSS(uint16(r.MSS)) // an error leaves the packet as it is
	}
	return v.Bytes()
}

// tcpOptions are right ones and odd ones.
var tcpOptions = [][]byte{
	nil,
	{2, 4, 0x05, 0xb4},
	{1, 2, 4, 0x05, 0xb4, 0, 0, 0}, // at an odd place
	{4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 2, 4, 0xff, 0xff}, // behind others
	{1, 1, 1, 1},                    //
	{2, 4, 0, 10, 2, 4, 0x05, 0xb4}, // the first one is small
	{2, 3, 5, 0},                    // of a wrong length
	{0, 2, 4, 0x05},                 // behind the end
	{3, 0, 2, 4},                    // an option of no length
	{5, 40, 2, 4},                   // one that is longer than the header
	{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 0x05, 0xb4},
}

func randomRewrite(r *rand.Rand) policy.Rewrite {
	w := policy.Rewrite{TTL: pick(r, 0, 1, 64, 254), DSCP: pick(r, 0, 1, 47, 64), MSS: pick(r, 0, 88, 536, 1300, 1460, 65534)}
	if !w.Any() {
		w.TTL = 10
	}
	return w
}

// TestRewritesAreThoseOfPktbuf rewrites random packets of new and known flows at
// all places, and compares every byte with what pktbuf makes of them.
func TestRewritesAreThoseOfPktbuf(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		seeds := uint64(60)
		if testing.Short() {
			seeds = 10 // an emulated machine is slow
		}
		for seed := range seeds {
			r := rand.New(rand.NewPCG(seed, 9))
			p := mustPolicy(t, "version: 1\nzones: { lan: [lan0], wan: [wan0] }\nrules:\n  - { name: all, action: accept }\n")
			w := randomRewrite(r)
			p.Rules[0].Rewrite = w
			f := b.load(p)
			for range 20 {
				pkt := randomPacket(r)
				if isError(&pkt) || isVital(&pkt) || pkt.later() || pkt.src == pkt.dst || len(pkt.vlans) > 2 {
					continue
				}
				// pktbuf refuses some chains of extension headers.
				if pkt.src.Is6() && len(pkt.extensions) > 0 {
					pkt.extensions = pick(r, []uint8{0}, []uint8{0, 60}, []uint8{60}, []uint8{43}, []uint8{51})
				}
				pkt.moreFrags, pkt.flags, pkt.options = false, syn, pick(r, tcpOptions...)
				b.rewrites(f, &pkt, w)
			}
		}
		return nil
	})
}

// rewrites sends a packet, its like, and the answer, both ways through the host and
// from the host itself.
func (b *bench) rewrites(f *Firewall, pkt *packet, w policy.Rewrite) {
	b.tb.Helper()
	onlyMSS := policy.Rewrite{MSS: w.MSS}
	answer := pkt.reply()
	if pkt.isEcho() {
		answer.icmpType = map[bool]uint8{true: 0, false: 129}[pkt.src.Is4()]
	}
	answer.flags = syn | ack
	ttl := 0
	if w.TTL != 0 {
		ttl = w.TTL + 1
	}
	arrives, leaves := f.objs.FwTc, f.objs.FwTcOut
	steps := []struct {
		what string
		prog *ebpf.Program
		p    *packet
		in   skb
		w    policy.Rewrite
		ttl  int
	}{
		{"new flow comes in", arrives, pkt, skb{Ifindex: b.lan}, w, ttl},
		{"it leaves", leaves, pkt, skb{Ifindex: b.wan, IngressIfindex: b.lan}, w, w.TTL},
		{"the answer comes in", arrives, &answer, skb{Ifindex: b.wan}, onlyMSS, 0},
		{"the answer leaves", leaves, &answer, skb{Ifindex: b.lan, IngressIfindex: b.wan}, onlyMSS, 0},
		{"known flow comes in", arrives, pkt, skb{Ifindex: b.lan}, w, ttl},
	}
	if pkt.isEcho() && (pkt.icmpType == 0 || pkt.icmpType == 129) {
		steps = steps[:2] // an answer has none
	}
	for _, s := range steps {
		frame := s.p.checked(b.tb)
		code, got := b.through(s.prog, frame, s.in)
		want := wantRewritten(b.tb, frame, s.w, s.ttl)
		if code != tcNext || !bytes.Equal(got, want) {
			b.tb.Fatalf("%s, %+v, verdict %d:\n   % x\ngot % x\nwant% x", s.what, w, code, frame, got, want)
		}
	}
	f.dropEntry(b.tb, pkt.flow())
	// From the host itself.
	frame := pkt.checked(b.tb)
	_, got := b.through(leaves, frame, skb{Ifindex: b.wan})
	if want := wantRewritten(b.tb, frame, w, w.TTL); !bytes.Equal(got, want) {
		b.tb.Fatalf("from the host, %+v:\n   % x\ngot % x\nwant% x", w, frame, got, want)
	}
	f.dropEntry(b.tb, pkt.flow())
}

// TestMSSFitsTheRoutes: with mss: pmtu a SYN announces what fits the smaller of the
// routes to both ends, whichever side sends it.
func TestMSSFitsTheRoutes(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		b := newBench(t)
		headers := 40
		if client.Is6() {
			headers = 60
		}
		b.host.MustDo(t, func() error {
			f := b.load(mustPolicy(t, "version: 1\nzones: { lan: [lan0], wan: [wan0] }\nrules:\n  - { name: all, action: accept, rewrite: { mss: pmtu } }\n"))
			open := tcp(client, server, 40000, 80, syn)
			open.options = []byte{2, 4, 0xff, 0x00}
			answer := open.reply()
			answer.flags, answer.options = syn|ack, open.options
			if got := announced(b, f.objs.FwTc, open, skb{Ifindex: b.lan}); got != 1500-headers {
				t.Errorf("by the interfaces a SYN announces %d, want %d", got, 1500-headers)
			}
			if err := b.host.RouteMTU(netip.PrefixFrom(server, server.BitLen()), "wan0", 1400); err != nil {
				return err
			}
			if err := b.host.RouteMTU(netip.PrefixFrom(client, client.BitLen()), "lan0", 1380); err != nil {
				return err
			}
			for what, got := range map[string]int{
				"SYN that comes in":     announced(b, f.objs.FwTc, open, skb{Ifindex: b.lan}),
				"SYN-ACK that comes in": announced(b, f.objs.FwTc, answer, skb{Ifindex: b.wan}),
				"SYN-ACK that leaves":   announced(b, f.objs.FwTcOut, answer, skb{Ifindex: b.lan, IngressIfindex: b.wan}),
				"SYN of the host's own": announced(b, f.objs.FwTcOut, tcpWithOptions(client, server, open.options), skb{Ifindex: b.wan}),
			} {
				if got != 1380-headers {
					t.Errorf("%s: announces %d, want %d", what, got, 1380-headers)
				}
			}
			small := tcpWithOptions(client, server, []byte{2, 4, 2, 0})
			if got := announced(b, f.objs.FwTc, small, skb{Ifindex: b.lan}); got != 512 {
				t.Errorf("512 became %d", got)
			}
			return nil
		})
	})
}

func tcpWithOptions(src, dst netip.Addr, options []byte) packet {
	p := tcp(src, dst, 40001, 80, syn)
	p.options = options
	return p
}

// announced is the MSS in the SYN that a program lets out, whose first option it is.
func announced(b *bench, prog *ebpf.Program, p packet, in skb) int {
	b.tb.Helper()
	code, out := b.through(prog, p.checked(b.tb), in)
	if code != tcNext || !testnet.ChecksumsOK(out) {
		b.tb.Errorf("verdict %d on % x", code, out)
	}
	return int(binary.BigEndian.Uint16(out[len(out)-2:]))
}
