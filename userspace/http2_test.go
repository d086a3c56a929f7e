package userspace

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Client writes what a client sends, by an encoder that is not ours.
type http2Client struct {
	b      bytes.Buffer
	framer *http2.Framer
	block  bytes.Buffer
	enc    *hpack.Encoder
	stream uint32
}

func newHTTP2Client() *http2Client {
	c := &http2Client{stream: 1}
	c.b.WriteString(http2.ClientPreface)
	c.framer = http2.NewFramer(&c.b, nil)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

func (c *http2Client) settings() *http2Client {
	c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.framer.WriteWindowUpdate(0, 1<<20)
	return c
}

// request writes a request as name, value, ..., its header block cut into pieces.
func (c *http2Client) request(pieces int, fields ...string) *http2Client {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	block := c.block.Bytes()
	cut := len(block) / pieces
	c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: block[:cut], EndHeaders: pieces == 1,
		EndStream: true, PadLength: 7, Priority: http2.PriorityParam{Weight: 3}})
	for i := 1; i < pieces; i++ {
		end := (i + 1) * cut
		if i == pieces-1 {
			end = len(block)
		}
		c.framer.WriteContinuation(c.stream, i == pieces-1, block[i*cut:end])
	}
	c.stream += 2
	return c
}

func get(authority, path string, more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "http", ":authority", authority, ":path", path, "user-agent", "test"}, more...)
}

func TestHTTP2Requests(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		want outcome
		all  string
	}{
		"plain":              {newHTTP2Client().settings().request(1, get("A.example:8080", "/x/../y?q")...).b.Bytes(), sawNames, "a.example /y"},
		"in three pieces":    {newHTTP2Client().settings().request(3, get("a.example", "/")...).b.Bytes(), sawNames, "a.example /"},
		"two":                {newHTTP2Client().settings().request(1, get("a.example", "/1")...).request(2, get("b.example", "/2")...).b.Bytes(), sawNames, "a.example /1|b.example /2"},
		"by host":            {newHTTP2Client().settings().request(1, ":method", "GET", ":path", "/", "host", "h.example").b.Bytes(), sawNames, "h.example /"},
		"both, equal":        {newHTTP2Client().settings().request(1, get("a.example", "/", "host", "A.example")...).b.Bytes(), sawNames, "a.example /"},
		"both, different":    {newHTTP2Client().settings().request(1, get("good.example", "/", "host", "bad.example")...).b.Bytes(), sawMalformed, ""},
		"twice":              {newHTTP2Client().settings().request(1, get("good.example", "/", ":authority", "bad.example")...).b.Bytes(), sawMalformed, ""},
		"no name":            {newHTTP2Client().settings().request(1, ":method", "GET", ":path", "/").b.Bytes(), sawNames, " /"},
		"bad host":           {newHTTP2Client().settings().request(1, get("a.example/x", "/")...).b.Bytes(), sawMalformed, ""},
		"preface":            {[]byte(http2.ClientPreface), sawMore, ""},
		"half of it":         {[]byte(http2.ClientPreface[:10]), sawMore, ""},
		"no settings":        {newHTTP2Client().request(1, get("a.example", "/")...).b.Bytes(), sawMalformed, ""},
		"settings only":      {newHTTP2Client().settings().b.Bytes(), sawMore, ""},
		"frame of 1 MiB":     {slices.Concat([]byte(http2.ClientPreface), []byte{0x10, 0, 0, 4, 0, 0, 0, 0, 0}), sawMalformed, ""},
		"block that is none": {slices.Concat(newHTTP2Client().settings().b.Bytes(), []byte{0, 0, 2, 1, 4, 0, 0, 0, 1, 0xff, 0xff}), sawMalformed, ""},
		"another preface":    {[]byte("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"), sawNone, ""},
	} {
		var in http2Inspector
		got, all := requests(&in, c.in)
		if got != c.want || strings.Join(all, "|") != c.all {
			t.Errorf("%s: %v %q, want %v %q", name, got, all, c.want, c.all)
		}
		if c.want != sawNames {
			continue
		}
		// Cut anywhere it waits, or sees what is whole.
		for n := range len(c.in) {
			if got, some := requests(&in, c.in[:n]); got == sawNames && (len(some) > len(all) || !slices.Equal(some, all[:len(some)])) || got != sawNames && got != sawMore {
				t.Errorf("%s: %d bytes: %v %q", name, n, got, some)
			}
		}
	}
}

func TestHTTP2IsJudgedByItsAuthority(t *testing.T) {
	const rule = `  - name: web
    from: lan
    proto: tcp
    action: inspect
    steps:
      - { host: .bad.example, action: drop }
      - { proto_l7: http2, action: accept }
`
	for host, accept := range map[string]bool{"www.bad.example": false, "good.example": true} {
		b := newHTTP2Client().settings().request(1, get(host, "/")...).b.Bytes()
		s := newStreaming(t, "", rule, 1)
		if !s.segment(t, 0, b[:40], 0) || s.segment(t, 40, b[40:], 0) != accept || len(s.decisions) != 1 || s.sightings[0].Kind != "http2" || s.sightings[0].Agent != "test" {
			t.Errorf("%s: %+v %+v", host, s.decisions, s.sightings)
		}
	}
}

// TestHTTP2TakesLittleMemory: a byte may stand for a field of 4 KiB, and a frame of 11
// bytes for a request.
func TestHTTP2TakesLittleMemory(t *testing.T) {
	block := slices.Concat([]byte{0x82, 0x84, 0x40, 1, 'x', 0x7f, 0xbd, 0x1d}, bytes.Repeat([]byte("v"), 0x7f+0x3d+0x1d<<7), bytes.Repeat([]byte{0xbe}, 12000))
	fields, many := newHTTP2Client().settings(), newHTTP2Client().settings()
	fields.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
	for id := uint32(1); many.b.Len() < 32<<10; id += 2 {
		many.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82, 0x84}, EndHeaders: true})
	}
	for name, c := range map[string]struct {
		b    []byte
		want outcome
	}{"fields": {fields.b.Bytes(), sawMalformed}, "requests": {many.b.Bytes(), sawNames}} {
		var in http2Inspector
		in.inspect(c.b) // what is kept from packet to packet
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := in.inspect(c.b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; got != c.want || n > 1<<18 {
			t.Errorf("%s: %v, %d bytes for %d", name, got, n, len(c.b))
		}
	}
}

func FuzzHTTP2(f *testing.F) {
	f.Add(newHTTP2Client().settings().request(2, get("a.example", "/x")...).b.Bytes())
	f.Add(newHTTP2Client().settings().request(1, get("a.example", "/x")...).request(1, get("a.example", "/y")...).b.Bytes())
	var in http2Inspector
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		got, all := requests(&in, b)
		if !bytes.Equal(b, copied) {
			t.Fatal("the payload was written to")
		}
		if got != sawNames {
			return
		}
		// What follows may complete another request, or show that it is none.
		more, again := requests(&in, append(copied, 0, 0))
		if more != sawMalformed && (more != sawNames || len(again) < len(all) || !slices.Equal(all, again[:len(all)])) {
			t.Fatalf("%q, and with bytes behind %v %q", all, more, again)
		}
	})
}
