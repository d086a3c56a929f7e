package fastpath

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// Frames are 60 bytes long; what differs are the headers up to UDP's.
const (
	headers = 42
	stride  = 48 // of headers in the program's memory
)

// A source sends frames out of a host's interface, faster than any socket: the
// kernel runs its program on pages of its own and the program redirects each
// (BPF_F_TEST_XDP_LIVE_FRAMES, Documentation/bpf/bpf_prog_run.rst).
type source struct {
	host  *testnet.Host
	prog  *ebpf.Program
	frame []byte
}

// newSource makes a source of the frames, as many as a power of two, in turn.
func newSource(b testing.TB, host *testnet.Host, ifname string, frames [][]byte) *source {
	b.Helper()
	memory := make([]byte, 8, 8+stride*len(frames))
	for _, f := range frames {
		memory = append(memory, f[:headers]...)
		memory = append(memory, make([]byte, stride-headers)...)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(memory)), MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	if err := m.Put(uint32(0), memory); err != nil {
		b.Fatal(err)
	}
	ifindex, err := host.Index(ifname)
	if err != nil {
		b.Fatal(err)
	}
	return &source{host: host, frame: frames[0], prog: program(b, sourceCode(m, len(frames), ifindex))}
}

// sourceCode writes the next frame's headers, all of them: the kernel uses pages
// again as the stack has left them. r6 packet, r7 count, r8 headers.
func sourceCode(memory *ebpf.Map, frames, ifindex int) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R6),
		asm.Add.Imm(asm.R2, headers),
		asm.JGT.Reg(asm.R2, asm.R1, "end"),
		asm.LoadMapValue(asm.R8, memory.FD(), 0),
		asm.LoadMem(asm.R7, asm.R8, 0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R8, 0, asm.R2, asm.DWord),
		asm.And.Imm(asm.R7, int32(frames-1)),
		asm.Mul.Imm(asm.R7, stride),
		asm.Add.Reg(asm.R8, asm.R7),
	}
	for at := int16(0); at < headers; at += 8 {
		size := asm.DWord
		if headers-at < 8 {
			size = asm.Half
		}
		code = append(code, asm.LoadMem(asm.R2, asm.R8, 8+at, size), asm.StoreMem(asm.R6, at, asm.R2, size))
	}
	return append(code,
		asm.Mov.Imm(asm.R1, int32(ifindex)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), // XDP_ABORTED
		asm.Return())
}

// liveRun is union bpf_attr of BPF_PROG_TEST_RUN.
type liveRun struct {
	progFD, retval      uint32
	dataIn, dataOut     uint32 // bytes
	data, out           uint64
	repeat, duration    uint32
	ctxInLen, ctxOutLen uint32
	ctxIn, ctxOut       uint64
	flags, cpu, batch   uint32
	_                   uint32
}

const liveFrames = 2 // BPF_F_TEST_XDP_LIVE_FRAMES

// send sends n frames on the first CPU and says how long that took. Where the
// other end handles what it gets in softirqs it does so on the same CPU meanwhile.
func (s *source) send(n int) (took time.Duration, err error) {
	err = s.host.Do(func() error {
		return onCPU(0, func() error {
			attr := liveRun{progFD: uint32(s.prog.FD()), repeat: uint32(n), flags: liveFrames, batch: 64,
				data: uint64(uintptr(unsafe.Pointer(&s.frame[0]))), dataIn: uint32(len(s.frame))}
			var pin runtime.Pinner
			pin.Pin(&s.frame[0])
			defer pin.Unpin()
			_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			// By the kernel's clock, which leaves out that it makes a program's
			// trampoline first. Whole ns a frame.
			took = time.Duration(attr.duration) * time.Duration(n)
			if errno != 0 {
				return fmt.Errorf("sending %d live frames: %w", n, errno)
			}
			return nil
		})
	})
	return took, err
}

// onCPU runs f on one CPU without signals, which would interrupt a test run. The
// caller's goroutine is locked to its thread.
func onCPU(cpu int, f func() error) error {
	var before, here unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("asking for the thread's CPUs: %w", err)
	}
	here.Set(cpu)
	if err := unix.SchedSetaffinity(0, &here); err != nil {
		return fmt.Errorf("binding the thread to CPU %d: %w", cpu, err)
	}
	defer unix.SchedSetaffinity(0, &before)
	var all, mask unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &mask); err != nil {
		return fmt.Errorf("blocking signals: %w", err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &mask, nil)
	return f()
}

// program loads an XDP program.
func program(b testing.TB, code asm.Instructions) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: code})
	if err != nil {
		b.Fatalf("loading an XDP program: %+v", err)
	}
	b.Cleanup(func() { p.Close() })
	return p
}

// frames are UDP frames from a client's interface to a router's, with one source
// each, to a port that is the same for all.
func (s *site) frames(sources []netip.AddrPort, to netip.AddrPort) [][]byte {
	s.b.Helper()
	from, next := s.Client.MustMAC(s.b, "eth0"), s.Firewall.MustMAC(s.b, s.Lan)
	all := make([][]byte, len(sources))
	for i, src := range sources {
		all[i] = testnet.Packet{EthSrc: from, EthDst: next, Src: src, Dst: to, Payload: make([]byte, 18)}.Frame()
	}
	return all
}
