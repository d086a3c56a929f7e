package pktbuf

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv4Len      = 20
	ipMaxLen     = 0xffff
	ipv4MoreBit  = 0x2000
	ipv4DontBit  = 0x4000
	ipv4FragMask = 0x1fff
)

// IPv4 option types with a meaning here (RFC 791).
const (
	IPv4OptEnd         = 0
	IPv4OptNop         = 1
	IPv4OptRecordRoute = 7
	IPv4OptTimestamp   = 68
	IPv4OptLooseRoute  = 131
	IPv4OptStrictRoute = 137
	IPv4OptRouterAlert = 148
)

// IPv4Header is an IPv4 header with its options (RFC 791).
type IPv4Header []byte

// Len returns the header's length in bytes, options included.
func (h IPv4Header) Len() int { return int(h[0]&0x0f) * 4 }

// TOS returns the type of service octet: DSCP and ECN.
func (h IPv4Header) TOS() uint8 { return h[1] }

// DSCP returns the differentiated services code point (RFC 2474).
func (h IPv4Header) DSCP() uint8 { return h[1] >> 2 }

// ECN returns the explicit congestion notification bits (RFC 3168).
func (h IPv4Header) ECN() uint8 { return h[1] & 3 }

// TotalLength returns the length of header and payload in bytes.
func (h IPv4Header) TotalLength() int { return int(binary.BigEndian.Uint16(h[2:])) }

// ID returns the identification field.
func (h IPv4Header) ID() uint16 { return binary.BigEndian.Uint16(h[4:]) }

// DontFragment returns the DF flag.
func (h IPv4Header) DontFragment() bool { return h[6]&0x40 != 0 }

// MoreFragments returns the MF flag.
func (h IPv4Header) MoreFragments() bool { return h[6]&0x20 != 0 }

// FragmentOffset returns the fragment's offset in bytes.
func (h IPv4Header) FragmentOffset() int {
	return int(binary.BigEndian.Uint16(h[6:])&ipv4FragMask) * 8
}

// TTL returns the time to live.
func (h IPv4Header) TTL() uint8 { return h[8] }

// Protocol returns the protocol number of the payload.
func (h IPv4Header) Protocol() uint8 { return h[9] }

// Checksum returns the header checksum.
func (h IPv4Header) Checksum() uint16 { return binary.BigEndian.Uint16(h[10:]) }

// Src returns the source address.
func (h IPv4Header) Src() netip.Addr { return netip.AddrFrom4([4]byte(h[12:16])) }

// Dst returns the destination address.
func (h IPv4Header) Dst() netip.Addr { return netip.AddrFrom4([4]byte(h[16:20])) }

// Options returns the options, empty if there are none.
func (h IPv4Header) Options() Options { return Options(h[ipv4Len:]) }
