package loader

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const barePolicy = `
version: 1
zones: { lan: [tun0], wan: [wan0] }
rules:
  - { name: good, from: lan, to: wan, proto: udp, dport: 5000, action: accept }
`

// openTun makes tun0 on a host, with a network behind it. What is written comes in
// there, and what leaves is read.
func openTun(t *testing.T, host *testnet.Host) (tun *os.File) {
	t.Helper()
	host.MustDo(t, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		ifreq, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		ifreq.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifreq); err != nil {
			return err
		}
		tun = os.NewFile(uintptr(fd), "tun")
		link, err := host.Netlink().LinkByName("tun0")
		if err != nil {
			return err
		}
		return host.Netlink().LinkSetUp(link)
	})
	t.Cleanup(func() { tun.Close() })
	if err := host.Addr("tun0", netip.MustParsePrefix("10.9.0.1/24")); err != nil {
		t.Fatal(err)
	}
	return tun
}

// TestInterfaceWithoutEthernetHeader forwards real packets from a tun device, and
// back: both hooks read them from their IP header on.
func TestInterfaceWithoutEthernetHeader(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
	tun := openTun(t, r.Firewall)
	server, err := r.Server.ListenPacket("udp", "198.51.100.2:5000")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	r.Firewall.MustDo(t, func() error {
		f, err := Load(mustPolicy(t, barePolicy), Options{PinDir: pinDir(t), Flows: 4096, HalfOpen: 4096, XDP: XDPGeneric})
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Attach(); err != nil {
			return err
		}
		defer f.Detach()
		client := netip.MustParseAddr("10.9.0.2")
		for _, dport := range []uint16{5001, 5000} {
			p := udp(client, server4, 40000, dport)
			p.payload = []byte("hello")
			if _, err := tun.Write(summed(p.frame()[14:])); err != nil {
				return err
			}
		}
		if err := server.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		got := make([]byte, 100)
		n, from, err := server.ReadFrom(got)
		if err != nil || string(got[:n]) != "hello" || from.String() != "10.9.0.2:40000" {
			t.Errorf("the server got %q from %v: %v", got[:n], from, err)
			return nil
		}
		if _, err := server.WriteTo([]byte("answer"), from); err != nil {
			return err
		}
		if !readsAnswer(t, tun) {
			t.Error("the answer did not leave by tun0")
		}
		if n := f.sum(t, "tc", "drop", "default"); n != 1 {
			t.Errorf("%d packets dropped by default, want the one to port 5001", n)
		}
		if n := f.sum(t, "tc", "pass", "rule"); n != 1 {
			t.Errorf("%d packets passed by the rule, want 1", n)
		}
		for _, i := range f.Interfaces() {
			if i.Name == "tun0" && i.XDP != string(XDPOff) {
				t.Errorf("fw_xdp is attached to tun0: %+v", i)
			}
		}
		return nil
	})
}

// summed sets the checksum of an IPv4 header, which the stack looks at.
func summed(b []byte) []byte {
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum>>16+sum))
	return b
}

// readsAnswer reads what leaves until the answer comes.
func readsAnswer(t *testing.T, tun *os.File) bool {
	t.Helper()
	if err := tun.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	for {
		n, err := tun.Read(b)
		if err != nil {
			t.Log(err)
			return false
		}
		if b[0]>>4 == 4 && b[9] == protoUDP && string(b[28:n]) == "answer" {
			return true
		}
	}
}
