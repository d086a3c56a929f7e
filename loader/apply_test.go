package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// hugePolicy has as many rules as there may be, and a million prefixes and
// addresses in two lists, a hundredth of them on an emulated machine.
func hugePolicy(tb testing.TB) *policy.Policy {
	tb.Helper()
	entries, rules := 500_000, policy.MaxRules
	if testnet.InGuest() {
		entries, rules = entries/100, rules/100
	}
	dir := tb.TempDir()
	lists := map[string]func(i int) string{
		"nets.txt":  func(i int) string { return fmt.Sprintf("%d.%d.%d.0/24", 11+i>>16, i>>8&255, i&255) },
		"hosts.txt": func(i int) string { return fmt.Sprintf("%d.%d.%d.1", 40+i>>16, i>>8&255, i&255) },
	}
	for name, line := range lists {
		var text strings.Builder
		for i := range entries {
			text.WriteString(line(i) + "\n")
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	var text strings.Builder
	text.WriteString(`
version: 1
zones: { lan: [lan0], wan: [wan0] }
lists: { nets: { type: cidr, file: nets.txt }, hosts: { type: cidr, file: hosts.txt } }
rules:
  - { name: nets, src: "@nets", action: drop }
  - { name: hosts, src: "@hosts", action: drop }
  - { name: numbered, from: lan, to: host, proto: udp, dport: 5000, action: accept }
`)
	for i := range rules - 3 {
		fmt.Fprintf(&text, "  - { name: r%d, from: lan, proto: tcp, dst: 10.%d.%d.0/24, dport: %d, action: accept }\n", i, i>>8, i&255, 1024+i)
	}
	began := time.Now()
	p, err := policy.ParseBytes("huge.yaml", []byte(text.String()), dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Logf("parsed in %v", time.Since(began).Round(time.Millisecond))
	return p
}

// memory is what the maps of an instance take, in MiB.
func (i *instance) memory(tb testing.TB) (mib float64) {
	tb.Helper()
	for _, m := range []*ebpf.Map{i.objs.RuleSets, i.objs.RulesSport, i.objs.RulesDport,
		i.objs.Lines} {
		info, err := m.Info()
		if err != nil {
			tb.Fatal(err)
		}
		bytes, ok := info.Memlock()
		if !ok {
			tb.Fatal("the kernel does not tell what a map takes")
		}
		mib += float64(bytes) / (1 << 20)
	}
	return mib
}

// TestHugePolicyIsAppliedUnderTraffic changes to the largest policy and back while
// numbered packets, each of a new flow, are all accepted by both.
func TestHugePolicyIsAppliedUnderTraffic(t *testing.T) {
	testnet.Need(t)
	small := mustPolicy(t, replace(t, firstPolicy, "action: inspect, steps: [{ action: accept }]", "action: accept"))
	huge := hugePolicy(t)
	r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
	r.Firewall.MustDo(t, func() error {
		f, err := Load(small, Options{PinDir: pinDir(t)})
		if err != nil {
			return err
		}
		if err := f.Attach(); err != nil {
			return err
		}
		received := receiveMarks(t, r.Firewall, "192.0.2.1:5000")
		sent := make(chan error, 1)
		began := time.Now()
		go func() { sent <- sendNumbered(r.Client) }()
		if err := f.Apply(huge); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("%d rules and %d prefixes applied in %v; their maps take %.0f MiB", len(huge.Rules),
			len(huge.Lists[0].Prefixes)+len(huge.Lists[1].Prefixes), took.Round(time.Millisecond), f.memory(t))
		if err := errors.Join(f.Apply(small), <-sent); err != nil {
			t.Fatal(err)
		}
		received.end(t)
		if received.got != numbersPerTest || received.twice != 0 {
			t.Errorf("%d packets came in, %d twice; want all %d", received.got, received.twice, numbersPerTest)
		}
		return errors.Join(f.Detach(), f.Close())
	})
}

// TestRefusedPolicyChangesNothing gives policies that cannot be applied.
func TestRefusedPolicyChangesNothing(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		f := mustLoad(t, basePolicy, o)
		if err := f.Attach(); err != nil {
			t.Fatal(err)
		}
		programs, before := f.ids(t), look(t, o.PinDir)
		for want, text := range map[string]string{
			"eth7":    replace(t, basePolicy, "wan: [wan0]", "wan: [wan0, eth7]"),
			"restart": basePolicy + "marks: { mask: 0xff000000 }\n",
		} {
			if err := f.Apply(mustPolicy(t, text)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error about %s", err, want)
			}
		}
		if now := f.ids(t); !slices.Equal(now, programs) {
			t.Errorf("programs %v, want those of before: %v", now, programs)
		}
		if now := look(t, o.PinDir); !slices.Equal(now.programs, before.programs) || !slices.Equal(now.pins, before.pins) {
			t.Errorf("attached %+v, want %+v", now, before)
		}
		if err := errors.Join(f.Detach(), f.Close()); err != nil {
			t.Fatal(err)
		}
		gone(t, o.PinDir)
	})
}

// ids are those of the programs in force.
func (f *Firewall) ids(tb testing.TB) (ids []ebpf.ProgramID) {
	tb.Helper()
	for _, prog := range []*ebpf.Program{f.objs.FwXdp, f.objs.FwTc, f.objs.FwTcOut} {
		info, err := prog.Info()
		if err != nil {
			tb.Fatal(err)
		}
		id, _ := info.ID()
		ids = append(ids, id)
	}
	return ids
}

// brokenHook takes no program but the one that it has.
type brokenHook struct {
	hook
	has *ebpf.Program
}

func (h brokenHook) update(prog *ebpf.Program) error {
	if prog == h.has {
		return nil
	}
	return errors.New("broken")
}

// TestErrorAmongTheSwapsIsUndone breaks one hook of several.
func TestErrorAmongTheSwapsIsUndone(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		f := mustLoad(t, basePolicy, Options{PinDir: pinDir(t)})
		if err := f.Attach(); err != nil {
			return err
		}
		client, server := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2")
		p := tcp(client, server, 40000, 80, syn)
		expect(t, "before", b.arrives(f, b.lan, p), passes)
		programs := f.ids(t)
		a := f.attached[int(b.lan)]
		at := len(a.hooks) - 1
		whole := a.hooks[at].hook
		a.hooks[at].hook = brokenHook{whole, f.objs.FwTc}
		// As a program of the refused policy would have left it.
		key, _ := encodeFlow(p.flow())
		e, _ := f.entry(t, p.flow())
		e.Generation = f.numbered + 1
		if err := f.objs.HalfOpen.Put(key, e); err != nil {
			return err
		}
		err := f.Apply(mustPolicy(t, replace(t, rejudgeHead, "lan: [lan0]", `lan: [lan0, "late*"]`)))
		if err == nil || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), "lan0") {
			t.Errorf("got %v, want the hook that is broken", err)
		}
		if now := f.ids(t); !slices.Equal(now, programs) {
			t.Errorf("programs %v, want those of before: %v", now, programs)
		}
		for _, i := range []uint32{b.lan, b.wan} {
			if names := tcxPrograms(t, int(i), ebpf.AttachTCXIngress); hasTCX() && !slices.Equal(names, []string{"fw_tc"}) {
				t.Errorf("interface %d has %v", i, names)
			}
		}
		if e, _ := f.entry(t, p.flow()); e.Generation != 0 {
			t.Errorf("the entry is of generation %d, want that it is judged again", e.Generation)
		}
		a.hooks[at].hook = whole
		if err := f.Apply(mustPolicy(t, rejudgeHead)); err != nil {
			t.Errorf("the next policy: %v", err)
		}
		expect(t, "denied by the next", b.arrives(f, b.lan, p), drops)
		return errors.Join(f.Detach(), f.Close())
	})
}

// TestZonesGainAndLoseInterfaces applies policies with other interfaces.
func TestZonesGainAndLoseInterfaces(t *testing.T) {
	attachModes(t, func(t *testing.T, o Options) {
		f := mustLoad(t, replace(t, basePolicy, "wan: [wan0]", `wan: ["none*"]`), o)
		if err := f.Attach(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			zones, name, zone string
			guarded           int
		}{
			{"lan: [lan0], wan: [wan0]", "wan0", "wan", 2},
			{"lan: [wan0], wan: [lan0]", "wan0", "lan", 2},
			{`lan: [lan0], wan: ["none*"]`, "lan0", "lan", 1},
		} {
			p := mustPolicy(t, replace(t, basePolicy, "lan: [lan0], wan: [wan0]", c.zones))
			if err := f.Apply(p); err != nil {
				t.Fatal(err)
			}
			if !guards(f, c.name, c.zone) || len(f.Interfaces()) != c.guarded {
				t.Errorf("zones %s: guarded %+v", c.zones, f.Interfaces())
			}
			var tc int
			for _, name := range look(t, o.PinDir).programs {
				if name == "fw_tc" {
					tc++
				}
			}
			if tc != c.guarded {
				t.Errorf("zones %s: %d interfaces have fw_tc, want %d", c.zones, tc, c.guarded)
			}
		}
		if err := errors.Join(f.Detach(), f.Close()); err != nil {
			t.Fatal(err)
		}
		gone(t, o.PinDir)
	})
}

// TestInterfacesThatComeLaterGetTheNewPolicy adds one behind a change.
func TestInterfacesThatComeLaterGetTheNewPolicy(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		f := mustLoad(t, basePolicy, Options{PinDir: pinDir(t)})
		defer f.Close()
		if err := f.Attach(); err != nil {
			return err
		}
		done, watched := make(chan struct{}), make(chan error, 1)
		go func() { watched <- b.host.Do(func() error { return f.Watch(done) }) }()
		if err := f.Apply(mustPolicy(t, replace(t, basePolicy, "wan: [wan0]", `wan: [wan0, "late*"]`))); err != nil {
			t.Error(err)
		}
		err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "late0"}})
		waitFor(t, "late0 to be guarded", func() bool { return guards(f, "late0", "wan") })
		close(done)
		return errors.Join(err, <-watched, f.Detach())
	})
}

// TestClosedInstancesAreFreed changes often and looks for what is left.
func TestClosedInstancesAreFreed(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		f := mustLoad(t, basePolicy, Options{PinDir: pinDir(t)})
		if err := f.Attach(); err != nil {
			return err
		}
		var old []ebpf.ProgramID
		for range 5 {
			old = append(old, f.ids(t)...)
			if err := f.Apply(mustPolicy(t, basePolicy)); err != nil {
				return err
			}
		}
		waitFor(t, "the programs of earlier policies to be freed", func() bool {
			return !slices.ContainsFunc(old, func(id ebpf.ProgramID) bool {
				p, err := ebpf.NewProgramFromID(id)
				if err != nil {
					return false
				}
				_ = p.Close()
				return true
			})
		})
		return errors.Join(f.Detach(), f.Close())
	})
}
