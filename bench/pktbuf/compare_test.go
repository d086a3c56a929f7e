package pktbuf_test

import (
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/pktbuf"
)

var (
	rounds   = flag.Int("rounds", 7, "measure Go and C in turn `n` times, at least 5")
	duration = flag.Duration("each", 40*time.Millisecond, "how long to measure each thing in each round")
)

// The memory of the Go side is global, as a worker's is on the heap: a view that
// the compiler could keep in registers would not be measured.
var (
	view  pktbuf.View
	clone pktbuf.View
	flow  pktbuf.Flow
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
	return ipPacket(tb, udp4, make([]byte, size-28))
}

const failed = "a measured call has failed"

// measurements returns all of them for packets of a size.
func measurements(tb testing.TB, size int) []*measurement {
	packet := append(make([]byte, 0, 4096), udpPacket(tb, size)...)
	return append(constructing(packet, size), changing(packet, size)...)
}

// constructing measures views, and where their time goes.
func constructing(packet []byte, size int) []*measurement {
	room := make([]byte, size+255)
	return []*measurement{
		{name: "alloc + free, extra 0", size: size, c: opTimeAlloc},
		{name: "alloc + free, extra 255", size: size, c: opTimeAlloc, extra: 255},
		{name: "view in place / setup_raw", size: size, c: opTimeSetup, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil {
					panic(failed)
				}
			}
		}},
		{name: "view, parsed, flow", size: size, run: func(n int) {
			for range n {
				if !view.InitIPv4(packet, &flow) {
					panic(failed)
				}
			}
		}},
		{name: "  the same by Init and ParseFlow", size: size, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil {
					panic(failed)
				}
				if ok, err := view.ParseFlow(&flow); !ok || err != nil {
					panic(failed)
				}
			}
		}},
		{name: "  of each: Init and an empty call", size: size, run: func(n int) {
			for range n {
				if view.Init(pktbuf.IPv4, packet, nil) != nil || emptyCall(&view) != pktbuf.IPv4 {
					panic(failed)
				}
			}
		}},
		{name: "  of it: Parse", size: size, run: func(n int) {
			view.Init(pktbuf.IPv4, packet, nil)
			for range n {
				if view.Parse() != nil {
					panic(failed)
				}
			}
		}},
		{name: "  of each: an empty call", size: size, run: func(n int) {
			for range n {
				if emptyCall(&view) != pktbuf.IPv4 {
					panic(failed)
				}
			}
		}},
		{name: "copy with room", size: size, run: func(n int) {
			for range n {
				if view.InitCopy(pktbuf.IPv4, packet, room) != nil {
					panic(failed)
				}
			}
		}},
		{name: "  of it: copy", size: size, run: func(n int) {
			for range n {
				copy(room, packet)
			}
		}},
	}
}

//go:noinline
func emptyCall(v *pktbuf.View) pktbuf.Family { return v.Family() }

// changing measures changes.
func changing(packet []byte, size int) []*measurement {
	room, head := make([]byte, size+255), make([]byte, 64)
	mangled := append(make([]byte, 0, size+255), packet...)
	rep := []byte("0123456789")
	start := func(p []byte) {
		if view.Init(pktbuf.IPv4, p, nil) != nil || view.Parse() != nil {
			panic(failed)
		}
	}
	return []*measurement{
		{name: "rewrite headers, shared", size: size, run: func(n int) {
			start(packet)
			for range n {
				if view.Clone(&clone, head) != nil || clone.SetSrc(addrA) != nil || clone.SetDst(addrB) != nil ||
					clone.SetSrcPort(1) != nil || clone.SetDstPort(2) != nil || clone.DecrementTTL() != nil {
					panic(failed)
				}
			}
		}},
		{name: "replace in UDP, same length", size: size, c: opTimeSame, run: func(n int) {
			start(mangled)
			for range n {
				if view.ReplacePayload(3, 5, rep[:5]) != nil {
					panic(failed)
				}
			}
		}},
		{name: "replace in UDP, 2 more, 2 less", size: size, c: opTimeOther, extra: 255, run: func(n int) {
			start(mangled)
			for i := 0; i < n; i += 2 {
				if view.ReplacePayload(3, 5, rep[:7]) != nil || view.ReplacePayload(3, 7, rep[:5]) != nil {
					panic(failed)
				}
			}
		}},
		{name: "copy, parse, replace in UDP, 3 more", size: size, c: opTimePath, extra: 255, run: func(n int) {
			for range n {
				if view.InitCopy(pktbuf.IPv4, packet, room) != nil || view.Parse() != nil ||
					view.ReplacePayload(3, 5, rep[:8]) != nil {
					panic(failed)
				}
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
			start := cpuTime(tb)
			m.run(n)
			return cpuTime(tb) - start
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

// cpuTime returns the CPU time of this thread, as peer.c measures it: on a shared
// machine the wall clock also counts what others do in between.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		tb.Fatalf("reading the thread's CPU time: %v", err)
	}
	return time.Duration(t.Nano())
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

// BenchmarkCompare measures Go and C in turn and prints medians, ratios,
// allocations and how they stand to what is wanted of them. It does its own
// timing, so run it once (-benchtime 1x). It does not fail on a time.
func BenchmarkCompare(t *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
	fmt.Printf("medians of %d rounds, Go and C in turn; ns of CPU time per operation\n", max(5, *rounds))
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
		fmt.Printf("%-78s %7.3f, at most %5.2f: %s\n", what, got, limit, word)
	}
	for _, size := range []int{50, 1500} {
		alloc := find(size, "alloc + free, extra 0").cNS
		part := func(name string, limits map[int]float64) {
			what, _, _ := strings.Cut(name, " (")
			line(fmt.Sprintf("%s, %d bytes, part of C alloc + free", name, size), ratio(find(size, what).goNS, alloc), limits[size])
		}
		setup := find(size, "view in place / setup_raw")
		line(fmt.Sprintf("view in place, %d bytes, against C setup_raw", size), ratio(setup.goNS, setup.cNS), 1)
		part("view in place / setup_raw", map[int]float64{50: 0.06, 1500: 0.05})
		part("view, parsed, flow", map[int]float64{50: 0.15, 1500: 0.12})
		part("copy with room", map[int]float64{50: 0.20, 1500: 0.42})
		alloc = find(size, "alloc + free, extra 255").cNS
		part("copy with room (C with the same room)", map[int]float64{50: 0.20, 1500: 0.42})
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
