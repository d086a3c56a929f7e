package loader

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// Return values of programs, linux/pkt_cls.h and linux/bpf.h.
const (
	tcNext  = 0xffffffff // TC_ACT_UNSPEC
	tcDrop  = 2
	xdpDrop = 1
	xdpPass = 2
)

// skb is the part of struct __sk_buff that test runs may set and read.
type skb struct {
	Len, PktType, Mark, QueueMapping, Protocol uint32
	VlanPresent, VlanTCI, VlanProto, Priority  uint32
	IngressIfindex, Ifindex                    uint32
	_                                          [37]uint32 // to the struct's 192 bytes
}

// bench is a host with two guarded interfaces, on which programs are run without
// being attached.
type bench struct {
	tb       testing.TB
	net      *testnet.Routed
	host     *testnet.Host
	lan, wan uint32 // ifindex
	foreign  uint32 // interface without a zone
}

const (
	zoneLan policy.ZoneID = 1
	zoneWan policy.ZoneID = 2
)

func newBench(tb testing.TB) *bench {
	tb.Helper()
	r := testnet.MustRouted(tb, testnet.RoutedOptions{StaticNeighbours: true})
	b := &bench{tb: tb, net: r, host: r.Firewall}
	b.lan = b.index("lan0")
	b.wan = b.index("wan0")
	b.foreign = b.index("lo")
	return b
}

func (b *bench) index(name string) uint32 {
	b.tb.Helper()
	i, err := b.host.Index(name)
	if err != nil {
		b.tb.Fatal(err)
	}
	return uint32(i)
}

// load loads a policy whose zones are lan and wan, in this order.
func (b *bench) load(p *policy.Policy) *Firewall {
	b.tb.Helper()
	f, err := Load(p, Options{Flows: 4096, HalfOpen: 4096})
	if err != nil {
		b.tb.Fatalf("loading: %+v", err)
	}
	b.tb.Cleanup(func() { f.Close() })
	b.enter(f)
	return f
}

// enter puts the two interfaces into their zones.
func (b *bench) enter(f *Firewall) {
	b.tb.Helper()
	err := errors.Join(
		f.objs.Zones.Put(b.lan, uint8(zoneLan)),
		f.objs.Zones.Put(b.wan, uint8(zoneWan)))
	if err != nil {
		b.tb.Fatal(err)
	}
}

// tc runs fw_tc or fw_tc_out over a frame. The namespace is that of the thread.
func (b *bench) tc(prog *ebpf.Program, frame []byte, in skb) (code uint32, out skb) {
	b.tb.Helper()
	code, err := prog.Run(&ebpf.RunOptions{Data: frame, Context: in, ContextOut: &out, Repeat: 1})
	if err != nil {
		b.tb.Fatalf("running %v: %v", prog, err)
	}
	return code, out
}

// xdpMd is struct xdp_md.
type xdpMd struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

func (b *bench) xdp(f *Firewall, frame []byte, ifindex uint32) uint32 {
	b.tb.Helper()
	in := xdpMd{DataEnd: uint32(len(frame)), IngressIfindex: ifindex}
	code, err := f.objs.FwXdp.Run(&ebpf.RunOptions{Data: frame, Context: in, Repeat: 1})
	if err != nil {
		b.tb.Fatalf("running fw_xdp: %v", err)
	}
	return code
}

// entry reads a flow's entry; ok is false where there is none.
func (f *Firewall) entry(tb testing.TB, flow pktbuf.Flow) (e gen.FWFlow, ok bool) {
	tb.Helper()
	key, _ := encodeFlow(flow)
	err := f.objs.Flows.Lookup(key, &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = f.objs.HalfOpen.Lookup(key, &e)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		tb.Fatal(err)
	}
	return e, err == nil
}

func (f *Firewall) dropEntry(tb testing.TB, flow pktbuf.Flow) {
	tb.Helper()
	key, _ := encodeFlow(flow)
	for _, table := range []*ebpf.Map{f.objs.Flows, f.objs.HalfOpen} {
		if err := table.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			tb.Fatal(err)
		}
	}
}

// sum reads the counters and adds up those that match.
func (f *Firewall) sum(tb testing.TB, hook, verdict, reason string) uint64 {
	tb.Helper()
	stats, err := f.Stats()
	if err != nil {
		tb.Fatal(err)
	}
	return stats.Sum(hook, verdict, reason)
}
