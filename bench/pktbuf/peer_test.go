// Package pktbuf_test holds the Go package pktbuf against libnetfilter_queue,
// the C library that it descends from: the same changes to the same packets must
// give the same bytes (diff_test.go), and how long both take is measured side by
// side (compare_test.go). The C side is peer/peer.c, built when the tests run.
package pktbuf_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// Requests to the peer, as peer.c numbers them.
const (
	opMangle = 1 + iota
	opIPMangle
	opTCPMangle
	opUDPMangle
	opChecksum
	opLayout
)

const (
	opTimeAlloc = 64 + iota
	opTimeSetup
	opTimeSame
	opTimeOther
	opTimePath
	opHasSetup
)

// request is the fixed part of a request in peer.c.
type request struct {
	Op, Version, Offset, MatchLen uint32
	RepLen, Len, Extra, Rounds    uint32
}

// answer is the fixed part of an answer in peer.c.
type answer struct {
	Ret int32
	Len uint32
	NS  uint64
}

// peer is the C program, running.
type peer struct {
	in  io.Writer
	out io.Reader
}

// mustPeer builds and starts the C program. Where that is not possible for want
// of the library the test is skipped, and fails where tests must be complete.
func mustPeer(tb testing.TB) *peer {
	tb.Helper()
	bin := filepath.Join(tb.TempDir(), "peer")
	build := exec.Command("gcc", "-O2", "-o", bin, "peer/peer.c", "-lnetfilter_queue", "-ldl")
	if msg, err := build.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("building the C peer: %v\n%s", err, msg)
		}
		tb.Skipf("the C peer cannot be built (gcc and libnetfilter-queue-dev are needed): %v\n%s", err, msg)
	}
	cmd := exec.Command(bin)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("the C peer: %v", err)
		}
	})
	return &peer{in: in, out: out}
}

// ask sends a request and returns the answer with the packet in it.
func (p *peer) ask(tb testing.TB, r request, rep, packet []byte) (answer, []byte) {
	tb.Helper()
	r.RepLen, r.Len = uint32(len(rep)), uint32(len(packet))
	r.Version = uint32(packet[0] >> 4)
	var b bytes.Buffer
	binary.Write(&b, binary.NativeEndian, r)
	b.Write(rep)
	b.Write(packet)
	if _, err := p.in.Write(b.Bytes()); err != nil {
		tb.Fatalf("asking the C peer: %v", err)
	}
	var a answer
	if err := binary.Read(p.out, binary.NativeEndian, &a); err != nil {
		tb.Fatalf("reading the C peer's answer: %v", err)
	}
	data := make([]byte, a.Len)
	if _, err := io.ReadFull(p.out, data); err != nil {
		tb.Fatalf("reading the C peer's packet: %v", err)
	}
	return a, data
}

// mustView makes a parsed view of a packet with room behind it.
func mustView(tb testing.TB, packet []byte, room int) *pktbuf.View {
	tb.Helper()
	family := pktbuf.IPv4
	if packet[0]>>4 == 6 {
		family = pktbuf.IPv6
	}
	v := new(pktbuf.View)
	if err := v.Init(family, append(make([]byte, 0, len(packet)+room), packet...), nil); err != nil {
		tb.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		tb.Fatalf("parsing %x: %v", packet, err)
	}
	return v
}

// shape is a kind of packet, with options in IPv4 and TCP where asked.
type shape struct {
	version int
	proto   uint8
	options bool
}

var udp4 = shape{4, pktbuf.ProtoUDP, false}

// ipPacket makes a TCP or UDP packet. Lengths are right; checksums are filled in
// by pktbuf.
func ipPacket(tb testing.TB, s shape, payload []byte) []byte {
	tb.Helper()
	version, proto, options := s.version, s.proto, s.options
	l4 := []byte{0x13, 0xc4, 0x00, 0x35, 0, 0, 0, 1}
	if proto == pktbuf.ProtoTCP {
		l4 = []byte{0x13, 0xc4, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0}
		if options {
			l4 = append(l4, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2)
			l4[12] = 0x80
		}
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	}
	var p []byte
	if version == 4 {
		p = []byte{0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, proto, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2}
		if options {
			p = append(p, 148, 4, 0, 0)
			p[0] = 0x46
		}
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)+len(l4)+len(payload)))
	} else {
		p = []byte{0x60, 0, 0, 0, 0, 0, proto, 64}
		p = append(p, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
		p = append(p, 0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2)
		binary.BigEndian.PutUint16(p[4:], uint16(len(l4)+len(payload)))
	}
	v := mustView(tb, append(append(p, l4...), payload...), 0)
	if err := v.Recompute(); err != nil {
		tb.Fatal(err)
	}
	return v.Bytes()
}
