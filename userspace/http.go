package userspace

import (
	"bytes"

	"github.com/hybridfw/hybridfw/policy"
)

const (
	httpMethodMax = 24
	httpLineMax   = 1 << 14 // of a request line; servers take 8 KiB or so
	httpNameMax   = 255
	httpPathMax   = 1 << 11 // of a path that is kept; what is longer is cut
)

func init() { overTCP = append(overTCP, func() inspector { return new(httpInspector) }) }

// httpInspector finds the hosts in HTTP/1 requests (RFC 9112): the first one and
// those that stand whole behind it. A request counts when its header is complete:
// a second Host must not go unnoticed.
type httpInspector struct {
	first bool
	rest  []byte // behind the request that was read last
	seen  policy.Sight
	// lone lets a line of HTTP/0.9 be a request before anything comes behind it.
	lone bool

	host  [httpNameMax]byte
	other [httpNameMax]byte
	path  [httpPathMax]byte
}

func (h *httpInspector) inspect(b []byte) outcome {
	got := h.request(b)
	h.first = got == sawNames
	if !h.first {
		h.rest = nil
	}
	return got
}

func (h *httpInspector) next() *policy.Sight {
	if !h.first && (len(h.rest) == 0 || h.request(h.rest) != sawNames) {
		h.rest = nil
		return nil
	}
	h.first = false
	return &h.seen
}

// request reads a request that b begins with.
func (h *httpInspector) request(b []byte) outcome {
	// Servers pass over empty lines in front of a request (RFC 9112 section 2.2).
	for len(b) > 0 && (b[0] == '\r' || b[0] == '\n') {
		b = b[1:]
	}
	n := 0
	for n < len(b) && isMethodByte(b[n]) {
		n++
	}
	switch {
	case n > httpMethodMax || n < len(b) && (b[n] != ' ' || n == 0):
		return sawNone
	case n == len(b):
		return sawMore
	}
	line, rest, whole := httpLine(b)
	if !whole {
		if len(b) > httpLineMax || !printable(b) {
			return sawNone
		}
		return sawMore
	}
	if !printable(line) {
		return sawNone
	}
	h.seen = policy.Sight{Kind: policy.NameHost, L7: policy.L7HTTP, Method: b[:n]}
	target, ok := httpTarget(line[n+1:], string(b[:n]) == "GET")
	if !ok {
		return sawNone
	}
	if h.lone && len(rest) == 0 && !bytes.Contains(line, []byte(" HTTP/")) {
		h.rest = nil
		return h.name(target, nil)
	}
	return h.header(target, rest)
}

// isMethodByte: methods are in capitals (RFC 9110 section 9.1), and servers know no
// others.
func isMethodByte(c byte) bool { return c >= 'A' && c <= 'Z' || c == '-' || c == '_' }

// printable reports whether nothing in b is a control character.
func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
	}
	return true
}

// httpLine splits a line off b. Servers take one that ends in LF alone.
func httpLine(b []byte) (line, rest []byte, whole bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return b, nil, false
	}
	line, rest = b[:end], b[end+1:]
	if end > 0 && line[end-1] == '\r' {
		line = line[:end-1]
	}
	return line, rest, true
}

// httpTarget splits what stands behind the method. A request without a version
// is one of HTTP/0.9, or one that lacks something and is answered all the same: its
// line alone is not taken for all of it, since a Host may come behind.
func httpTarget(b []byte, isGet bool) (target []byte, ok bool) {
	b = bytes.TrimSpace(b)
	if end := bytes.LastIndexByte(b, ' '); end >= 0 && bytes.HasPrefix(b[end+1:], []byte("HTTP/1.")) {
		return bytes.TrimSpace(b[:end]), true
	}
	bare := len(b) > 0 && b[0] == '/' || bytes.HasPrefix(b, []byte("HTTP/1."))
	return b, isGet && bare && bytes.IndexByte(b, ' ') < 0
}

// header reads the lines up to the empty one, and puts together what was seen.
func (h *httpInspector) header(target, b []byte) outcome {
	var host, length []byte
	hosts, chunked := 0, false
	inHost := false
	for {
		line, rest, whole := httpLine(b)
		if !whole {
			return sawMore
		}
		b = rest
		if len(line) == 0 {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			if inHost {
				return sawMalformed // a Host that goes on in the next line
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.Trim(value, " \t")
		inHost = false
		switch {
		case equalFold(bytes.TrimRight(name, " \t"), "host"):
			// Blanks in front of the colon: some servers take the field, others
			// do not (RFC 9112 section 5.1).
			if len(name) != len("host") {
				return sawMalformed
			}
			inHost = true
			hosts++
			host = value
		case equalFold(name, "content-length"):
			length = value
		case equalFold(name, "transfer-encoding"):
			chunked = true
		case equalFold(name, "user-agent"):
			h.seen.Agent = value
		}
	}
	if hosts > 1 {
		return sawMalformed // RFC 9112 section 3.2
	}
	h.rest = httpBehindBody(b, length, chunked)
	return h.name(target, host)
}

// name decides what the request's host and path are. A host in the target counts
// for more than the Host field; that they differ is a contradiction.
func (h *httpInspector) name(target, host []byte) outcome {
	named, ok := httpHost(h.host[:0], host)
	if !ok {
		return sawMalformed
	}
	path := target
	var authority []byte
	if at := bytes.Index(target, []byte("://")); at > 0 && target[0] != '/' {
		authority, path = target[at+3:], nil
		if end := bytes.IndexAny(authority, "/?#"); end >= 0 {
			authority, path = authority[:end], authority[end:]
		}
		authority = authority[bytes.LastIndexByte(authority, '@')+1:]
	} else if equalFold(h.seen.Method, "connect") {
		authority, path = target, nil
	}
	if authority != nil {
		other, ok := httpHost(h.other[:0], authority)
		if !ok || len(named) > 0 && !bytes.Equal(named, other) {
			return sawMalformed
		}
		named = other
	}
	h.seen.Name, h.seen.Path = named, cleanPath(h.path[:0], path)
	return sawNames
}

// httpHost appends a host to dst, without its port and in lower case. It is not
// ok where the host has characters that hosts do not have.
func httpHost(dst, host []byte) (name []byte, ok bool) {
	if at := bytes.LastIndexByte(host, ':'); at >= 0 && bytes.IndexByte(host[at:], ']') < 0 {
		for _, c := range host[at+1:] {
			if c < '0' || c > '9' {
				return nil, false
			}
		}
		host = host[:at]
	}
	if n := len(host); n > 0 && host[n-1] == '.' {
		host = host[:n-1]
	}
	if len(host) > httpNameMax {
		return nil, false
	}
	for _, c := range host {
		if c <= ' ' || c == 0x7f || bytes.IndexByte([]byte(`/\@,;"<>?#`), c) >= 0 {
			return nil, false
		}
		dst = append(dst, lower(c))
	}
	return dst, true
}

// cleanPath writes a path to dst as servers understand it: without the query, escapes
// decoded, and without empty, "." and ".." segments, cut where dst is full.
func cleanPath(dst, b []byte) []byte {
	if end := bytes.IndexAny(b, "?#"); end >= 0 {
		b = b[:end]
	}
	if len(b) > 0 && b[0] != '/' {
		return b // "*", or nothing that a path's rules hold for
	}
	out := append(dst, '/')
	from := 1 // where the segment begins that is being written
	for i := 0; i < len(b) && len(out) < cap(out)-1; i++ {
		c := b[i]
		if c == '%' && i+2 < len(b) {
			hi, lo := hexValue(b[i+1]), hexValue(b[i+2])
			if hi >= 0 && lo >= 0 {
				c, i = byte(hi<<4|lo), i+2
			}
		}
		if c == '/' {
			out = endSegment(out, from, true)
			from = len(out)
			continue
		}
		out = append(out, c)
	}
	return endSegment(out, from, false)
}

// endSegment ends the segment of a path that begins at from: it stays, vanishes,
// or takes the one before it along.
func endSegment(out []byte, from int, more bool) []byte {
	switch string(out[from:]) {
	case "", ".":
		return out[:from]
	case "..":
		out = out[:from]
		if from > 1 {
			out = out[:bytes.LastIndexByte(out[:from-1], '/')+1]
		}
		return out
	}
	if more {
		out = append(out, '/')
	}
	return out
}

func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case lower(c) >= 'a' && lower(c) <= 'f':
		return int(lower(c)-'a') + 10
	}
	return -1
}

func equalFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if lower(c) != word[i] {
			return false
		}
	}
	return true
}

// httpBehindBody returns what stands behind a request's body, nothing where the
// body's end is not there or not clear.
func httpBehindBody(b, length []byte, chunked bool) []byte {
	if !chunked {
		n, ok := decimal(length)
		if !ok || n > len(b) {
			return nil
		}
		return b[n:]
	}
	for {
		line, rest, whole := httpLine(b)
		if !whole {
			return nil
		}
		n, digits := 0, 0
		for digits < len(line) && hexValue(line[digits]) >= 0 && digits < 7 {
			n, digits = n<<4|hexValue(line[digits]), digits+1
		}
		if digits == 0 || n > len(rest) {
			return nil
		}
		// Each chunk ends in a line end; so does the last one, which is empty.
		line, b, whole = httpLine(rest[n:])
		if !whole || len(line) != 0 {
			return nil
		}
		if n == 0 {
			return b
		}
	}
}

// decimal reads a number, 0 where there is none.
func decimal(b []byte) (n int, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<20 {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}
