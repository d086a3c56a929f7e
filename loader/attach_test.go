package loader

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// attached is what hybridfw may leave on the interfaces of a namespace.
type attached struct {
	programs []string // name of each attached program
	qdiscs   int      // of kind clsact
	pins     []string
}

// look lists what is attached in the calling thread's namespace.
func look(tb testing.TB, pinDir string) attached {
	tb.Helper()
	var a attached
	links, err := netlink.LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
			a.programs = append(a.programs, "fw_xdp")
		}
		for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			a.programs = append(a.programs, tcxPrograms(tb, l.Attrs().Index, attach)...)
		}
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			tb.Fatal(err)
		}
		for _, q := range qdiscs {
			if q.Type() == "clsact" {
				a.qdiscs++
				a.programs = append(a.programs, filterPrograms(tb, l)...)
			}
		}
	}
	a.pins, _ = filepath.Glob(filepath.Join(pinDir, "*"))
	slices.Sort(a.programs)
	return a
}

func tcxPrograms(tb testing.TB, ifindex int, attach ebpf.AttachType) []string {
	tb.Helper()
	res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: attach})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, syscall.EINVAL) {
		return nil // kernels without TCX know no such attach type
	}
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, p := range res.Programs {
		prog, err := ebpf.NewProgramFromID(p.ID)
		if err != nil {
			tb.Fatal(err)
		}
		info, err := prog.Info()
		if err != nil {
			tb.Fatal(err)
		}
		names = append(names, info.Name)
		prog.Close()
	}
	return names
}

func filterPrograms(tb testing.TB, l netlink.Link) []string {
	tb.Helper()
	var names []string
	for parent, name := range map[uint32]string{netlink.HANDLE_MIN_INGRESS: "fw_tc", netlink.HANDLE_MIN_EGRESS: "fw_tc_out"} {
		own, _, err := ours(l, parent)
		if err != nil {
			tb.Fatal(err)
		}
		for range own {
			names = append(names, name)
		}
	}
	return names
}

var twoInterfaces = []string{"fw_tc", "fw_tc", "fw_tc_out", "fw_tc_out"}

func hasTCX() bool { return !errors.Is(linkTCX(), ebpf.ErrNotSupported) }

// linkTCX asks for a link that no kernel with TCX gives: there is no interface
// of this number.
func linkTCX() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		return err
	}
	defer prog.Close()
	_, err = link.AttachTCX(link.TCXOptions{Interface: 1 << 30, Program: prog, Attach: ebpf.AttachTCXIngress})
	return err
}

// attachModes runs a test for each way of attaching that the kernel has.
func attachModes(t *testing.T, run func(t *testing.T, o Options)) {
	t.Helper()
	testnet.Need(t)
	for _, tc := range []TCMode{TCX, TCClsact} {
		for _, xdp := range []XDPMode{XDPNative, XDPGeneric, XDPOff} {
			t.Run(string(tc)+" "+string(xdp), func(t *testing.T) {
				if tc == TCX && !hasTCX() {
					testnet.NeedLinux(t, 6, 6, "TCX")
				}
				b := newBench(t)
				b.host.MustDo(t, func() error {
					run(t, Options{PinDir: pinDir(t), XDP: xdp, TC: tc})
					return nil
				})
			})
		}
	}
}

func pinDir(tb testing.TB) string {
	name := "fw-" + strings.Map(func(r rune) rune {
		if r == '.' || r == '/' {
			return '-'
		}
		return r
	}, tb.Name())
	return filepath.Join("/sys/fs/bpf", name)
}

func mustLoad(tb testing.TB, text string, o Options) *Firewall {
	tb.Helper()
	f, err := Load(mustPolicy(tb, text), o)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestDetachLeavesNothing(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		f := mustLoad(t, basePolicy, o)
		if err := f.Attach(); err != nil {
			t.Fatal(err)
		}
		a := look(t, o.PinDir)
		want := slices.Clone(twoInterfaces)
		if o.XDP != XDPOff {
			want = append(want, "fw_xdp", "fw_xdp")
		}
		if !slices.Equal(a.programs, want) {
			t.Errorf("attached %v, want %v", a.programs, want)
		}
		for _, i := range f.Interfaces() {
			if i.XDP != string(o.XDP) || i.TC != string(o.TC) {
				t.Errorf("interface %+v, want %s and %s", i, o.XDP, o.TC)
			}
		}
		if err := errors.Join(f.Detach(), f.Close()); err != nil {
			t.Fatal(err)
		}
		gone(t, o.PinDir)
	})
}

func gone(tb testing.TB, pinDir string) {
	tb.Helper()
	if a := look(tb, pinDir); len(a.programs)+a.qdiscs+len(a.pins) != 0 {
		tb.Errorf("left behind: %+v", a)
	}
	if _, err := os.Stat(pinDir); !errors.Is(err, os.ErrNotExist) {
		tb.Errorf("the folder for pins is still there: %v", err)
	}
}

// TestStateOfADeadProcessIsTakenOver closes a firewall as a killed process does,
// and starts the next over what is left.
func TestStateOfADeadProcessIsTakenOver(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		dead := mustLoad(t, basePolicy, o)
		if err := errors.Join(dead.Attach(), dead.Close()); err != nil {
			t.Fatal(err)
		}
		left := look(t, o.PinDir)
		next := mustLoad(t, basePolicy, o)
		if err := next.Attach(); err != nil {
			t.Fatal(err)
		}
		if a := look(t, o.PinDir); !slices.Equal(a.programs, left.programs) || !slices.Equal(a.pins, left.pins) {
			t.Errorf("after the next start %+v, want as before: %+v", a, left)
		}
		if err := errors.Join(next.Close(), Detach(o.PinDir)); err != nil {
			t.Fatal(err)
		}
		gone(t, o.PinDir)
	})
}

// TestModeMayChangeOverADeadProcess starts with every other way of attaching.
func TestModeMayChangeOverADeadProcess(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		other := Options{PinDir: o.PinDir, XDP: XDPGeneric, TC: TCClsact}
		if o.TC == TCClsact {
			other.TC = TCAuto
		}
		dead := mustLoad(t, basePolicy, other)
		if err := errors.Join(dead.Attach(), dead.Close()); err != nil {
			t.Fatal(err)
		}
		next := mustLoad(t, basePolicy, o)
		if err := next.Attach(); err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(twoInterfaces)
		if o.XDP != XDPOff {
			want = append(want, "fw_xdp", "fw_xdp")
		}
		if a := look(t, o.PinDir); !slices.Equal(a.programs, want) {
			t.Errorf("attached %v, want %v", a.programs, want)
		}
		if err := errors.Join(next.Detach(), next.Close()); err != nil {
			t.Fatal(err)
		}
		gone(t, o.PinDir)
	})
}

func TestFailedAttachLeavesNothing(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t)}
		f := mustLoad(t, replace(t, basePolicy, "wan: [wan0]", "wan: [wan0, eth7]"), o)
		err := f.Attach()
		if err == nil || !strings.Contains(err.Error(), "test.yaml:3") || !strings.Contains(err.Error(), "eth7") {
			t.Errorf("got %v, want the line and the interface that is missing", err)
		}
		gone(t, o.PinDir)
		return f.Close()
	})
}

func TestForeignXDPProgramIsReported(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: int(b.wan), Flags: link.XDPGenericMode})
		if err != nil {
			return err
		}
		defer l.Close()
		o := Options{PinDir: pinDir(t), XDP: XDPGeneric}
		f := mustLoad(t, basePolicy, o)
		if err := f.Attach(); err == nil || !strings.Contains(err.Error(), "another XDP program") {
			t.Errorf("got %v, want to be told of the other program", err)
		}
		if a := look(t, o.PinDir); !slices.Equal(a.programs, []string{"fw_xdp"}) { // the foreign one
			t.Errorf("attached %v, want the foreign program alone", a.programs)
		}
		return f.Close()
	})
}

func TestForeignFiltersStay(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		l, err := netlink.LinkByName("lan0")
		if err != nil {
			return err
		}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
		if err != nil {
			return err
		}
		defer prog.Close()
		clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		foreign := &netlink.BpfFilter{Fd: prog.FD(), Name: "foreign", DirectAction: true, FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: 3}}
		if err := errors.Join(netlink.QdiscAdd(clsact), netlink.FilterAdd(foreign)); err != nil {
			return err
		}
		o := Options{PinDir: pinDir(t), TC: TCClsact}
		f := mustLoad(t, basePolicy, o)
		if err := errors.Join(f.Attach(), f.Detach(), f.Close()); err != nil {
			return err
		}
		own, others, err := ours(l, netlink.HANDLE_MIN_INGRESS)
		if len(own) != 0 || !others {
			t.Errorf("%d filters of ours, foreign ones there: %v; want none and true", len(own), others)
		}
		return err
	})
}

func TestInterfacesJoinAndLeave(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		f := mustLoad(t, replace(t, basePolicy, "wan: [wan0]", `wan: [wan0, "late*"]`), Options{PinDir: pinDir(t)})
		defer f.Close()
		if err := f.Attach(); err != nil {
			return err
		}
		done, watched := make(chan struct{}), make(chan error, 1)
		go func() { watched <- b.host.Do(func() error { return f.Watch(done) }) }()
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "late0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		waitFor(t, "late0 to be guarded", func() bool { return guards(f, "late0", "wan") })
		if err := netlink.LinkDel(bridge); err != nil {
			return err
		}
		waitFor(t, "late0 to be forgotten", func() bool { return !guards(f, "late0", "wan") })
		close(done)
		if err := <-watched; err != nil {
			t.Errorf("watching ended with %v", err)
		}
		return f.Detach()
	})
}

// waitFor polls: a change of the kernel's own is reported to the firewall, not
// to its tests.
func waitFor(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	ctx := testnet.Patience(tb)
	for !done() {
		select {
		case <-ctx.Done():
			tb.Fatalf("waiting for %s: %v", what, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

func guards(f *Firewall, name, zone string) bool {
	return slices.ContainsFunc(f.Interfaces(), func(i Interface) bool { return i.Name == name && i.Zone == zone })
}

func TestObservingPolicyGuardsWhatIsThere(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t)}
		f, err := Load(policy.Observe(), o)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Attach(); err != nil {
			return err
		}
		if !guards(f, "lan0", "net") || !guards(f, "wan0", "net") || guards(f, "lo", "net") {
			t.Errorf("guarded: %+v, want lan0 and wan0, and not lo", f.Interfaces())
		}
		return f.Detach()
	})
}
