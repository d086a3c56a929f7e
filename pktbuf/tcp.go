package pktbuf

import "encoding/binary"

// TCP flags.
const (
	FlagFIN = 1 << iota
	FlagSYN
	FlagRST
	FlagPSH
	FlagACK
	FlagURG
	FlagECE
	FlagCWR
)

// TCP is a TCP header with its options (RFC 9293).
type TCP []byte

// SrcPort returns the source port.
func (t TCP) SrcPort() uint16 { return binary.BigEndian.Uint16(t) }

// DstPort returns the destination port.
func (t TCP) DstPort() uint16 { return binary.BigEndian.Uint16(t[2:]) }

// Seq returns the sequence number.
func (t TCP) Seq() uint32 { return binary.BigEndian.Uint32(t[4:]) }

// Ack returns the acknowledgement number.
func (t TCP) Ack() uint32 { return binary.BigEndian.Uint32(t[8:]) }

// Len returns the header's length in bytes, options included.
func (t TCP) Len() int { return int(t[12]>>4) * 4 }

// Reserved returns the four bits between data offset and flags.
func (t TCP) Reserved() uint8 { return t[12] & 0x0f }

// Flags returns the flags from CWR down to FIN.
func (t TCP) Flags() uint8 { return t[13] }

// Window returns the window field, not scaled.
func (t TCP) Window() uint16 { return binary.BigEndian.Uint16(t[14:]) }

// Checksum returns the checksum.
func (t TCP) Checksum() uint16 { return binary.BigEndian.Uint16(t[16:]) }

// Urgent returns the urgent pointer.
func (t TCP) Urgent() uint16 { return binary.BigEndian.Uint16(t[18:]) }

// Options returns the options, empty if there are none.
func (t TCP) Options() Options { return Options(t[tcpLen:]) }
