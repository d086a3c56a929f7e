package loader

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

func testLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// pinnedPath is where a pinned map of a firewall is.
func pinnedPath(o Options, name string) string { return filepath.Join(o.PinDir, name) }

// TestNextProcessGoesOnWithTheFlows closes a firewall as a killed process does, and
// starts the next with other sizes and another policy.
func TestNextProcessGoesOnWithTheFlows(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"the same":       func(*Options) {},
		"larger tables":  func(o *Options) { o.Flows, o.HalfOpen = 9000, 5000 },
		"smaller tables": func(o *Options) { o.Flows, o.HalfOpen = 1000, 500 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.host.MustDo(t, func() error {
				o := Options{PinDir: pinDir(t), Flows: 4096, HalfOpen: 4096}
				dead := mustLoad(t, rejudgeHead+webRule+"  - { name: out, from: lan, proto: [tcp, udp], dport: 80, action: accept }\n", o)
				if err := dead.Attach(); err != nil {
					return err
				}
				client, server := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2")
				plain, other := tcp(client, server, 40000, 80, ack), udp(client, server, 40000, 80)
				hello := tcp(client, server, 40001, 443, psh|ack).with(100)
				for _, p := range []packet{plain, hello} {
					first := p
					first.flags, first.payload = syn, nil
					expect(t, "SYN", b.arrives(dead, b.lan, first), passes)
					// Established, so that both tables have entries.
					answer := first.reply()
					answer.flags = syn | ack
					b.arrives(dead, b.wan, answer)
				}
				expect(t, "datagram", b.arrives(dead, b.lan, other), passes)
				if err := dead.Decide(hello.flow(), policy.ActionDrop, dead.policy.Rules[1].Mark()); err != nil {
					return err
				}
				packets := dead.sum(t, "tc", "", "flow")
				generation := dead.current.Load().number
				if err := dead.Close(); err != nil {
					return err
				}

				change(&o)
				next := mustLoad(t, rejudgeHead+webRule+"  - { name: out, from: lan, proto: tcp, dport: 80, action: accept }\n", o)
				if err := next.Attach(); err != nil {
					return err
				}
				if got := next.current.Load().number; got <= generation {
					t.Errorf("generation %d, want one behind %d", got, generation)
				}
				expect(t, "a reply", b.arrives(next, b.wan, plain.reply()), passes)
				expect(t, "a flow decided by the same rule", b.arrives(next, b.lan, hello), drops)
				expect(t, "a flow that the new policy denies", b.arrives(next, b.wan, other.reply()), drops)
				if got := next.sum(t, "tc", "", "flow"); got != packets+3 {
					t.Errorf("%d packets of known flows counted, want those of before, %d, and 3", got, packets)
				}
				// What is pinned is what is in use.
				m, err := ebpf.LoadPinnedMap(pinnedPath(o, gen.FWMapFlows), nil)
				if err != nil {
					return err
				}
				if int(m.MaxEntries()) != o.Flows {
					t.Errorf("the pinned table has %d entries, want %d", m.MaxEntries(), o.Flows)
				}
				return errors.Join(m.Close(), next.Detach(), next.Close())
			})
		})
	}
}

// TestReloadThenRestartCountsOn: the next process begins behind the last policy
// that was applied.
func TestReloadThenRestartCountsOn(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t)}
		f := mustLoad(t, basePolicy, o)
		if err := errors.Join(f.Attach(), f.Apply(mustPolicy(t, basePolicy)), f.Apply(mustPolicy(t, basePolicy)), f.Close()); err != nil {
			return err
		}
		next := mustLoad(t, basePolicy, o)
		if got := next.current.Load().number; got != 4 {
			t.Errorf("generation %d, want 4", got)
		}
		return errors.Join(next.Attach(), next.Detach(), next.Close())
	})
}

// TestUnknownLayoutIsNotTakenOver leaves a state of another version.
func TestUnknownLayoutIsNotTakenOver(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		var log strings.Builder
		o := Options{PinDir: pinDir(t), Log: testLog(&log)}
		dead := mustLoad(t, rejudgeHead, o)
		if err := dead.Attach(); err != nil {
			return err
		}
		p := udp(netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2"), 40000, 9999)
		expect(t, "first", b.arrives(dead, b.lan, p), passes)
		if err := errors.Join(dead.state.Put(uint32(0), &state{Layout: uint32(gen.FWLimitsLAYOUT) + 1, Generation: 7}), dead.Close()); err != nil {
			return err
		}
		next := mustLoad(t, rejudgeHead, o)
		if err := next.Attach(); err != nil {
			return err
		}
		if !strings.Contains(log.String(), "another layout") {
			t.Errorf("the log does not say why: %s", log.String())
		}
		if _, ok := next.entry(t, p.flow()); ok {
			t.Error("an entry of an unknown layout was taken over")
		}
		expect(t, "reply", b.arrives(next, b.wan, p.reply()), drops)
		return errors.Join(next.Detach(), next.Close())
	})
}

// TestChangedMapIsNotTakenOver has a pinned map of another shape: the others are
// still used.
func TestChangedMapIsNotTakenOver(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		var log strings.Builder
		o := Options{PinDir: pinDir(t), Log: testLog(&log)}
		dead := mustLoad(t, rejudgeHead, o)
		if err := dead.Attach(); err != nil {
			return err
		}
		p := udp(netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2"), 40000, 9999)
		expect(t, "first", b.arrives(dead, b.lan, p), passes)
		other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 3})
		if err != nil {
			return err
		}
		defer other.Close()
		if err := errors.Join(repin(other, counterPin(o.PinDir)), dead.Close()); err != nil {
			return err
		}
		next := mustLoad(t, rejudgeHead, o)
		if err := next.Attach(); err != nil {
			return err
		}
		if !strings.Contains(log.String(), "not taken over") || !strings.Contains(log.String(), "counters") {
			t.Errorf("the log does not say that counters begin anew: %s", log.String())
		}
		expect(t, "reply", b.arrives(next, b.wan, p.reply()), passes)
		if stats, err := ReadStats(o.PinDir); err != nil || stats.Sum("tc", "pass", "flow") != 1 {
			t.Errorf("pinned counters %+v, %v", stats, err)
		}
		pins := look(t, o.PinDir).pins
		for _, name := range append(slices.Clone(pinnedMaps), statePin) {
			if !slices.Contains(pins, pinnedPath(o, name)) {
				t.Errorf("%s is not pinned: %v", name, pins)
			}
		}
		return errors.Join(next.Detach(), next.Close())
	})
}

// TestMarksOfAGoneProcessAreKnown: its programs mark on until they are replaced.
func TestMarksOfAGoneProcessAreKnown(t *testing.T) {
	b := newBench(t)
	b.host.MustDo(t, func() error {
		o := Options{PinDir: pinDir(t)}
		if got := PinnedMarks(o.PinDir); len(got) != 0 {
			t.Errorf("marks %v without a process before", got)
		}
		if there, err := Guards(o.PinDir); there || err != nil {
			t.Errorf("guards: %v, %v", there, err)
		}
		first := mustPolicy(t, rejudgeHead+webRule)
		f, err := Load(first, o)
		if err != nil {
			return err
		}
		if err := f.Attach(); err != nil {
			return err
		}
		if got, want := PinnedMarks(o.PinDir), (map[int]uint32{0: first.Rules[1].ID}); !maps.Equal(got, want) {
			t.Errorf("marks %v, want %v", got, want)
		}
		second := mustPolicy(t, rejudgeHead+replace(t, webRule, "dport: 443", "dport: 444"))
		if err := errors.Join(second.Succeed(first, nil), f.Apply(second), f.Close()); err != nil {
			return err
		}
		// Of both: where the process dies amid the swap both mark.
		want := map[int]uint32{0: first.Rules[1].ID, 1: second.Rules[1].ID}
		if got := PinnedMarks(o.PinDir); !maps.Equal(got, want) {
			t.Errorf("marks %v, want %v", got, want)
		}
		if there, err := Guards(o.PinDir); !there || err != nil {
			t.Errorf("guards: %v, %v", there, err)
		}
		return Detach(o.PinDir)
	})
}
