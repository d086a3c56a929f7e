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

// inspector finds names in the payload of one protocol. An inspector belongs to
// one worker, never writes to the payload and allocates nothing.
type inspector interface {
	// inspect looks at all of the payload. Where it returns sawNames the payload
	// must stay as it is until the last call of next.
	inspect(payload []byte) outcome

	// next returns the names one after the other, lower case and without the
	// final dot, each valid until the call after it. A hello without a server
	// name gives one empty name.
	next() (name []byte, ok bool)

	// kind says what the names are, to steps and to people.
	kind() (policy.NameKind, string)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
