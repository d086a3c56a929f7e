package pktbuf

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// slowSum is the Internet checksum of RFC 1071 in its plainest form.
func slowSum(parts ...[]byte) uint16 {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if len(all)%2 != 0 {
		all = append(all, 0)
	}
	var s uint32
	for i := 0; i < len(all); i += 2 {
		s += uint32(all[i])<<8 | uint32(all[i+1])
		if s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

// mustHex reads annotated hexadecimal: a # starts a comment.
func mustHex(tb testing.TB, s string) []byte {
	tb.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for f := range strings.FieldsSeq(line) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		tb.Fatalf("decoding test data: %v", err)
	}
	return b
}

const udp4Hex = `
	45 00 00 20              # version 4, IHL 5, total length 32
	12 34 40 00 40 11 7a 6d  # id, DF, TTL 64, UDP, checksum (filled in by the test)
	c0 00 02 01 c6 33 64 02  # 192.0.2.1 > 198.51.100.2
	13 c4 00 35 00 0c 00 00  # 5060 > 53, length 12, checksum (filled in by the test)
	61 62 63 64              # abcd`

func fix4(p []byte) []byte {
	p[10], p[11] = 0, 0
	c := ^slowSum(p[:20])
	p[10], p[11] = byte(c>>8), byte(c)
	p[26], p[27] = 0, 0
	c = ^slowSum(p[12:20], []byte{0, 17, 0, byte(len(p) - 20)}, p[20:])
	p[26], p[27] = byte(c>>8), byte(c)
	return p
}

func TestReplacePayloadUDP(t *testing.T) {
	for _, rep := range []string{"", "x", "xy", "xyz", "a longer name.example"} {
		p := append(make([]byte, 0, 200), fix4(mustHex(t, udp4Hex))...)
		var v View
		if err := v.Init(IPv4, p, nil); err != nil {
			t.Fatal(err)
		}
		if err := v.Parse(); err != nil {
			t.Fatal(err)
		}
		if err := v.ReplacePayload(1, 2, []byte(rep)); err != nil {
			t.Fatal(err)
		}
		want := append(mustHex(t, udp4Hex)[:28], "a"+rep+"d"...)
		want[3], want[25] = byte(len(want)), byte(len(want)-20)
		if got := v.Bytes(); !bytes.Equal(got, fix4(want)) {
			t.Errorf("%q:\ngot  %x\nwant %x", rep, got, want)
		}
	}
}
