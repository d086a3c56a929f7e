package userspace

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/hybridfw/hybridfw/policy"
)

const (
	dnsTypeA    = 1
	dnsTypeAAAA = 28
	dnsTypeOPT  = 41
	dnsTypeANY  = 255
	dnsClassIN  = 1

	dnsRecordFixed = 10 // type, class, TTL, length of the data

	// The answer's TTL where the response has none of its own, and the most it
	// gets, so that a changed policy is felt soon. Seconds.
	dnsTTL    = 60
	dnsTTLMax = 300
)

// errNotRewritten says that a response cannot be given another answer.
var errNotRewritten = errors.New("userspace: this dns message cannot be rewritten")

// rewriteDNS builds in dst what a resolver would say if the names asked for had
// the given answer and nothing else, and returns it. The questions in msg must
// have been found sound.
//
// Nothing is taken over that could tell the real address: no record of any
// section (chains of CNAMEs, HTTPS and SVCB hints, signatures, glue), whatever
// the response was: an answer, a cut one, or that the name does not exist. What
// stays is the header's id and flags, the questions byte for byte, and the OPT
// record, wherever it stands. Questions for other types and an address
// family that the answer lacks get one without records. A TSIG goes too; it could not hold.
func rewriteDNS(dst, msg []byte, answer *policy.Answer) ([]byte, error) {
	if len(msg) < dnsHeaderLen || msg[2]>>3&15 != 0 {
		return nil, errNotRewritten // not an ordinary query's response
	}
	questions := int(binary.BigEndian.Uint16(msg[4:]))
	end := dnsHeaderLen
	for range questions {
		if end = dnsSkipName(msg, end); end < 0 || len(msg)-end < 4 {
			return nil, errNotRewritten
		}
		end += 4
	}
	if end > cap(dst) {
		return nil, errNotRewritten
	}
	dst = append(dst[:0], msg[:end]...)
	ttl, opt := dnsKeep(msg, end)
	if answer.TTL != 0 {
		ttl = uint32(answer.TTL)
	}

	answers := 0
	for at := dnsHeaderLen; at < end; {
		name := at
		at = dnsSkipName(msg, at) + 4
		for _, addr := range answer.Addrs {
			typ, ok := dnsAnswerType(msg[at-4:at], addr)
			if !ok {
				continue
			}
			if name > 0x3fff || len(dst)+2+dnsRecordFixed+16 > cap(dst) {
				return nil, errNotRewritten
			}
			dst = binary.BigEndian.AppendUint16(dst, 0xc000|uint16(name))
			dst = binary.BigEndian.AppendUint16(dst, typ)
			dst = binary.BigEndian.AppendUint16(dst, dnsClassIN)
			dst = binary.BigEndian.AppendUint32(dst, ttl)
			dst = appendAddr(dst, addr)
			answers++
		}
	}
	additional := uint16(0)
	if opt != nil {
		if len(dst)+len(opt) > cap(dst) {
			return nil, errNotRewritten
		}
		at := len(dst)
		dst = append(dst, opt...)
		dst[at+5] = 0 // the upper half of the response code, RFC 6891 section 6.1.3
		additional = 1
	}
	dst[2] &^= 0x02        // TC: nothing is missing
	dst[3] &^= 0x20 | 0x0f // AD: nobody has validated this; the response's own code
	dst[3] |= uint8(answer.RCode)
	binary.BigEndian.PutUint16(dst[6:], uint16(answers))
	binary.BigEndian.PutUint16(dst[8:], 0)
	binary.BigEndian.PutUint16(dst[10:], additional)
	return dst, nil
}

// dnsAnswerType tells whether the address answers a question, given by its type
// and class, and with which type of record.
func dnsAnswerType(question []byte, addr netip.Addr) (typ uint16, ok bool) {
	typ = dnsTypeAAAA
	if addr.Is4() {
		typ = dnsTypeA
	}
	asked := binary.BigEndian.Uint16(question)
	class := binary.BigEndian.Uint16(question[2:])
	return typ, (asked == typ || asked == dnsTypeANY) && (class == dnsClassIN || class == dnsTypeANY)
}

func appendAddr(dst []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		a := addr.As4()
		return append(append(dst, 0, 4), a[:]...)
	}
	a := addr.As16()
	return append(append(dst, 0, 16), a[:]...)
}

// dnsKeep returns what a rewritten response keeps of the records that begin at
// an offset: the answers' lowest TTL and the OPT record. Records that do not
// parse end the search; they are not kept anyway.
func dnsKeep(msg []byte, at int) (ttl uint32, opt []byte) {
	ttl = dnsTTL
	answers := int(binary.BigEndian.Uint16(msg[6:]))
	authority := int(binary.BigEndian.Uint16(msg[8:]))
	additional := int(binary.BigEndian.Uint16(msg[10:]))
	if answers > 0 {
		ttl = dnsTTLMax
	}
	for i := range answers + authority + additional {
		start := at
		at = dnsSkipName(msg, at)
		if at < 0 || len(msg)-at < dnsRecordFixed {
			break
		}
		typ := binary.BigEndian.Uint16(msg[at:])
		if i < answers {
			ttl = min(ttl, binary.BigEndian.Uint32(msg[at+4:]))
		}
		root := at == start+1
		at += dnsRecordFixed + int(binary.BigEndian.Uint16(msg[at+8:]))
		if at > len(msg) {
			break
		}
		if typ == dnsTypeOPT && root && i >= answers+authority {
			opt = msg[start:at]
			break
		}
	}
	return ttl, opt
}

// dnsSkipName returns where the message goes on behind a name, -1 where it ends
// inside it.
func dnsSkipName(msg []byte, at int) int {
	for at < len(msg) {
		switch c := int(msg[at]); {
		case c == 0:
			return at + 1
		case c >= 192:
			if at+2 > len(msg) {
				return -1
			}
			return at + 2
		case c >= 64:
			return -1
		default:
			at += 1 + c
		}
	}
	return -1
}
