package userspace

import "github.com/hybridfw/hybridfw/policy"

// outcome is what an inspector makes of the bytes it was shown.
type outcome uint8

const (
	// sawNone: not this protocol, or nothing in it has a name. Only steps
	// without a condition on a name can match.
	sawNone outcome = iota
	// sawNames: next gives them.
	sawNames
	// sawMore: it begins like this protocol, but the rest is missing.
	sawMore
	// sawMalformed: it contradicts itself or the protocol.
	sawMalformed
)

// inspector finds names in the bytes of one protocol. An inspector belongs to
// one worker, never writes to the bytes and allocates nothing.
type inspector interface {
	// inspect looks at a datagram, or at a stream from its first byte on. Where
	// it returns sawNames the bytes must stay as they are until the last call of
	// next.
	inspect(b []byte) outcome

	// next returns what was seen one after the other, and then nil; each is valid
	// until the call after it. Names are lower case and without the final dot. A
	// hello without a server name gives one empty name, and so does a protocol
	// that has no names.
	next() *policy.Sight
}

// datagrams is an inspector of what comes in UDP datagrams.
type datagrams interface {
	inspector

	// begins reports whether a datagram is of this protocol.
	begins(b []byte) bool

	// gather looks at such a datagram of a flow that is not decided, nil where it
	// is not known, and returns as inspect does over what it saw. Where that is
	// spread over datagrams it keeps it in a stream of the flow, for which it makes
	// an entry; an error says that there was no room, or a conflict.
	gather(j *judge, f *flow, b []byte) (known *flow, saw []byte, got outcome, err error)
}

// overTCP makes an inspector of each kind that looks at streams, overUDP of each
// that looks at datagrams, but for DNS. The file of each adds itself. Which comes
// first does not matter: no two of them know the same first bytes.
var (
	overTCP []func() inspector
	overUDP []func() datagrams
)

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
