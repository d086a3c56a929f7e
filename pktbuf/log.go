package pktbuf

import (
	"net/netip"
	"strconv"
)

// AppendLog appends the packet's headers to b in the words of the kernel's LOG
// target, as in "SRC=192.0.2.1 DST=198.51.100.2 LEN=32 TTL=64 PROTO=UDP
// SPT=5060 DPT=53". It does not allocate where b has the capacity.
func (v *View) AppendLog(b []byte) []byte {
	switch {
	case v.state&hasIPv4 != 0:
		h := v.IPv4()
		b = appendAddrs(b, h.Src(), h.Dst())
		b = appendField(b, " LEN=", uint64(h.TotalLength()))
		b = appendHex(b, " TOS=0x", h.TOS())
		b = appendField(b, " TTL=", uint64(h.TTL()))
		b = appendField(b, " ID=", uint64(h.ID()))
		if h.DontFragment() {
			b = append(b, " DF"...)
		}
	case v.state&hasIPv6 != 0:
		h := v.IPv6()
		b = appendAddrs(b, h.Src(), h.Dst())
		b = appendField(b, " LEN=", uint64(h.PayloadLength()+ipv6Len))
		b = appendHex(b, " TC=0x", h.TrafficClass())
		b = appendField(b, " HOPLIMIT=", uint64(h.HopLimit()))
		b = appendField(b, " FLOWLBL=", uint64(h.FlowLabel()))
	default:
		return b
	}
	if offset, more := v.Fragment(); offset != 0 || more {
		b = appendField(b, " FRAG:", uint64(offset))
	}
	return v.appendTransport(b)
}

func (v *View) appendTransport(b []byte) []byte {
	switch {
	case v.state&hasTCP != 0:
		t := v.TCP()
		b = append(b, " PROTO=TCP"...)
		b = appendPorts(b, t.SrcPort(), t.DstPort())
		b = appendField(b, " SEQ=", uint64(t.Seq()))
		b = appendField(b, " ACK=", uint64(t.Ack()))
		b = appendField(b, " WINDOW=", uint64(t.Window()))
		for i, name := range tcpFlagNames {
			if t.Flags()&(1<<i) != 0 {
				b = append(b, name...)
			}
		}
		return b
	case v.state&hasUDP != 0:
		u := v.UDP()
		b = append(b, " PROTO=UDP"...)
		b = appendPorts(b, u.SrcPort(), u.DstPort())
		return appendField(b, " LEN=", uint64(u.Length()))
	case v.state&(hasICMP|hasICMPv6) != 0:
		m := v.Transport()
		b = append(b, " PROTO=ICMP"...)
		if v.state&hasICMPv6 != 0 {
			b = append(b, "v6"...)
		}
		b = appendField(b, " TYPE=", uint64(m[0]))
		return appendField(b, " CODE=", uint64(m[1]))
	}
	return appendField(b, " PROTO=", uint64(v.proto))
}

var tcpFlagNames = [8]string{" FIN", " SYN", " RST", " PSH", " ACK", " URG", " ECE", " CWR"}

func appendAddrs(b []byte, src, dst netip.Addr) []byte {
	b = src.AppendTo(append(b, "SRC="...))
	return dst.AppendTo(append(b, " DST="...))
}

func appendPorts(b []byte, src, dst uint16) []byte {
	return appendField(appendField(b, " SPT=", uint64(src)), " DPT=", uint64(dst))
}

func appendField(b []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(b, name...), value, 10)
}

func appendHex(b []byte, name string, value uint8) []byte {
	const digits = "0123456789ABCDEF"
	b = append(b, name...)
	return append(b, digits[value>>4], digits[value&15])
}
