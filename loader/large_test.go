package loader

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// TestPolicyTooLargeForTheMapsIsRefused: it is refused when it is compiled, before
// the kernel is asked for anything.
func TestPolicyTooLargeForTheMapsIsRefused(t *testing.T) {
	defer func(most int) { maxSetBytes = most }(maxSetBytes)
	p := randomPolicy(rand.New(rand.NewPCG(5, 5)))
	p.File = "p.yaml"
	p.Rules = nil
	for i := range 128 {
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprint(i), Action: policy.ActionDrop,
			Src: policy.AddrMatch{Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)}}})
	}
	if _, err := Compile(p); err != nil {
		t.Fatalf("with room enough: %v", err)
	}
	maxSetBytes = 100 * 16
	_, err := Compile(p)
	if err == nil || !strings.HasPrefix(err.Error(), "p.yaml: its 128 rules tell too many kinds of packets apart, more than 100: ") {
		t.Errorf("129 kinds of sources: %v", err)
	}
	p.Rules = p.Rules[:90]
	if _, err := Compile(p); err != nil {
		t.Errorf("91 kinds of sources: %v", err)
	}
	p.Rules = make([]policy.Rule, policy.MaxRules+1)
	if _, err := Compile(p); err == nil || !strings.Contains(err.Error(), "4097 rules, but the kernel half holds 4096") {
		t.Errorf("4,097 rules: %v", err)
	}
}
