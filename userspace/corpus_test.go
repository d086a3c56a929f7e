package userspace

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/pcap"
	"github.com/hybridfw/hybridfw/pktbuf"
)

// corpusDir is the folder of captures that others published, beside the project.
func corpusDir(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("HYBRIDFW_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "corpus")
	}
	if _, err := os.Stat(filepath.Join(dir, "truth", "dns.tsv")); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("no captures: %v; set HYBRIDFW_CORPUS", err)
		}
		tb.Skipf("no captures: %v; set HYBRIDFW_CORPUS", err)
	}
	return dir
}

// readTable calls f for each row of a truth file.
func readTable(tb testing.TB, file string, f func(row map[string]string)) {
	tb.Helper()
	in, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	var columns []string
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if columns == nil {
			columns = fields
			continue
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c] = fields[i]
		}
		f(row)
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
}

// frame is one packet of a capture, down to its transport payload.
type frame struct {
	file   string
	number int // from 1
	view   *pktbuf.View
	flow   pktbuf.Flow
}

// eachFrame calls f for each packet in the captures that parses.
func eachFrame(tb testing.TB, dir string, f func(frame)) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || ext != ".pcap" && ext != ".pcapng" && ext != ".cap" {
			return err
		}
		file, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return readCapture(path, filepath.ToSlash(file), f)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func readCapture(path, file string, f func(frame)) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pcap.NewReader(in)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for number := 1; ; number++ {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s, frame %d: %w", file, number, err)
		}
		family, data := pktbuf.Bridge, p.Data
		if p.Link != pcap.LinkEthernet {
			etherType, network, ok := p.Network()
			if !ok {
				continue
			}
			data, family = network, pktbuf.IPv4
			if etherType == etherIPv6 {
				family = pktbuf.IPv6
			}
		}
		var v pktbuf.View
		if err := v.Init(family, data, nil); err != nil {
			return err
		}
		if p.Len > len(p.Data) {
			v.SetCut()
		}
		if v.Parse() != nil {
			continue
		}
		flow, ok := v.Flow()
		if ok || v.IsFragment() {
			f(frame{file, number, &v, flow})
		}
	}
}

// onDNSPort tells whether a flow is DNS: one capture has it on another port.
func onDNSPort(f pktbuf.Flow) bool {
	for _, port := range []uint16{f.SrcPort(), f.DstPort()} {
		if port == dnsPort || port == 8053 {
			return true
		}
	}
	return false
}

// wireQuestion is the name of a row as the inspector gives it: from the wire
// form, where that holds no pointer.
func wireQuestion(tb testing.TB, row map[string]string) string {
	wire, err := hex.DecodeString(row["name_hex"])
	if err != nil || len(wire) == 0 {
		return row["name_norm"]
	}
	var labels []string
	for len(wire) > 1 {
		n := int(wire[0])
		if n >= 192 {
			return row["name_norm"]
		}
		label := strings.ReplaceAll(string(wire[1:1+n]), ".", `\`)
		labels, wire = append(labels, strings.ToLower(label)), wire[1+n:]
	}
	return strings.Join(labels, ".")
}

func flowOf(row map[string]string, proto uint8) string {
	addr := func(host, port string) string {
		if a, err := netip.ParseAddr(row[host]); err == nil {
			return netip.AddrPortFrom(a, uint16(number([]byte(row[port])))).String()
		}
		return row[host] + ":" + row[port]
	}
	return fmt.Sprintf("%d %s %s", proto, addr("src", "sport"), addr("dst", "dport"))
}

func flowName(f pktbuf.Flow) string { return fmt.Sprintf("%d %s %s", f.Proto(), f.Src(), f.Dst()) }

// exceptions are rows of the truth that are not for the inspectors, with why.
var exceptions = map[string]string{
	"malformed/tcpdump-dns-badlabel.pcap 1":              "the name is longer than any may be",
	"malformed/tcpdump-dns_fwdptr.pcap 1":                "pointers lead forward; the dissector too finds no name",
	"malformed/tcpdump-ipv4_invalid_total_length.pcap 1": "the IP header contradicts itself",
	"malformed/tcpdump-ipv6_invalid_length_2.pcap 1":     "the IP header contradicts itself",
	"tls/mercury-tlsv1_3.pcap 4":                         "the IP header's length is 0: captured in front of segmentation offload",
	"tls/zeek-ssl-v2.pcap 4":                             "a hello in SSL 2's format, which has no names, is not TLS",
}

// sameNames compares two multisets of "frame: name" lines.
func sameNames(tb testing.TB, got, want map[string]int) {
	tb.Helper()
	var wrong []string
	excepted := 0
	for k, n := range want {
		if at, _, _ := strings.Cut(k, ":"); exceptions[at] != "" && got[k] == 0 {
			excepted++
			continue
		}
		if got[k] != n {
			wrong = append(wrong, fmt.Sprintf("%s: found %d times, want %d", k, got[k], n))
		}
	}
	for k, n := range got {
		if want[k] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s: found %d times, is not there", k, n))
		}
	}
	tb.Logf("%d found, %d in the truth, %d of those excepted", len(got), len(want), excepted)
	sort.Strings(wrong)
	for _, w := range wrong {
		tb.Error(w)
	}
}

// Every question over UDP port 53 in the captures is found, none is made up.
func TestCorpusDNS(t *testing.T) {
	dir := corpusDir(t)
	got, want, named := map[string]int{}, map[string]int{}, map[string][]string{}
	readTable(t, filepath.Join(dir, "truth", "dns.tsv"), func(row map[string]string) {
		tunnel := strings.Contains(row["layers"], "gre") || strings.Contains(row["layers"], "vxlan")
		if row["proto"] != "dns" || row["l4"] != "udp" || tunnel || row["note"] == "icmp-embedded" {
			return
		}
		at := fmt.Sprintf("%s %s", row["file"], row["frame"])
		name := at + ": " + wireQuestion(t, row)
		want[name]++
		named[at] = append(named[at], name)
	})
	var in dnsInspector
	fragments := 0
	eachFrame(t, dir, func(f frame) {
		if f.view.IsFragment() {
			// What a dissector puts together is malformed to the stage.
			for _, name := range named[fmt.Sprintf("%s %d", f.file, f.number)] {
				delete(want, name)
				fragments++
			}
			return
		}
		if f.flow.Proto() != pktbuf.ProtoUDP || !onDNSPort(f.flow) {
			return
		}
		_, names := see(&in, f.view.Payload())
		for _, n := range names {
			got[fmt.Sprintf("%s %d: %s", f.file, f.number, n)]++
		}
	})
	sameNames(t, got, want)
	t.Logf("%d more stand in fragments", fragments)
}

// Every hello in one segment is found with its name, or with none where it has
// none; no segment that has no hello gives a name.
func TestCorpusTLS(t *testing.T) {
	dir := corpusDir(t)
	got, want, later := map[string]int{}, map[string]int{}, map[string]bool{}
	readTable(t, filepath.Join(dir, "truth", "tls.tsv"), func(row map[string]string) {
		name := strings.TrimSuffix(row["sni_norm"], "-")
		// A dissector shows a hello that comes again only once.
		later[row["file"]+flowOf(row, 6)+name] = true
		if row["segment_frames"] == row["frame"] && !strings.Contains(row["layers"], "geneve") {
			want[fmt.Sprintf("%s %s: %q", row["file"], row["frame"], name)]++
		}
	})
	var in tlsInspector
	eachFrame(t, dir, func(f frame) {
		if f.flow.Proto() != pktbuf.ProtoTCP || f.view.IsFragment() {
			return
		}
		_, names := see(&in, f.view.Payload())
		for _, n := range names {
			key := fmt.Sprintf("%s %d: %q", f.file, f.number, n)
			if want[key] == 0 && later[f.file+flowName(f.flow)+n] {
				continue
			}
			got[key]++
		}
	})
	sameNames(t, got, want)
}
