package userspace

import (
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// DTLS records and handshake messages, RFC 6347 section 4, RFC 9147 section 5.
const (
	dtlsRecordHeader  = 13
	dtlsMessageHeader = 12
	dtlsRecords       = 16 // looked at in one datagram
)

func init() { overUDP = append(overUDP, func() datagrams { return new(dtlsInspector) }) }

// dtlsInspector finds the server name in a ClientHello that comes in DTLS records.
// What it is shown is the hello's body, put together from its fragments.
type dtlsInspector struct {
	helloNames
	hello [tlsHelloMax]byte // without its cookie, as TLS has it
}

func (d *dtlsInspector) begins(b []byte) bool {
	_, _, ok := dtlsFragment(b)
	return ok
}

// inspect looks at a hello's body.
func (d *dtlsInspector) inspect(b []byte) outcome {
	d.left = false
	r := tlsReader{b: b}
	r.take(2 + 32)
	r.vector8() // session
	front := len(b) - len(r.b)
	r.vector8() // cookie
	if r.bad || len(b) > tlsHelloMax {
		return sawMalformed
	}
	n := copy(d.hello[:], b[:front])
	n += copy(d.hello[n:], r.b)
	return d.read(d.hello[:n], policy.L7DTLS)
}

// dtlsPiece is a fragment of a ClientHello.
type dtlsPiece struct {
	sequence uint16 // the message's: 1 where the server has asked for its cookie
	total    int    // bytes of the body
	at       int    // of the fragment in it
	data     []byte
}

// dtlsFragment splits the record off that b begins with, if it holds a fragment of a
// ClientHello that is not encrypted.
func dtlsFragment(b []byte) (p dtlsPiece, rest []byte, ok bool) {
	const header = dtlsRecordHeader + dtlsMessageHeader
	if len(b) < header || b[0] != tlsHandshake || b[1] != 0xfe || b[2] < 0xfc || b[3]|b[4] != 0 {
		return p, nil, false
	}
	end := dtlsRecordHeader + int(binary.BigEndian.Uint16(b[11:]))
	m := b[dtlsRecordHeader:header]
	if end < header || end > len(b) || m[0] != tlsClientHello {
		return p, nil, false
	}
	p.sequence = binary.BigEndian.Uint16(m[4:])
	p.total = uint24(m[1:])
	p.at = uint24(m[6:])
	p.data = b[header:end]
	return p, b[end:], uint24(m[9:]) == len(p.data)
}

func uint24(b []byte) int { return int(b[0])<<16 | int(b[1])<<8 | int(b[2]) }

func (d *dtlsInspector) gather(j *judge, f *flow, b []byte) (*flow, []byte, outcome, error) {
	for range dtlsRecords {
		p, rest, ok := dtlsFragment(b)
		if !ok {
			break
		}
		b = rest
		if p.total > tlsHelloMax || p.at+len(p.data) > p.total {
			return f, nil, sawMalformed, nil
		}
		kept := f != nil && f.stream != 0 && f.seq == uint32(p.sequence)
		if kept && f.begin != uint32(p.total) {
			return f, nil, sawMalformed, nil // two lengths: which one the server believes, nobody knows
		}
		if len(p.data) == p.total && !kept {
			return f, p.data, d.inspect(p.data), nil
		}
		if f == nil {
			if f = j.flows.insert(&j.flow, j.now); f == nil {
				return nil, nil, sawMore, errNoRoom
			}
		}
		if f.stream != 0 && !kept {
			// With the cookie that the server has sent it begins anew.
			j.flows.streams.close(f.stream)
			f.stream = 0
		}
		f.seq, f.begin = uint32(p.sequence), uint32(p.total)
		if err := j.flows.keep(f, p.at, p.data, j.now); err != nil {
			return f, nil, sawMore, err
		}
		if saw := j.flows.streams.prefix(f.stream); len(saw) >= p.total {
			saw = saw[:p.total]
			return f, saw, d.inspect(saw), nil
		}
	}
	return f, nil, sawMore, nil
}
