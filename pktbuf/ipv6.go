package pktbuf

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv6Len         = 40
	ipv6FragmentLen = 8
)

// IPv6Header is an IPv6 header without extension headers (RFC 8200).
type IPv6Header []byte

// TrafficClass returns the traffic class octet: DSCP and ECN.
func (h IPv6Header) TrafficClass() uint8 { return h[0]<<4 | h[1]>>4 }

// DSCP returns the differentiated services code point (RFC 2474).
func (h IPv6Header) DSCP() uint8 { return h.TrafficClass() >> 2 }

// ECN returns the explicit congestion notification bits (RFC 3168).
func (h IPv6Header) ECN() uint8 { return h.TrafficClass() & 3 }

// FlowLabel returns the flow label, 20 bits.
func (h IPv6Header) FlowLabel() uint32 { return binary.BigEndian.Uint32(h) & 0x000fffff }

// PayloadLength returns the length of everything behind this header in bytes.
func (h IPv6Header) PayloadLength() int { return int(binary.BigEndian.Uint16(h[4:])) }

// NextHeader returns the type of the header that follows.
func (h IPv6Header) NextHeader() uint8 { return h[6] }

// HopLimit returns the hop limit.
func (h IPv6Header) HopLimit() uint8 { return h[7] }

// Src returns the source address.
func (h IPv6Header) Src() netip.Addr { return netip.AddrFrom16([16]byte(h[8:24])) }

// Dst returns the destination address.
func (h IPv6Header) Dst() netip.Addr { return netip.AddrFrom16([16]byte(h[24:40])) }

// IPv6Fragment is an IPv6 fragment header (RFC 8200 section 4.5).
type IPv6Fragment []byte

// NextHeader returns the type of the header that follows.
func (f IPv6Fragment) NextHeader() uint8 { return f[0] }

// Offset returns the fragment's offset in bytes.
func (f IPv6Fragment) Offset() int { return int(binary.BigEndian.Uint16(f[2:]) &^ 7) }

// More returns the M flag.
func (f IPv6Fragment) More() bool { return f[3]&1 != 0 }

// ID returns the identification field.
func (f IPv6Fragment) ID() uint32 { return binary.BigEndian.Uint32(f[4:]) }
