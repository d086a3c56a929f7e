package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

//go:embed demo.yaml
var demoPolicy []byte

var demoCommand = command{
	name:    "demo",
	summary: "show packets taking both paths, in networks of its own",
	about: `Makes a client, a firewall and a server out of network namespaces, starts
hybridfw between them, and sends real DNS, TLS and plain traffic with ordinary
sockets. For each kind of packet it prints the path, the verdict, the name that
was seen, how many packets went to user space before the flow was decided, and
how many stayed in the kernel after. The exit status is 1 when one took another
path than the policy says. Nothing outside its own namespaces is touched.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		asJSON := flags.Bool("json", false, "print one JSON object a line")
		return func(ctx context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			// Continues in a process of its own namespaces, as if from here.
			if err := testnet.Isolate(); err != nil {
				return fmt.Errorf("the demo cannot make its networks: %w", err)
			}
			return demo(ctx, e, *asJSON)
		}
	},
}

// demoNet is the network with everything that runs in it.
type demoNet struct {
	*testnet.Routed
	places
	dir   string
	child *exec.Cmd
	log   demoLog
	tls   map[string]*testnet.TLSServer // by family
	dns   map[string]*testnet.DNSServer
}

// family holds the addresses of one IP version.
type family struct {
	name                string
	client, bot, server netip.Addr
	answer              netip.Addr // what the server says every name has
}

var families = []family{
	{"IPv4", testnet.Client4, netip.MustParseAddr("192.0.2.66"), testnet.Server4, netip.MustParseAddr("203.0.113.7")},
	{"IPv6", testnet.Client6, netip.MustParseAddr("2001:db8:1::66"), testnet.Server6, netip.MustParseAddr("2001:db8:9::7")},
}

func demo(ctx context.Context, e env, asJSON bool) (err error) {
	d, err := newDemoNet()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.startFirewall(ctx); err != nil {
		return err
	}
	table := demoTable{w: e.stdout, json: asJSON}
	table.head()
	wrong := 0
	for _, f := range families {
		for _, s := range d.scenarios(f) {
			row, err := d.play(ctx, s)
			if err != nil {
				return fmt.Errorf("%s over %s: %w", s.what, f.name, err)
			}
			row.Family = f.name
			if row.Wrong != "" {
				wrong++
			}
			table.row(row)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d kinds of packets went another way than the policy says\n%s", wrong, d.log.String())
	}
	table.end()
	return nil
}

// newDemoNet builds the network and its servers.
func newDemoNet() (*demoNet, error) {
	r, err := testnet.NewRouted(testnet.RoutedOptions{StaticNeighbours: true})
	if err != nil {
		return nil, err
	}
	d := &demoNet{Routed: r, tls: make(map[string]*testnet.TLSServer), dns: make(map[string]*testnet.DNSServer)}
	if err := d.build(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *demoNet) build() (err error) {
	// On a tmpfs that nobody else sees: it goes with the process.
	if d.dir, err = os.MkdirTemp("/run", "hybridfw-demo"); err != nil {
		return err
	}
	d.places = places{pinDir: "/sys/fs/bpf/hybridfw-demo", runDir: filepath.Join(d.dir, "run")}
	for _, f := range families {
		names := make(map[string][]netip.Addr)
		for _, name := range []string{"www.example", "blocked.example", "track.ads.example"} {
			names[name] = []netip.Addr{families[0].answer, families[1].answer}
		}
		at := func(port uint16) string { return netip.AddrPortFrom(f.server, port).String() }
		if d.tls[f.name], err = d.Server.ServeTLS(at(443)); err != nil {
			return err
		}
		if d.dns[f.name], err = d.Server.ServeDNS(at(53), names); err != nil {
			return err
		}
		for _, serve := range []func() error{
			func() error { _, err := d.Server.ServeTCPEcho(at(7)); return err },
			func() error { _, err := d.Server.ServeUDPEcho(at(7)); return err },
			func() error { _, err := d.Server.ServeTCPEcho(at(23)); return err },
			func() error { _, err := d.Server.ServeTCPEcho(at(8080)); return err },
			func() error { return d.addBot(f) },
		} {
			if err := serve(); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBot gives the client a second address, which the policy lists. It is not on
// the client's interface, so that no other traffic uses it.
func (d *demoNet) addBot(f family) error {
	mac, err := d.Client.MAC("eth0")
	if err != nil {
		return err
	}
	return errors.Join(
		d.Client.Addr("lo", netip.PrefixFrom(f.bot, f.bot.BitLen())),
		d.Firewall.Neighbour(d.Lan, f.bot, mac))
}

// demoLog collects what the firewall logs, and the last name that it saw.
type demoLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	part []byte // of a line
	name string
}

// Write takes JSON lines.
func (l *demoLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.part = rest
		var entry struct{ Msg, Name string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "name seen" {
			l.name = entry.Name
		}
	}
}

// takeName returns the last name seen since the last call.
func (l *demoLog) takeName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := l.name
	l.name = ""
	return name
}

func (l *demoLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startFirewall runs this same program on the firewall's host.
func (d *demoNet) startFirewall(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	policyFile, ready := filepath.Join(d.dir, "demo.yaml"), filepath.Join(d.dir, "ready")
	if err := os.WriteFile(policyFile, demoPolicy, 0o600); err != nil {
		return err
	}
	d.child = d.Firewall.Command(self, "run", "--policy", policyFile, "--ready-file", ready, "--xdp", "native",
		"--log-format", "json", "--pin-dir", d.pinDir, "--run-dir", d.runDir)
	d.child.Stderr = &d.log
	if err := d.child.Start(); err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		if _, err := os.Stat(ready); err == nil {
			return true, nil
		}
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(d.child.Process.Pid, &status, syscall.WNOHANG, nil)
		return false, errors.Join(err, ended(pid))
	})
	if err != nil {
		return fmt.Errorf("starting the firewall: %w\n%s", err, d.log.String())
	}
	return nil
}

func ended(pid int) error {
	if pid != 0 {
		return errors.New("it ended at once")
	}
	return nil
}

// poll asks until something has happened, for a while.
func poll(ctx context.Context, happened func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		ok, err := happened()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (d *demoNet) close() error {
	var err error
	if d.child != nil && d.child.Process != nil {
		if err = d.child.Process.Signal(syscall.SIGTERM); err == nil {
			err = d.child.Wait()
		}
		if err != nil {
			err = fmt.Errorf("stopping the firewall: %w\n%s", err, d.log.String())
		}
	}
	return errors.Join(err, d.Close())
}
