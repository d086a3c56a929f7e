package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// capture writes packets into a capture file of raw IP.
func capture(tb testing.TB, packets ...[]byte) string {
	tb.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(le.AppendUint16(b, 2), 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(le.AppendUint32(b, 65535), 101)
	for i, p := range packets {
		b = le.AppendUint32(le.AppendUint32(b, uint32(1000+i)), 0)
		b = le.AppendUint32(le.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
	}
	file := filepath.Join(tb.TempDir(), "test.pcap")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

const linkHeader = 2 // testnet's frames without link addresses begin with a type

func datagramOf(src, dst string, payload []byte) []byte {
	return testnet.Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Payload: payload}.Frame()[linkHeader:]
}

func segmentOf(src, dst string, seq uint32, payload string) []byte {
	return testnet.Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst),
		TCP: &testnet.TCP{Seq: seq, Ack: 1, Flags: 0x18}, Payload: []byte(payload)}.Frame()[linkHeader:]
}

// asksFor is a DNS question for an address.
func asksFor(name string) []byte {
	b := []byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, 1, 0, 1)
}

func runReplay(tb testing.TB, args ...string) (lines []sightingLine, errs string, status int) {
	tb.Helper()
	var out, stderr bytes.Buffer
	status = execute(context.Background(), env{&out, &stderr}, append([]string{"replay", "--json"}, args...))
	for d := json.NewDecoder(&out); d.More(); {
		var line sightingLine
		if err := d.Decode(&line); err != nil {
			tb.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines, stderr.String(), status
}

const replayPolicy = `
version: 1
zones: { lan: [eth1], wan: [eth0] }
defaults: { forward: drop }
failure: { malformed: drop }
rules:
  - { name: guests, from: lan, src: 192.0.2.128/25, action: drop }
  - name: dns
    from: lan
    to: wan
    proto: udp
    dport: 53
    action: inspect
    steps: [{ qname: "*.bad.example", action: drop }, { action: accept }]
  - name: web
    from: wan
    proto: tcp
    dport: 80
    action: inspect
    steps: [{ host: bad.example, path: "/x*", action: drop }, { action: accept }]
`

func TestReplayByAPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(replayPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	const client, guest, dns, web = "192.0.2.1:4000", "192.0.2.200:4000", "198.51.100.1:53", "198.51.100.1:80"
	answer := asksFor("a.bad.example")
	answer[2] |= 0x80
	question := datagramOf(client, dns, asksFor("in.pieces.example"))
	pcap := capture(t,
		datagramOf(client, dns, asksFor("A.bad.example")),
		datagramOf(client, dns, asksFor("good.example")),
		datagramOf(dns, client, answer),
		datagramOf(guest, dns, asksFor("guest.example")),
		datagramOf(client, "198.51.100.1:9999", []byte("nothing with a name")),
		segmentOf(client, web, 1, "GET /x/y HTTP/1.1\r\nHost: bad.example\r\nUser-"),
		segmentOf(client, web, 44, "Agent: me\r\n\r\n"),
		segmentOf(client, "198.51.100.1:8080", 1, "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"),
		cut4(question, 8, 16), cut4(question, 16, len(question)-20), cut4(question, 0, 8),
	)
	want := []sightingLine{
		{Packet: 1, Kind: "dns", Name: "a.bad.example", Proto: "udp", Verdict: "drop", Rule: "dns"},
		{Packet: 2, Kind: "dns", Name: "good.example", Proto: "udp", Verdict: "accept", Rule: "dns"},
		{Packet: 3, Kind: "dns", Name: "a.bad.example", Proto: "udp", Verdict: "drop", Rule: "dns", Response: true},
		{Packet: 4, Kind: "dns", Name: "guest.example", Proto: "udp", Verdict: "drop", Rule: "guests"},
		{Packet: 7, Kind: "http", Name: "bad.example", Proto: "tcp", Verdict: "drop", Rule: "web", Method: "GET", Path: "/x/y", Agent: "me"},
		{Packet: 8, Kind: "http", Name: "other.example", Proto: "tcp", Verdict: "drop", Rule: "", Method: "GET", Path: "/"},
		{Packet: 11, Kind: "dns", Name: "in.pieces.example", Proto: "udp", Verdict: "drop", Rule: "dns"}, // malformed
	}
	lines, errs, status := runReplay(t, "--policy", file, pcap)
	if status != exitOK || len(lines) != len(want) {
		t.Fatalf("exit status %d, %s%+v", status, errs, lines)
	}
	for i, line := range lines {
		line.Src, line.Dst, line.Sport, line.Dport = "", "", 0, 0
		if !reflect.DeepEqual(line, want[i]) {
			t.Errorf("line %d: %+v, want %+v", i, line, want[i])
		}
	}
	if l := lines[0]; l.Src != "192.0.2.1" || l.Sport != 4000 || l.Dst != "198.51.100.1" || l.Dport != 53 {
		t.Errorf("addresses: %+v", l)
	}
	if !strings.Contains(errs, "11 packets, 7 names (dns 5, http 2)") {
		t.Errorf("summary %q", errs)
	}
	// With zones given, the rules from the other side do not match.
	lines, _, _ = runReplay(t, "--policy", file, "--from", "lan", "--to", "wan", pcap)
	if lines[4].Rule != "" || lines[4].Verdict != "drop" || lines[1].Rule != "dns" {
		t.Errorf("from lan to wan: %+v", lines)
	}
	lines, _, _ = runReplay(t, pcap)
	for _, line := range lines {
		if line.Verdict != "accept" || line.Rule != "" {
			t.Errorf("without a policy: %+v", line)
		}
	}
}

// cut4 is a fragment of an IPv4 packet with bytes from..to of what it carries.
func cut4(ip []byte, from, to int) []byte {
	const header = 20
	b := append(append([]byte(nil), ip[:header]...), ip[header+from:header+to]...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	field := uint16(from / 8)
	if header+to < len(ip) {
		field |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], field)
	return b
}

func TestReplayOfWhatIsNoCapture(t *testing.T) {
	good := capture(t, datagramOf("192.0.2.1:4000", "198.51.100.1:53", asksFor("good.example")))
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.pcap")
	if err := os.WriteFile(cut, append(data, data[24:50]...), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, errs, status := runReplay(t, cut)
	if status != exitFailure || len(lines) != 1 || !strings.Contains(errs, "packet 2") {
		t.Errorf("a cut capture: status %d, %s%+v", status, errs, lines)
	}
	for _, args := range [][]string{{}, {good, good}, {"--from", "lan", good}, {"--policy", "none.yaml", good}} {
		if _, errs, status := runReplay(t, args...); status != exitUsage {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
	for _, file := range []string{"replay_test.go", "nowhere.pcap"} {
		if _, errs, status := runReplay(t, file); status != exitFailure || !strings.Contains(errs, file) {
			t.Errorf("%s: status %d, %s", file, status, errs)
		}
	}
	var out, stderr bytes.Buffer
	if execute(context.Background(), env{&out, &stderr}, []string{"replay", good}) != exitOK ||
		out.String() != "1 dns \"good.example\" udp 192.0.2.1 port 4000 > 198.51.100.1 port 53 accept by default\n" {
		t.Errorf("printed %q", out.String())
	}
}

// TestFragmentsInAnyOrder, of both families, with another datagram's in between.
func TestFragmentsInAnyOrder(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789abcdef"), 20)
	whole4 := datagramOf("192.0.2.1:4000", "198.51.100.1:53", payload)
	whole6 := datagramOf("[2001:db8::1]:4000", "[2001:db8::2]:53", payload)
	cut6 := func(from, to int) []byte {
		b := append(append([]byte(nil), whole6[:40]...), whole6[6], 0, 0, 0, 0, 0, 0, 9)
		b[6] = 44
		field := uint16(from)
		if 40+to < len(whole6) {
			field |= 1
		}
		binary.BigEndian.PutUint16(b[42:], field)
		b = append(b, whole6[40+from:40+to]...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
		return b
	}
	end4, end6 := len(whole4)-20, len(whole6)-40
	var f fragments
	for _, order := range [][3]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		cuts4 := [][]byte{cut4(whole4, 0, 96), cut4(whole4, 96, 200), cut4(whole4, 200, end4)}
		cuts6 := [][]byte{cut6(0, 96), cut6(96, 200), cut6(200, end6)}
		for n, i := range order {
			for _, c := range []struct{ cut, whole []byte }{{cuts4[i], whole4}, {cuts6[i], whole6}} {
				p, ok := readFragment(c.cut)
				if !ok {
					t.Fatal("no fragment")
				}
				got, done := f.add(&p)
				if done != (n == 2) || done && !bytes.Equal(got[12:], c.whole[12:]) {
					t.Fatalf("order %v, part %d: done %v\n%x\n%x", order, i, done, got, c.whole)
				}
			}
		}
	}
	if len(f.waiting) != 0 {
		t.Errorf("%d datagrams still wait", len(f.waiting))
	}
	// However many begin, only some are kept.
	for i := range 1000 {
		b := cut4(whole4, 0, 96)
		binary.BigEndian.PutUint16(b[4:], uint16(i))
		p, _ := readFragment(b)
		f.add(&p)
	}
	if len(f.waiting) != maxDatagrams {
		t.Errorf("%d datagrams wait", len(f.waiting))
	}
	for n := range len(whole4) {
		if _, ok := readFragment(cut4(whole4, 0, 96)[:min(n, 115)]); ok {
			t.Fatalf("%d bytes of a fragment are one", n)
		}
	}
}

func FuzzFragments(f *testing.F) {
	whole := datagramOf("192.0.2.1:4000", "198.51.100.1:53", asksFor("in.pieces.example"))
	f.Add(cut4(whole, 0, 16), cut4(whole, 16, len(whole)-20))
	f.Add(cut4(whole, 8, 24), cut4(whole, 0, 16))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var all fragments
		for _, ip := range [][]byte{a, b, a} {
			copied := bytes.Clone(ip)
			p, ok := readFragment(ip)
			if !bytes.Equal(ip, copied) {
				t.Fatal("the packet was written to")
			}
			if !ok {
				continue
			}
			if got, done := all.add(&p); done && len(got) > len(p.header)+maxDatagram {
				t.Fatalf("%d bytes came out", len(got))
			}
		}
	})
}
