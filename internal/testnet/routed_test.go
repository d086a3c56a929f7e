package testnet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// families are the client's and the server's addresses in both families.
var families = []struct {
	name           string
	client, server netip.Addr
}{
	{"IPv4", testnet.Client4, testnet.Server4},
	{"IPv6", testnet.Client6, testnet.Server6},
}

func TestServerAnswersPingThroughTheRouter(t *testing.T) {
	for _, static := range []bool{false, true} {
		r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: static})
		for _, f := range families {
			if err := r.Client.Ping(testnet.Patience(t), f.server); err != nil {
				t.Errorf("%s, static neighbours %v: %v", f.name, static, err)
			}
		}
	}
}

func TestNothingIsReachedWithoutForwarding(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := r.Firewall.Sysctl(key, "0"); err != nil {
			t.Fatal(err)
		}
	}
	wan := r.Firewall.MustCapture(t, r.Wan)
	for _, f := range families {
		lan := r.Firewall.MustCapture(t, r.Lan)
		ctx, cancel := context.WithCancel(testnet.Patience(t))
		// The ping is given up as soon as its request is known to have arrived.
		go func() {
			_, _ = lan.Wait(ctx, func(fr testnet.Frame) bool { return !fr.Out && carries(fr, "hybridfw") })
			cancel()
		}()
		if err := r.Client.Ping(ctx, f.server); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: ping through a host that does not forward: %v, want it given up", f.name, err)
		}
	}
	if n := wan.Count(func(fr testnet.Frame) bool { return carries(fr, "hybridfw") }); n != 0 {
		t.Errorf("%d requests were forwarded", n)
	}
}

func TestInterfacesAreNamedAsAsked(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{Lan: "inside", Wan: "outside"})
	for _, name := range []string{"inside", "outside"} {
		if _, err := r.Firewall.Index(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Firewall.Index("lan0"); err == nil {
		t.Error("lan0 exists although another name was asked for")
	}
}

func TestTCPAndUDPAreEchoed(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	tcp, err := r.Server.ServeTCPEcho("[::]:7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Server.ServeUDPEcho("[::]:7"); err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			conn := r.Client.MustDial(t, network, netip.AddrPortFrom(f.server, 7).String())
			said := f.name + " over " + network
			if heard := exchange(t, conn, said); heard != said {
				t.Errorf("echo of %q is %q", said, heard)
			}
		}
	}
	if n := tcp.Accepted(); n != len(families) {
		t.Errorf("server accepted %d connections, want %d", n, len(families))
	}
}

func TestLocalPortIsTheCallersChoice(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	if _, err := r.Server.ServeUDPEcho("[::]:7"); err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		from, to := netip.AddrPortFrom(f.client, 4321), netip.AddrPortFrom(f.server, 7)
		conn, err := r.Client.DialFrom(testnet.Patience(t), "udp", from, to)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if conn.LocalAddr().String() != from.String() {
			t.Errorf("local address %s, want %s", conn.LocalAddr(), from)
		}
		if heard := exchange(t, conn, "x"); heard != "x" {
			t.Errorf("heard %q", heard)
		}
	}
}

func TestBridgeJoinsThreeHosts(t *testing.T) {
	n := testnet.MustNew(t)
	bridge := n.MustHost(t, "bridge")
	hosts := make([]*testnet.Host, 3)
	ports := make([]string, len(hosts))
	for i := range hosts {
		hosts[i] = n.MustHost(t, fmt.Sprintf("host%d", i))
		ports[i] = fmt.Sprintf("port%d", i)
		addrs := []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
			netip.MustParsePrefix(fmt.Sprintf("2001:db8:1::%d/64", i+1)),
		}
		end := testnet.End{Host: hosts[i], Name: "eth0", Addrs: addrs}
		if err := n.Link(end, testnet.End{Host: bridge, Name: ports[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := bridge.Bridge("br0", ports...); err != nil {
		t.Fatal(err)
	}
	for i, h := range hosts {
		for j := range hosts {
			for _, to := range []string{fmt.Sprintf("192.0.2.%d", j+1), fmt.Sprintf("2001:db8:1::%d", j+1)} {
				if err := h.Ping(testnet.Patience(t), netip.MustParseAddr(to)); err != nil {
					t.Errorf("host%d to host%d: %v", i, j, err)
				}
			}
		}
	}
}

func TestThreadComesHomeFromAHost(t *testing.T) {
	n := testnet.MustNew(t)
	a, b := n.MustHost(t, "a"), n.MustHost(t, "b")
	home := netNamespace(t)
	wrong := errors.New("wrong")
	var inA, inB, inAAgain string
	err := a.Do(func() error {
		inA = netNamespace(t)
		b.MustDo(t, func() error { inB = netNamespace(t); return nil })
		inAAgain = netNamespace(t)
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("Do returned %v, want the function's error", err)
	}
	if inA != inAAgain || inA == inB || inA == home || inB == home {
		t.Errorf("home %s, in a %s, in b %s, in a again %s", home, inA, inB, inAAgain)
	}
	if now := netNamespace(t); now != home {
		t.Errorf("in %s after Do, was in %s before", now, home)
	}
}

func TestCommandRunsOnItsHost(t *testing.T) {
	n := testnet.MustNew(t)
	h := n.MustHost(t, "h")
	if err := n.Link(testnet.End{Host: h, Name: "only0"}, testnet.End{Host: n.MustHost(t, "peer"), Name: "x"}); err != nil {
		t.Fatal(err)
	}
	pin := "/sys/fs/bpf/seen-by-all"
	if err := os.Mkdir(pin, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(pin)

	var want string
	h.MustDo(t, func() error { want = netNamespace(t); return nil })
	cmd := h.Command(self(t), "look", "-at", "this")
	cmd.Env = []string{lookEnv + "=1"} // a replaced environment changes nothing
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range []string{"args look -at this", "net " + want, "interface lo", "interface only0", "pin " + pin} {
		if !slices.Contains(seen, line) {
			t.Errorf("the command did not see %q but:\n%s", line, out)
		}
	}
	if len(seen) != 5 {
		t.Errorf("the command saw more than it should:\n%s", out)
	}
}

func TestCommandThatDoesNotExistIsAnError(t *testing.T) {
	h := testnet.MustNew(t).MustHost(t, "h")
	err := h.Command("no-such-program-anywhere").Run()
	if !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error %v, want %v", err, exec.ErrNotFound)
	}
}

func TestCommandDiesWithItsNetwork(t *testing.T) {
	n := testnet.MustNew(t)
	cmd := n.MustHost(t, "h").Command(self(t))
	cmd.Env = []string{stayEnv + "=1"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len(staying))); err != nil {
		t.Fatalf("the command did not start: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the command ended by itself, want it killed")
	}
}

// exchange sends a message and returns as many bytes of what comes back.
func exchange(t *testing.T, conn net.Conn, said string) string {
	t.Helper()
	deadline, _ := testnet.Patience(t).Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, said); err != nil {
		t.Fatalf("sending: %v", err)
	}
	heard := make([]byte, len(said))
	if _, err := io.ReadFull(conn, heard); err != nil {
		t.Fatalf("receiving: %v", err)
	}
	return string(heard)
}

func carries(f testnet.Frame, text string) bool { return strings.Contains(string(f.Data), text) }

func netNamespace(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
