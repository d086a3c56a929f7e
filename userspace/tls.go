package userspace

import (
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// TLS records and handshake messages, RFC 8446 sections 4 and 5, RFC 6066
// section 3.
const (
	tlsRecordHeader  = 5
	tlsMessageHeader = 4       // type and length of a handshake message
	tlsRecordMax     = 1 << 14 // of a record that is not encrypted
	tlsChangeCipher  = 20
	tlsAlert         = 21
	tlsHandshake     = 22
	tlsClientHello   = 1
	tlsHelloMax      = 1 << 16 // far above what any client sends
	tlsServerName    = 0       // extension
	tlsHostName      = 0       // type of a server name
	tlsNameMax       = 255
	tlsALPN          = 16     // extension, RFC 7301
	tlsECH           = 0xfe0d // extension, RFC 9849
	tlsTicket        = 35     // extension, RFC 5077
	tlsPreShared     = 41     // extension
)

func init() { overTCP = append(overTCP, func() inspector { return new(tlsInspector) }) }

// tlsInspector finds the server name in a ClientHello that starts at the first
// byte it is shown, or behind records that a server would pass over. What follows
// the hello is ignored. The hello may be cut into any number of records.
type tlsInspector struct {
	helloNames
	joined [tlsHelloMax]byte // a hello taken out of several records
}

func (t *tlsInspector) inspect(b []byte) outcome {
	hello, got := t.hello(b)
	if got != sawNames {
		t.left = false
		return got
	}
	return t.read(hello, policy.L7TLS)
}

// helloNames gives the name in a ClientHello, whatever carried it.
type helloNames struct {
	left bool // next has not given it
	seen policy.Sight
	buf  [tlsNameMax]byte
}

func (h *helloNames) next() *policy.Sight {
	if !h.left {
		return nil
	}
	h.left = false
	return &h.seen
}

// read looks at a whole ClientHello, without its message header.
func (h *helloNames) read(hello []byte, l7 policy.L7) outcome {
	h.seen = policy.Sight{Kind: policy.NameSNI, L7: l7, Hello: hello}
	host, got := serverName(hello, &h.seen)
	if h.left = got == sawNames; !h.left {
		return got
	}
	// RFC 6066 gives host names without a final dot; servers take both.
	if n := len(host); n > 0 && host[n-1] == '.' {
		host = host[:n-1]
	}
	for i, c := range host {
		h.buf[i] = lower(c)
	}
	h.seen.Name = h.buf[:len(host)]
	return sawNames
}

// hello returns the body of the ClientHello that b starts with.
func (t *tlsInspector) hello(b []byte) ([]byte, outcome) {
	part, rest, got := tlsRecord(b, tlsHandshake)
	for got == sawNone && len(b) > 0 {
		// Servers let these pass in front of a hello, and the second hello after
		// a retry comes behind one (RFC 8446 appendix D.4).
		typ := b[0]
		if typ != tlsChangeCipher && typ != tlsAlert {
			return nil, sawNone
		}
		if _, b, got = tlsRecord(b, typ); got == sawNames {
			part, rest, got = tlsRecord(b, tlsHandshake)
		}
	}
	if got == sawNone || got == sawMalformed {
		return nil, got
	}
	if len(part) > 0 && part[0] != tlsClientHello {
		return nil, sawNone
	}
	if n := messageLen(part); n > 0 && n <= len(part) {
		return part[tlsMessageHeader:n], sawNames
	}
	// The message is spread over records, which servers join again: so does this,
	// in memory of its own, because a record's header stands between the parts.
	joined := t.joined[:0]
	for {
		joined = append(joined, part[:min(len(part), cap(joined)-len(joined))]...)
		n := messageLen(joined)
		if n > cap(joined) {
			return nil, sawMalformed
		}
		if n > 0 && n <= len(joined) {
			return joined[tlsMessageHeader:n], sawNames
		}
		if got == sawMore {
			return nil, sawMore
		}
		if part, rest, got = tlsRecord(rest, tlsHandshake); got == sawNone || got == sawMalformed {
			// Nothing may come between the records of one message (RFC 8446
			// section 5.1).
			return nil, sawMalformed
		}
	}
}

// tlsRecord splits the first record off b. It returns sawNames for a whole
// record of the type, sawMore with what there is of one that goes on, sawNone for
// other bytes.
func tlsRecord(b []byte, typ byte) (part, rest []byte, got outcome) {
	for i, most := range [...]struct{ least, most byte }{{typ, typ}, {3, 3}, {0, 4}} {
		if i == len(b) {
			return nil, nil, sawMore
		}
		if b[i] < most.least || b[i] > most.most {
			return nil, nil, sawNone
		}
	}
	if len(b) < tlsRecordHeader {
		return nil, nil, sawMore
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n == 0 || n > tlsRecordMax {
		return nil, nil, sawMalformed
	}
	if b = b[tlsRecordHeader:]; len(b) < n {
		return b, nil, sawMore
	}
	return b[:n], b[n:], sawNames
}

// messageLen returns how long the handshake message is that b starts with, its
// header included, 0 where that cannot be seen yet.
func messageLen(b []byte) int {
	if len(b) < tlsMessageHeader {
		return 0
	}
	return tlsMessageHeader + int(b[1])<<16 + int(b[2])<<8 + int(b[3])
}

// serverName returns the host name in a ClientHello, an empty one where it has
// none, and notes what else the hello offers. Every length on the way must fit
// exactly.
func serverName(hello []byte, seen *policy.Sight) ([]byte, outcome) {
	r := tlsReader{b: hello}
	r.take(2 + 32) // version, random
	session := r.vector8()
	ciphers := r.vector16()
	compression := r.vector8()
	if r.bad || len(session) > 32 || len(ciphers) == 0 || len(ciphers)%2 != 0 || len(compression) == 0 {
		return nil, sawMalformed
	}
	if len(r.b) == 0 {
		return nil, sawNames // from before extensions
	}
	extensions := tlsReader{b: r.vector16()}
	if r.bad || len(r.b) != 0 {
		return nil, sawMalformed
	}
	// All extensions are looked at, also behind the name: a second one must not
	// go unnoticed.
	var host []byte
	named := false
	for len(extensions.b) > 0 {
		typ := extensions.uint16()
		body := extensions.vector16()
		if extensions.bad {
			return nil, sawMalformed
		}
		switch typ {
		case tlsALPN:
			list := tlsReader{b: body}
			seen.ALPN = list.vector16()
		case tlsECH:
			seen.ECH = true
		case tlsVersions:
			list := tlsReader{b: body}
			seen.Versions = list.vector8()
		case tlsTicket, tlsPreShared:
			// An empty ticket asks for one.
			seen.Resumes = seen.Resumes || len(body) > 0
		}
		if typ != tlsServerName {
			continue
		}
		// Two of them: servers and middleboxes would disagree about which one
		// counts. RFC 8446 section 4.2 forbids it.
		if named {
			return nil, sawMalformed
		}
		named = true
		var got outcome
		if host, got = hostName(body); got != sawNames {
			return nil, got
		}
	}
	return host, sawNames
}

// hostName returns the one host name of a server_name extension.
func hostName(ext []byte) ([]byte, outcome) {
	r := tlsReader{b: ext}
	list := tlsReader{b: r.vector16()}
	if r.bad || len(r.b) != 0 || len(list.b) == 0 {
		return nil, sawMalformed
	}
	var host []byte
	for len(list.b) > 0 {
		typ := list.uint8()
		name := list.vector16()
		if list.bad || len(name) == 0 {
			return nil, sawMalformed
		}
		if typ != tlsHostName {
			continue // no other type was ever defined
		}
		if host != nil || len(name) > tlsNameMax {
			return nil, sawMalformed
		}
		host = name
	}
	return host, sawNames
}

// tlsReader reads fields off the front of b. After one that does not fit it is
// bad and gives nothing any more.
type tlsReader struct {
	b   []byte
	bad bool
}

// take returns the next n bytes.
func (r *tlsReader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.bad = nil, true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *tlsReader) uint8() int {
	if v := r.take(1); v != nil {
		return int(v[0])
	}
	return 0
}

func (r *tlsReader) uint16() int {
	if v := r.take(2); v != nil {
		return int(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (r *tlsReader) vector8() []byte { return r.take(r.uint8()) }

func (r *tlsReader) vector16() []byte { return r.take(r.uint16()) }
