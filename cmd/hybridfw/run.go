package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/loader"
	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

// defaultQueue is far from the low numbers that other software takes.
const defaultQueue = 4846

// maxQueues is what the user-space half can serve.
const maxQueues = 256

// drainPatience bounds how long a stop waits for packets that are queued.
const drainPatience = 5 * time.Second

// keepPatience is the same where packets go on being queued.
const keepPatience = time.Second

// tableWatch is how long packets may pass unjudged when others have removed the
// nft table.
const tableWatch = 250 * time.Millisecond

// runOptions are the flags of run.
type runOptions struct {
	places
	policy    string
	ifaces    []string
	readyFile string
	xdp, tc   string
	queue     int
	queues    int
	flows     int
	halfOpen  int
	logFormat string
	keep      bool
	hangup    <-chan os.Signal // asks for a reload
}

var runCommand = command{
	name:    "run",
	summary: "guard this host until stopped",
	about: `Loads a policy, guards the interfaces of its zones, and judges in the
foreground until SIGINT or SIGTERM; then it judges what is still queued and
leaves nothing behind. It outlives its terminal and its log. Without --policy
it observes: everything passes, and the names in DNS questions and TLS hellos
are logged.

A process that was killed, or stopped with --keep, leaves the kernel half
guarding; new packets that user space would have to judge meet
failure.no_listener. The next run takes it over, with all flows, without an
unguarded moment: so a restart or an upgrade cuts no connection. 'hybridfw
detach' removes it.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var o runOptions
		flags.StringVarP(&o.policy, "policy", "p", "", "policy file; without one, observe")
		flags.StringArrayVarP(&o.ifaces, "iface", "i", nil, "guard `[ZONE=]NAME` too (repeatable); when observing, only these")
		flags.StringVar(&o.readyFile, "ready-file", "", "write the process id to this `file` once packets are judged")
		flags.StringVar(&o.xdp, "xdp", string(loader.XDPAuto), "XDP `mode`: auto, native, generic or off")
		flags.StringVar(&o.tc, "tc", string(loader.TCAuto), "tc `mode`: auto, tcx or clsact")
		flags.IntVar(&o.queue, "queue", defaultQueue, "first netfilter queue `number`")
		flags.IntVar(&o.queues, "queues", 0, "`number` of queues (default: one per CPU)")
		flags.IntVar(&o.flows, "flows", 131072, "known `flows` at most")
		flags.IntVar(&o.halfOpen, "half-open", 65536, "`flows` at most that only one endpoint has spoken in")
		flags.BoolVar(&o.keep, "keep", false, "when stopped leave the kernel half guarding, for the next start")
		flags.StringVar(&o.logFormat, "log-format", "text", "log `format`: text or json")
		o.declare(flags)
		return func(ctx context.Context, e env, args []string) error {
			if err := errors.Join(noArgs(args), o.check()); err != nil {
				return err
			}
			p, err := o.loadPolicy()
			if err != nil {
				return err
			}
			// A log or a terminal that goes away is no reason to die and leave the
			// kernel half without a listener.
			signal.Ignore(syscall.SIGPIPE)
			hangup := make(chan os.Signal, 1)
			signal.Notify(hangup, syscall.SIGHUP)
			defer signal.Stop(hangup)
			log := newLines(e.stderr)
			defer log.close()
			o.hangup = hangup
			return run(ctx, o, p, o.logger(log))
		}
	},
}

// check refuses flag values that pflag cannot know to be wrong.
func (o *runOptions) check() error {
	oneOf := func(flag, value string, allowed ...string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return usagef("--%s %q: expected %s", flag, value, strings.Join(allowed, ", "))
	}
	if err := errors.Join(
		oneOf("xdp", o.xdp, "auto", "native", "generic", "off"),
		oneOf("tc", o.tc, "auto", "tcx", "clsact"),
		oneOf("log-format", o.logFormat, "text", "json"),
	); err != nil {
		return usageError{strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	if o.queue < 0 || o.queue > 65535 {
		return usagef("--queue %d: expected 0 to 65535", o.queue)
	}
	if o.queues < 0 || o.queues > maxQueues {
		return usagef("--queues %d: expected 1 to %d, or 0 for one per CPU", o.queues, maxQueues)
	}
	if o.queues == 0 {
		o.queues = min(runtime.NumCPU(), maxQueues)
	}
	if last := o.queue + o.queues - 1; last > 65535 {
		return usagef("--queue %d with %d queues: the last would be %d, expected 65535 at most", o.queue, o.queues, last)
	}
	for _, size := range []struct {
		flag    string
		entries int
	}{{"flows", o.flows}, {"half-open", o.halfOpen}} {
		if size.entries < 1 || size.entries > 1<<28 {
			return usagef("--%s %d: expected 1 to %d", size.flag, size.entries, 1<<28)
		}
	}
	return nil
}

func (o *runOptions) logger(w io.Writer) *slog.Logger {
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// loadPolicy reads the policy, or takes the observing one, and adds the
// interfaces of the command line.
func (o *runOptions) loadPolicy() (*policy.Policy, error) {
	if o.policy == "" {
		p := policy.Observe()
		if len(o.ifaces) > 0 {
			p.Zones[0].Interfaces = nil
		}
		return p, addInterfaces(p, o.ifaces)
	}
	p, err := policy.Parse(o.policy)
	if err != nil {
		return nil, err
	}
	return p, addInterfaces(p, o.ifaces)
}

func addInterfaces(p *policy.Policy, ifaces []string) error {
	for _, arg := range ifaces {
		zone, name, ok := strings.Cut(arg, "=")
		if !ok {
			zone, name = p.Zones[0].Name, arg
			if len(p.Zones) > 1 {
				return usagef("--iface %s: the policy has %d zones: write --iface ZONE=%s", arg, len(p.Zones), arg)
			}
		}
		i := slices.IndexFunc(p.Zones, func(z policy.Zone) bool { return z.Name == zone })
		if i < 0 {
			return usagef("--iface %s: the policy has no zone %q", arg, zone)
		}
		if name == "" || len(name) > 15 || strings.ContainsAny(name, "/ ") {
			return usagef("--iface %s: %q is not the name of an interface", arg, name)
		}
		for j, z := range p.Zones {
			if j != i && slices.Contains(z.Interfaces, name) {
				return usagef("--iface %s: %s is in zone %s already", arg, name, z.Name)
			}
		}
		if !slices.Contains(p.Zones[i].Interfaces, name) {
			p.Zones[i].Interfaces = append(p.Zones[i].Interfaces, name)
		}
	}
	return nil
}

// run guards the host until ctx ends or the firewall fails. What can fail is
// done before anything is attached, and whatever was begun is undone.
func run(ctx context.Context, o runOptions, p *policy.Policy, log *slog.Logger) (err error) {
	lock, err := lockRunDir(o.runDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanRunDir(o.runDir), lock.Close()) }()
	namespace, err := lockNamespace()
	if err != nil {
		return err
	}
	defer namespace.Close()
	for _, w := range p.Warnings {
		log.Warn("policy", "warning", w.String())
	}
	d, err := startDaemon(o, p, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	control, err := serveControl(o.runDir, d.status, d.reload)
	if err != nil {
		return err
	}
	defer control.Close()
	if o.readyFile != "" {
		if err := writeReady(o.readyFile); err != nil {
			return err
		}
		defer os.Remove(o.readyFile)
	}
	log.Info("guarding", "policy", p.File, "rules", len(p.Rules), "interfaces", len(d.kernel.Interfaces()))

	for {
		select {
		case <-ctx.Done():
			log.Info("stopping")
			return nil
		case <-o.hangup:
			d.reloadBySignal()
		case err := <-d.failed:
			d.leave = d.policy.Load().Failure.NoListener == policy.Closed
			return err
		}
	}
}

// writeReady writes the ready file, whole or not at all: who waits for it looks
// for its name.
func writeReady(path string) error {
	draft := path + ".new"
	err := os.WriteFile(draft, fmt.Appendln(nil, os.Getpid()), 0o644)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft) // the first error is the one to report
		return fmt.Errorf("writing the ready file: %w", err)
	}
	return nil
}

// daemon is a firewall at work: both halves and what joins them.
type daemon struct {
	options  runOptions
	policy   atomic.Pointer[policy.Policy] // in force
	since    time.Time
	log      *slog.Logger
	kernel   *loader.Firewall
	stage    *userspace.Stage
	steering atomic.Pointer[userspace.Steering]
	steers   atomic.Bool // the nft table is there, from the first policy that needs it on
	names    *nameLog
	found    bool // an nft table that a process before has left
	attached bool
	leave    bool           // stop as a killed process does: the kernel half stays
	failed   chan error     // a half that cannot go on
	done     chan struct{}  // closed to end the watch over interfaces
	watched  chan struct{}  // closed when it has ended
	kept     sync.WaitGroup // the watch over the table

	stageOptions userspace.Options
	reloading    sync.Mutex // one reload after the other
	stopping     bool       // no more of them
}

// startDaemon starts the parts against the packet's way, so that nothing is
// marked before there is a queue for it, and nothing queued without a worker.
func startDaemon(o runOptions, p *policy.Policy, log *slog.Logger) (_ *daemon, err error) {
	d := &daemon{options: o, since: time.Now(), log: log, names: newNameLog(log),
		failed: make(chan error, 2), done: make(chan struct{}), watched: make(chan struct{})}
	// A process before may have left programs, which mark until they are replaced.
	p.Resume(loader.PinnedMarks(o.pinDir))
	d.policy.Store(p)
	defer func() {
		if err != nil {
			close(d.watched) // was not begun
			err = errors.Join(err, d.stop())
		}
	}()
	options := userspace.Options{
		Policy: p, Queue: uint16(o.queue), Queues: o.queues, Log: log,
		Decided: func(e userspace.Decision) error { return d.kernel.Decide(e.Flow, e.Action, e.Mark) },
		Learned: func(list *policy.List, addr netip.Addr, ttl time.Duration) error {
			return d.kernel.Learn(list, addr, ttl)
		},
		Start: func(flow pktbuf.Flow) (uint32, bool) { return d.kernel.Start(flow) },
		Seen:  d.names.seen,
	}
	d.stageOptions = options
	d.kernel, err = loader.Load(p, loader.Options{
		PinDir: o.pinDir, XDP: loader.XDPMode(o.xdp), TC: loader.TCMode(o.tc), Flows: o.flows, HalfOpen: o.halfOpen, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if d.stage, err = userspace.Open(options); err != nil {
		return nil, err
	}
	steering, err := userspace.NewSteering(options)
	if err != nil {
		return nil, err
	}
	if err = d.kernel.Check(); err != nil {
		return nil, err
	}
	if d.found, err = steering.Installed(); err != nil {
		return nil, err
	}
	d.steering.Store(steering)
	// What a process before has left may go on marking until it is replaced.
	if d.found || inspects(p) || len(loader.PinnedMarks(o.pinDir)) > 0 {
		if err = steering.Install(); err != nil {
			return nil, err
		}
		d.steers.Store(true)
	}
	go func() {
		if err := d.stage.Run(); err != nil {
			d.failed <- fmt.Errorf("the user-space half stopped: %w", err)
		}
	}()
	if err = d.kernel.Attach(); err != nil {
		return nil, err
	}
	d.attached = true
	go d.watch()
	d.kept.Go(d.keepTable)
	return d, nil
}

// inspects tells whether a policy sends packets to user space. Where none does there
// is no nft table, which costs every packet of the host.
func inspects(p *policy.Policy) bool {
	return slices.ContainsFunc(p.Rules, func(r policy.Rule) bool { return r.Action == policy.ActionInspect })
}

// keepTable makes the nft table again when others have removed it: 'nft flush
// ruleset' stands at the top of many a rule file, and without the table marked
// packets pass unjudged.
func (d *daemon) keepTable() {
	tick := time.NewTicker(tableWatch)
	defer tick.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-tick.C:
		}
		if !d.steers.Load() {
			continue
		}
		there, err := d.steering.Load().Installed()
		if err == nil && !there {
			d.log.Error("the nft table was removed by others: packets to be inspected have passed unjudged; it is made again")
			err = d.steering.Load().Install()
		}
		if err != nil {
			d.log.Error("watching the nft table", "err", err)
		}
	}
}

// watch follows interfaces as they come and go. The kernel ends a subscription
// whose messages it could not keep; a new one begins with all there is.
func (d *daemon) watch() {
	defer close(d.watched)
	for {
		err := d.kernel.Watch(d.done)
		if err == nil {
			return
		}
		d.log.Warn("interfaces are watched anew", "err", err)
		select {
		case <-d.done:
			return
		case <-time.After(time.Second):
		}
	}
}

// stop undoes startDaemon in the packet's way: no more marks, then no more
// queued packets, then no table, then no queue, and nothing on the interfaces.
func (d *daemon) stop() error {
	var errs []error
	d.reloading.Lock()
	d.stopping = true
	d.reloading.Unlock()
	close(d.done)
	<-d.watched
	d.kept.Wait()
	if d.options.keep && d.attached && !d.leave {
		return errors.Join(d.keepGuarding()...)
	}
	if d.leave {
		d.log.Error("the kernel half guards on alone, as failure.no_listener: closed says: start again, or 'hybridfw detach'")
		errs = append(errs, d.stage.Close(), d.kernel.Close())
		d.names.close()
		return errors.Join(errs...)
	}
	if d.attached {
		errs = append(errs, d.kernel.Release())
	}
	if d.stage != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
		defer cancel()
		errs = append(errs, d.stage.Drain(ctx))
	}
	if steering := d.steering.Load(); steering != nil {
		errs = append(errs, d.unsteer(steering))
	}
	if d.stage != nil {
		errs = append(errs, d.stage.Close())
	}
	if d.attached {
		errs = append(errs, d.kernel.Detach())
	}
	if d.kernel != nil {
		errs = append(errs, d.kernel.Close())
	}
	d.names.close()
	return errors.Join(errs...)
}

// keepGuarding judges what is queued and leaves the kernel half to the next
// process.
func (d *daemon) keepGuarding() []error {
	// Marking goes on, so the queues may never be empty: what comes while they are
	// drained is judged as long as that takes, and then meets no listener.
	ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
	defer cancel()
	err := d.stage.Drain(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		d.log.Warn("stopping with packets in the queues", "err", err)
		err = nil
	}
	errs := []error{err, d.stage.Close(), d.kernel.Close()}
	d.names.close()
	d.log.Info("the kernel half guards on, for the next start or 'hybridfw detach'")
	return errs
}

// unsteer removes the table, but not from under a kernel half that a process before
// has left and that this one could not take over: without it marked packets pass.
func (d *daemon) unsteer(steering *userspace.Steering) error {
	if d.found && !d.attached {
		guards, err := loader.Guards(d.options.pinDir)
		if err != nil || guards {
			return err
		}
	}
	return steering.Remove()
}
