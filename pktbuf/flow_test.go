package pktbuf

import (
	"bytes"
	"net/netip"
	"testing"
)

var (
	flowA  = netip.MustParseAddrPort("192.0.2.1:5060")
	flowB  = netip.MustParseAddrPort("198.51.100.2:80")
	flowA6 = netip.MustParseAddrPort("[2001:db8::1]:5060")
	flowB6 = netip.MustParseAddrPort("[2001:db8:1::2]:80")
	mapped = netip.MustParseAddrPort("[::ffff:192.0.2.1]:5060") // IPv6, whatever it looks like
)

func TestFlowOf(t *testing.T) {
	for want, f := range map[string]Flow{
		"6 192.0.2.1:5060 > 198.51.100.2:80":               FlowOf(flowA, flowB, ProtoTCP),
		"17 [2001:db8::1]:5060 > [2001:db8:1::2]:80":       FlowOf(flowA6, flowB6, ProtoUDP),
		"17 [::ffff:192.0.2.1]:5060 > [2001:db8:1::2]:80":  FlowOf(mapped, flowB6, ProtoUDP),
		"0 invalid AddrPort > invalid AddrPort":            {},
		"255 [::ffff:192.0.2.1]:5060 > [2001:db8::1]:5060": FlowOf(mapped, flowA6, 255),
	} {
		if f.String() != want {
			t.Errorf("got %q, want %q", f, want)
		}
		if f == (Flow{}) {
			continue
		}
		src, dst := f.Src(), f.Dst()
		if f != FlowOf(src, dst, f.Proto()) || f.SrcPort() != src.Port() || f.DstPort() != dst.Port() {
			t.Errorf("%v: its parts make another flow", f)
		}
		if r := f.Reverse(); r == f || r.Src() != dst || r.Dst() != src || r.Proto() != f.Proto() || r.Reverse() != f {
			t.Errorf("%v: reverse %v", f, r)
		}
	}
}

// TestFlowsWithoutAFamily: what is no pair of endpoints makes the zero Flow.
func TestFlowsWithoutAFamily(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{flowA, flowB6}, {flowA6, flowB}, {flowA, mapped}, {{}, flowB}, {flowA6, {}}, {}} {
		if f := FlowOf(ends[0], ends[1], ProtoTCP); f != (Flow{}) || f.Src().IsValid() || f.Dst().IsValid() {
			t.Errorf("%v and %v: %v", ends[0], ends[1], f)
		}
	}
	if f := (Flow{}).Reverse(); f != (Flow{}) {
		t.Errorf("reverse of the zero flow: %v", f)
	}
	zone := netip.AddrPortFrom(flowA6.Addr().WithZone("eth0"), flowA6.Port())
	if FlowOf(zone, flowB6, ProtoTCP) != FlowOf(flowA6, flowB6, ProtoTCP) {
		t.Error("a zone makes another flow")
	}
}

// TestFlowsDiffer: flows that differ in anything are not equal, nor are their
// bytes. An IPv6 packet with an IPv4-mapped address is not of an IPv4 flow.
func TestFlowsDiffer(t *testing.T) {
	var all []Flow
	for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
		for _, ends := range [][2]netip.AddrPort{
			{flowA, flowB}, {flowB, flowA}, {flowA, flowA}, {flowA6, flowB6}, {flowB6, flowA6}, {mapped, mapped}, {flowA6, mapped},
			{netip.AddrPortFrom(flowA.Addr(), 1), flowB}, {flowA, netip.AddrPortFrom(flowB.Addr(), 1)},
		} {
			all = append(all, FlowOf(ends[0], ends[1], proto))
		}
	}
	for i, a := range all {
		for j, b := range all {
			if (a == b) != (i == j) || bytes.Equal(a.Bytes(), b.Bytes()) != (i == j) {
				t.Errorf("%v and %v: equal %v", a, b, a == b)
			}
		}
	}
}

// TestFlowLeavesNothing: a Flow that is filled in again keeps nothing of what it
// was, whichever way it is filled in.
func TestFlowLeavesNothing(t *testing.T) {
	for name, s := range specs() {
		p := build(s)
		v := mustView(t, family(p), p, 0)
		want, ok := v.Flow()
		f := usedFlow
		if known, _ := v.ParseFlow(&f); known != ok || f != want {
			t.Errorf("%s: ParseFlow: %v, want %v", name, f, want)
		}
		f = usedFlow
		if known := v.FlowTo(&f); known != ok || f != want {
			t.Errorf("%s: FlowTo: %v, want %v", name, f, want)
		}
	}
}

// TestFastPath: the way for the common packet agrees with the one for all.
func TestFastPath(t *testing.T) {
	for name, s := range specs() {
		s.payload = pattern(30, 0)
		p := build(s)
		for i := range min(len(p), 100) {
			for _, flip := range []byte{1, 2, 4, 0x10, 0x40, 0x80, 0xff} {
				sameParse(t, name, family(p), change(p, i, p[i]^flip))
				sameParse(t, name, family(p), change(p, i, p[i]^flip)[:i])
			}
		}
	}
}

// TestFastPathLengths: no length of the memory passes for another one, however
// long it is, nor does a family for the other.
func TestFastPathLengths(t *testing.T) {
	for _, ver := range []int{4, 6} {
		for _, proto := range []uint8{ProtoTCP, ProtoUDP} {
			l4 := udpHeader()
			if proto == ProtoTCP {
				l4 = tcpHeader()
			}
			p := build(spec{ver: ver, proto: proto, l4: l4, payload: pattern(30, 0)})
			long := append(append([]byte(nil), p...), make([]byte, 1<<17)...)
			for _, extra := range []int{0, 1, 0x100, 0x10000 - 1, 0x10000, 0x10000 + 0x100, 0x11000, 0x14000} {
				for _, as := range []Family{IPv4, IPv6, Bridge} {
					sameParse(t, "longer", as, long[:len(p)+extra])
				}
			}
		}
	}
}

// sameParse fails where ParseFlow and its slow twin differ.
func sameParse(tb testing.TB, name string, family Family, p []byte) {
	tb.Helper()
	a, b := View{pkt: p, family: family}, View{pkt: p, family: family}
	var fa, fb Flow
	okA, errA := a.ParseFlow(&fa)
	okB, errB := b.parseFlowAny(&fb)
	if errA != errB || a.state != b.state || fa != fb || okA != okB ||
		errA == nil && (a.proto != b.proto || a.l3 != b.l3 || a.l4 != b.l4 || a.pay != b.pay || a.end != b.end || a.payloadEnd() != b.payloadEnd()) {
		tb.Errorf("%s: %x: ParseFlow says %v %+v %v, parseFlowAny says %v %+v %v", name, p, errA, a, fa, errB, b, fb)
	}
	// InitIPv4 finds all of it or is Init alone, over whatever the view was.
	c, fc := used, usedFlow
	b = View{pkt: p, family: IPv4}
	okB, errB = b.parseFlowAny(&fb)
	if c.InitIPv4(p, &fc) {
		if !okB || fc != fb || c.state != b.state || c.proto != b.proto || c.l3 != b.l3 || c.l4 != b.l4 || c.pay != b.pay || c.end != b.end {
			tb.Errorf("%s: %x: InitIPv4 says %+v %v, parseFlowAny says %v %+v %v", name, p, c, fc, errB, b, fb)
		}
	} else if c.state != 0 || fc != usedFlow {
		tb.Errorf("%s: %x: InitIPv4 refuses and leaves %+v %v", name, p, c, fc)
	}
	if c.family != IPv4 || c.flags != 0 || len(c.pkt) != len(p) || cap(c.pkt) != cap(p) {
		tb.Errorf("%s: %x: InitIPv4 makes %+v", name, p, c)
	}
}

// used and usedFlow are what is left of an earlier packet.
var (
	used     = View{family: Bridge, flags: 0xff, state: 0xffff, proto: 0xff, l3: 0xff, l4: 0xffff, pay: 0xffff, frag: 0xffff, end: 0xffffffff, payEnd: 1}
	usedFlow = Flow{b: [flowLen]byte(bytes.Repeat([]byte{0xff}, flowLen))}
)
