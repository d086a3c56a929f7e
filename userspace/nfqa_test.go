package userspace

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Messages as Linux 6.18 wrote them for datagrams of 5 bytes on loopback, taken
// from a queue's socket. Their lengths are not multiples of 4.
const (
	recorded4 = `
	5d000000 00030000 00000000 00000000 02000064 0b000100 00000001 08000300
	08000600 00000001 08000300 12020034 08000e00 00000001
	25000a00 45000021 7ac54000 4011c204 7f000001 7f000001 d86f9114 000dfe20 68656c6c 6f`
	recorded6 = `
	71000000 00030000 00000000 00000000 0a000064 0b000100 00000002 86dd0300
	08000600 00000001 08000300 12020034 08000e00 00000001
	39000a00 6009846f 000d1140 00000000 00000000 00000000 00000001
	00000000 00000000 00000000 00000001 97b1d7c7 000d0020 68656c6c 6f`
)

func fromHex(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestPacketMessageFromHex(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the messages are those of a little-endian machine")
	}
	for i, text := range []string{recorded4, recorded6} {
		m, rest, err := nextMessage(fromHex(t, text))
		if err != nil || m.kind != msgPacket || len(rest) != 0 {
			t.Fatalf("message %+v, rest %d, %v", m, len(rest), err)
		}
		var p packet
		if err := p.parse(m.body); err != nil {
			t.Fatal(err)
		}
		proto := []uint16{etherIPv4, etherIPv6}[i]
		if p.id != uint32(i+1) || p.proto != proto || p.hook != 3 || p.outDev != 1 || p.inDev != 0 ||
			p.mark != 0x12020034 || p.skbInfo != skbUnfinished || len(p.payload) != 33+20*i || p.cut() {
			t.Errorf("%+v", p)
		}
		if !bytes.HasSuffix(p.payload, []byte("hello")) {
			t.Errorf("payload %q", p.payload)
		}
	}
}

func TestAllAttributes(t *testing.T) {
	b := []byte{unix.AF_INET6, 0, 0, 1}
	b = append(b, attr(nfqaPacketHdr, []byte{0, 0, 0, 9, 0x86, 0xdd, 2})...)
	b = append(b, attr(nfqaInDev, be32(3))...)
	b = append(b, attr(nfqaOutDev, be32(4))...)
	b = append(b, attr(nfqaTimestamp, append(append(be32(0), be32(100)...), append(be32(0), be32(5)...)...))...)
	b = append(b, attr(nfqaCapLen, be32(1500))...)
	b = append(b, attr(0x8000|11, attr(1, be32(1)))...) // nested, not needed
	b = append(b, attr(nfqaPayload, []byte{0x60})...)
	var p packet
	if err := p.parse(b); err != nil {
		t.Fatal(err)
	}
	if p.id != 9 || p.inDev != 3 || p.outDev != 4 || p.seconds != 100 || p.micros != 5 || p.capLen != 1500 || !p.cut() || p.hook != 2 {
		t.Errorf("%+v", p)
	}
}

// Whatever is cut off, what stood in front of it counts, and the packet gets its
// verdict as soon as its id is known.
func TestCutMessageStillGetsItsVerdict(t *testing.T) {
	p := mustPolicy(t, "malformed: accept, undecided: accept", acceptAll)
	whole := queued{id: 77, mark: uint32(markOf(0)), payload: tcpPacket(1, []byte("data"))}.bytes()
	for n := range len(whole) {
		w := newOffline(t, Options{Policy: p, Queues: 1, Flows: 8})
		cut := append([]byte(nil), whole[:n]...)
		if n >= nlHeaderLen && n%2 == 0 {
			// Every second time the length is right for what is there.
			binary.NativeEndian.PutUint32(cut, uint32(n))
		}
		got := w.receives(t, cut)
		c := w.tally.snapshot()
		const idAt = nlHeaderLen + nfHeaderLen + attrHeader + 7
		if n < idAt {
			if len(got) != 0 || c.Received != 0 || n > 0 && c.Broken == 0 {
				t.Fatalf("%d bytes: verdicts %+v, counters %+v", n, got, c)
			}
			continue
		}
		if len(got) != 1 || got[0].id != 77 || !got[0].accept || c.Received != 1 {
			t.Fatalf("%d bytes: verdicts %+v, counters %+v", n, got, c)
		}
	}
}

func TestContradictingAttributesAreMalformed(t *testing.T) {
	good := queued{id: 5, mark: uint32(markOf(0)), payload: tcpPacket(1, []byte("data"))}
	for name, attrs := range map[string][]byte{
		"two ids":           append(good.attrs(), attr(nfqaPacketHdr, []byte{0, 0, 0, 6, 8, 0, 3})...),
		"two payloads":      append(good.attrs(), attr(nfqaPayload, []byte{1})...),
		"short mark":        append(good.attrs(), attr(nfqaMark, []byte{1, 2})...),
		"short timestamp":   append(good.attrs(), attr(nfqaTimestamp, be32(1))...),
		"length below head": append(good.attrs(), 3, 0, 3, 0),
		"length of zero":    append(good.attrs(), 0, 0, 3, 0),
		"length beyond":     append(good.attrs(), 200, 0, 3, 0),
		"lonely bytes":      append(good.attrs(), 8, 0),
	} {
		w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
		got := w.receives(t, nlMessage(msgPacket, append([]byte{2, 0, 0, testQueue}, attrs...)))
		if len(got) != 1 || got[0].id != 5 || got[0].accept {
			t.Errorf("%s: verdicts %+v, want packet 5 dropped", name, got)
		}
		if c := w.tally.snapshot(); c.Malformed != 1 || c.Broken != 1 || c.Received != 1 || c.Dropped != 1 {
			t.Errorf("%s: counters %+v", name, c)
		}
	}
}

func TestErrorMessagesAreCounted(t *testing.T) {
	w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
	failure := func(errno unix.Errno, seq uint32) []byte {
		b := nlMessage(unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))))
		binary.NativeEndian.PutUint32(b[8:], seq)
		return b
	}
	got := w.receives(t, failure(unix.ENOENT, 0), failure(unix.ENOENT, 0), failure(unix.EINVAL, 0),
		failure(0, wakeSeq), failure(unix.EPERM, wakeSeq), nlMessage(unix.NLMSG_ERROR, []byte{1}), nlMessage(4242, nil))
	if len(got) != 0 {
		t.Errorf("verdicts %+v", got)
	}
	if c := w.tally.snapshot(); c.VerdictENOENT != 2 || c.VerdictErrors != 1 || c.Broken != 2 || c.Received != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestSeveralMessagesInOneDatagram(t *testing.T) {
	w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
	var b []byte
	for id := range uint32(5) {
		m := queued{id: id + 1, mark: uint32(markOf(0)), payload: udpPacket(nil)}
		if id != 2 {
			m.payload = tcpPacket(9, []byte("x"))
		}
		b = append(b, m.bytes()...)
	}
	got := w.receives(t, b)
	if len(got) != 3 || !got[0].batch || got[0].id != 2 || !got[0].accept ||
		got[1].id != 3 || got[1].accept || got[2].id != 5 || !got[2].batch {
		t.Errorf("verdicts %+v", got)
	}
}

// FuzzMessages feeds the worker arbitrary bytes: no panic, no packet received
// without exactly one verdict.
func FuzzMessages(f *testing.F) {
	f.Add(queued{id: 1, mark: uint32(markOf(0)), payload: tcpPacket(1, []byte("data"))}.bytes())
	f.Add(queued{id: 2, mark: uint32(markOf(1)), payload: udpPacket(dnsQuery("a.example", 1)), capLen: 9}.bytes())
	f.Add(append(queued{id: 3}.bytes(), queued{id: 4}.bytes()...))
	f.Add(fromHex(f, recorded4))
	f.Add(fromHex(f, recorded6))
	p := mustPolicy(f, "", acceptAll+rewriteRule)
	w := newOffline(f, Options{Policy: p, Queues: 1, Flows: 64})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > slotLen {
			return
		}
		before := w.tally.snapshot()
		got := w.receives(t, b)
		c := w.tally.snapshot()
		if c.Panics != 0 {
			t.Fatal("an inspector panicked")
		}
		received := c.Received - before.Received
		if received != c.Accepted+c.Dropped+c.Rewritten-before.Accepted-before.Dropped-before.Rewritten {
			t.Fatalf("received is not the sum of the verdicts: %+v", c)
		}
		if uint64(len(got)) > received || received > 0 && len(got) == 0 {
			t.Fatalf("%d verdicts on %d packets", len(got), received)
		}
		for _, v := range got {
			if v.accept && v.mark&testJudged == 0 {
				t.Fatalf("accepted with mark %#x", v.mark)
			}
		}
	})
}
