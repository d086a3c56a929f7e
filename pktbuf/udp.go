package pktbuf

import "encoding/binary"

// UDP is a UDP header (RFC 768).
type UDP []byte

// SrcPort returns the source port.
func (u UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(u) }

// DstPort returns the destination port.
func (u UDP) DstPort() uint16 { return binary.BigEndian.Uint16(u[2:]) }

// Length returns the length of header and payload in bytes.
func (u UDP) Length() int { return int(binary.BigEndian.Uint16(u[4:])) }

// Checksum returns the checksum; 0 is a packet sent without one.
func (u UDP) Checksum() uint16 { return binary.BigEndian.Uint16(u[6:]) }
