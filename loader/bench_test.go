package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/hybridfw/hybridfw/policy"
)

// BenchmarkPrograms runs each program over one packet many times, in the kernel,
// and reports the kernel's own duration.
func BenchmarkPrograms(b *testing.B) {
	bb := newBench(b)
	bb.host.MustDo(b, func() error {
		f := bb.load(mustPolicy(b, basePolicy))
		known := tcp(client4, server4, 40000, 80, ack).with(10)
		bb.arrives(f, bb.lan, known)
		listed := tcp(client4, server4, 40000, 23, syn)
		for _, c := range []struct {
			name string
			prog *ebpf.Program
			p    packet
		}{
			{"tc/known flow", f.objs.FwTc, known},
			{"tc/leaving", f.objs.FwTcOut, known},
			{"tc/rule drops", f.objs.FwTc, listed},
			{"tc/default drops", f.objs.FwTc, known.reply().from(server4.Next())},
			{"tc/empty", empty(b, ebpf.SchedCLS), known},
			{"xdp/empty", empty(b, ebpf.XDP), known},
			{"xdp/known flow", f.objs.FwXdp, known},
			{"xdp/rule drops", f.objs.FwXdp, listed},
		} {
			b.Run(c.name, func(b *testing.B) {
				var ctx any = skb{Ifindex: bb.lan, IngressIfindex: bb.wan}
				if c.prog.Type() == ebpf.XDP {
					ctx = xdpMd{DataEnd: uint32(len(c.p.frame())), IngressIfindex: bb.lan}
				}
				frame := c.p.frame()
				b.ResetTimer()
				err := bb.host.Do(func() error {
					_, err := c.prog.Run(&ebpf.RunOptions{Data: frame, Context: ctx, Repeat: uint32(b.N)})
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			})
		}
		return nil
	})
}

// empty is a program that does nothing: what a run costs by itself.
func empty(b *testing.B, kind ebpf.ProgramType) *ebpf.Program {
	b.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
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
