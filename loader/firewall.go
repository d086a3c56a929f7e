// Package loader is the kernel half of hybridfw: it compiles a policy into
// tables, loads the BPF programs of package gen with them, attaches these to the
// interfaces of the policy's zones, and reads and writes their maps.
package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// DefaultPinDir is where links and counters are pinned, so that the kernel half
// works on, and can be read and removed, without the process that loaded it.
const DefaultPinDir = "/sys/fs/bpf/hybridfw"

// ErrNotRunning means that nothing of the kernel half is loaded.
var ErrNotRunning = errors.New("hybridfw is not running")

var errNotExist = fs.ErrNotExist

// Options configure a Firewall. The zero value of each field is its default.
type Options struct {
	PinDir string  // DefaultPinDir
	XDP    XDPMode // XDPAuto
	TC     TCMode  // TCAuto
	Flows  int     // entries of the flow table: 131,072
	Log    *slog.Logger
}

// Firewall is a loaded kernel half. Its methods may be called by several
// goroutines.
type Firewall struct {
	opts   Options
	policy *policy.Policy
	objs   gen.FWObjects

	mu       sync.Mutex
	attached map[int]*attachment // by ifindex
}

// Load compiles a policy and loads the programs with it. Nothing is attached
// yet: no packet meets them before Attach.
func Load(p *policy.Policy, opts Options) (*Firewall, error) {
	if opts.PinDir == "" {
		opts.PinDir = DefaultPinDir
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	tables, err := Compile(p)
	if err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the locked-memory limit: %w", err)
	}
	f := &Firewall{opts: opts, policy: p, attached: make(map[int]*attachment)}
	if err := f.load(tables); err != nil {
		return nil, explainLoad(err)
	}
	return f, nil
}

func (f *Firewall) load(tables *Tables) error {
	spec, err := gen.LoadFW()
	if err != nil {
		return err
	}
	if err := tables.setVariables(spec); err != nil {
		return err
	}
	if f.opts.Flows != 0 {
		spec.Maps[gen.FWMapFlows].MaxEntries = uint32(f.opts.Flows)
	}
	if err := spec.LoadAndAssign(&f.objs, nil); err != nil {
		return err
	}
	if err := tables.fillMaps(&f.objs.FWMaps); err != nil {
		return errors.Join(err, f.objs.Close())
	}
	return nil
}

// explainLoad says what a refusal to load means for who started the program.
func explainLoad(err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("loading BPF programs is not permitted: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (%w)", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel lacks a BPF feature that hybridfw needs: Linux 6.1 or later has all of them (%w)", err)
	case errors.As(err, &verifier):
		return fmt.Errorf("this kernel refuses the BPF programs: please report it with this text: %w", err)
	}
	return fmt.Errorf("loading the kernel half: %w", err)
}

// Attach attaches the programs to every interface of the policy's zones that
// exists, and pins what must outlive the process. State that a killed process
// left on an interface is taken over without an unguarded moment. On an error
// nothing stays attached.
func (f *Firewall) Attach() error {
	if err := preparePins(f.opts.PinDir); err != nil {
		return err
	}
	if err := repin(f.objs.Counters, counterPin(f.opts.PinDir)); err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return errors.Join(fmt.Errorf("listing interfaces: %w", err), f.Detach())
	}
	err = f.missing(links)
	for _, l := range links {
		if err != nil {
			break
		}
		err = f.attach(l)
	}
	if err == nil {
		err = f.dropStale(links)
	}
	if err != nil {
		return errors.Join(err, f.Detach())
	}
	return nil
}

// missing reports interfaces that the policy names, not by a glob, and that are
// not there: more likely a slip than an intention.
func (f *Firewall) missing(links []netlink.Link) error {
	exists := make(map[string]bool, len(links))
	for _, l := range links {
		exists[l.Attrs().Name] = true
	}
	for _, zone := range f.policy.Zones {
		for _, name := range zone.Interfaces {
			if !strings.ContainsAny(name, "*?") && !exists[name] {
				return fmt.Errorf("%s:%d:%d: zone %s has interface %s, but there is none: create it first, name another, or write a glob such as %q for one that comes later",
					f.policy.File, zone.Pos.Line, zone.Pos.Column, zone.Name, name, name+"*")
			}
		}
	}
	return nil
}

// Decide writes the decision about a flow into its entry, so that its next
// packet is judged in the kernel. The flow is in the direction of the packet
// that was judged.
func (f *Firewall) Decide(flow pktbuf.Flow, action policy.Action, rule int) error {
	a, err := encodeAction(action)
	if err != nil {
		return err
	}
	key, sender := encodeFlow(flow)
	d := gen.FWDecision{Key: key, Rule: uint16(rule), Action: uint8(a), Origin: sender}
	code, err := f.objs.FwDecide.Run(&ebpf.RunOptions{Context: &d})
	if err != nil {
		return fmt.Errorf("running fw_decide: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("the flow table took no entry: error %d", int32(code))
	}
	return nil
}

// Stats reads the counters.
func (f *Firewall) Stats() (Stats, error) { return readStats(f.objs.Counters) }

// Detach takes the programs off all interfaces and removes the pins. Packets
// pass unjudged from then on.
func (f *Firewall) Detach() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for ifindex, a := range f.attached {
		errs = append(errs, a.close())
		delete(f.attached, ifindex)
	}
	// What an earlier process left on interfaces outside this policy goes too.
	errs = append(errs, Detach(f.opts.PinDir))
	return errors.Join(errs...)
}

// Close releases programs and maps. It does not detach.
func (f *Firewall) Close() error { return f.objs.Close() }
