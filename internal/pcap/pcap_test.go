package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// classic writes a pcap file with the packets.
func classic(order binary.AppendByteOrder, magic uint32, link uint32, packets ...[]byte) []byte {
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(order.AppendUint16(b, 2), 4)
	b = order.AppendUint32(order.AppendUint32(b, 0), 0)
	b = order.AppendUint32(order.AppendUint32(b, 65535), link)
	for i, p := range packets {
		b = order.AppendUint32(order.AppendUint32(b, uint32(1000+i)), 5)
		b = order.AppendUint32(order.AppendUint32(b, uint32(len(p))), uint32(len(p)+i))
		b = append(b, p...)
	}
	return b
}

// block writes a pcapng block.
func block(order binary.AppendByteOrder, typ uint32, body []byte) []byte {
	body = append(body, make([]byte, -len(body)&3)...)
	size := uint32(12 + len(body))
	b := order.AppendUint32(order.AppendUint32(nil, typ), size)
	return order.AppendUint32(append(b, body...), size)
}

func section(order binary.AppendByteOrder) []byte {
	b := order.AppendUint32(nil, byteOrderMagic)
	b = order.AppendUint16(order.AppendUint16(b, 1), 0)
	b = order.AppendUint64(b, 1<<64-1)
	return block(order, magicSection, append(b, 0, 0, 0, 0)) // an empty option
}

func describe(order binary.AppendByteOrder, link LinkType, options ...byte) []byte {
	b := order.AppendUint16(order.AppendUint16(nil, uint16(link)), 0)
	return block(order, blockInterface, append(order.AppendUint32(b, 0), options...))
}

func enhanced(order binary.AppendByteOrder, iface uint32, stamp uint64, p []byte) []byte {
	b := order.AppendUint32(nil, iface)
	b = order.AppendUint32(order.AppendUint32(b, uint32(stamp>>32)), uint32(stamp))
	b = order.AppendUint32(order.AppendUint32(b, uint32(len(p))), uint32(len(p)+9))
	b = append(b, p...)
	return block(order, blockEnhanced, append(b, make([]byte, -len(p)&3)...))
}

// readAll reads a capture to its end.
func readAll(tb testing.TB, r io.Reader) ([]Packet, error) {
	tb.Helper()
	c, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	var all []Packet
	for {
		p, err := c.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		p.Data = bytes.Clone(p.Data)
		all = append(all, p)
	}
}

func TestClassic(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, unit := range map[uint32]time.Duration{magicMicro: time.Microsecond, magicNano: time.Nanosecond} {
			// The link type's upper bits say that frames end in a check sequence.
			file := classic(order, magic, 0x14000001, []byte("first"), []byte("second"))
			got, err := readAll(t, bytes.NewReader(file))
			if err != nil || len(got) != 2 {
				t.Fatalf("%v, %d packets", err, len(got))
			}
			want := Packet{Data: []byte("second"), Time: time.Unix(1001, int64(5*unit)).UTC(), Len: 7, Link: LinkEthernet}
			if p := got[1]; string(p.Data) != "second" || p.Time != want.Time || p.Len != want.Len || p.Link != want.Link {
				t.Errorf("got %v, want %v", p, want)
			}
		}
	}
}

func TestNG(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		other := binary.AppendByteOrder(binary.BigEndian)
		if order == other {
			other = binary.LittleEndian
		}
		nano := order.AppendUint16(order.AppendUint16(nil, optResolution), 1)
		nano = append(nano, 9, 0, 0, 0)
		nano = order.AppendUint16(order.AppendUint16(nano, optOffset), 8)
		nano = append(order.AppendUint64(nano, 100), 0, 0, 0, 0)
		binaryUnit := append(order.AppendUint16(order.AppendUint16(nil, optResolution), 1), 0x80|10, 0, 0, 0)
		old := order.AppendUint16(order.AppendUint16(nil, 1), 3)
		old = order.AppendUint32(order.AppendUint32(old, 0), 7e6)
		old = append(order.AppendUint32(order.AppendUint32(old, 3), 3), "old"...)
		file := bytes.Join([][]byte{
			section(order),
			describe(order, LinkRaw),
			describe(order, LinkEthernet, nano...),
			describe(order, LinkLinuxSLL2, binaryUnit...),
			block(order, 0x0bad, []byte("a block that nobody knows")),
			enhanced(order, 0, 5e6+1, []byte("micro")),
			enhanced(order, 1, 5e9+1, []byte("nanosec")),
			enhanced(order, 2, 5<<10+512, []byte("half")),
			block(order, blockPacket, old),
			block(order, blockSimple, append(order.AppendUint32(nil, 6), "simple"...)),
			// A new section has its own byte order and interfaces.
			section(other),
			describe(other, LinkLoop),
			enhanced(other, 0, 1e6, []byte("last")),
		}, nil)
		got, err := readAll(t, bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		want := []Packet{
			{[]byte("micro"), time.Unix(5, 1000).UTC(), 14, LinkRaw},
			{[]byte("nanosec"), time.Unix(105, 1).UTC(), 16, LinkEthernet},
			{[]byte("half"), time.Unix(5, 5e8).UTC(), 13, LinkLinuxSLL2},
			{[]byte("old"), time.Unix(100, 7e6).UTC(), 3, LinkEthernet},
			{[]byte("simple"), time.Time{}, 6, LinkRaw},
			{[]byte("last"), time.Unix(1, 0).UTC(), 13, LinkLoop},
		}
		if len(got) != len(want) {
			t.Fatalf("%d packets, want %d", len(got), len(want))
		}
		for i, p := range got {
			if !bytes.Equal(p.Data, want[i].Data) || p.Time != want[i].Time || p.Len != want[i].Len || p.Link != want[i].Link {
				t.Errorf("packet %d: %q %v %d %d, want %q %v %d %d", i, p.Data, p.Time, p.Len, p.Link,
					want[i].Data, want[i].Time, want[i].Len, want[i].Link)
			}
		}
	}
}

// TestCutFile cuts files at every byte: what is whole is read, what is not is an
// error and never the end.
func TestCutFile(t *testing.T) {
	le := binary.LittleEndian
	first := bytes.Join([][]byte{section(le), describe(le, LinkRaw)}, nil)
	for name, tt := range map[string]struct {
		file []byte
		ends []int
	}{
		"pcap": {classic(le, magicMicro, 1, []byte("abc")), []int{24, 24 + 16 + 3}},
		"pcapng": {append(bytes.Clone(first), enhanced(le, 0, 1, []byte("abc"))...),
			[]int{len(section(le)), len(first), len(first) + 36}},
	} {
		for n := range len(tt.file) + 1 {
			whole := false
			for _, end := range tt.ends {
				whole = whole || n == end
			}
			_, err := readAll(t, bytes.NewReader(tt.file[:n]))
			if whole && err != nil || !whole && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes: %v", name, n, err)
			}
		}
	}
}

func TestDamaged(t *testing.T) {
	le := binary.LittleEndian
	ng := func(blocks ...[]byte) []byte {
		return bytes.Join(append([][]byte{section(le), describe(le, LinkRaw)}, blocks...), nil)
	}
	huge := classic(le, magicMicro, 1, []byte("abc"))
	le.PutUint32(huge[32:], 0xffffffff)
	short := enhanced(le, 0, 1, []byte("abc"))
	le.PutUint32(short[20:], 4000)
	trailer := enhanced(le, 0, 1, []byte("abc"))
	le.PutUint32(trailer[len(trailer)-4:], 40)
	for name, file := range map[string][]byte{
		"text":                 []byte("no capture file at all, but text"),
		"huge record":          huge,
		"packet beyond block":  ng(short),
		"lengths disagree":     ng(trailer),
		"unknown interface":    ng(enhanced(le, 1, 1, []byte("abc"))),
		"block length 0":       ng(make([]byte, 12)),
		"odd block length":     ng([]byte{9, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0, 0}),
		"resolution":           ng(describe(le, LinkRaw, 9, 0, 1, 0, 0x7f, 0, 0, 0)),
		"binary resolution":    ng(describe(le, LinkRaw, 9, 0, 1, 0, 0xff, 0, 0, 0)),
		"option beyond block":  ng(describe(le, LinkRaw, 9, 0, 9, 0)),
		"short interface":      ng(block(le, blockInterface, nil)),
		"short enhanced":       ng(block(le, blockEnhanced, make([]byte, 16))),
		"short simple":         ng(block(le, blockSimple, nil)),
		"simple, no interface": append(section(le), block(le, blockSimple, make([]byte, 8))...),
		"byte order":           block(le, magicSection, make([]byte, 16)),
		"short section":        block(le, magicSection, le.AppendUint32(nil, byteOrderMagic)),
	} {
		if _, err := readAll(t, bytes.NewReader(file)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewReader(strings.NewReader("ab")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("two bytes: %v", err)
	}
}

func TestNetwork(t *testing.T) {
	v4, v6 := []byte{0x45, 1, 2, 3}, []byte{0x60, 1, 2, 3}
	for _, tt := range []struct {
		link LinkType
		data []byte
		typ  uint16
		want []byte
	}{
		{LinkEthernet, append(append(make([]byte, 12), 8, 0), v4...), 0x0800, v4},
		{LinkEthernet, append(append(make([]byte, 12), 0x81, 0), v4...), 0x8100, v4},
		{LinkLinuxSLL, append(append(make([]byte, 14), 0x86, 0xdd), v6...), 0x86dd, v6},
		{LinkLinuxSLL2, append(append([]byte{8, 0}, make([]byte, 18)...), v4...), 0x0800, v4},
		{LinkNull, append([]byte{2, 0, 0, 0}, v4...), 0x0800, v4},
		{LinkLoop, append([]byte{0, 0, 0, 24}, v6...), 0x86dd, v6},
		{LinkRaw, v4, 0x0800, v4},
		{LinkRaw, v6, 0x86dd, v6},
		{LinkIPv4, v4, 0x0800, v4},
		{LinkIPv6, v6, 0x86dd, v6},
		{linkRawBSD, v4, 0x0800, v4},
		{LinkRaw, []byte{0x50}, 0, nil},
		{LinkRaw, nil, 0, nil},
		{LinkEthernet, make([]byte, 13), 0, nil},
		{LinkLinuxSLL2, make([]byte, 19), 0, nil},
		{LinkNull, make([]byte, 3), 0, nil},
		{147, v4, 0, nil},
	} {
		typ, data, ok := Packet{Link: tt.link, Data: tt.data}.Network()
		if typ != tt.typ || !bytes.Equal(data, tt.want) || ok != (tt.want != nil) {
			t.Errorf("link type %d, %x: %#x, %x, %v", tt.link, tt.data, typ, data, ok)
		}
	}
}

// TestCorpus reads every capture of the corpus to its end, with as many packets
// as its table says.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("HYBRIDFW_CORPUS")
	if dir == "" {
		dir = "../../../shared/corpus"
	}
	table, err := os.ReadFile(filepath.Join(dir, "truth", "packets.tsv"))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("corpus of captures: %v", err)
		}
		t.Skipf("no corpus of captures: %v", err)
	}
	type size struct{ frame, cut, whole string }
	want := map[string][]size{}
	for line := range strings.Lines(string(table)) {
		if c := strings.Split(line, "\t"); c[0] != "file" {
			want[c[0]] = append(want[c[0]], size{c[1], c[2], c[3]})
		}
	}
	for file, rows := range want {
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(t, f)
		f.Close()
		if err != nil || len(got) != len(rows) {
			t.Errorf("%s: %v, %d packets, want %d", file, err, len(got), len(rows))
			continue
		}
		for i, p := range got {
			if s := (size{strconv.Itoa(i + 1), strconv.Itoa(len(p.Data)), strconv.Itoa(p.Len)}); s != rows[i] {
				t.Errorf("%s: frame %v, want %v", file, s, rows[i])
			}
		}
	}
}

// FuzzReader: no file makes the reader panic, loop, or take much memory.
func FuzzReader(f *testing.F) {
	le, be := binary.LittleEndian, binary.BigEndian
	f.Add(classic(le, magicMicro, 1, []byte("abc"), nil))
	f.Add(classic(be, magicNano, 101, []byte("abc")))
	f.Add(bytes.Join([][]byte{section(be), describe(be, LinkRaw), enhanced(be, 0, 9, []byte("abc"))}, nil))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		for range len(file) + 1 {
			p, err := r.Next()
			if err != nil {
				return
			}
			if len(p.Data) > len(file) || p.Len < len(p.Data) {
				t.Fatalf("a packet of %d bytes, %d on the wire, in a file of %d", len(p.Data), p.Len, len(file))
			}
			p.Network()
		}
		t.Fatal("more packets than bytes")
	})
}

func TestIP(t *testing.T) {
	v4, v6 := []byte{0x45, 1, 2, 3}, []byte{0x60, 1, 2, 3}
	ethernet := func(parts ...[]byte) []byte {
		return bytes.Join(append([][]byte{make([]byte, 12)}, parts...), nil)
	}
	tag := []byte{0x81, 0, 0, 5}
	for name, tt := range map[string]struct {
		data, want []byte
	}{
		"plain":            {ethernet([]byte{8, 0}, v4), v4},
		"tag":              {ethernet(tag, []byte{8, 0}, v4), v4},
		"three tags":       {ethernet([]byte{0x88, 0xa8, 0, 1}, tag, tag, []byte{0x86, 0xdd}, v6), v6},
		"too many tags":    {ethernet(bytes.Repeat(tag, 9), []byte{8, 0}, v4), nil},
		"cut tag":          {ethernet(tag[:3]), nil},
		"session":          {ethernet(tag, []byte{0x88, 0x64, 0x11, 0, 0, 1, 0, 6, 0, 0x21}, v4), v4},
		"session, IPv6":    {ethernet([]byte{0x88, 0x64, 0x11, 0, 0, 1, 0, 6, 0, 0x57}, v6), v6},
		"session, control": {ethernet([]byte{0x88, 0x64, 0x11, 0, 0, 1, 0, 6, 0xc0, 0x21}, v4), nil},
		"cut session":      {ethernet([]byte{0x88, 0x64, 0x11, 0}), nil},
		"labels":           {ethernet([]byte{0x88, 0x47, 0, 1, 0, 64, 0, 2, 1, 64}, v4), v4},
		"labels, no end":   {ethernet([]byte{0x88, 0x47, 0, 1, 0, 64}), nil},
		"arp":              {ethernet([]byte{8, 6}, v4), nil},
	} {
		_, data, ok := Packet{Link: LinkEthernet, Data: tt.data}.IP()
		if ok != (tt.want != nil) || !bytes.Equal(data, tt.want) {
			t.Errorf("%s: %x %v", name, data, ok)
		}
	}
}
