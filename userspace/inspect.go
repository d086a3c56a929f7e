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
	// hello without a server name gives one empty name.
	next() *policy.Sight

	// kind says to people what protocol it is.
	kind() string
}

// overTCP makes an inspector of each kind that looks at streams. The file of each
// adds itself. Which comes first does not matter: no two of them know the same
// first bytes.
var overTCP []func() inspector

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
