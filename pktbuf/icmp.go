package pktbuf

import "encoding/binary"

// ICMP message types with a meaning here.
const (
	ICMPEchoReply        = 0
	ICMPUnreachable      = 3
	ICMPSourceQuench     = 4
	ICMPRedirect         = 5
	ICMPEchoRequest      = 8
	ICMPTimeExceeded     = 11
	ICMPParameterProblem = 12

	ICMPv6Unreachable      = 1
	ICMPv6PacketTooBig     = 2
	ICMPv6TimeExceeded     = 3
	ICMPv6ParameterProblem = 4
	ICMPv6EchoRequest      = 128
	ICMPv6EchoReply        = 129
)

// ICMP is an ICMP message (RFC 792), header and body.
type ICMP []byte

// Type returns the message type.
func (m ICMP) Type() uint8 { return m[0] }

// Code returns the message code.
func (m ICMP) Code() uint8 { return m[1] }

// Checksum returns the checksum.
func (m ICMP) Checksum() uint16 { return binary.BigEndian.Uint16(m[2:]) }

// ID returns the identifier of an echo message.
func (m ICMP) ID() uint16 { return binary.BigEndian.Uint16(m[4:]) }

// Seq returns the sequence number of an echo message.
func (m ICMP) Seq() uint16 { return binary.BigEndian.Uint16(m[6:]) }

// MTU returns the next hop's MTU of an unreachable message with code 4
// (RFC 1191).
func (m ICMP) MTU() uint16 { return binary.BigEndian.Uint16(m[6:]) }

// IsEcho reports whether the message is an echo request or reply.
func (m ICMP) IsEcho() bool { return m[0] == ICMPEchoRequest || m[0] == ICMPEchoReply }

// IsError reports whether the message quotes the packet that it is about.
func (m ICMP) IsError() bool {
	switch m[0] {
	case ICMPUnreachable, ICMPSourceQuench, ICMPRedirect, ICMPTimeExceeded, ICMPParameterProblem:
		return true
	}
	return false
}

// ICMPv6 is an ICMPv6 message (RFC 4443), header and body. It has at least four
// bytes, echo messages and errors at least eight.
type ICMPv6 []byte

// Type returns the message type.
func (m ICMPv6) Type() uint8 { return m[0] }

// Code returns the message code.
func (m ICMPv6) Code() uint8 { return m[1] }

// Checksum returns the checksum.
func (m ICMPv6) Checksum() uint16 { return binary.BigEndian.Uint16(m[2:]) }

// ID returns the identifier of an echo message.
func (m ICMPv6) ID() uint16 { return binary.BigEndian.Uint16(m[4:]) }

// Seq returns the sequence number of an echo message.
func (m ICMPv6) Seq() uint16 { return binary.BigEndian.Uint16(m[6:]) }

// MTU returns the MTU of a packet too big message.
func (m ICMPv6) MTU() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// IsEcho reports whether the message is an echo request or reply.
func (m ICMPv6) IsEcho() bool { return m[0] == ICMPv6EchoRequest || m[0] == ICMPv6EchoReply }

// IsError reports whether the message quotes the packet that it is about: types
// below 128 (RFC 4443 section 2.1).
func (m ICMPv6) IsError() bool { return m[0] < 128 }

// ICMP returns the ICMP message, nil if there is none.
func (v *View) ICMP() ICMP {
	if v.state&hasICMP == 0 {
		return nil
	}
	return ICMP(v.Transport())
}

// ICMPv6 returns the ICMPv6 message, nil if there is none.
func (v *View) ICMPv6() ICMPv6 {
	if v.state&hasICMPv6 == 0 {
		return nil
	}
	return ICMPv6(v.Transport())
}

// Quoted makes q a view over the packet that an ICMP or ICMPv6 error quotes, and
// parses it. Quotes are cut: the first eight bytes of the transport header are
// all that must be there (RFC 792, RFC 4443), so q has a Flow but often no
// transport header. The quote cannot be changed through q.
func (v *View) Quoted(q *View) error {
	var family Family
	if m := v.ICMP(); m != nil && m.IsError() {
		family = IPv4
	} else if m := v.ICMPv6(); m != nil && m.IsError() {
		family = IPv6
	} else {
		return ErrProto
	}
	data := v.Payload()
	if len(data) == 0 {
		data = v.PayloadRest()
	}
	*q = View{pkt: data, family: family, flags: flagCut | flagShared}
	return q.Parse()
}
