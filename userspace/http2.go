package userspace

import (
	"bytes"
	"encoding/binary"

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
	http2TableMax     = 4096 // of the client's HPACK table, until the server allows more
)

func init() { overTCP = append(overTCP, func() inspector { return new(http2Inspector) }) }

// http2Inspector finds the authorities in the requests of a connection that begins
// with HTTP/2: the first one and those that stand whole behind it. It allocates, as
// hpack does.
type http2Inspector struct {
	sights []policy.Sight
	given  int
	block  []byte // a header block out of several frames
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
	decoder := hpack.NewDecoder(http2TableMax, nil)
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
	fields, err := decoder.DecodeFull(block)
	if err != nil {
		return nil, sawMalformed
	}
	return rest, h.request(fields)
}

// request notes what a request says. A second :authority, or a Host that names
// another one, must not go unnoticed.
func (h *http2Inspector) request(fields []hpack.HeaderField) outcome {
	seen := policy.Sight{Kind: policy.NameHost, L7: policy.L7HTTP2}
	var authority, host []byte
	authorities, hosts, pseudo := 0, 0, false
	for _, f := range fields {
		value := []byte(f.Value)
		pseudo = pseudo || f.IsPseudo()
		switch f.Name {
		case ":authority":
			authority = value
			authorities++
		case "host":
			host = value
			hosts++
		case ":method":
			seen.Method = value
		case ":path":
			seen.Path = value
		case "user-agent":
			seen.Agent = value
		}
	}
	if !pseudo {
		return sawNames // a trailer
	}
	if authorities > 1 || hosts > 1 {
		return sawMalformed
	}
	if authorities == 0 {
		authority = host
	} else if hosts > 0 && !bytes.EqualFold(authority, host) {
		return sawMalformed
	}
	name, ok := httpHost(make([]byte, 0, httpNameMax), authority)
	if !ok {
		return sawMalformed
	}
	seen.Name, seen.Path = name, cleanPath(make([]byte, 0, httpPathMax), seen.Path)
	h.sights = append(h.sights, seen)
	return sawNames
}
