package userspace

import (
	"net/netip"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// tuple builds NFQA_CT's value with the original tuple of a flow.
func tuple(f pktbuf.Flow) []byte {
	src, dst := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if f.Src().Addr().Is6() {
		src, dst = ctaIPv6Src, ctaIPv6Dst
	}
	ip := append(attr(src, f.Src().Addr().AsSlice()), attr(dst, f.Dst().Addr().AsSlice())...)
	proto := append(attr(ctaProtoNum, []byte{f.Proto()}), attr(ctaProtoSrcPort, be16(f.Src().Port()))...)
	proto = append(proto, attr(ctaProtoDstPort, be16(f.Dst().Port()))...)
	status := attr(3, []byte{0, 0, 1, 8}) // CTA_STATUS, in front
	return append(status, attr(ctaTupleOrig, append(attr(ctaTupleIP, ip), attr(ctaTupleProto, proto)...))...)
}

func be16(v uint16) []byte { return []byte{byte(v >> 8), byte(v)} }

func TestDecisionsNameTheFlowBeforeNAT(t *testing.T) {
	for _, c := range []struct{ client, host, server string }{
		{"192.0.2.2:40000", "198.51.100.1:8443", "203.0.113.7:443"},
		{"[2001:db8::2]:40000", "[2001:db8:1::1]:8443", "[2001:db8:2::7]:443"},
	} {
		original := pktbuf.FlowOf(netip.MustParseAddrPort(c.client), netip.MustParseAddrPort(c.host), pktbuf.ProtoTCP)
		queued := pktbuf.FlowOf(original.Src(), netip.MustParseAddrPort(c.server), pktbuf.ProtoTCP)
		ct := tuple(original)
		if got := originalFlow(queued, ct, 2); got != original {
			t.Errorf("got %v, want %v", got, original)
		}
		if got := originalFlow(queued.Reverse(), ct, ctReply); got != original.Reverse() {
			t.Errorf("reply: got %v, want %v", got, original.Reverse())
		}
		other := pktbuf.FlowOf(queued.Src(), queued.Dst(), pktbuf.ProtoUDP)
		if got := originalFlow(other, ct, 2); got != other {
			t.Errorf("with an entry of another protocol: got %v, want the packet's own flow", got)
		}
		// However the entry is cut: its flow, or the packet's own, nothing mixed.
		for n := range ct {
			if got := originalFlow(queued, ct[:n], 0); got != queued && got != original {
				t.Errorf("entry cut to %d bytes: got %v", n, got)
			}
		}
		if n := testing.AllocsPerRun(100, func() { originalFlow(queued, ct, 2) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
