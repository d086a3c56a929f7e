package policy

import (
	"slices"
	"strings"
)

// L7 is a protocol above TCP or UDP, as its first bytes tell.
type L7 uint8

// The protocols that are told apart. Each has the same name in policies, in JSON and
// in logs.
const (
	L7Unknown    L7 = iota // what was seen is of none of these
	L7TLS                  // a TLS ClientHello
	L7DTLS                 // a DTLS ClientHello
	L7QUIC                 // a QUIC Initial with a ClientHello
	L7HTTP                 // an HTTP/1 request
	L7HTTP2                // HTTP/2 with prior knowledge (RFC 9113 section 3.3)
	L7DNS                  // a DNS message, over UDP or TCP
	L7SSH                  // the identification string (RFC 4253 section 4.2)
	L7WireGuard            // a handshake's message, or data
	L7STUN                 // a message with the magic cookie (RFC 8489)
	L7BitTorrent           // the peers' handshake, uTP or the DHT
	L7OpenVPN              // a client's hard reset
	L7SOCKS                // version 4 or 5
	L7RDP                  // a connection request
	l7Count
)

var l7Names = [l7Count]string{"unknown", "tls", "dtls", "quic", "http", "http2", "dns",
	"ssh", "wireguard", "stun", "bittorrent", "openvpn", "socks", "rdp"}

// String returns the protocol's name.
func (l L7) String() string {
	if l < l7Count {
		return l7Names[l]
	}
	return "invalid"
}

// L7Set is a set of protocols.
type L7Set uint32

// Has tells whether a protocol is in the set.
func (s L7Set) Has(l L7) bool { return s>>l&1 != 0 }

// Only tells whether the set has that protocol alone.
func (s L7Set) Only(l L7) bool { return s == 1<<l }

func l7Set(all ...L7) (s L7Set) {
	for _, l := range all {
		s |= 1 << l
	}
	return s
}

// String names the set's protocols.
func (s L7Set) String() string {
	var names []string
	for l := range l7Count {
		if s.Has(l) {
			names = append(names, l.String())
		}
	}
	return strings.Join(names, ", ")
}

var (
	l7OverTCP = l7Set(L7Unknown, L7TLS, L7HTTP, L7HTTP2, L7DNS, L7SSH, L7STUN, L7BitTorrent, L7OpenVPN, L7SOCKS, L7RDP)
	l7OverUDP = l7Set(L7Unknown, L7DTLS, L7QUIC, L7DNS, L7WireGuard, L7STUN, L7BitTorrent, L7OpenVPN)
)

// stepProtocols are the keys of a step's conditions, by what has them.
var stepProtocols = [...]struct {
	keys []string
	l7   L7Set
}{
	{[]string{"sni", "alpn", "ech", "ja4"}, l7Set(L7TLS, L7DTLS, L7QUIC)},
	{[]string{"qname", "qtype"}, l7Set(L7DNS)},
	{[]string{"host", "path"}, l7Set(L7HTTP, L7HTTP2)},
}

// l7 reads the protocols that a step is about.
func (p *reader) l7(n *node, s *Step) {
	for _, item := range p.several(n, "protocols, such as tls or [ssh, rdp]") {
		if i := p.word(item, l7Names[:], nil); i >= 0 {
			s.L7 |= 1 << i
		}
	}
}

// direction reads whether a step is about requests or responses.
func (p *reader) direction(n *node, s *Step) {
	if n != nil {
		if i := p.word(n, directions, nil); i >= 0 {
			s.Direction = Direction(i + 1)
		}
	}
}

// ja4Match reads fingerprints of hellos.
func (p *reader) ja4Match(n *node, s *Step) {
	const want = `a JA4 fingerprint such as t13d1516h2_8daaf6152771_e5627efa2ab1, or its beginning and a *`
	for _, item := range p.several(n, want) {
		begin, cut := strings.CutSuffix(item.text, "*")
		if !isJA4(begin, cut) {
			p.invalid(item, want)
			continue
		}
		s.JA4 = append(s.JA4, item.text)
	}
}

// ja4Len is the length of a fingerprint: 10 characters and two hashes of 12.
const ja4Len = 36

// isJA4 tells whether a text is a fingerprint, or may be the beginning of one.
func isJA4(text string, begin bool) bool {
	if len(text) > ja4Len || len(text) == 0 || !begin && len(text) < ja4Len || !strings.Contains("tqd", text[:1]) {
		return false
	}
	for i, c := range []byte(text) {
		if (i == 10 || i == 23) != (c == '_') {
			return false
		}
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// l7Named are the protocols in which names are seen.
var l7Named = l7Set(L7TLS, L7DTLS, L7QUIC, L7DNS, L7HTTP, L7HTTP2)

// conditions names one condition of a step for each kind of protocol asked for, and
// the protocols that have the last of them.
func conditions(values map[string]*node) (keys []string, of L7Set) {
	if values["list"] != nil {
		keys, of = []string{"list"}, l7Named
	}
	for _, protocol := range stepProtocols {
		for _, key := range protocol.keys {
			if values[key] != nil {
				keys, of = append(keys, key), protocol.l7
				break
			}
		}
	}
	return keys, of
}

// checkTogether refuses conditions that no packet meets together.
func (p *reader) checkTogether(n *node, s *Step, values map[string]*node) {
	keys, of := conditions(values)
	named := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == "list" })
	switch {
	case len(named) > 1:
		p.errorf(n.pos, "%s can never match: no packet has both %s and %s; expected one of them", n.path(), named[0], named[1])
	case len(keys) > 0 && s.L7 != 0 && s.L7&of == 0:
		p.errorf(n.pos, "%s can never match: proto_l7 %v has no %s; expected one of %v", n.path(), s.L7, keys[len(keys)-1], of)
	case s.Direction == DirectionResponse && (len(keys) > 0 && !of.Has(L7DNS) || s.L7 != 0 && !s.L7.Has(L7DNS)):
		p.errorf(n.pos, "%s can never match: only DNS has responses that are looked at; expected direction: request", n.path())
	}
}
