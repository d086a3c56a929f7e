package loader

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// variation says what differs from packet to packet; addresses are of one family,
// as many as a power of two.
type variation struct {
	sources []netip.Addr
	targets []netip.Addr
	ports   bool // source ports count up
}

// driven is a program that is called for packets that differ.
type driven struct {
	prog  *ebpf.Program // changes the packet, then calls the program
	alone *ebpf.Program // changes the packet, then calls one that does nothing
	empty *ebpf.Program // does nothing
}

func drive(b *testing.B, prog *ebpf.Program, vary variation) *driven {
	b.Helper()
	nothing := empty(b, prog.Type())
	return &driven{prog: driver(b, prog, vary), alone: driver(b, nothing, vary), empty: nothing}
}

// varied is the program's memory: a counter, and the low 32 bits of addresses in
// the order in which they come.
func varied(b *testing.B, addrs []netip.Addr) *ebpf.Map {
	b.Helper()
	value := make([]byte, 8, 8+4*max(1, len(addrs)))
	for _, a := range addrs {
		low := a.As16()
		value = append(value, low[12:]...)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(cap(value)), MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	if err := m.Put(uint32(0), value[:cap(value)]); err != nil {
		b.Fatal(err)
	}
	return m
}

func driver(b *testing.B, prog *ebpf.Program, vary variation) *ebpf.Program {
	b.Helper()
	programs, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { programs.Close() })
	if err := programs.Put(uint32(0), uint32(prog.FD())); err != nil {
		b.Fatal(err)
	}
	spec := &ebpf.ProgramSpec{Type: prog.Type(), License: "GPL", Instructions: driverCode(b, prog.Type(), programs, vary)}
	if prog.Type() == ebpf.XDP {
		spec.AttachType = ebpf.AttachXDP // only its like may be called
	}
	d, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Fatalf("a program that calls %v: %+v", prog, err)
	}
	b.Cleanup(func() { d.Close() })
	return d
}

// driverCode: r6 context, r7 packet, r8 count.
func driverCode(b *testing.B, kind ebpf.ProgramType, programs *ebpf.Map, vary variation) asm.Instructions {
	data, end := int16(76), int16(80) // of struct __sk_buff
	if kind == ebpf.XDP {
		data, end = 0, 4
	}
	offset := func(addrs []netip.Addr, v4, v6 int16) int16 {
		if addrs[0].Is4() {
			return v4
		}
		return v6
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, data, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, end, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, 54),
		asm.JGT.Reg(asm.R2, asm.R1, "call"),
	}
	write := func(addrs []netip.Addr, to int16) {
		code = append(code,
			asm.LoadMapValue(asm.R1, varied(b, addrs).FD(), 0),
			asm.LoadMem(asm.R8, asm.R1, 0, asm.DWord),
			asm.Mov.Reg(asm.R2, asm.R8),
			asm.Add.Imm(asm.R2, 1),
			asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
			asm.Mov.Reg(asm.R2, asm.R8),
			asm.And.Imm(asm.R2, int32(len(addrs)-1)),
			asm.LSh.Imm(asm.R2, 2),
			asm.Add.Reg(asm.R1, asm.R2),
			asm.LoadMem(asm.R2, asm.R1, 8, asm.Word),
			asm.StoreMem(asm.R7, to, asm.R2, asm.Word))
	}
	if vary.sources != nil {
		write(vary.sources, offset(vary.sources, 14+12, 14+8+12))
	}
	if vary.targets != nil {
		write(vary.targets, offset(vary.targets, 14+16, 14+24+12))
	}
	if vary.ports {
		code = append(code, asm.StoreMem(asm.R7, 14+20, asm.R8, asm.Half))
	}
	return append(code,
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("call"),
		asm.LoadMapPtr(asm.R2, programs.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, -1),
		asm.Return())
}

// testRun is union bpf_attr of BPF_PROG_TEST_RUN.
type testRun struct {
	progFD, retval      uint32
	dataIn, dataOut     uint32 // bytes
	data, out           uint64
	repeat, duration    uint32
	ctxInLen, ctxOutLen uint32
	ctxIn, ctxOut       uint64
	flags, cpu, batch   uint32
	_                   uint32
}

// run runs a program n times over a frame, which it may change from one time to
// the next, and gives the last verdict and what one time took by the kernel's own
// clock, ns. ebpf.Program.Run does not tell that, and times from without take in
// what the kernel does around the runs.
func run(tb testing.TB, prog *ebpf.Program, frame []byte, in any, n uint32) (verdict, ns uint32) {
	tb.Helper()
	var ctx bytes.Buffer
	if err := binary.Write(&ctx, binary.NativeEndian, in); err != nil {
		tb.Fatal(err)
	}
	data, c := bytes.Clone(frame), ctx.Bytes()
	attr := testRun{
		progFD: uint32(prog.FD()), repeat: n,
		data: uint64(uintptr(unsafe.Pointer(&data[0]))), dataIn: uint32(len(data)),
		ctxIn: uint64(uintptr(unsafe.Pointer(&c[0]))), ctxInLen: uint32(len(c)),
	}
	var pin runtime.Pinner
	pin.Pin(&data[0])
	pin.Pin(&c[0])
	defer pin.Unpin()
	for range 100 {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		switch errno {
		case 0:
			return attr.retval, attr.duration
		case unix.EINTR: // a signal of the runtime's
			continue
		}
		tb.Fatalf("running %v: %v", prog, errno)
	}
	tb.Fatalf("running %v: interrupted again and again", prog)
	return 0, 0
}
