package userspace

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/policy"
)

// unhex reads bytes in hex; blanks between them and what follows a # in a line are
// for the reader.
func unhex(tb testing.TB, text string) []byte {
	tb.Helper()
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func zeros(n int) []byte { return make([]byte, n) }

// firstOverTCP are streams that begin with a protocol that has no names.
func firstOverTCP(tb testing.TB) map[string]struct {
	l7 policy.L7
	b  []byte
} {
	type stream = struct {
		l7 policy.L7
		b  []byte
	}
	reset := unhex(tb, `38 0102030405060708 # P_CONTROL_HARD_RESET_CLIENT_V2, key 0, session
		00 00000000 # nothing to acknowledge, packet 0`)
	return map[string]stream{
		"ssh":        {policy.L7SSH, []byte("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")},
		"ssh 1":      {policy.L7SSH, []byte("SSH-1.99-old\n")},
		"bittorrent": {policy.L7BitTorrent, slices.Concat([]byte("\x13BitTorrent protocol"), zeros(48))},
		"socks5":     {policy.L7SOCKS, []byte{5, 1, 0}},
		"socks5, 3":  {policy.L7SOCKS, []byte{5, 3, 0, 1, 2}},
		"socks4":     {policy.L7SOCKS, []byte("\x04\x01\x00\x50\xc0\x00\x02\x01user\x00")},
		"socks4a":    {policy.L7SOCKS, []byte("\x04\x01\x00\x50\x00\x00\x00\x01user\x00a.example\x00")},
		"rdp": {policy.L7RDP, unhex(tb, `03 00 0013 # TPKT of 19 bytes
			0e e0 0000 0000 00 # X.224 connection request
			01 00 0800 03000000 # negotiation request: TLS or CredSSP`)},
		"rdp, cookie": {policy.L7RDP, slices.Concat(unhex(tb, `03 00 002b 26 e0 0000 0000 00`), []byte("Cookie: mstshash=alice\r\n"), unhex(tb, `01 00 0800 0b000000`))},
		"rdp, plain":  {policy.L7RDP, unhex(tb, `03 00 000b 06 e0 0000 0000 00`)},
		"openvpn":     {policy.L7OpenVPN, slices.Concat([]byte{0, byte(len(reset))}, reset)},
		"stun": {policy.L7STUN, unhex(tb, `0003 0008 2112a442 # Allocate
			0102030405060708090a0b0c
			0019 0004 11000000 # REQUESTED-TRANSPORT: UDP`)},
	}
}

// firstOverUDP are the same datagrams.
func firstOverUDP(tb testing.TB) map[string]struct {
	l7 policy.L7
	b  []byte
} {
	type datagram = struct {
		l7 policy.L7
		b  []byte
	}
	session := unhex(tb, `0102030405060708`)
	v3 := slices.Concat([]byte{openVPNReset3}, session, bytes.Repeat([]byte{0xab}, 45), bytes.Repeat([]byte{0xcd}, 290), []byte{0x01, 0x24})
	return map[string]datagram{
		"wireguard":          {policy.L7WireGuard, slices.Concat([]byte{1, 0, 0, 0}, bytes.Repeat([]byte{0x55}, 144))},
		"wireguard response": {policy.L7WireGuard, slices.Concat([]byte{2, 0, 0, 0}, bytes.Repeat([]byte{0x55}, 88))},
		"wireguard cookie":   {policy.L7WireGuard, slices.Concat([]byte{3, 0, 0, 0}, bytes.Repeat([]byte{0x55}, 60))},
		"wireguard data":     {policy.L7WireGuard, slices.Concat([]byte{4, 0, 0, 0}, bytes.Repeat([]byte{0x55}, 60))},
		"stun":               {policy.L7STUN, unhex(tb, `0001 0000 2112a442 0102030405060708090a0b0c`)},
		"openvpn":            {policy.L7OpenVPN, slices.Concat([]byte{openVPNReset2}, session, zeros(5))},
		"openvpn, tls-auth":  {policy.L7OpenVPN, slices.Concat([]byte{openVPNReset2}, session, bytes.Repeat([]byte{0xaa}, 20), []byte{0, 0, 0, 1, 0x60, 0, 0, 0}, zeros(5))},
		"openvpn, tls-crypt": {policy.L7OpenVPN, slices.Concat([]byte{openVPNReset2}, session, bytes.Repeat([]byte{0xaa}, 45))},
		"openvpn, v2 keys":   {policy.L7OpenVPN, v3},
		"dht":                {policy.L7BitTorrent, []byte("d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe")},
		"dht answer":         {policy.L7BitTorrent, []byte("d1:rd2:id20:mnopqrstuvwxyz123456e1:t2:aa1:y1:re")},
		"utp": {policy.L7BitTorrent, unhex(tb, `41 00 1234 # ST_SYN, connection
			5f5e1000 00000000 # time, no difference yet
			00100000 0001 0000 # window, number 1, none to acknowledge`)},
		"utp, any number": {policy.L7BitTorrent, unhex(tb, `41 00 1234 5f5e1000 00000000 00100000 9c3b 0000`)},
		"utp, extension": {policy.L7BitTorrent, unhex(tb, `41 02 1234 5f5e1000 00000000 00100000 9c3b 0000
			00 08 0000000000000000 # no further one, 8 bytes`)},
	}
}

// claims are the protocols whose inspectors take the bytes for theirs.
func claims[I inspector](all []I, b []byte) (l7 []policy.L7) {
	for _, in := range all {
		if in.inspect(b) == sawNames {
			for seen := in.next(); seen != nil; seen = in.next() {
				l7 = append(l7, seen.L7)
			}
		}
	}
	return l7
}

func TestProtocolsAreToldByFirstBytes(t *testing.T) {
	w := newTester(t, "", tlsRule)
	for name, c := range firstOverTCP(t) {
		if got := claims(w.judge.onTCP, c.b); !slices.Equal(got, []policy.L7{c.l7}) {
			t.Errorf("%s over TCP: taken for %v", name, got)
		}
		// A part of it is not taken for anything else, and never for nothing once
		// it could be told.
		for n := 1; n < len(c.b); n++ {
			_, got := w.judge.look(c.b[:n])
			if l7 := claims(w.judge.onTCP, c.b[:n]); len(l7) > 0 && !slices.Equal(l7, []policy.L7{c.l7}) ||
				got == sawMalformed || got == sawNone && n >= tellable {
				t.Errorf("%s over TCP: its first %d bytes: %v, taken for %v", name, n, got, l7)
			}
		}
	}
	for name, c := range firstOverUDP(t) {
		for _, in := range w.judge.onUDP {
			first, ok := in.(*firstBytes)
			if begins := in.begins(c.b); begins != (ok && first.l7 == c.l7) {
				t.Errorf("%s over UDP: begins %v for %T", name, begins, in)
			}
		}
		// What is cut off, or has more behind it, is another datagram.
		for _, other := range [][]byte{c.b[:len(c.b)-1], slices.Concat(c.b, []byte{1})} {
			if c.l7 != policy.L7BitTorrent && len(claims(w.judge.onUDP, other)) > 0 {
				t.Errorf("%s over UDP: with %d bytes in place of %d", name, len(other), len(c.b))
			}
		}
	}
}

func TestOtherFirstBytes(t *testing.T) {
	w := newTester(t, "", tlsRule)
	for name, b := range map[string][]byte{
		"ssh without version": []byte("SSH-x.0-a\r\n"),
		"smtp":                []byte("EHLO a.example\r\n"),
		"s7 in tpkt":          unhex(t, `0300 0016 11 e0 0000 0001 00 c0010a c1020100 c2020102`),
		"socks5, more behind": {5, 1, 0, 9, 9, 9, 9},
		"socks5, no methods":  {5, 0, 0, 0, 0, 0, 0},
		"socks5, bad method":  {5, 4, 0, 1, 77, 1, 1},
		"socks4, a command":   []byte("\x04\x03\x00\x50\xc0\x00\x02\x01user\x00"),
		"stun without cookie": unhex(t, `0001 0000 00000000 0102030405060708090a0b0c`),
		"openvpn, long":       slices.Concat([]byte{0, 15, openVPNReset2}, zeros(14)),
		"postgres":            unhex(t, `00000008 04d2162f`),
		"zeros":               zeros(64),
	} {
		if in, got := w.judge.look(b); got != sawNone {
			t.Errorf("%s: %v by %T", name, got, in)
		}
	}
	for name, b := range map[string][]byte{
		"dns query":              dnsQuery("a.example", dnsmessage.TypeA),
		"wireguard of no length": slices.Concat([]byte{1, 0, 0, 0}, zeros(100)),
		"wireguard, reserved":    slices.Concat([]byte{1, 0, 0, 1}, zeros(144)),
		"stun, wrong length":     unhex(t, `0001 0004 2112a442 0102030405060708090a0b0c`),
		"openvpn, acknowledges":  slices.Concat([]byte{openVPNReset2}, zeros(8), []byte{1}, zeros(4)),
		"ntp":                    slices.Concat([]byte{0x23, 0, 6, 0x20}, zeros(44)),
		"utp with data":          unhex(t, `41 00 1234 5f5e1000 00000000 00100000 9c3b 0000 00`),
		"utp, cut extension":     unhex(t, `41 02 1234 5f5e1000 00000000 00100000 9c3b 0000 00 08 00`),
		"utp without a window":   unhex(t, `41 00 1234 5f5e1000 00000000 00000000 9c3b 0000`),
		"one byte":               {1},
		"empty":                  {},
	} {
		for _, in := range w.judge.onUDP {
			if in.begins(b) {
				t.Errorf("%s: taken by %T", name, in)
			}
		}
	}
}

const kindsRules = `  - name: kinds
    from: lan
    proto: [tcp, udp]
    action: inspect
    until: { packets: 3 }
    steps:
      - { proto_l7: [ssh, wireguard], action: drop }
      - { proto_l7: dns, action: drop, log: true }
      - { proto_l7: unknown, log: true }
      - { proto_l7: [rdp, stun, unknown], action: accept }
`

func TestStepsOnProtocols(t *testing.T) {
	tcp, udp := firstOverTCP(t), firstOverUDP(t)
	for name, c := range map[string]struct {
		packets [][]byte
		action  policy.Action
		reason  Reason
		kind    string
	}{
		"ssh":          {[][]byte{tcpPacket(1, tcp["ssh"].b)}, policy.ActionDrop, ReasonStep, "ssh"},
		"ssh in two":   {[][]byte{tcpPacket(1, tcp["ssh"].b[:3]), tcpPacket(4, tcp["ssh"].b[3:])}, policy.ActionDrop, ReasonStep, "ssh"},
		"rdp":          {[][]byte{tcpPacket(1, tcp["rdp"].b)}, policy.ActionAccept, ReasonStep, "rdp"},
		"no step":      {[][]byte{tcpPacket(1, tcp["bittorrent"].b)}, policy.ActionDrop, ReasonUndecided, "bittorrent"},
		"unknown":      {[][]byte{tcpPacket(1, []byte("220 mail.example\r\n"))}, policy.ActionAccept, ReasonStep, "unknown"},
		"wireguard":    {[][]byte{ipPacket(clientAddr, serverAddr, nil, udp["wireguard"].b)}, policy.ActionDrop, ReasonStep, "wireguard"},
		"stun":         {[][]byte{ipPacket(clientAddr, serverAddr, nil, udp["stun"].b)}, policy.ActionAccept, ReasonStep, "stun"},
		"a stray one":  {[][]byte{ipPacket(clientAddr, serverAddr, nil, []byte("x")), ipPacket(clientAddr, serverAddr, nil, udp["wireguard"].b)}, policy.ActionDrop, ReasonStep, "wireguard"},
		"three others": {slices.Repeat([][]byte{ipPacket(clientAddr, serverAddr, nil, []byte("x"))}, 3), policy.ActionAccept, ReasonStep, ""},
	} {
		w := newTester(t, "", kindsRules)
		for i, p := range c.packets {
			if got, last := w.judged(t, 0, p), i == len(c.packets)-1; got != (!last || c.action == policy.ActionAccept) {
				t.Errorf("%s: packet %d accepted: %v", name, i, got)
			}
		}
		if len(w.decisions) != 1 || w.decisions[0].Action != c.action || w.decisions[0].Reason != c.reason {
			t.Errorf("%s: %+v", name, w.decisions)
		}
		if kind := ""; len(w.sightings) > 0 || c.kind != "" {
			if len(w.sightings) == 1 {
				kind = w.sightings[0].Kind
			}
			if kind != c.kind {
				t.Errorf("%s: saw %+v", name, w.sightings)
			}
		}
	}
	// DNS is known on any port by what it is, and judged message by message.
	w := newTester(t, "", kindsRules)
	if w.datagram(t, dnsQuery("a.example", dnsmessage.TypeA)) || len(w.decisions) != 0 || len(w.sightings) != 1 || w.sightings[0].Kind != "dns" {
		t.Errorf("DNS on another port: %+v %+v", w.decisions, w.sightings)
	}
}

// TestPiecesOfAStreamBeginNothing: bytes in the middle of a decided flow that look like
// the beginning of another protocol are no new connection.
func TestPiecesOfAStreamBeginNothing(t *testing.T) {
	w := newTester(t, "", tlsRule)
	if !w.judged(t, 0, tcpPacket(1, hello(sni("good.example")))) {
		t.Fatal("the hello was dropped")
	}
	for name, c := range firstOverTCP(t) {
		if !w.judged(t, 0, tcpPacket(1000, c.b)) || len(w.decisions) != 1 || len(w.sightings) != 1 {
			t.Errorf("%s: %+v %+v", name, w.decisions, w.sightings)
		}
	}
}

func FuzzFirstBytes(f *testing.F) {
	for _, c := range firstOverTCP(f) {
		f.Add(c.b)
	}
	for _, c := range firstOverUDP(f) {
		f.Add(c.b)
	}
	w := newTester(f, "", tlsRule)
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		claims(w.judge.onTCP, b)
		for _, in := range w.judge.onUDP {
			in.begins(b)
		}
		if !bytes.Equal(b, copied) {
			t.Fatal("the payload was written to")
		}
		// No two streams' inspectors take the same bytes.
		if len(b) > 0 {
			all := slices.Compact(claims(w.judge.onTCP, b))
			if len(all) > 1 {
				t.Fatalf("taken for %v", all)
			}
		}
	})
}

// TestADatagramForNobodyDecidesNothing: one that a name's server ignores, in front of
// a hello that is denied.
func TestADatagramForNobodyDecidesNothing(t *testing.T) {
	bad := dtlsBody([]byte("cookie"), sni("a.bad.example"))
	good := dtlsBody(nil, sni("good.example"))
	strays := map[string][]byte{
		"a hello":                  dtlsRecord(0, good, 0, len(good)),
		"a hello out of its order": dtlsRecord(9, good, 0, len(good)),
	}
	for name, c := range firstOverUDP(t) {
		strays[name] = c.b
	}
	hellos := map[string][]byte{
		"dtls": dtlsRecord(1, bad, 0, len(bad)),
		"quic": initial{version: quicVersion1, dcid: "original", frames: cryptoFrame(0, quicHello("a.bad.example", 300))}.seal(t),
	}
	for name, stray := range strays {
		for kind, b := range hellos {
			w := newTester(t, "", quicRule)
			if !w.datagram(t, stray) || len(w.decisions) != 0 {
				t.Errorf("%s: decided %+v", name, w.decisions)
			}
			if w.datagram(t, b) || len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionDrop {
				t.Errorf("%s in front of %s: %+v", name, kind, w.decisions)
			}
		}
		// It is not asked for again once the budget is spent.
		w := newTester(t, "", quicRule)
		for range 6 {
			w.datagram(t, stray)
		}
		if len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionAccept {
			t.Errorf("six times %s: %+v", name, w.decisions)
		}
		if m := w.judge.flows.streams; m.unused != len(m.chunks) {
			t.Errorf("six times %s: memory is kept", name)
		}
	}
	// A step that asks for the protocol means it.
	w := newTester(t, "", strings.Replace(quicRule, "      - { action: accept }", "      - { proto_l7: stun, action: accept }", 1))
	if !w.datagram(t, strays["stun"]) || len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionAccept {
		t.Errorf("STUN asked for: %+v", w.decisions)
	}
}
