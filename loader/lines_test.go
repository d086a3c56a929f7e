package loader

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// clusteredPrefix makes a prefix that is likely near others: few bits are random.
func clusteredPrefix(r *rand.Rand, v6 bool) netip.Prefix {
	if !v6 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], pick[uint32](r, 0, 0x0a000000, 0xc0000200, 0xfffff000)|r.Uint32()&pick[uint32](r, 0xff, 0xfff, 0x00ffffff, 0xffffffff))
		return netip.PrefixFrom(netip.AddrFrom4(b), pick(r, 32, 32, 31, 32-r.IntN(12), r.IntN(33))).Masked()
	}
	var b [16]byte
	copy(b[:], netip.MustParseAddr(pick(r, "::", "2001:db8::", "2001:db8:0:1::", "2001:db8::ffff:ffff:0:0",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:0")).AsSlice())
	for i := pick(r, 15, 14, 7, 5, 3); i < 16; i += pick(r, 1, 2, 8) {
		b[i] = byte(r.Uint32())
	}
	p := netip.PrefixFrom(netip.AddrFrom16(b), pick(r, 128, 128, 127, 64, 128-r.IntN(70), r.IntN(129))).Masked()
	if p.Addr().Is4In6() {
		return netip.MustParsePrefix("2001:db8::/32")
	}
	return p
}

// around gives the addresses at which answers may change: both ends of a prefix,
// and what is beside them.
func around(p netip.Prefix) []netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	var all []netip.Addr
	for _, a := range []netip.Addr{p.Addr(), p.Addr().Prev(), p.Addr().Next(), end, end.Prev(), end.Next()} {
		if a.IsValid() && !a.Is4In6() {
			all = append(all, a)
		}
	}
	return all
}

// TestLargeListsMeanWhatTheySay holds fw_xdp's answers about sources against the
// policy's plain meaning, with lists that overlap and fill many lines.
func TestLargeListsMeanWhatTheySay(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		for _, size := range []int{1, 8, 9, 120, 1500} {
			r := rand.New(rand.NewPCG(uint64(size), 11))
			p := mustPolicy(t, basePolicy)
			p.Rules = nil
			var prefixes []netip.Prefix
			for i := range 9 {
				list := &policy.List{Name: fmt.Sprint("l", i), Type: policy.ListCIDR}
				for range size {
					list.Prefixes = append(list.Prefixes, clusteredPrefix(r, r.IntN(2) == 0))
				}
				prefixes = append(prefixes, list.Prefixes...)
				p.Rules = append(p.Rules, policy.Rule{Name: list.Name,
					Src:    policy.AddrMatch{Lists: []*policy.List{list}, Not: i == 7},
					Action: []policy.Action{policy.ActionAccept, policy.ActionDrop}[i%2]})
			}
			edges := []string{"0.0.0.0/32", "255.255.255.255/32", "::/128", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "2001:db8::/32"}
			for i, edge := range edges {
				prefix := netip.MustParsePrefix(edge)
				prefixes = append(prefixes, prefix)
				p.Rules[i].Src.Prefixes = append(p.Rules[i].Src.Prefixes, prefix)
			}
			f := b.load(p)
			asked, dropped := 0, 0
			for _, prefix := range prefixes[max(0, len(prefixes)-1000):] {
				for _, src := range around(prefix) {
					pkt := tcp(src, server4, 40000, 80, syn)
					if src.Is6() {
						pkt.dst = server6
					}
					want := uint32(xdpPass)
					if wantDrop(p, &pkt, zoneLan) {
						want = xdpDrop
						dropped++
					}
					asked++
					if got := b.xdp(f, pkt.frame(), b.lan); got != want {
						t.Fatalf("%d prefixes a list: source %v: fw_xdp gives %d, want %d by %+v", size, src, got, want, p.Match(pkt.asPolicy(zoneLan, policy.ZoneNone)))
					}
				}
			}
			if dropped == 0 || dropped == asked {
				t.Errorf("%d prefixes a list: %d of %d sources are dropped: nothing is shown", size, dropped, asked)
			}
		}
		return nil
	})
}

// TestRangesAreTheLongestPrefix flattens random prefixes, and asks for each answer
// as a plain search for the longest prefix gives it.
func TestRangesAreTheLongestPrefix(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		v6 := seed%2 == 0
		root := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		width := 1
		if v6 {
			root, width = netip.PrefixFrom(netip.IPv6Unspecified(), 0), len(words{})
		}
		pool := newSetPool(64)
		own := []addrSet{{root, pool.number(pool.empty())}}
		for i := range r.IntN(40) {
			s := pool.empty()
			s.add(i % 5)
			own = append(own, addrSet{clusteredPrefix(r, v6), pool.number(s)})
		}
		table := pool.inherit(append([]addrSet(nil), own...))
		ranges := flatten(table.prefixes, width)
		for _, o := range own {
			for _, a := range around(o.prefix) {
				want := pool.empty()
				for _, p := range own {
					if p.prefix.Contains(a) {
						want = union(want, pool.sets[p.set])
					}
				}
				got := uint32(noHost)
				for _, s := range table.hosts {
					if s.prefix.Addr() == a {
						got = s.set
					}
				}
				for i := 0; got == noHost; i++ {
					if i+1 == len(ranges) || compareWords(ranges[i+1].from, wordsOf(a)) > 0 {
						got = ranges[i].set
					}
				}
				if n := pool.number(want); n != got {
					t.Fatalf("seed %d: %v has set %v, want %v", seed, a, pool.sets[got], want)
				}
			}
		}
	}
}
