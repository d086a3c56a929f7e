package pcap

import "encoding/binary"

// LinkType says what a packet's bytes start with (the LINKTYPE_ values of
// tcpdump.org/linktypes.html).
type LinkType uint16

const (
	LinkNull      LinkType = 0   // BSD loopback, a family in the host's byte order
	LinkEthernet  LinkType = 1   // Ethernet
	LinkRaw       LinkType = 101 // IPv4 or IPv6
	LinkLoop      LinkType = 108 // OpenBSD loopback, a family in network byte order
	LinkLinuxSLL  LinkType = 113 // Linux cooked capture
	LinkIPv4      LinkType = 228
	LinkIPv6      LinkType = 229
	LinkLinuxSLL2 LinkType = 276 // Linux cooked capture, version 2

	linkRawBSD  LinkType = 12 // DLT_RAW as some systems write it into files
	linkRawOBSD LinkType = 14
)

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// Network returns the EtherType of what follows the packet's link header, and
// the bytes from there on. VLAN tags are not skipped: their EtherType is
// returned. ok is false for a link type that is not known and for a packet that
// ends in its link header.
func (p Packet) Network() (etherType uint16, data []byte, ok bool) {
	b := p.Data
	switch p.Link {
	case LinkEthernet:
		return typed(b, 12, 14)
	case LinkLinuxSLL:
		return typed(b, 14, 16)
	case LinkLinuxSLL2:
		return typed(b, 0, 20)
	case LinkNull, LinkLoop:
		if len(b) < 4 {
			return 0, nil, false
		}
		// The family's byte order and its number for IPv6 differ from system to
		// system; the IP header's version does not.
		return byVersion(b[4:])
	case LinkRaw, LinkIPv4, LinkIPv6, linkRawBSD, linkRawOBSD:
		return byVersion(b)
	}
	return 0, nil, false
}

const (
	etherPPPoE = 0x8864 // of a session
	etherMPLS  = 0x8847
	maxTags    = 8
)

// IP returns the packet from its outermost IP header on, behind the link header,
// VLAN tags, a PPPoE session's header and MPLS labels.
func (p Packet) IP() (etherType uint16, data []byte, ok bool) {
	etherType, b, ok := p.Network()
	for range maxTags {
		switch {
		case !ok:
			return 0, nil, false
		case etherType == etherIPv4 || etherType == etherIPv6:
			return etherType, b, true
		case etherType == 0x8100 || etherType == 0x88a8 || etherType == 0x9100 || etherType == 0x9200:
			etherType, b, ok = typed(b, 2, 4)
		case etherType == etherPPPoE:
			// Version and session, six bytes, then PPP's number of the protocol.
			if etherType, b, ok = typed(b, 6, 8); etherType == 0x0021 || etherType == 0x0057 {
				return byVersion(b)
			}
		case etherType == etherMPLS:
			for last := false; !last; b = b[4:] {
				if len(b) < 4 {
					return 0, nil, false
				}
				last = b[2]&1 != 0
			}
			return byVersion(b)
		default:
			return 0, nil, false
		}
	}
	return 0, nil, false
}

func typed(b []byte, at, size int) (uint16, []byte, bool) {
	if len(b) < size {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(b[at:]), b[size:], true
}

func byVersion(b []byte) (uint16, []byte, bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	switch b[0] >> 4 {
	case 4:
		return etherIPv4, b, true
	case 6:
		return etherIPv6, b, true
	}
	return 0, nil, false
}
