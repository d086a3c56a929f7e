package userspace

import (
	"bytes"
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// Protocols without names, told by what a client sends first. Each is one function:
// sawNames where it is this protocol, sawMore where it may become it.
func init() {
	for _, p := range []firstBytes{
		{l7: policy.L7SSH, first: firstSSH},
		{l7: policy.L7BitTorrent, first: firstBitTorrent},
		{l7: policy.L7OpenVPN, first: firstOpenVPNStream},
		{l7: policy.L7SOCKS, first: firstSOCKS},
		{l7: policy.L7RDP, first: firstRDP},
		{l7: policy.L7STUN, first: firstSTUNStream},
	} {
		overTCP = append(overTCP, func() inspector { own := p; return &own })
	}
	for _, p := range []firstBytes{
		{l7: policy.L7WireGuard, first: firstWireGuard},
		{l7: policy.L7STUN, first: firstSTUN},
		{l7: policy.L7OpenVPN, first: firstOpenVPN},
		{l7: policy.L7BitTorrent, first: firstBitTorrentUDP},
	} {
		overUDP = append(overUDP, func() datagrams { own := p; return &own })
	}
}

// firstBytes is the inspector of a protocol without names.
type firstBytes struct {
	l7    policy.L7
	first func([]byte) outcome // of at least one byte
	seen  policy.Sight
	left  bool // next has not given it
}

func (f *firstBytes) inspect(b []byte) outcome {
	got := sawMore
	if len(b) > 0 {
		got = f.first(b)
	}
	f.left = got == sawNames
	return got
}

func (f *firstBytes) next() *policy.Sight {
	if !f.left {
		return nil
	}
	f.left = false
	f.seen = policy.Sight{L7: f.l7}
	return &f.seen
}

func (f *firstBytes) begins(b []byte) bool { return f.inspect(b) == sawNames }

func (f *firstBytes) gather(_ *judge, known *flow, b []byte) (*flow, []byte, outcome, error) {
	return known, b, f.inspect(b), nil
}

// literal compares b with how a protocol begins.
func literal(b []byte, begin string) outcome {
	n := min(len(b), len(begin))
	switch {
	case string(b[:n]) != begin[:n]:
		return sawNone
	case n < len(begin):
		return sawMore
	}
	return sawNames
}

// firstSSH: "SSH-protoversion-", RFC 4253 section 4.2.
func firstSSH(b []byte) outcome {
	if got := literal(b, "SSH-"); got != sawNames {
		return got
	}
	if len(b) == len("SSH-") {
		return sawMore
	}
	if c := b[len("SSH-")]; c != '1' && c != '2' {
		return sawNone
	}
	return sawNames
}

// firstBitTorrent: the handshake of BEP 3.
func firstBitTorrent(b []byte) outcome { return literal(b, "\x13BitTorrent protocol") }

// firstBitTorrentUDP: a KRPC message of the DHT (BEP 5), whose keys are sorted, or the
// first packet of a uTP connection (BEP 29).
func firstBitTorrentUDP(b []byte) outcome {
	switch {
	case bytes.HasPrefix(b, []byte("d1:ad2:id20:")), bytes.HasPrefix(b, []byte("d1:rd2:id20:")),
		bytes.HasPrefix(b, []byte("d1:eli")):
		return sawNames
	case bytes.HasPrefix(b, []byte("d")) && bytes.HasSuffix(b, []byte("1:y1:qe")),
		bytes.HasPrefix(b, []byte("d")) && bytes.HasSuffix(b, []byte("1:y1:re")):
		return sawNames
	}
	if isUTPSyn(b) {
		return sawNames
	}
	return sawNone
}

// isUTPSyn reports whether b is an ST_SYN of version 1. Nothing was received yet, so
// there is neither a time difference nor a number to acknowledge, and nothing is sent
// but extensions. Its own number is 1 in BEP 29, and any in libutp and libtorrent.
func isUTPSyn(b []byte) bool {
	const header = 20
	if len(b) < header || b[0] != 0x41 || binary.BigEndian.Uint32(b[8:]) != 0 ||
		binary.BigEndian.Uint32(b[12:]) == 0 || binary.BigEndian.Uint16(b[18:]) != 0 {
		return false
	}
	next := b[1]
	for b = b[header:]; next != 0; {
		if next > 3 || len(b) < 2 || len(b) < 2+int(b[1]) {
			return false
		}
		next, b = b[0], b[2+int(b[1]):]
	}
	return len(b) == 0
}

const (
	openVPNReset2 = 7 << 3  // P_CONTROL_HARD_RESET_CLIENT_V2 with key 0
	openVPNReset3 = 10 << 3 // P_CONTROL_HARD_RESET_CLIENT_V3: with a wrapped key behind it
)

// firstOpenVPN: a client's hard reset. It has an opcode, a session id, nothing to
// acknowledge and packet number 0; in between, by what the two have agreed on, the
// HMAC, number and time of tls-auth, or all of it is encrypted by tls-crypt.
func firstOpenVPN(b []byte) outcome {
	if len(b) < 14 {
		return sawNone
	}
	switch b[0] {
	case openVPNReset2:
		switch len(b) {
		case 14, 38, 42, 50, 70, 86: // none, MD5, SHA-1, SHA-224, SHA-384, SHA-512
			if !bytes.Equal(b[len(b)-5:], make([]byte, 5)) {
				return sawNone
			}
			return sawNames
		case 54: // SHA-256, or tls-crypt
			return sawNames
		}
	case openVPNReset3:
		// Behind the packet, that ends at 54, the length of the key with itself.
		if len(b) > 56 && int(binary.BigEndian.Uint16(b[len(b)-2:])) == len(b)-54 {
			return sawNames
		}
	}
	return sawNone
}

// firstOpenVPNStream is the same behind its length.
func firstOpenVPNStream(b []byte) outcome {
	if len(b) < 3 {
		return sawNone // which so few bytes do not decide, see tellable
	}
	n := int(binary.BigEndian.Uint16(b))
	if b[2] != openVPNReset2 && b[2] != openVPNReset3 || n < 14 || n > 2048 || n+2 < len(b) {
		return sawNone
	}
	if n+2 > len(b) {
		return sawMore
	}
	return firstOpenVPN(b[2:])
}

// firstWireGuard: a handshake's messages have one length each, data is padded to 16
// bytes. The three bytes behind the type are 0.
func firstWireGuard(b []byte) outcome {
	if len(b) < 32 || b[1]|b[2]|b[3] != 0 {
		return sawNone
	}
	switch {
	case b[0] == 1 && len(b) == 148, b[0] == 2 && len(b) == 92, b[0] == 3 && len(b) == 64,
		b[0] == 4 && len(b)%16 == 0:
		return sawNames
	}
	return sawNone
}

const (
	stunHeader = 20
	stunMagic  = 0x2112a442
)

// firstSTUN: RFC 8489 section 5. Messages of RFC 3489 have no magic cookie and are not
// told from chance.
func firstSTUN(b []byte) outcome {
	if len(b) < stunHeader || b[0]&0xc0 != 0 || binary.BigEndian.Uint32(b[4:]) != stunMagic ||
		int(binary.BigEndian.Uint16(b[2:])) != len(b)-stunHeader || b[3]&3 != 0 {
		return sawNone
	}
	return sawNames
}

// firstSTUNStream: the requests with which a connection begins, Binding and Allocate
// (RFC 8656).
func firstSTUNStream(b []byte) outcome {
	if b[0] != 0 || len(b) > 1 && b[1] != 1 && b[1] != 3 || len(b) > 3 && b[3]&3 != 0 {
		return sawNone
	}
	if len(b) < 8 {
		return sawMore
	}
	if binary.BigEndian.Uint32(b[4:]) != stunMagic {
		return sawNone
	}
	return sawNames
}

// socksMethods is how many ways to authenticate a client may name: there are not
// more.
const socksMethods = 32

// firstSOCKS: a client's first message, whole and with nothing behind it, since it
// waits for the answer. Version 5 names ways to authenticate (RFC 1928 section 3),
// version 4 a command, port, address, user and, in 4a, a name.
func firstSOCKS(b []byte) outcome {
	switch b[0] {
	case 5:
		if len(b) < 2 {
			return sawMore
		}
		if b[1] == 0 || b[1] > socksMethods || int(b[1]) < len(b)-2 {
			return sawNone
		}
		for _, method := range b[2:] {
			if method > 9 && method < 0x80 || method == 0xff {
				return sawNone // not assigned
			}
		}
		if int(b[1]) > len(b)-2 {
			return sawMore
		}
		return sawNames
	case 4:
		if len(b) > 1 && b[1] != 1 && b[1] != 2 {
			return sawNone
		}
		if len(b) < 9 {
			return sawMore
		}
		fields := b[8:] // each ends in a 0
		if b[4]|b[5]|b[6] == 0 && b[7] != 0 {
			end := bytes.IndexByte(fields, 0)
			if end < 0 {
				return socksMore(b)
			}
			fields = fields[end+1:]
		}
		switch bytes.IndexByte(fields, 0) {
		case -1:
			return socksMore(b)
		case len(fields) - 1:
			return sawNames
		}
	}
	return sawNone
}

// socksMore: a user's and a host's name are not longer.
func socksMore(b []byte) outcome {
	if len(b) > 8+2*256 {
		return sawNone
	}
	return sawMore
}

// firstRDP: an X.224 connection request in a TPKT (MS-RDPBCGR section 2.2.1.1) with
// nothing in it, a cookie, a routing token, or a negotiation request. Others that
// use TPKT have parameters there.
func firstRDP(b []byte) outcome {
	const header = 11
	for _, c := range [...]struct {
		at int
		is byte
	}{{0, 3}, {1, 0}, {5, 0xe0}} {
		if c.at < len(b) && b[c.at] != c.is {
			return sawNone
		}
	}
	if len(b) < header {
		return sawMore
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < header || n > 512 || int(b[4]) != n-5 || b[6]|b[7] != 0 || b[10] != 0 || n < len(b) {
		return sawNone
	}
	if n > len(b) {
		return sawMore
	}
	rest := b[header:]
	if len(rest) == 0 || bytes.HasPrefix(rest, []byte("Cookie: ")) || bytes.HasSuffix(rest, []byte("\r\n")) {
		return sawNames
	}
	if len(rest) >= 8 {
		if request := rest[len(rest)-8:]; request[0] == 1 && request[2] == 8 && request[3] == 0 {
			return sawNames
		}
	}
	return sawNone
}
