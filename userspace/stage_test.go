package userspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/policy"
)

func native32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// acceptAll is a rule for everything that is not DNS.
const acceptAll = "  - { name: all, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: accept }] }\n"

func mustWrite(tb testing.TB, w interface{ Write([]byte) (int, error) }, b []byte) {
	tb.Helper()
	if _, err := w.Write(b); err != nil {
		tb.Fatal(err)
	}
}

func TestAcceptedKeepsForeignBitsOfItsMark(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll)})
		s := mustSink(t, addr)
		mustWrite(t, mustDial(t, "udp", s.addr, markOf(0)), []byte("hello"))
		data, mark, ok := s.next(t, 5*time.Second)
		if !ok || string(data) != "hello" {
			t.Fatalf("%s: %q arrived", addr, data)
		}
		if want := uint32(testForeign | testJudged); mark != want {
			t.Errorf("%s: mark %#x, want %#x", addr, mark, want)
		}
		if c := r.settled(t, 1); c.Accepted != 1 || c.Step != 1 {
			t.Errorf("%+v", c)
		}
		hooks, err := r.steer.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if hooks[2].Queued != 1 || hooks[2].Past != 0 || hooks[0].Queued != 0 {
			t.Errorf("counters %+v", hooks)
		}
		r.end(t)
	}
}

func TestUnmarkedTrafficIsNotQueued(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	s := mustSink(t, "127.0.0.1:0")
	for _, mark := range []int{0, testForeign, testForeign | testJudged, testForeign | testJudged | 1<<16} {
		mustWrite(t, mustDial(t, "udp", s.addr, mark), []byte("x"))
		if _, got, ok := s.next(t, 5*time.Second); !ok || got != uint32(mark) {
			t.Errorf("mark %#x arrived as %#x, %v", mark, got, ok)
		}
	}
	if c := r.Stats().Counters; c.Received != 0 {
		t.Errorf("%+v", c)
	}
}

func TestDroppedDoesNotArrive(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(1))
	mustWrite(t, c, dnsQuery("x.bad.example", dnsmessage.TypeA))
	mustWrite(t, c, dnsQuery("www.good.example", dnsmessage.TypeA))
	data, _, ok := s.next(t, 5*time.Second)
	if !ok || !bytes.Contains(data, []byte("good")) {
		t.Fatalf("%q arrived", data)
	}
	if c := r.settled(t, 2); c.Dropped != 1 || c.Accepted != 1 {
		t.Errorf("%+v", c)
	}
}

// A TLS connection whose hello is denied gets nowhere, an allowed one does. The
// handshake and bare acknowledgements are queued here too: nothing but the
// socket's mark chooses.
func TestHelloOverARealConnection(t *testing.T) {
	var decisions = make(chan Decision, 16)
	r := mustRun(t, Options{
		Policy:  mustPolicy(t, "", tlsRule),
		Decided: func(d Decision) error { decisions <- d; return nil },
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, want := range map[string]policy.Action{"a.bad.example": policy.ActionDrop, "good.example": policy.ActionAccept} {
		c := mustDial(t, "tcp", l.Addr().String(), markOf(0))
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, c, realHello(t, name))
		d := <-decisions
		if d.Action != want || d.Flow.Src().String() != c.LocalAddr().String() || d.Flow.Dst().String() != l.Addr().String() {
			t.Errorf("%s: %+v", name, d)
		}
		patience := 5 * time.Second
		if want == policy.ActionDrop {
			patience = 100 * time.Millisecond
		}
		if err := peer.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := peer.Read(make([]byte, 4096))
		if (n > 0) != (want == policy.ActionAccept) {
			t.Errorf("%s: %d bytes arrived, %v", name, n, err)
		}
		// The client's end is aborted with the test: closed in the ordinary way it
		// would send its hello again and again, into the queues of later tests.
		peer.Close()
	}
	r.settled(t, 4)
}

// The resolver of Go accepts rewritten answers, and never learns the real ones.
func TestResolverAcceptsRewrittenAnswers(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule)})
	real := []netip.Addr{netip.AddrFrom4(realAddr4), netip.AddrFrom16(realAddr6)}
	for _, server := range []string{"127.0.0.1:53", "[::1]:53"} {
		// Queries and responses are marked: the rule rewrites.
		lc := net.ListenConfig{Control: marked(markOf(1))}
		conn, err := lc.ListenPacket(context.Background(), "udp", server)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go serve(conn, map[string][]netip.Addr{"four.example": real, "six.example": real, "www.good.example": real})
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Control: marked(markOf(1))}
			return d.DialContext(ctx, "udp", server)
		}}
		for name, want := range map[string][]string{
			"four.example.":     {"192.0.2.99"},
			"six.example.":      {"2001:db8::99"},
			"FoUr.example.":     {"192.0.2.99"},
			"www.good.example.": {real[0].String(), real[1].String()},
		} {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			addrs, err := resolver.LookupNetIP(ctx, "ip", name)
			cancel()
			if err != nil || len(addrs) != len(want) {
				t.Errorf("%s from %s: %v, %v, want %v", name, server, addrs, err, want)
				continue
			}
			for _, w := range want {
				found := false
				for _, a := range addrs {
					found = found || a == netip.MustParseAddr(w)
				}
				if !found {
					t.Errorf("%s from %s: %v, want %v", name, server, addrs, want)
				}
			}
		}
	}
	// 2 servers, 4 names, A and AAAA, query and response.
	if c := r.settled(t, 32); c.Rewritten != 12 || c.Malformed != 0 {
		t.Errorf("%+v", c)
	}
	// Of the 12 none was thrown away for its checksum.
	for _, file := range []string{"/proc/net/snmp", "/proc/net/snmp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := udpChecksumErrors(b); n != 0 {
			t.Errorf("%s: %d datagrams with a wrong checksum", file, n)
		}
	}
}

// udpChecksumErrors adds up InCsumErrors of UDP in a file of counters.
func udpChecksumErrors(text []byte) (n int) {
	var names [][]byte
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		switch {
		case len(f) == 2 && string(f[0]) == "Udp6InCsumErrors":
			n += number(f[1])
		case len(f) > 0 && string(f[0]) == "Udp:" && names == nil:
			names = f
		case len(f) > 0 && string(f[0]) == "Udp:":
			for i := range f {
				if string(names[i]) == "InCsumErrors" {
					n += number(f[i])
				}
			}
		}
	}
	return n
}

func number(b []byte) (n int) {
	for _, c := range b {
		n = 10*n + int(c-'0')
	}
	return n
}

// serve answers A and AAAA queries until the socket is closed.
func serve(conn net.PacketConn, names map[string][]netip.Addr) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(buf[:n]); err != nil {
			continue
		}
		m.Response, m.RecursionAvailable = true, true
		var in dnsInspector
		_, asked := see(&in, buf[:n])
		for _, a := range names[asked[0]] {
			r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 60}}
			if m.Questions[0].Type == dnsmessage.TypeA && a.Is4() {
				r.Body = &dnsmessage.AResource{A: a.As4()}
			} else if m.Questions[0].Type == dnsmessage.TypeAAAA && a.Is6() {
				r.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
			} else {
				continue
			}
			m.Answers = append(m.Answers, r)
		}
		if b, err := m.Pack(); err == nil {
			// The socket may be closed by now; then the next read says so.
			_, _ = conn.WriteTo(b, from)
		}
	}
}

// Datagrams of every length come through byte for byte: those whose messages are
// not aligned, and those that no fixed buffer of a few kilobytes holds.
func TestEveryLengthGetsItsVerdict(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	s := mustSink(t, "127.0.0.1:0")
	c := mustDial(t, "udp", s.addr, markOf(0))
	if err := c.(*net.UDPConn).SetWriteBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	sent := 0
	lengths := []int{9000, 60000, 65507}
	for packet := 28; packet <= 95; packet++ {
		lengths = append(lengths, packet-28)
	}
	for _, n := range lengths {
		b := make([]byte, n)
		rand.Read(b)
		mustWrite(t, c, b)
		sent++
		data, _, ok := s.next(t, 5*time.Second)
		if !ok || !bytes.Equal(data, b) {
			t.Fatalf("%d bytes: %d arrived, %v", n, len(data), ok)
		}
	}
	if c := r.settled(t, uint64(sent)); c.Received != uint64(sent) || c.Accepted != uint64(sent) {
		t.Errorf("%d sent, %+v", sent, c)
	}
}

// A super-packet is queued, judged and let go in one piece.
func TestSuperPacketsStayWhole(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll)})
	const segment, segments = 1000, 10
	for i, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		s := mustSink(t, addr)
		d := net.Dialer{Control: control([3]int{unix.SOL_SOCKET, unix.SO_MARK, markOf(0)}, [3]int{unix.SOL_UDP, unix.UDP_SEGMENT, segment})}
		c, err := d.Dial("udp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		mustWrite(t, c, make([]byte, segments*segment))
		for n := range segments {
			if data, _, ok := s.next(t, 5*time.Second); !ok || len(data) != segment {
				t.Fatalf("%s: %d bytes as datagram %d of %d", addr, len(data), n, segments)
			}
		}
		if c := r.settled(t, uint64(i+1)); c.Received != uint64(i+1) {
			t.Errorf("%s: %+v, want one packet", addr, c)
		}
	}
}

// bigResponse is a response to four.example that fills a datagram of n bytes.
func bigResponse(tb testing.TB, n int) []byte {
	tb.Helper()
	m := fullResponse(dnsmessage.TypeA)
	for len(mustPack(tb, m)) < n-300 {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: header("FoUr.ExAmPlE", 60), Body: &dnsmessage.UnknownResource{Type: 16, Data: make([]byte, 200)}})
	}
	return mustPack(tb, m)
}

func TestLongResponsesAreRewritten(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule)})
	for _, n := range []int{9000, 60000} {
		for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
			s := mustSink(t, addr)
			mustWrite(t, mustDial(t, "udp", s.addr, markOf(1)), bigResponse(t, n))
			data, mark, ok := s.next(t, 5*time.Second)
			if !ok {
				t.Fatalf("%d bytes to %s: nothing arrived: %+v", n, addr, r.Stats().Counters)
			}
			if m := mustUnpack(t, data); len(m.Answers) != 1 || mark != uint32(markOf(1)|testJudged) {
				t.Errorf("%d bytes to %s: %s, mark %#x", n, addr, m.GoString(), mark)
			}
		}
	}
	if c := r.settled(t, 4); c.Rewritten != 4 {
		t.Errorf("%+v", c)
	}
}

func TestStatsAddUpAcrossQueues(t *testing.T) {
	r := mustRun(t, Options{Policy: mustPolicy(t, "", tlsRule+rewriteRule), Queues: 4})
	const each = 50
	sent := 0
	for host := range 8 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(host + 1)}), 0)
		s := mustSink(t, addr.String())
		c := mustDial(t, "udp", s.addr, markOf(1))
		for i := range each {
			name := []string{"www.good.example", "x.bad.example", "other.example"}[i%3]
			mustWrite(t, c, dnsQuery(name, dnsmessage.TypeA))
			sent++
		}
	}
	c := r.settled(t, uint64(sent))
	if c.Received != uint64(sent) || c.Accepted != 8*17 || c.Dropped != 8*33 || c.Undecided != 8*16 {
		t.Errorf("%d sent, %+v", sent, c)
	}
	st := r.Stats()
	used := 0
	var sum Counters
	for i, q := range st.Queues {
		sum.add(q.Counters)
		if q.Kernel.Queue != uint16(testQueue+i) || q.Kernel.PortID == 0 || q.Kernel.Dropped != 0 || q.Kernel.Waiting != 0 {
			t.Errorf("kernel says %+v of queue %d", q.Kernel, testQueue+i)
		}
		if q.Received > 0 {
			used++
		}
		if q.Kernel.LastID != q.Received {
			t.Errorf("queue %d: the kernel gave %d ids, %d packets were received", testQueue+i, q.Kernel.LastID, q.Received)
		}
	}
	if sum != st.Counters || used < 2 {
		t.Errorf("sum %+v, total %+v, %d queues used", sum, st.Counters, used)
	}
}
