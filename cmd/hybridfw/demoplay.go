package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// scenario is one kind of packet: what is sent, and the way that the policy says
// it takes.
type scenario struct {
	what, path, verdict string
	name                string // wanted, "" for none
	queued              uint64 // packets to user space until the decision
	// begin sends until the decision is made and returns what the client saw;
	// more goes on with the same flow.
	begin func(context.Context) (outcome string, more func() error, err error)
}

// demoRow is one line of the demo's table.
type demoRow struct {
	Family  string `json:"family"`
	What    string `json:"what"`
	Path    string `json:"path"`    // "xdp", "tc" or "queue"
	Verdict string `json:"verdict"` // "accept", "drop" or "rewrite"
	Name    string `json:"name"`    // seen by an inspector
	Queued  uint64 `json:"queued"`  // packets to user space until the decision
	Kernel  uint64 `json:"kernel"`  // packets judged in the kernel alone afterwards
	Outcome string `json:"outcome"` // at the client
	Wrong   string `json:"wrong,omitempty"`
}

const (
	demoPatience = 5 * time.Second        // for what must come
	demoSilence  = 700 * time.Millisecond // for what must not: some retransmissions long
	demoRounds   = 20                     // exchanges after the decision
)

func (d *demoNet) scenarios(f family) []scenario {
	return []scenario{
		{"listed source", "xdp", "drop", "", 0, d.tcp(f, f.bot, 7)},
		{"blocked port", "xdp", "drop", "", 0, d.tcp(f, f.client, 23)},
		{"port of no rule", "tc", "drop", "", 0, d.tcp(f, f.client, 8080)},
		{"plain TCP", "tc", "accept", "", 0, d.tcp(f, f.client, 7)},
		{"plain UDP", "tc", "accept", "", 0, d.udp(f)},
		{"TLS, good name", "queue", "accept", "www.example", 1, d.hello(f, "www.example")},
		{"TLS, listed name", "queue", "drop", "track.ads.example", 1, d.hello(f, "track.ads.example")},
		{"DNS, good name", "queue", "accept", "www.example", 2, d.query(f, "www.example", true)},
		{"DNS, blocked name", "queue", "drop", "blocked.example", 1, d.query(f, "blocked.example", false)},
		{"DNS, listed name", "queue", "rewrite", "track.ads.example", 2, d.query(f, "track.ads.example", true)},
	}
}

// counts is what the status says that matters here.
type counts struct {
	xdpDrop, judged, queued, userDrop, userRewrite uint64
	tcDrop                                         uint64
}

// take reads the counters when user space has judged all that was queued, and
// nothing is under way any more.
func (d *demoNet) take(ctx context.Context) (c counts, err error) {
	var last counts
	err = poll(ctx, func() (bool, error) {
		s, ok, err := askStatus(ctx, d.runDir)
		if err != nil || !ok {
			return false, errors.Join(err, errors.New("the firewall does not answer"))
		}
		user := s.User.Counters
		c = counts{
			xdpDrop: s.Kernel.Sum("xdp", "drop", ""),
			tcDrop:  s.Kernel.Sum("tc", "drop", ""),
			judged:  s.Kernel.Sum("tc", "pass", "rule") + s.Kernel.Sum("tc", "pass", "flow") + s.Kernel.Sum("tc", "pass", "undecided"),
			queued:  user.Received, userDrop: user.Dropped, userRewrite: user.Rewritten,
		}
		quiet := c == last && user.Received == s.Kernel.Sum("tc", "queue", "")
		last = c
		return quiet, nil
	})
	return c, err
}

// play runs one scenario and compares its way with the policy's.
func (d *demoNet) play(ctx context.Context, s scenario) (demoRow, error) {
	before, err := d.take(ctx)
	if err != nil {
		return demoRow{}, err
	}
	d.log.takeName()
	outcome, more, err := s.begin(ctx)
	if err != nil {
		return demoRow{}, err
	}
	decided, err := d.take(ctx)
	if err != nil {
		return demoRow{}, err
	}
	row := demoRow{What: s.what, Outcome: outcome, Name: d.log.takeName(), Queued: decided.queued - before.queued}
	row.Path, row.Verdict = way(before, decided)
	after := decided
	if more != nil {
		if err := more(); err != nil {
			return row, err
		}
		if after, err = d.take(ctx); err != nil {
			return row, err
		}
	}
	row.Kernel = kernelOnly(after) - kernelOnly(decided)
	if more == nil {
		row.Kernel = kernelOnly(after) - kernelOnly(before)
	}
	switch {
	case row.Path != s.path || row.Verdict != s.verdict:
		row.Wrong = fmt.Sprintf("want %s %s", s.path, s.verdict)
	case row.Queued != s.queued:
		row.Wrong = fmt.Sprintf("want %d queued", s.queued)
	case row.Name != s.name:
		row.Wrong = fmt.Sprintf("want name %q", s.name)
	case after.queued != decided.queued:
		row.Wrong = fmt.Sprintf("%d queued after the decision", after.queued-decided.queued)
	case more != nil && row.Kernel < demoRounds:
		row.Wrong = fmt.Sprintf("want at least %d in the kernel", demoRounds)
	}
	return row, nil
}

func kernelOnly(c counts) uint64 { return c.judged + c.tcDrop + c.xdpDrop }

// way tells from the counters which way the packets took.
func way(a, b counts) (path, verdict string) {
	switch {
	case b.userRewrite > a.userRewrite:
		return "queue", "rewrite"
	case b.userDrop > a.userDrop:
		return "queue", "drop"
	case b.queued > a.queued:
		return "queue", "accept"
	case b.xdpDrop > a.xdpDrop:
		return "xdp", "drop"
	case b.tcDrop > a.tcDrop:
		return "tc", "drop"
	}
	return "tc", "accept"
}

// begun is the type of scenario.begin.
type begun = func(context.Context) (string, func() error, error)

// tcp connects to an echo server and exchanges a few bytes.
func (d *demoNet) tcp(f family, from netip.Addr, port uint16) begun {
	return func(ctx context.Context) (string, func() error, error) {
		patience := demoSilence
		if port == 7 && from == f.client {
			patience = demoPatience
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := d.Client.DialFrom(ctx, "tcp", netip.AddrPortFrom(from, 0), netip.AddrPortFrom(f.server, port))
		if isTimeout(err) {
			return "timed out", nil, nil
		}
		if err != nil {
			return "", nil, err
		}
		return "connected", d.exchange(conn), conn.(*net.TCPConn).SetLinger(0)
	}
}

func (d *demoNet) udp(f family) begun {
	return func(ctx context.Context) (string, func() error, error) {
		conn, err := d.Client.Dial(ctx, "udp", netip.AddrPortFrom(f.server, 7).String())
		if err != nil {
			return "", nil, err
		}
		return "echoed", d.exchange(conn), nil
	}
}

// hello opens a TLS connection under a name.
func (d *demoNet) hello(f family, name string) begun {
	return func(ctx context.Context) (string, func() error, error) {
		ctx, cancel := context.WithTimeout(ctx, demoSilence)
		defer cancel()
		conn, err := d.Client.Dial(ctx, "tcp", netip.AddrPortFrom(f.server, 443).String())
		if err != nil {
			return "", nil, err
		}
		// A close must not send into the next scenario's counters.
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			return "", nil, err
		}
		secure := tls.Client(conn, d.tls[f.name].ClientConfig(name))
		err = secure.HandshakeContext(ctx)
		if isTimeout(err) {
			_ = conn.Close() // the context has closed it
			return "timed out", nil, nil
		}
		if err != nil {
			return "", nil, errors.Join(err, conn.Close())
		}
		return "handshake done", d.exchange(secure), nil
	}
}

// exchange sends and receives on an open connection.
func (d *demoNet) exchange(conn net.Conn) func() error {
	return func() error {
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(demoPatience)); err != nil {
			return err
		}
		buf := make([]byte, 64)
		for range demoRounds {
			if _, err := conn.Write([]byte("hybridfw")); err != nil {
				return err
			}
			if _, err := io.ReadAtLeast(conn, buf, len("hybridfw")); err != nil {
				return err
			}
		}
		return nil
	}
}

// query asks for the address of a name, of the family's type.
func (d *demoNet) query(f family, name string, answered bool) begun {
	return func(ctx context.Context) (string, func() error, error) {
		patience := demoSilence
		if answered {
			patience = demoPatience
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		resolver := d.Client.Resolver(d.dns[f.name].Addr)
		network := "ip4"
		if f.server.Is6() {
			network = "ip6"
		}
		addrs, err := resolver.LookupNetIP(ctx, network, name+".")
		var dnsErr *net.DNSError
		switch {
		case err == nil:
			return "answer " + addrs[0].Unmap().String(), nil, nil
		case isTimeout(err) || errors.Is(err, context.DeadlineExceeded):
			return "timed out", nil, nil
		case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
			return "no address", nil, nil
		}
		return "", nil, err
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// demoTable prints rows as they come.
type demoTable struct {
	w    io.Writer
	json bool
}

const demoFormat = "%-4s  %-17s  %-5s  %-7s  %-17s  %6s  %6s  %s\n"

func (t demoTable) head() {
	if !t.json {
		fmt.Fprintf(t.w, demoFormat, "", "KIND OF PACKET", "PATH", "VERDICT", "NAME SEEN", "QUEUED", "KERNEL", "CLIENT")
	}
}

func (t demoTable) row(r demoRow) {
	if t.json {
		line, _ := json.Marshal(r) // strings and numbers only
		fmt.Fprintf(t.w, "%s\n", line)
		return
	}
	outcome := r.Outcome
	if r.Wrong != "" {
		outcome += "  WRONG: " + r.Wrong
	}
	fmt.Fprintf(t.w, demoFormat, r.Family, r.What, r.Path, r.Verdict, r.Name, fmt.Sprint(r.Queued), fmt.Sprint(r.Kernel), outcome)
}

func (t demoTable) end() {
	if !t.json {
		fmt.Fprint(t.w, `
QUEUED: packets that went to user space until the flow was decided.
KERNEL: packets that the kernel judged alone, of connections after the decision.
Every kind of packet went the way that the policy says.
`)
	}
}
