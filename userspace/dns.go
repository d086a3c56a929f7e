package userspace

import (
	"encoding/binary"

	"github.com/hybridfw/hybridfw/policy"
)

// DNS messages, RFC 1035 section 4.
const (
	dnsHeaderLen = 12
	dnsNameMax   = 255 // on the wire, length bytes included
	dnsPort      = 53
)

// dnsInspector finds the names asked for in DNS messages over UDP, in queries
// and in responses alike from the question section.
//
// Every question counts: a resolver may answer any of them. Nothing behind the
// questions is looked at.
type dnsInspector struct {
	msg  []byte
	at   int // of the next question
	left int // questions that next has not given
	seen policy.Sight
	name [dnsNameMax]byte
}

func (d *dnsInspector) inspect(msg []byte) outcome {
	d.msg, d.at, d.left = msg, dnsHeaderLen, 0
	if len(msg) < dnsHeaderLen {
		return sawMalformed
	}
	count := int(binary.BigEndian.Uint16(msg[4:]))
	if count == 0 {
		// A response may leave the question out, and a query that only asks for
		// a cookie has none but carries the cookie (RFC 7873 section 5.4).
		if !dnsIsResponse(msg) && binary.BigEndian.Uint16(msg[10:]) == 0 {
			return sawMalformed
		}
		return sawNone
	}
	at := dnsHeaderLen
	for range count {
		if _, at = d.readName(at); at < 0 || len(msg)-at < 4 {
			return sawMalformed
		}
		at += 4
	}
	d.left = count
	return sawNames
}

func (d *dnsInspector) next() *policy.Sight {
	if d.left == 0 {
		return nil
	}
	d.left--
	n, at := d.readName(d.at)
	d.at = at + 4
	d.seen = policy.Sight{Kind: policy.NameQName, L7: policy.L7DNS, Name: d.name[:n],
		QType: binary.BigEndian.Uint16(d.msg[at:]), Response: dnsIsResponse(d.msg)}
	return &d.seen
}

// readName decodes the name at an offset into d.name and returns its length and
// where the message goes on, -1 where it is not a name.
//
// A pointer must point in front of the name it stands in, and every further one
// in front of where the last one led: that ends, whatever the bytes (a header
// field is no name, so the header is out of bounds). A dot inside a label, which
// no name of a policy has, is given as a backslash: it must not look like the
// border of two labels.
func (d *dnsInspector) readName(at int) (n, next int) {
	msg := d.msg
	next = -1
	limit := at // pointers lead in front of it
	wire := 0
	for {
		if at >= len(msg) {
			return 0, -1
		}
		c := int(msg[at])
		switch {
		case c == 0:
			if next < 0 {
				next = at + 1
			}
			return n, next
		case c < 64:
			wire += c + 1
			if wire+1 > dnsNameMax || at+1+c > len(msg) {
				return 0, -1
			}
			if n > 0 {
				d.name[n] = '.'
				n++
			}
			for _, b := range msg[at+1 : at+1+c] {
				if b == '.' {
					b = '\\'
				}
				d.name[n] = lower(b)
				n++
			}
			at += 1 + c
		case c >= 192:
			if at+1 >= len(msg) {
				return 0, -1
			}
			if next < 0 {
				next = at + 2
			}
			at = (c&63)<<8 | int(msg[at+1])
			if at < dnsHeaderLen || at >= limit {
				return 0, -1
			}
			limit = at
		default:
			return 0, -1 // the label types 01 and 10 were given up (RFC 6891 section 5)
		}
	}
}

func dnsIsResponse(msg []byte) bool {
	return len(msg) >= dnsHeaderLen && msg[2]&0x80 != 0
}
