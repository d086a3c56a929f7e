package pktbuf_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/pcap"
	. "github.com/hybridfw/hybridfw/pktbuf"
)

// corpusDir returns the folder of captures, and skips the test where there is
// none. Where tests must be complete, its absence is a failure.
func corpusDir(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("HYBRIDFW_CORPUS")
	if dir == "" {
		dir = "../../shared/corpus"
	}
	if _, err := os.Stat(filepath.Join(dir, "truth", "packets.tsv")); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("corpus of captures: %v", err)
		}
		tb.Skipf("no corpus of captures: %v", err)
	}
	return dir
}

// truth is a row of packets.tsv: what tshark says about a frame. "-" is no value.
type truth struct {
	file                        string
	frame                       int
	protocols                   string
	ipver, src, dst, ttl, proto string
	name, sport, dport, flags   string
	payload, mss, frag, more    string
	ext, csumIP, csumL4, expert string
}

func readTruth(tb testing.TB, dir string) map[string][]truth {
	tb.Helper()
	f, err := os.Open(filepath.Join(dir, "truth", "packets.tsv"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	rows := map[string][]truth{}
	for s := bufio.NewScanner(f); s.Scan(); {
		c := strings.Split(s.Text(), "\t")
		if c[0] == "file" {
			continue
		}
		if len(c) != 24 {
			tb.Fatalf("packets.tsv: a row with %d columns", len(c))
		}
		rows[c[0]] = append(rows[c[0]], truth{
			file: c[0], frame: mustInt(tb, c[1]), protocols: c[4],
			ipver: c[6], src: c[7], dst: c[8], ttl: c[9], proto: c[10],
			name: c[11], sport: c[12], dport: c[13], flags: c[14],
			payload: c[15], mss: c[16], frag: c[17], more: c[18],
			ext: c[19], csumIP: c[21], csumL4: c[22], expert: c[23],
		})
	}
	return rows
}

func mustInt(tb testing.TB, s string) int {
	tb.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// initFrom makes a view of a captured packet. It is false where the link header
// leads to no IP packet.
func initFrom(v *View, p pcap.Packet) bool {
	typ, data, ok := p.Network()
	if p.Link == pcap.LinkEthernet {
		v.Init(Bridge, p.Data, nil)
	} else if !ok {
		return false
	} else {
		// Cooked captures keep VLAN tags behind their own header.
		for typ == EtherTypeVLAN && len(data) >= 4 {
			typ, data = binary.BigEndian.Uint16(data[2:]), data[4:]
		}
		switch typ {
		case EtherTypeIPv4:
			v.Init(IPv4, data, nil)
		case EtherTypeIPv6:
			v.Init(IPv6, data, nil)
		default:
			return false
		}
	}
	if p.Len > len(p.Data) {
		v.SetCut()
	}
	return true
}

// TestCorpus parses every frame of every capture and holds what it finds
// against what tshark found.
func TestCorpus(t *testing.T) {
	dir := corpusDir(t)
	for file, rows := range readTruth(t, dir) {
		t.Run(file, func(t *testing.T) {
			f, err := os.Open(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := pcap.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; ; i++ {
				p, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("frame %d: %v", i+1, err)
				}
				if i == len(rows) {
					t.Fatal("more frames than the truth has")
				}
				var v View
				if !initFrom(&v, p) {
					if rows[i].ipver != "-" {
						t.Errorf("frame %d: no IP packet, want IPv%s", i+1, rows[i].ipver)
					}
					continue
				}
				compare(t, &v, rows[i])
			}
		})
	}
}

// refusals are the frames that Parse refuses by intent although tshark shows
// something in them, with the reason.
var refusals = map[string]error{
	// Lengths beyond the captured bytes, in a frame that is not cut.
	"malformed/zeek-ip6-ext-trunc.pcap 1":                ErrShort,
	"malformed/tcpdump-ipv6_invalid_length_2.pcap 1":     ErrShort,
	"malformed/tcpdump-ipv4_invalid_total_length.pcap 1": ErrShort,
	"malformed/sv-ipv4-truncated_truncated.pcap 1":       ErrShort,
	"malformed/tcpdump-ipv6_frag6_negative_len.pcap 1":   ErrShort,
	"sctp/sv-sctp-pkt-too-small.pcap 1":                  ErrShort,
	// First fragments too small for the TCP header (RFC 1858).
	"fragments/zeek-fragmented-syn.pcap 1":                                               ErrShort,
	"fragments/sv-bug-6887-defrag-eth-vlan-ipv4-tcp-syn_frag-eth-vlan-ip-tcp-syn.pcap 1": ErrShort,
	// Jumbograms.
	"ipv6ext/tcpdump-ipv6_jumbogram_1.pcap 1":    ErrTooLong,
	"ipv6ext/tcpdump-ipv6-too-long-jumbo.pcap 1": ErrTooLong,
	"ipv6ext/tcpdump-bigtcp-ipv6-hbh.pcap 1":     ErrTooLong,
	// A total length of 0, as a network card's offload sees it.
	"misc/pcpp-IPv4-TSO.pcap 1":  ErrLength,
	"tls/mercury-tlsv1_3.pcap 4": ErrLength,
	// An option that is longer than its header; a UDP length below 8.
	"malformed/tcpdump-ipv6-next-header-oobr-1.pcap 1": ErrLength,
	"malformed/sv-udp-len-invalid.pcap 1":              ErrLength,
	// The EtherType says IPv4 or IPv6, the header does not.
	"malformed/tcpdump-bad-ipv4-version-pgm-heapoverflow.pcap 1": ErrProto,
	"malformed/tcpdump-ipv6-bad-version.pcap 2":                  ErrProto,
	"malformed/tcpdump-ipv6-bad-version.pcap 4":                  ErrProto,
}

// expectedError returns what Parse must return for a row.
func expectedError(want truth) error {
	if err, ok := refusals[want.file+" "+strconv.Itoa(want.frame)]; ok {
		return err
	}
	for _, other := range []string{"pppoe", "mpls", ":arp", "vlan:ethertype:vlan:ethertype:vlan"} {
		if strings.Contains(want.protocols, other) && !strings.HasPrefix(want.protocols, "eth:ethertype:ip:") {
			return ErrProto
		}
	}
	return nil
}

// finalDestinations are frames where tshark shows the end of a source route as
// the destination; the header holds the next hop.
var finalDestinations = map[string]string{
	"misc/sv-detect-ipopts.pcap 2": "13.14.15.16",
	"misc/sv-detect-ipopts.pcap 7": "13.14.15.16",
}

// compare parses v and reports each difference from the truth.
func compare(t *testing.T, v *View, want truth) {
	t.Helper()
	if err := v.Parse(); err != expectedError(want) {
		t.Errorf("frame %d: %v, want %v: tshark reads %s %s>%s %s (%s)", want.frame, err,
			expectedError(want), want.protocols, want.src, want.dst, want.proto, want.expert)
		return
	} else if err != nil {
		return
	}
	check := func(what string, got any, want2 string) {
		t.Helper()
		if fmt.Sprint(got) != want2 {
			t.Errorf("frame %d: %s is %v, want %s", want.frame, what, got, want2)
		}
	}
	compareWays(t, v, want)
	f, ok := v.Flow()
	offset, more := v.Fragment()
	check("version", v.Version(), want.ipver)
	check("source", f.Src().Addr(), want.src)
	dst := want.dst
	if hop, ok := finalDestinations[want.file+" "+strconv.Itoa(want.frame)]; ok {
		dst = hop
	}
	check("destination", f.Dst().Addr(), dst)
	check("TTL", v.TTL(), want.ttl)
	check("protocol", v.Proto(), want.proto)
	if ok != (offset == 0) {
		t.Errorf("frame %d: flow known: %v, at fragment offset %d", want.frame, ok, offset)
	}
	if want.sport != "-" && ok {
		check("source port", f.SrcPort(), want.sport)
		check("destination port", f.DstPort(), want.dport)
	}
	if want.frag != "-" {
		check("fragment offset", offset/8, want.frag)
		check("more fragments", more, map[string]string{"1": "true", "0": "false"}[want.more])
	}
	check("extension headers", extensions(v), want.ext)
	compareQuote(t, v, want)
	compareTransport(t, v, want, check)
}

// compareWays holds what is found in the bare IP packet, where ParseFlow has a
// short way, against what is found behind a link header, where it has none.
func compareWays(t *testing.T, v *View, want truth) {
	t.Helper()
	ip := v.Bytes()[len(v.Ethernet()):]
	family, typ, n := IPv4, []byte{8, 0}, 0
	if v.Version() == 6 {
		family, typ, n = IPv6, []byte{0x86, 0xdd}, 40+v.IPv6().PayloadLength()
	} else {
		n = v.IPv4().TotalLength()
	}
	ip = ip[:min(n, len(ip))]
	var bare, framed View
	var a, b Flow
	if bare.Init(family, ip, nil) != nil || framed.Init(Bridge, append(append(make([]byte, 12), typ...), ip...), nil) != nil {
		t.Fatal("Init")
	}
	if v.Cut() {
		bare.SetCut()
		framed.SetCut()
	}
	knownA, errA := bare.ParseFlow(&a)
	knownB, errB := framed.ParseFlow(&b)
	if a != b || knownA != knownB || errA != errB || bare.HeaderLen()+14 != framed.HeaderLen() ||
		!bytes.Equal(bare.Payload(), framed.Payload()) || !bytes.Equal(bare.Transport(), framed.Transport()) ||
		!bytes.Equal(bare.TCP(), framed.TCP()) || !bytes.Equal(bare.UDP(), framed.UDP()) {
		t.Errorf("frame %d: bare %v %v %v, with a link header %v %v %v", want.frame, a, knownA, errA, b, knownB, errB)
	}
}

// compareQuote looks for the packet in an ICMP error where tshark shows one.
func compareQuote(t *testing.T, v *View, want truth) {
	t.Helper()
	outer := strings.LastIndex(want.protocols, ":icmp")
	if v.ICMP() == nil && v.ICMPv6() == nil || outer < 0 {
		return
	}
	layers := strings.Split(want.protocols[outer+1:], ":")
	if len(layers) < 2 || layers[1] != "ip" && layers[1] != "ipv6" {
		return
	}
	var q View
	if err := v.Quoted(&q); err != nil {
		t.Errorf("frame %d: quoted packet: %v (%s)", want.frame, err, want.protocols)
		return
	}
	protos := map[string]uint8{"tcp": ProtoTCP, "udp": ProtoUDP}
	if len(layers) > 2 && protos[layers[2]] != 0 {
		f, ok := q.Flow()
		if !ok || f.Proto() != protos[layers[2]] {
			t.Errorf("frame %d: quoted flow %v %v (%s)", want.frame, f, ok, want.protocols)
		}
	}
}

func compareTransport(t *testing.T, v *View, want truth, check func(string, any, string)) {
	t.Helper()
	if tcp := v.TCP(); tcp != nil && want.flags != "-" {
		check("flags", fmt.Sprintf("0x%x%02x", tcp.Reserved(), tcp.Flags()), strings.Replace(want.flags, "0x0", "0x", 1))
		mss := "-"
		if m, ok := tcp.MSS(); ok {
			mss = fmt.Sprint(m)
		}
		check("MSS", mss, want.mss)
		if !v.Cut() && want.payload != "-" {
			check("payload length", v.PayloadLen(), want.payload)
		}
	}
	if v.Version() == 4 {
		check("header checksum", v.CheckHeader(), map[string]string{"good": "true", "bad": "false"}[want.csumIP])
	}
	states := map[Checksum]string{ChecksumGood: "good", ChecksumBad: "bad", ChecksumNone: "none"}
	state := v.CheckTransport()
	if state == ChecksumUnknown && (want.csumL4 == "good" || want.csumL4 == "bad") {
		t.Errorf("frame %d: checksum not checked, want %s", want.frame, want.csumL4)
	}
	if state != ChecksumUnknown && want.csumL4 != "-" && want.csumL4 != "unverified" {
		check("transport checksum", states[state], want.csumL4)
	}
}

// extensions names the extension headers as the truth does.
func extensions(v *View) string {
	names := map[uint8]string{0: "hopopts", 43: "routing", 44: "fraghdr", 51: "ah", 60: "dstopts"}
	var found []string
	for i := 0; ; i++ {
		typ, e := v.Extension(i)
		if e == nil {
			break
		}
		found = append(found, names[typ])
	}
	if found == nil {
		return "-"
	}
	return strings.Join(found, ",")
}
