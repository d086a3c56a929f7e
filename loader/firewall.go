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
	"sync/atomic"

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

// ErrInUse means that another process works with the folder of pins.
var ErrInUse = errors.New("another hybridfw has its pins")

var errNotExist = fs.ErrNotExist

// Options configure a Firewall. The zero value of each field is its default.
type Options struct {
	PinDir   string  // DefaultPinDir
	XDP      XDPMode // XDPAuto
	TC       TCMode  // TCAuto
	Flows    int     // known flows at most: 131,072
	HalfOpen int     // flows at most that only one endpoint has spoken in: 65,536
	Log      *slog.Logger
}

// Firewall is a loaded kernel half. Its methods may be called by several
// goroutines.
type Firewall struct {
	opts   Options
	lock   *os.File      // the folder of pins is this process's own
	decide *ebpf.Program // of the first policy: it looks at nothing that is a policy's own
	learn  *ebpf.Program // likewise
	places atomic.Pointer[listPlaces]
	known  [2]*ebpf.Map // flows and half_open, whatever policy is in force

	state     *ebpf.Map       // pinned; nil before Attach
	inherited map[string]bool // maps that an earlier process has made
	heirs     []heir          // until Attach is done

	applying sync.Mutex // one policy after the other
	numbered uint32     // the last generation's number
	current  atomic.Pointer[generation]

	mu          sync.Mutex
	instance                        // in force
	hitsBefore  map[uint32]RuleHits // by rule id: what earlier policies have counted
	listsBefore map[string]tally    // by name of a list: likewise
	attached    map[int]*attachment // by ifindex
	seesTakers  bool                // changes of what takes frames from XDP are seen
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
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, explainLoad(fmt.Errorf("raising the locked-memory limit: %w", err))
	}
	f := &Firewall{opts: opts, numbered: 1, inherited: make(map[string]bool), attached: make(map[int]*attachment)}
	before, usable := f.readState()
	if usable {
		f.numbered = before.Generation + 1
	}
	shared, places, err := f.inheritAll(usable)
	if err != nil {
		return nil, explainLoad(err)
	}
	places, err = places.next(p, p)
	var tables *Tables
	if err == nil {
		tables, err = compile(p, places)
	}
	if err != nil {
		return nil, errors.Join(err, closeMaps(shared))
	}
	g := new(generation).next(tables, f.numbered)
	objs, err := f.loadFirst(tables, g, shared)
	if err != nil {
		return nil, explainLoad(err)
	}
	f.instance = instance{policy: p, objs: *objs}
	f.decide, f.learn = f.objs.FwDecide, f.objs.FwLearn
	if err := errors.Join(f.keepTables(), f.copyEntries(), f.takePlaces(&f.instance, places)); err != nil {
		return nil, errors.Join(err, f.objs.Close())
	}
	f.current.Store(g)
	return f, nil
}

// inheritAll opens the maps that a process before has left if they are known to be
// usable, and tells which dynamic lists have places in them.
func (f *Firewall) inheritAll(usable bool) (shared map[string]*ebpf.Map, places listPlaces, err error) {
	if !usable {
		return nil, places, nil
	}
	spec, err := f.spec()
	if err != nil {
		return nil, places, err
	}
	shared = f.inherit(spec)
	if shared[gen.FWMapLearned] == nil || shared[gen.FWMapListIds] == nil {
		return shared, places, nil
	}
	i := instance{objs: gen.FWObjects{FWMaps: gen.FWMaps{ListIds: shared[gen.FWMapListIds]}}}
	if places, err = i.learnedPlaces(); err != nil {
		return nil, places, errors.Join(err, closeMaps(shared))
	}
	return shared, places, nil
}

func closeMaps(all map[string]*ebpf.Map) error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// loadFirst makes the first instance, with the maps that a process before has left.
func (f *Firewall) loadFirst(tables *Tables, g *generation, shared map[string]*ebpf.Map) (*gen.FWObjects, error) {
	objs, err := f.load(tables, g, shared)
	for name, m := range shared {
		f.inherited[name] = true
		err = errors.Join(err, m.Close()) // the instance has a descriptor of its own
	}
	return objs, err
}

// spec is what programs and maps are made from, with the sizes that are asked for.
func (f *Firewall) spec() (*ebpf.CollectionSpec, error) {
	spec, err := gen.LoadFW()
	if err != nil {
		return nil, err
	}
	if f.opts.Flows != 0 {
		spec.Maps[gen.FWMapFlows].MaxEntries = uint32(f.opts.Flows)
	}
	if f.opts.HalfOpen != 0 {
		spec.Maps[gen.FWMapHalfOpen].MaxEntries = uint32(f.opts.HalfOpen)
	}
	return spec, nil
}

// load makes an instance of the programs for a policy, with maps of its own but
// for those that it is given.
func (f *Firewall) load(tables *Tables, g *generation, shared map[string]*ebpf.Map) (*gen.FWObjects, error) {
	spec, err := f.spec()
	if err != nil {
		return nil, err
	}
	if err := tables.setVariables(spec, g); err != nil {
		return nil, err
	}
	objs := new(gen.FWObjects)
	if err := spec.LoadAndAssign(objs, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return nil, err
	}
	if err := tables.fillMaps(&objs.FWMaps); err != nil {
		return nil, errors.Join(err, objs.Close())
	}
	return objs, nil
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
// left is taken over without an unguarded moment. What the policy asks for in
// vain is found before anything is changed; when the kernel refuses something
// after that, nothing stays attached.
func (f *Firewall) Attach() error {
	links, err := f.check()
	if err != nil {
		return err
	}
	if f.lock, err = lockPins(f.opts.PinDir); err != nil {
		return err
	}
	if err := f.attachAll(links); err != nil {
		return errors.Join(err, f.Detach())
	}
	return nil
}

// Check reports what the policy asks for in vain. Attach does so, too, but before
// it others may want to know.
func (f *Firewall) Check() error {
	_, err := f.check()
	return err
}

func (f *Firewall) check() ([]netlink.Link, error) {
	links, err := complete(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	return links, checkInterfaces(f.policy, links)
}

func (f *Firewall) attachAll(links []netlink.Link) error {
	if err := f.pinMaps(); err != nil {
		return err
	}
	// All are in their zones before the first is guarded: what comes in there
	// may leave by any of the others.
	for _, l := range links {
		if err := f.enterZone(l); err != nil {
			return err
		}
	}
	if !f.inherited[gen.FWMapFlows] && len(f.heirs) == 0 {
		// Before the first packet is judged. Not worth being unguarded for.
		if err := f.takeConnections(); err != nil {
			f.opts.Log.Warn("connections that exist already are not taken over", "err", err)
		}
	}
	for _, l := range links {
		if err := f.attach(l); err != nil {
			return err
		}
	}
	f.settlePorts()
	return errors.Join(f.endHeritage(), f.dropStale(links))
}

// checkInterfaces reports interfaces that the policy names, not by a glob, and
// that are not there, more likely a slip than an intention, or cannot be
// guarded.
func checkInterfaces(p *policy.Policy, links []netlink.Link) error {
	byName := make(map[string]netlink.Link, len(links))
	for _, l := range links {
		byName[l.Attrs().Name] = l
	}
	for _, zone := range p.Zones {
		at := fmt.Sprintf("%s:%v: zone %s", p.File, zone.Pos, zone.Name)
		for _, name := range zone.Interfaces {
			if strings.ContainsAny(name, "*?") {
				continue
			}
			if byName[name] == nil {
				return fmt.Errorf("%s has interface %s, but there is none: create it first, name another, or write a glob such as %q for one that comes later", at, name, name+"*")
			}
			if why := unfit(byName[name]); why != "" {
				return fmt.Errorf("%s has interface %s, which cannot be guarded: %s", at, name, why)
			}
		}
	}
	return nil
}

// Decide writes the decision about a flow into its entry, so that its next
// packet is judged in the kernel. The flow is in the direction of the packet
// that was judged, the mark that of the inspecting rule (policy.Rule.Mark). Where
// a newer policy has judged the flow by another rule meanwhile, its word stands.
func (f *Firewall) Decide(flow pktbuf.Flow, action policy.Action, mark uint16) error {
	a, err := encodeAction(action)
	if err != nil {
		return err
	}
	key, sender := encodeFlow(flow)
	g := f.current.Load()
	m, ok := g.marks[mark]
	if !ok {
		m.rule = ruleNone
	}
	d := gen.FWDecision{Key: key, Rule: m.rule, Action: uint8(a), Origin: sender,
		Mark: mark, DecidedBy: m.id, Since: m.since, Generation: g.number}
	code, err := f.decide.Run(&ebpf.RunOptions{Context: &d})
	if err != nil {
		return fmt.Errorf("running fw_decide: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("the flow table took no entry: error %d", int32(code))
	}
	return nil
}

// Stats reads the counters.
func (f *Firewall) Stats() (Stats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return readStats(f.objs.Counters)
}

// Release takes the programs off all interfaces, so that no packet is marked any
// more, and leaves what cannot be removed without loss to Detach: while a clsact
// qdisc is removed the kernel loses what its interface sends, packets that come
// back from a queue among them.
func (f *Firewall) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, a := range f.attached {
		errs = append(errs, a.release())
	}
	return errors.Join(errs...)
}

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
	errs = append(errs, detach(f.opts.PinDir))
	return errors.Join(errs...)
}

// Close releases programs and maps. It does not detach.
func (f *Firewall) Close() error {
	err := errors.Join(f.objs.Close(), f.known[0].Close(), f.known[1].Close())
	for _, h := range f.heirs {
		err = errors.Join(err, h.from.Close())
	}
	if f.state != nil {
		err = errors.Join(err, f.state.Close())
	}
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}
