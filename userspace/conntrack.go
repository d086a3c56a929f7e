package userspace

import (
	"encoding/binary"
	"net/netip"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// Nested attributes of NFQA_CT, include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaTupleOrig = 1

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
)

// ctReply is the lowest connection state of packets in the reply direction
// (IP_CT_IS_REPLY, enum ip_conntrack_info).
const ctReply = 3

// originalFlow is a packet's flow under the addresses that it came to this host
// with, where conntrack knows it: the kernel half saw those, while a packet in a
// queue has been through destination NAT. Without an entry, or with one that is
// not the packet's, it is the packet's own flow.
func originalFlow(packet pktbuf.Flow, ct []byte, info uint32) pktbuf.Flow {
	var src, dst netip.Addr
	var sport, dport uint16
	proto := -1
	for typ, v := range attributes(attribute(ct, ctaTupleOrig)) {
		for field, v := range attributes(v) {
			switch {
			case typ == ctaTupleIP && (field == ctaIPv4Src || field == ctaIPv6Src):
				src, _ = netip.AddrFromSlice(v)
			case typ == ctaTupleIP && (field == ctaIPv4Dst || field == ctaIPv6Dst):
				dst, _ = netip.AddrFromSlice(v)
			case typ == ctaTupleProto && field == ctaProtoNum && len(v) >= 1:
				proto = int(v[0])
			case typ == ctaTupleProto && field == ctaProtoSrcPort && len(v) >= 2:
				sport = binary.BigEndian.Uint16(v)
			case typ == ctaTupleProto && field == ctaProtoDstPort && len(v) >= 2:
				dport = binary.BigEndian.Uint16(v)
			}
		}
	}
	if !src.IsValid() || src.BitLen() != dst.BitLen() || proto != int(packet.Proto()) {
		return packet
	}
	flow := pktbuf.FlowOf(netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport), packet.Proto())
	if info >= ctReply {
		return flow.Reverse()
	}
	return flow
}

// attribute returns the first attribute of a type, nil where there is none.
func attribute(b []byte, want uint16) []byte {
	for typ, v := range attributes(b) {
		if typ == want {
			return v
		}
	}
	return nil
}

// attributes walks netlink attributes as far as they are sound.
func attributes(b []byte) func(yield func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHeader || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[attrHeader:n]) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}
