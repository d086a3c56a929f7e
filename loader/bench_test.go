package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/hybridfw/hybridfw/policy"
)

// empty is a program that does nothing: what a run costs by itself.
func empty(b *testing.B, kind ebpf.ProgramType) *ebpf.Program {
	b.Helper()
	spec := &ebpf.ProgramSpec{Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}} // TC_ACT_UNSPEC
	if kind == ebpf.XDP {
		spec.Instructions[0] = asm.Mov.Imm(asm.R0, xdpPass)
		spec.AttachType = ebpf.AttachXDP
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { prog.Close() })
	return prog
}

// BenchmarkDecide measures how long a decision takes to reach the flow table.
func BenchmarkDecide(b *testing.B) {
	bb := newBench(b)
	bb.host.MustDo(b, func() error {
		f := bb.load(mustPolicy(b, basePolicy))
		hello := tcp(client4, server4, 40000, 443, ack)
		flow := hello.flow()
		b.ReportAllocs()
		for b.Loop() {
			if err := f.Decide(flow, policy.ActionAccept, 1); err != nil {
				return err
			}
		}
		return nil
	})
}
