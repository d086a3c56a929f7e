package userspace

import (
	"encoding/binary"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/hybridfw/hybridfw/policy"
)

// HTTP/2 frames, RFC 9113 section 4.1 and 6.
const (
	http2Preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	http2FrameHeader  = 9
	http2FrameMax     = 1 << 14 // until the server allows more
	http2Headers      = 1
	http2Settings     = 4
	http2Continuation = 9
	http2EndHeaders   = 4 // flag
	http2Padded       = 8 // flag
	http2Priority     = 0x20
	http2TableMax     = 4096    // of the client's HPACK table, until the server allows more
	http2ListMax      = 1 << 16 // of a request's header, unpacked: one byte may stand for a field of 4 KiB
)

func init() { overTCP = append(overTCP, func() inspector { return new(http2Inspector) }) }

// http2Inspector finds the authorities in the requests of a connection that begins
// with HTTP/2: the first one and those that stand whole behind it. It allocates, as
// hpack does.
type http2Inspector struct {
	sights []policy.Sight
	given  int
	block  []byte // a header block out of several frames
	fields http2Request
}

func (h *http2Inspector) next() *policy.Sight {
	if h.given == len(h.sights) {
		return nil
	}
	h.given++
	return &h.sights[h.given-1]
}

func (h *http2Inspector) inspect(b []byte) outcome {
	h.sights, h.given = h.sights[:0], 0
	if got := literal(b, http2Preface); got != sawNames {
		return got
	}
	b = b[len(http2Preface):]
	decoder := hpack.NewDecoder(http2TableMax, h.fields.field)
	decoder.SetMaxStringLength(httpLineMax)
	for first := true; ; first = false {
		f, rest, got := http2Frame(b)
		if got == sawNames && first && f.typ != http2Settings {
			return sawMalformed // RFC 9113 section 3.4
		}
		if got == sawNames && f.typ == http2Headers {
			rest, got = h.headers(decoder, f, rest)
		}
		if got != sawNames {
			// Whole requests in front of one that is not: they are seen.
			if got == sawMore && len(h.sights) > 0 {
				return sawNames
			}
			h.sights = h.sights[:0]
			return got
		}
		b = rest
	}
}

// http2Piece is one frame.
type http2Piece struct {
	typ, flags byte
	stream     uint32
	payload    []byte
}

// http2Frame splits a frame off b.
func http2Frame(b []byte) (f http2Piece, rest []byte, got outcome) {
	if len(b) < http2FrameHeader {
		return f, nil, sawMore
	}
	n := uint24(b)
	f = http2Piece{typ: b[3], flags: b[4], stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31)}
	if n > http2FrameMax {
		return f, nil, sawMalformed
	}
	if b = b[http2FrameHeader:]; len(b) < n {
		return f, nil, sawMore
	}
	f.payload = b[:n]
	return f, b[n:], sawNames
}

// headers reads a request whose header block begins in a frame, and may go on in
// CONTINUATION frames, between which nothing else may come.
func (h *http2Inspector) headers(decoder *hpack.Decoder, f http2Piece, rest []byte) ([]byte, outcome) {
	r := tlsReader{b: f.payload}
	pad := 0
	if f.flags&http2Padded != 0 {
		pad = r.uint8()
	}
	if f.flags&http2Priority != 0 {
		r.take(5)
	}
	if r.bad || pad > len(r.b) || f.stream%2 == 0 {
		return nil, sawMalformed
	}
	block := r.b[:len(r.b)-pad]
	if f.flags&http2EndHeaders == 0 {
		h.block = append(h.block[:0], block...)
		for f.flags&http2EndHeaders == 0 {
			stream := f.stream
			var got outcome
			if f, rest, got = http2Frame(rest); got != sawNames {
				return nil, got
			}
			if f.typ != http2Continuation || f.stream != stream {
				return nil, sawMalformed
			}
			h.block = append(h.block, f.payload...)
		}
		block = h.block
	}
	return rest, h.request(decoder, block)
}

// http2Request is what of a request's fields is of interest.
type http2Request struct {
	authority, host, method, path, agent string
	authorities, hosts                   int
	pseudo                               bool
	size                                 uint32
}

func (r *http2Request) field(f hpack.HeaderField) {
	r.size += f.Size()
	r.pseudo = r.pseudo || f.IsPseudo()
	switch f.Name {
	case ":authority":
		r.authority = f.Value
		r.authorities++
	case "host":
		r.host = f.Value
		r.hosts++
	case ":method":
		r.method = f.Value
	case ":path":
		r.path = f.Value
	case "user-agent":
		r.agent = f.Value
	}
}

// request reads a header block and notes what it says. A second :authority, or a Host
// that names another one, must not go unnoticed.
func (h *http2Inspector) request(decoder *hpack.Decoder, block []byte) outcome {
	r := &h.fields
	*r = http2Request{}
	if _, err := decoder.Write(block); err != nil || decoder.Close() != nil || r.size > http2ListMax {
		return sawMalformed
	}
	if !r.pseudo {
		return sawNames // a trailer
	}
	if r.authorities > 1 || r.hosts > 1 {
		return sawMalformed
	}
	if r.authorities == 0 {
		r.authority = r.host
	} else if r.hosts > 0 && !strings.EqualFold(r.authority, r.host) {
		return sawMalformed
	}
	name, ok := httpHost(make([]byte, 0, len(r.authority)), []byte(r.authority))
	if !ok {
		return sawMalformed
	}
	// A path becomes no longer but by the first slash.
	path := cleanPath(make([]byte, 0, min(httpPathMax, len(r.path)+2)), []byte(r.path))
	h.sights = append(h.sights, policy.Sight{Kind: policy.NameHost, L7: policy.L7HTTP2, Name: name,
		Path: path, Method: []byte(r.method), Agent: []byte(r.agent)})
	return sawNames
}
