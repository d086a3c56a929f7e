package pktbuf

import "encoding/binary"

// EtherTypes that Parse knows.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeVLAN = 0x8100
	EtherTypeIPv6 = 0x86dd
	EtherTypeQinQ = 0x88a8
)

const (
	ethernetLen = 14
	vlanLen     = 4
	maxVLANs    = 2
)

// Ethernet is an Ethernet header with the VLAN tags that follow it.
type Ethernet []byte

// Dst returns the destination address, 6 bytes.
func (e Ethernet) Dst() []byte { return e[0:6] }

// Src returns the source address, 6 bytes.
func (e Ethernet) Src() []byte { return e[6:12] }

// EtherType returns the type of what follows the header and its tags.
func (e Ethernet) EtherType() uint16 { return binary.BigEndian.Uint16(e[len(e)-2:]) }

// VLANs returns the number of VLAN tags.
func (e Ethernet) VLANs() int { return (len(e) - ethernetLen) / vlanLen }

// VLAN returns tag i, 0 being the outermost.
func (e Ethernet) VLAN(i int) VLAN { return VLAN(e[12+vlanLen*i : 16+vlanLen*i]) }

// VLAN is one tag: its protocol identifier and its control information
// (IEEE 802.1Q).
type VLAN []byte

// TPID returns the tag protocol identifier, 0x8100 or 0x88a8.
func (t VLAN) TPID() uint16 { return binary.BigEndian.Uint16(t) }

// Priority returns the priority code point.
func (t VLAN) Priority() uint8 { return t[2] >> 5 }

// DropEligible returns the drop eligible indicator.
func (t VLAN) DropEligible() bool { return t[2]&0x10 != 0 }

// ID returns the VLAN identifier.
func (t VLAN) ID() uint16 { return binary.BigEndian.Uint16(t[2:]) & 0x0fff }
