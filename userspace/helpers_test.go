package userspace

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

var (
	clientAddr = netip.MustParseAddrPort("192.0.2.1:40000")
	serverAddr = netip.MustParseAddrPort("198.51.100.1:443")
	dnsAddr    = netip.MustParseAddrPort("198.51.100.53:53")
)

// ipPacket is a packet without link header: UDP, or TCP where tcp is given.
func ipPacket(src, dst netip.AddrPort, tcp *testnet.TCP, payload []byte) []byte {
	const etherType = 2 // there are no link addresses in front of it
	return testnet.Packet{Src: src, Dst: dst, TCP: tcp, Payload: payload}.Frame()[etherType:]
}

func tcpPacket(seq uint32, payload []byte) []byte {
	return ipPacket(clientAddr, serverAddr, &testnet.TCP{Seq: seq, Ack: 1, Flags: 0x18}, payload)
}

func udpPacket(payload []byte) []byte { return ipPacket(clientAddr, dnsAddr, nil, payload) }

func attr(typ uint16, v []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func nlMessage(kind uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(nlHeaderLen+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, 10)...)
	return append(b, body...)
}

// queued is a packet message as the kernel writes it.
type queued struct {
	id, mark, info, capLen uint32
	payload                []byte
}

func (q queued) attrs() []byte {
	proto := uint16(etherIPv4)
	if len(q.payload) > 0 && q.payload[0]>>4 == 6 {
		proto = etherIPv6
	}
	hdr := binary.BigEndian.AppendUint32(nil, q.id)
	hdr = binary.BigEndian.AppendUint16(hdr, proto)
	b := attr(nfqaPacketHdr, append(hdr, 3))
	b = append(b, attr(nfqaOutDev, be32(7))...)
	if q.mark != 0 {
		b = append(b, attr(nfqaMark, be32(q.mark))...)
	}
	if q.capLen != 0 {
		b = append(b, attr(nfqaCapLen, be32(q.capLen))...)
	}
	if q.info != 0 {
		b = append(b, attr(nfqaSkbInfo, be32(q.info))...)
	}
	b = append(b, attr(18, []byte{0, 4, 8, 0})...) // one that is not known here
	return append(b, attr(nfqaPayload, q.payload)...)
}

func (q queued) bytes() []byte {
	return nlMessage(msgPacket, append([]byte{unix.AF_INET, 0, 0, testQueue}, q.attrs()...))
}

// offline is a worker whose verdicts go into a file.
type offline struct {
	*worker
	file *os.File
	read int64
}

func newOffline(tb testing.TB, o Options) *offline {
	tb.Helper()
	o, err := o.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	file, err := os.CreateTemp(tb.TempDir(), "verdicts")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { file.Close() })
	q := &queue{num: testQueue, fd: int(file.Fd()), room: 1 << 19}
	return &offline{worker: newWorker(q, &o), file: file}
}

// receives is what the worker does with messages received at once.
func (w *offline) receives(tb testing.TB, messages ...[]byte) []sent {
	tb.Helper()
	for i, m := range messages {
		n := copy(w.slot(i, slotLen), m)
		w.msgs[i].len = uint32(n)
	}
	if err := w.handleBatch(len(messages)); err != nil {
		tb.Fatal(err)
	}
	w.tally.publish()
	return w.sent(tb)
}

// packet is what the worker does with one packet, which gets one verdict.
func (w *offline) packet(tb testing.TB, q queued) sent {
	tb.Helper()
	all := w.receives(tb, q.bytes())
	if len(all) != 1 || all[0].id != q.id || all[0].batch {
		tb.Fatalf("verdicts %+v, want one on packet %d", all, q.id)
	}
	return all[0]
}

// sent is a verdict as the kernel would read it.
type sent struct {
	id      uint32
	accept  bool
	batch   bool
	mark    uint32
	hasMark bool
	payload []byte
}

// sent reads back the verdicts sent since the last call, with a library that is
// not ours.
func (w *offline) sent(tb testing.TB) []sent {
	tb.Helper()
	end, err := w.file.Seek(0, 1)
	if err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, end-w.read)
	if _, err := w.file.ReadAt(b, w.read); err != nil && len(b) > 0 {
		tb.Fatal(err)
	}
	w.read = end
	var all []sent
	for len(b) > 0 {
		var m netlink.Message
		n := int(binary.NativeEndian.Uint32(b))
		if n%4 != 0 || n > len(b) {
			tb.Fatalf("message of %d bytes in %d", n, len(b))
		}
		if err := m.UnmarshalBinary(b[:n]); err != nil {
			tb.Fatal(err)
		}
		b = b[n:]
		all = append(all, decodeVerdict(tb, m))
	}
	return all
}

func decodeVerdict(tb testing.TB, m netlink.Message) sent {
	tb.Helper()
	s := sent{batch: m.Header.Type == msgVerdictBatch}
	if !s.batch && m.Header.Type != msgVerdict || m.Header.Flags != netlink.Request {
		tb.Fatalf("message header %+v", m.Header)
	}
	if got := binary.BigEndian.Uint16(m.Data[2:]); got != testQueue {
		tb.Fatalf("verdict for queue %d", got)
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[nfHeaderLen:])
	if err != nil {
		tb.Fatal(err)
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case nfqaVerdictHdr:
			s.accept = binary.BigEndian.Uint32(ad.Bytes()) == nfAccept
			s.id = binary.BigEndian.Uint32(ad.Bytes()[4:])
		case nfqaMark:
			s.mark, s.hasMark = ad.Uint32(), true
		case nfqaPayload:
			s.payload = ad.Bytes()
		default:
			tb.Fatalf("attribute %d", ad.Type())
		}
	}
	if err := ad.Err(); err != nil {
		tb.Fatal(err)
	}
	return s
}
