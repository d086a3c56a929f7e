package netns

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/internal/pcap"
	"github.com/hybridfw/hybridfw/internal/testnet"
)

// corpus is a folder of captures that others have published, with what an
// independent dissector says about them.
type corpus struct{ dir string }

// openCorpus skips the test where there is no such folder, unless it was named.
func openCorpus(tb testing.TB) corpus {
	tb.Helper()
	dir, named := os.LookupEnv("HYBRIDFW_CORPUS")
	if !named {
		dir = "../../../shared/corpus"
	}
	_, err := os.Stat(filepath.Join(dir, "manifest.tsv"))
	if errors.Is(err, fs.ErrNotExist) && !named {
		tb.Skipf("skipped: there is no folder of published captures (%s, or what HYBRIDFW_CORPUS names)", dir)
	}
	if err != nil {
		tb.Fatalf("published captures: %v", err)
	}
	return corpus{dir}
}

// table reads a table with a line of titles, a map a row.
func (c corpus) table(tb testing.TB, name string) (rows []map[string]string) {
	tb.Helper()
	file, err := os.Open(filepath.Join(c.dir, name))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	r := csv.NewReader(file)
	r.Comma, r.LazyQuotes, r.ReuseRecord = '\t', true, false
	titles, err := r.Read()
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	for {
		fields, err := r.Read()
		if err == io.EOF {
			return rows
		}
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		row := make(map[string]string, len(titles))
		for i, title := range titles {
			row[title] = fields[i]
		}
		rows = append(rows, row)
	}
}

// questions are the names asked for over UDP on port 53, by capture, in the
// order in which they were sent.
func (c corpus) questions(tb testing.TB) map[string][]string {
	tb.Helper()
	names := make(map[string][]string)
	// What a sender has left to its device looks like damage: such segments are
	// malformed here.
	damaged := make(map[string]bool)
	for _, row := range c.table(tb, "truth/packets.tsv") {
		if row["l4_name"] == "tcp" && row["csum_l4"] == "bad" {
			damaged[row["file"]+row["frame"]] = true
		}
	}
	for _, row := range c.table(tb, "truth/dns.tsv") {
		if row["proto"] == "dns" && !damaged[row["file"]+row["frame"]] && row["dport"] == "53" && row["response"] == "0" && row["note"] != "icmp-embedded" {
			names[row["file"]] = append(names[row["file"]], row["name_norm"])
		}
	}
	return names
}

// frames reads a capture as Ethernet frames from the client to the firewall:
// other link headers are replaced, of Ethernet ones the addresses.
func (c corpus) frames(tb testing.TB, b *bench, name string) (frames [][]byte) {
	tb.Helper()
	file, err := os.Open(filepath.Join(c.dir, name))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	r, err := pcap.NewReader(file)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	addresses := append(slices.Clone(b.Firewall.MustMAC(tb, b.Lan)), b.Client.MustMAC(tb, "eth0")...)
	for {
		p, err := r.Next()
		if err == io.EOF {
			return frames
		}
		if err != nil {
			tb.Fatalf("%s: packet %d: %v", name, len(frames)+1, err)
		}
		etherType, rest, ok := p.Network()
		if !ok {
			tb.Fatalf("%s: packet %d has the link type %d, or ends in its header", name, len(frames)+1, p.Link)
		}
		frame := append(slices.Clone([]byte(addresses)), byte(etherType>>8), byte(etherType))
		frames = append(frames, append(frame, rest...))
	}
}

// sighting is a line of the log about a name.
type sighting struct {
	Msg, Kind, Name, Verdict, Rule string
	Src, Dst                       netip.AddrPort
}

// seen waits until a name is in the log, and returns what was seen after the
// first skip sightings, without it.
func (f *firewall) seen(tb testing.TB, skip int, last string) (found []sighting) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		found = found[:0]
		for line := range strings.Lines(f.log.String()) {
			var s sighting
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				if !strings.HasSuffix(line, "\n") {
					break // is being written
				}
				tb.Fatalf("the log has the line %q: %v", line, err)
			}
			if s.Msg != "name seen" {
				continue
			}
			if s.Name == last {
				return found[skip:]
			}
			found = append(found, s)
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s was never seen; the log:\n%s", last, f.log.String())
		}
	}
}

// unroutable are captures whose packets no router passes on, so that they never
// come to the queue. The tests of package userspace read them.
var unroutable = map[string]string{
	"dns/dnscap-ipv6-with-ethernet-padding.pcap": "the source is ::1",
	"dns/dnscap-sll2.pcap":                       "the source is a multicast address",
	"dns/dsc-test_285.pcap":                      "the source is 127.0.0.1",
	"dns/pcpp-dns_over_tcp.pcapng":               "the connection's start is not in it: failure.midstream",
}

// wide lets an interface take super-packets, which captures made on their sender
// have.
func wide(tb testing.TB, host *testnet.Host, ifname string) {
	tb.Helper()
	host.MustDo(tb, func() error {
		l, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, 65535)
	})
}

// TestNamesInPublishedCaptures replays DNS traffic of others through an
// observing firewall, and compares the names that it logs.
func TestNamesInPublishedCaptures(t *testing.T) {
	c := openCorpus(t)
	want := c.questions(t)
	// One queue, so that names are logged in the order of their packets.
	b := newBench(t, testnet.RoutedOptions{}, observe, "--log-format", "json", "--queues", "1")
	for _, fam := range families {
		everything := netip.PrefixFrom(fam.server, 0).Masked()
		if err := b.Firewall.Route(everything, fam.server); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []struct {
		host   *testnet.Host
		ifname string
	}{{b.Client, "eth0"}, {b.Firewall, b.Lan}, {b.Firewall, b.Wan}, {b.Server, "eth0"}} {
		wide(t, end.host, end.ifname)
	}
	files, names, ends := 0, 0, 0
	for _, row := range c.table(t, "manifest.tsv") {
		if row["kind"] != "dns" {
			continue
		}
		files++
		t.Run(strings.TrimPrefix(row["file"], "dns/"), func(t *testing.T) {
			for _, frame := range c.frames(t, b, row["file"]) {
				b.sendFrame(t, frame)
			}
			end := fmt.Sprintf("end-%d.hybridfw.example", ends)
			b.send(t, testnet.Packet{Src: b.from(testnet.Client4), Dst: b.to(families[0], 53),
				Payload: question(t, uint16(ends), end+".", 1)})
			var got []string
			for _, s := range b.f.seen(t, names+ends, end) {
				if s.Kind != "dns" || s.Verdict != "accept" || s.Rule != "dns" || s.Dst.Port() != 53 {
					t.Errorf("a sighting that is none of DNS: %+v", s)
				}
				got = append(got, s.Name)
			}
			names += len(got)
			ends++
			expected := want[row["file"]]
			if why := unroutable[row["file"]]; why != "" {
				t.Logf("its names cannot be seen here: %s", why)
				expected = nil
			}
			if !slices.Equal(got, expected) {
				t.Errorf("names seen:\n%q\nnames in it:\n%q", got, expected)
			}
		})
	}
	s := b.f.status()
	if files < 20 || names < 200 || s.NamesLost != 0 || s.User.Panics != 0 {
		t.Errorf("%d files, %d names, %d names lost, %d panics; want at least 20 files, 200 names and no loss", files, names, s.NamesLost, s.User.Panics)
	}
	t.Logf("%d names in %d captures", names, files)
}
