package userspace

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

func keyOf(n int) *pktbuf.Flow {
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 1000)
	k := pktbuf.FlowOf(src, serverAddr, 6)
	return &k
}

// TestPlacesTellFlowsApart: what differs in a flow differs in its hash.
func TestPlacesTellFlowsApart(t *testing.T) {
	table := newFlows(1<<16, streamMax)
	tag := func(f pktbuf.Flow) uint32 { _, tag := table.place(&f); return tag }
	base := pktbuf.FlowOf(clientAddr, serverAddr, 6)
	for name, f := range map[string]pktbuf.Flow{
		"reverse":     base.Reverse(),
		"protocol":    pktbuf.FlowOf(clientAddr, serverAddr, 17),
		"source port": pktbuf.FlowOf(netip.AddrPortFrom(clientAddr.Addr(), 1), serverAddr, 6),
		"destination": pktbuf.FlowOf(clientAddr, netip.MustParseAddrPort("198.51.100.2:443"), 6),
	} {
		if tag(f) == tag(base) {
			t.Errorf("%s: same tag", name)
		}
	}
	if tag(base) != tag(base.Reverse().Reverse()) {
		t.Error("equal flows have different tags")
	}
}

// The table against a map, with as many flows as it always has room for.
func TestFlowsAgainstAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	table := newFlows(1<<16, streamMax)
	model := map[int]uint32{}
	for i := range 20000 {
		n := r.IntN(2000)
		f := table.find(keyOf(n))
		seq, known := model[n]
		if known != (f != nil) || known && f.seq != seq {
			t.Fatalf("step %d, flow %d: found %v, want %v", i, n, f, known)
		}
		switch {
		case known && r.IntN(2) == 0:
			table.remove(f)
			delete(model, n)
		case !known:
			f := table.insert(keyOf(n), 1)
			if f == nil {
				t.Fatalf("no room with %d flows", table.used)
			}
			f.seq = uint32(i)
			model[n] = uint32(i)
		}
		if table.used != len(model) {
			t.Fatalf("step %d: %d used, want %d", i, table.used, len(model))
		}
	}
}

// However many flows come, the table does not grow, waiting flows stay, and
// decided ones give way.
func TestWaitingFlowsAreNotPushedOut(t *testing.T) {
	table := newFlows(64, streamMax)
	waiting := 0
	for n := range 10000 {
		if f := table.insert(keyOf(n), int64(n)); f != nil {
			waiting++
		}
	}
	if waiting != 64 || table.used != 64 {
		t.Errorf("%d flows in a table of 64, %d used", waiting, table.used)
	}
	for n := range 10000 {
		if f := table.find(keyOf(n)); f != nil && n%2 == 0 {
			f.decided = true
		}
	}
	replaced := 0
	for n := 10000; n < 20000; n++ {
		if f := table.insert(keyOf(n), int64(n)); f != nil {
			replaced++
		}
	}
	for n := range 10000 {
		if f := table.find(keyOf(n)); f != nil {
			if f.decided {
				t.Error("a decided flow kept its place")
			}
			waiting--
		}
	}
	if replaced == 0 || waiting != replaced || table.used != 64 {
		t.Errorf("%d replaced, %d gone, %d used", replaced, waiting, table.used)
	}
}

func TestDecisionsLinger(t *testing.T) {
	for _, c := range []struct {
		f          flow
		now, empty int64
		want       bool
	}{
		{flow{decided: true, at: 0}, flowLinger + 1, 1, true},
		{flow{decided: true, at: 0}, flowLinger - 1, 1, false},
		{flow{decided: true, at: 5}, 1e12, 4, false}, // the socket was never empty since
		{flow{decided: true, kept: true}, 1e12, 1e11, false},
		{flow{}, 1e12, 1e11, false},
	} {
		if got := c.f.stale(c.now, c.empty); got != c.want {
			t.Errorf("%+v at %d, empty at %d: stale %v", c.f, c.now, c.empty, got)
		}
	}
}
