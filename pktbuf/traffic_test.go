package pktbuf

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hybridfw/hybridfw/internal/pcap"
)

// frames calls do with every packet of every capture of the corpus.
func frames(t *testing.T, do func(name string, p pcap.Packet)) {
	t.Helper()
	dir := os.Getenv("HYBRIDFW_CORPUS")
	if dir == "" {
		dir = "../../shared/corpus"
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.pcap*"))
	if err != nil || len(files) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("corpus of captures: %v, %d files in %s", err, len(files), dir)
		}
		t.Skipf("no corpus of captures in %s", dir)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pcap.NewReader(f)
		for err == nil {
			var p pcap.Packet
			if p, err = r.Next(); err == nil {
				do(filepath.Base(file), p)
			}
		}
		f.Close()
		if err != io.EOF {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

// TestTrafficMangled makes every change to every packet of the corpus that is
// whole, and has the slow judge look at what comes out.
func TestTrafficMangled(t *testing.T) {
	packets, done := 0, 0
	frames(t, func(name string, p pcap.Packet) {
		fam, data := Bridge, p.Data
		if p.Link != pcap.LinkEthernet {
			var typ uint16
			typ, data, _ = p.Network()
			if fam = IPv4; typ == EtherTypeIPv6 {
				fam = IPv6
			}
		}
		var v View
		if p.Len > len(p.Data) || v.Init(fam, data, nil) != nil || v.Parse() != nil {
			return
		}
		packets++
		want := slowJudge(&v, data)
		list := changes(&v)
		for _, n := range []int{0, 1, 2, 5} {
			list = append(list, struct {
				name string
				do   func(*View) error
				seen func(*View) bool
			}{"ReplacePayload", func(v *View) error { return v.ReplacePayload(0, min(2, v.PayloadLen()), pattern(n, 1)) }, nil})
		}
		for _, c := range list {
			v := mustView(t, fam, data, 10)
			if err := c.do(v); err != nil {
				if !bytes.Equal(v.Bytes(), data) || v.Changed() {
					t.Errorf("%s: %s: %v, and yet it has changed", name, c.name, err)
				}
				continue
			}
			done++
			if got := slowJudge(v, v.Bytes()); got != want {
				t.Errorf("%s: %s: %+v, want %+v: %x", name, c.name, got, want, data)
			}
		}
	})
	t.Logf("%d changes to %d packets", done, packets)
	if packets < 4000 || done < 10*packets/2 {
		t.Errorf("%d changes to %d packets are too few", done, packets)
	}
}
