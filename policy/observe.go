package policy

import (
	_ "embed"
)

//go:embed observe.yaml
var observeYAML []byte

// Observe returns the policy that applies where there is none: everything
// passes, names in DNS questions, hellos and HTTP requests are logged. Its zone "net" has
// all interfaces. Each call returns a policy of its own, whose zone the caller
// may narrow before use.
func Observe() *Policy {
	p, err := ParseBytes("observe.yaml", observeYAML, "")
	if err != nil {
		panic("policy: the embedded policy is wrong: " + err.Error())
	}
	return p
}
