package loader

import (
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
	"github.com/cilium/ebpf"
)

func TestLoads(t *testing.T) {
	testnet.Need(t)
	f, err := Load(policy.Observe(), Options{})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	for _, p := range []*ebpf.Program{f.objs.FwTc,f.objs.FwTcOut,f.objs.FwXdp,f.objs.FwDecide} {
	info, _ := p.Info()
	n, _ := info.VerifiedInstructions()
	t.Log(p, n)
	}
	defer f.Close()
}
