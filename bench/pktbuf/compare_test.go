package pktbuf_test

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/pktbuf"
)

var (
	rounds   = flag.Int("compare", 0, "measure Go and C side by side in `n` rounds, at least 5")
	duration = flag.Duration("each", 40*time.Millisecond, "how long to measure each thing in each round")
)

// The memory of the Go side is global, as a worker's is on the heap: a view that
// the compiler could keep in registers would not be measured.
var (
	view  pktbuf.View
	clone pktbuf.View
	flow  pktbuf.Flow
	seen  uint64
)

var (
	addrA = netip.MustParseAddr("203.0.113.1")
	addrB = netip.MustParseAddr("203.0.113.2")
)

// measurement is one thing that is measured.
type measurement struct {
	name  string
	size  int
	run   func(n int) // Go, nil where only C is measured
	c     uint32      // C, 0 where only Go is measured
	extra uint32      // room in C

	goNS, cNS []float64
}

// udpPacket is what both measure on.
func udpPacket(tb testing.TB, size int) []byte {
	return ipPacket(tb, 4, pktbuf.ProtoUDP, false, make([]byte, size-28))
}

// measurements returns all of them for packets of a size.
func measurements(tb testing.TB, size int) []*measurement {
	packet := udpPacket(tb, size)
	work := make([]byte, 4096)
	packet = work[:copy(work, packet):2000]
	room := make([]byte, 4096)
	head := make([]byte, 64)
	mangled := append(make([]byte, 0, 4096), packet...)
	rep := []byte("0123456789")
	check := func(ok bool) {
		if !ok {
			tb.Fatal("a measured call has failed")
		}
	}
	rewrite := func(n int) {
		check(view.Init(pktbuf.IPv4, packet, nil) == nil && view.Parse() == nil)
		for range n {
			ok := view.Clone(&clone, head) == nil
			ok = ok && clone.SetSrc(addrA) == nil && clone.SetDst(addrB) == nil
			ok = ok && clone.SetSrcPort(1) == nil && clone.SetDstPort(2) == nil && clone.DecrementTTL() == nil
			check(ok)
		}
	}
	return []*measurement{
		{name: "alloc + free, extra 0", size: size, c: opTimeAlloc},
		{name: "alloc + free, extra 255", size: size, c: opTimeAlloc, extra: 255},
		{name: "view in place / setup_raw", size: size, c: opTimeSetup, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil {
					tb.Fatal()
				}
			}
		}},
		{name: "view, parsed, flow", size: size, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil || view.Parse() != nil || !view.FlowTo(&flow) {
					tb.Fatal()
				}
			}
		}},
		{name: "copy with room", size: size, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil || view.Move(room[:size+255], 0) != nil {
					tb.Fatal()
				}
			}
		}},
		{name: "rewrite headers, shared", size: size, run: rewrite},
		{name: "replace in UDP, same length", size: size, c: opTimeSame, run: func(n int) {
			check(view.Init(pktbuf.IPv4, mangled, nil) == nil && view.Parse() == nil)
			for range n {
				check(view.ReplacePayload(3, 5, rep[:5]) == nil)
			}
		}},
		{name: "replace in UDP, 2 more, 2 less", size: size, c: opTimeOther, extra: 255, run: func(n int) {
			check(view.Init(pktbuf.IPv4, mangled, nil) == nil && view.Parse() == nil)
			for i := 0; i < n; i += 2 {
				check(view.ReplacePayload(3, 5, rep[:7]) == nil)
				check(view.ReplacePayload(3, 7, rep[:5]) == nil)
			}
		}},
		{name: "copy, parse, replace in UDP, 3 more", size: size, c: opTimePath, extra: 255, run: func(n int) {
			for range n {
				ok := view.Init(pktbuf.IPv4, packet, nil) == nil && view.Move(room[:size+255], 0) == nil
				check(ok && view.Parse() == nil && view.ReplacePayload(3, 5, rep[:8]) == nil)
			}
		}},
	}
}

// once measures one thing once, in C and in Go, and notes ns per operation.
func (m *measurement) once(tb testing.TB, p *peer) {
	tb.Helper()
	if m.c != 0 {
		packet := udpPacket(tb, m.size)
		r := request{Op: m.c, Offset: 3, MatchLen: 5, Extra: m.extra}
		c := func(n int) time.Duration {
			r.Rounds = uint32(n)
			a, _ := p.ask(tb, r, []byte("01234567"), packet)
			if a.Ret != 1 {
				tb.Fatalf("%s: the C library has failed", m.name)
			}
			return time.Duration(a.NS)
		}
		m.cNS = append(m.cNS, perOperation(c))
	}
	if m.run != nil {
		m.goNS = append(m.goNS, perOperation(func(n int) time.Duration {
			start := time.Now()
			m.run(n)
			return time.Since(start)
		}))
	}
}

// perOperation finds out how often to run f so that it takes long enough, and
// returns the time of one.
func perOperation(f func(n int) time.Duration) float64 {
	n := 1000
	for {
		took := f(n)
		if took >= *duration {
			return float64(took) / float64(n)
		}
		n = min(n*100, max(n*2, int(1.1*float64(n)*float64(*duration)/float64(max(took, 1)))))
		n += n & 1
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// ratio returns the median of the ratios round by round: what disturbs a round
// disturbs both sides of it.
func ratio(a, b []float64) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return median(r)
}

// TestCompare measures Go and C in turn and prints medians, ratios, allocations
// and how they stand to what is wanted of them. It does not fail on a time.
func TestCompare(t *testing.T) {
	if *rounds == 0 {
		t.Skip("measures only when asked to: -compare n")
	}
	p := mustPeer(t)
	a, _ := p.ask(t, request{Op: opHasSetup}, nil, []byte{0x45})
	if a.Ret == 0 {
		fmt.Println("pktb_setup_raw: not in this library, a stand-in that does the least it has to is measured")
	}
	sizes := []int{50, 1500}
	all := map[int][]*measurement{}
	for _, size := range sizes {
		all[size] = measurements(t, size)
	}
	for range max(5, *rounds) {
		for _, size := range sizes {
			for _, m := range all[size] {
				m.once(t, p)
			}
		}
	}
	fmt.Printf("medians of %d rounds, Go and C in turn; ns per operation\n", max(5, *rounds))
	fmt.Printf("%-36s %5s %9s %9s %7s %12s %7s\n", "", "bytes", "C", "Go", "Go/C", "Go/C alloc", "allocs")
	for _, size := range sizes {
		for _, m := range all[size] {
			m.print(all[size][0])
		}
	}
	wanted(all)
}

func (m *measurement) print(alloc *measurement) {
	column := func(ok bool, format string, value func() any) string {
		if !ok {
			return "-"
		}
		return fmt.Sprintf(format, value())
	}
	both := m.run != nil && m.c != 0
	fmt.Printf("%-36s %5d %9s %9s %7s %12s %7s\n", m.name, m.size,
		column(m.c != 0, "%.2f", func() any { return median(m.cNS) }),
		column(m.run != nil, "%.2f", func() any { return median(m.goNS) }),
		column(both, "%.2f", func() any { return ratio(m.goNS, m.cNS) }),
		column(m.run != nil, "%.1f %%", func() any { return 100 * ratio(m.goNS, alloc.cNS) }),
		column(m.run != nil, "%v", func() any { return testing.AllocsPerRun(1000, func() { m.run(2) }) }))
}

// wanted prints each figure that is wanted beside the one measured.
func wanted(all map[int][]*measurement) {
	find := func(size int, name string) *measurement {
		for _, m := range all[size] {
			if m.name == name {
				return m
			}
		}
		panic(name)
	}
	line := func(what string, got, limit float64) {
		word := "reached"
		if got > limit {
			word = "NOT reached"
		}
		fmt.Printf("%-66s %7.3f, at most %5.2f: %s\n", what, got, limit, word)
	}
	for _, size := range []int{50, 1500} {
		alloc := find(size, "alloc + free, extra 0").cNS
		part := func(name string, limits map[int]float64) {
			line(fmt.Sprintf("%s, %d bytes, part of C alloc + free", name, size), ratio(find(size, name).goNS, alloc), limits[size])
		}
		setup := find(size, "view in place / setup_raw")
		line(fmt.Sprintf("view in place, %d bytes, against C setup_raw", size), ratio(setup.goNS, setup.cNS), 1)
		part("view in place / setup_raw", map[int]float64{50: 0.06, 1500: 0.05})
		part("view, parsed, flow", map[int]float64{50: 0.15, 1500: 0.12})
		part("copy with room", map[int]float64{50: 0.20, 1500: 0.42})
		for _, name := range []string{"replace in UDP, same length", "replace in UDP, 2 more, 2 less", "copy, parse, replace in UDP, 3 more"} {
			m := find(size, name)
			line(fmt.Sprintf("%s, %d bytes, against C", name, size), ratio(m.goNS, m.cNS), 1)
		}
	}
	rewrite := "rewrite headers, shared"
	line("rewriting headers, 1500 bytes shared against 50 bytes", ratio(find(1500, rewrite).goNS, find(50, rewrite).goNS), 1.10)
}

func TestMedian(t *testing.T) {
	if median([]float64{3, 1, 2}) != 2 || median([]float64{4, 1, 2, 3}) != 2.5 {
		t.Error("median")
	}
	if ratio([]float64{1, 2, 30}, []float64{2, 4, 10}) != 0.5 {
		t.Error("ratio")
	}
}
