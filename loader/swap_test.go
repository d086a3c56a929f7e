package loader

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// Two policies that treat datagrams to ports 5000 and 5001 differently: the first
// marks those to 5000 with 1 and drops those to 5001, the second marks with 2 and
// accepts.
const (
	firstPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: numbered, from: lan, to: host, proto: udp, dport: 5000, action: inspect, steps: [{ action: accept }] }
  - { name: dropped, from: lan, proto: udp, dport: 5001, action: drop }
`
	secondPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: other, from: lan, to: host, proto: tcp, dport: 7, action: inspect, steps: [{ action: accept }] }
  - { name: numbered, from: lan, to: host, proto: udp, dport: 5000, action: inspect, steps: [{ action: accept }] }
  - { name: accepted, from: lan, to: host, proto: udp, dport: 5001, action: accept }
`
)

// numbersPerTest is also the number of source ports: each number is a new flow.
// An emulated machine is slow.
var numbersPerTest = func() int {
	if testnet.InGuest() {
		return 4000
	}
	return 40000
}()

// sendNumbered sends numbered datagrams, each from a port of its own, to both
// ports, until all are sent.
func sendNumbered(host *testnet.Host) error {
	return host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet4{Addr: testnet.Lan4.As4()}
		for i := range numbersPerTest {
			for _, port := range []uint16{5000, 5001} {
				b := binary.BigEndian.AppendUint16(nil, uint16(20000+i))
				b = binary.BigEndian.AppendUint16(b, port)
				b = binary.BigEndian.AppendUint16(b, 12) // length
				b = binary.BigEndian.AppendUint16(b, 0)  // no checksum
				b = binary.BigEndian.AppendUint32(b, uint32(i))
				if err := unix.Sendto(fd, b, 0, &to); err != nil {
					return err
				}
			}
			if i%16 == 0 {
				time.Sleep(100 * time.Microsecond) // else the receiver's buffer is what fills
			}
		}
		return nil
	})
}

// markReceiver receives numbers with the marks that their packets had.
type markReceiver struct {
	conn  *net.UDPConn
	marks []uint32 // by number: the mark's field plus 1
	twice int
	got   int
	done  chan struct{}
}

func receiveMarks(tb testing.TB, host *testnet.Host, address string) *markReceiver {
	tb.Helper()
	r := &markReceiver{
		conn:  host.MustListenPacket(tb, "udp4", address).(*net.UDPConn),
		marks: make([]uint32, numbersPerTest),
		done:  make(chan struct{}),
	}
	raw, err := r.conn.SyscallConn()
	if err == nil {
		var optErr error
		err = raw.Control(func(fd uintptr) {
			optErr = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVMARK, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
		})
		err = errors.Join(err, optErr)
	}
	if err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(r.done)
		buf, oob := make([]byte, 64), make([]byte, 64)
		for {
			n, oobn, _, _, err := r.conn.ReadMsgUDP(buf, oob)
			if err != nil {
				return
			}
			r.note(buf[:n], oob[:oobn])
		}
	}()
	return r
}

func (r *markReceiver) note(b, oob []byte) {
	i := binary.BigEndian.Uint32(b)
	messages, err := unix.ParseSocketControlMessage(oob)
	mark := uint32(0)
	if err == nil && len(messages) == 1 && messages[0].Header.Type == unix.SO_MARK {
		mark = binary.NativeEndian.Uint32(messages[0].Data)
	}
	r.got++
	if r.marks[i] != 0 {
		r.twice++
	}
	r.marks[i] = mark>>16 + 1
}

// end waits until nothing comes any more.
func (r *markReceiver) end(tb testing.TB) {
	tb.Helper()
	if err := r.conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		tb.Fatal(err)
	}
	<-r.done
}

// TestNoPacketMeetsAMixOfPolicies swaps the programs all the time, while each
// packet is one of a new flow: each must be treated by the one policy or by the
// other.
func TestNoPacketMeetsAMixOfPolicies(t *testing.T) {
	testnet.NeedLinux(t, 5, 19, "SO_RCVMARK")
	swapModes(t, func(t *testing.T, b *bench, client *testnet.Host, o Options) {
		f := mustLoad(t, firstPolicy, o)
		if err := f.Attach(); err != nil {
			t.Fatal(err)
		}
		next := nextInstance(t, f, secondPolicy)
		marked := receiveMarks(t, b.host, "192.0.2.1:5000")
		accepted := receiveMarks(t, b.host, "192.0.2.1:5001")
		var sending sync.WaitGroup
		sent := make(chan error, 1)
		sending.Go(func() { sent <- sendNumbered(client) })
		few, swaps := numbersPerTest/400, 0
		for ended := false; !ended; swaps++ {
			if err := f.exchange(next); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-sent:
				if err != nil {
					t.Fatal(err)
				}
				ended = true
			// Not in step with the sender, which sleeps too: each of its
			// bursts would meet the same policy.
			case <-time.After(time.Duration(rand.IntN(3)) * 100 * time.Microsecond):
			}
		}
		sending.Wait()
		marked.end(t)
		accepted.end(t)
		by := map[uint32]int{}
		for _, m := range marked.marks {
			by[m]++
		}
		dropped := f.sum(t, "tc", "drop", "rule") + f.sum(t, "xdp", "drop", "rule")
		t.Logf("%d swaps; of %d packets %d met the first policy and %d the second; of as many others %d were accepted and %d dropped",
			swaps, numbersPerTest, by[2], by[3], accepted.got, dropped)
		if by[2]+by[3] != numbersPerTest || marked.twice != 0 || by[2] < few || by[3] < few {
			t.Errorf("%d packets by mark (plus 1): %v, %d twice; want all, by both policies, with the mark of one", marked.got, by, marked.twice)
		}
		if accepted.got+int(dropped) != numbersPerTest || accepted.twice != 0 || accepted.got < few || int(dropped) < few {
			t.Errorf("%d packets accepted, %d twice, and %d dropped; want each one of the two", accepted.got, accepted.twice, dropped)
		}
		if err := errors.Join(f.Detach(), f.Close(), f.closeInstance(next)); err != nil {
			t.Fatal(err)
		}
	})
}

// swapModes runs a test for each way of attaching, with a client.
func swapModes(t *testing.T, run func(t *testing.T, b *bench, client *testnet.Host, o Options)) {
	t.Helper()
	testnet.Need(t)
	for _, m := range []Options{{TC: TCX, XDP: XDPOff}, {TC: TCX, XDP: XDPNative}, {TC: TCClsact, XDP: XDPOff}} {
		t.Run(string(m.TC)+" "+string(m.XDP), func(t *testing.T) {
			if m.TC == TCX && !hasTCX() {
				testnet.NeedLinux(t, 6, 6, "TCX")
			}
			r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
			b := &bench{tb: t, host: r.Firewall}
			b.lan, b.wan, b.foreign = b.index("lan0"), b.index("wan0"), b.index("lo")
			m.PinDir = pinDir(t)
			b.host.MustDo(t, func() error {
				run(t, b, r.Client, m)
				return nil
			})
		})
	}
}

// nextInstance makes the instance of a policy that would replace the firewall's.
func nextInstance(tb testing.TB, f *Firewall, text string) *instance {
	tb.Helper()
	p := mustPolicy(tb, text)
	tables, err := Compile(p)
	if err != nil {
		tb.Fatal(err)
	}
	objs, err := f.load(tables, f.current.Load().next(tables, f.numbered+1), f.sharedMaps())
	if err != nil {
		tb.Fatal(err)
	}
	if err := objs.FwDecide.Close(); err != nil {
		tb.Fatal(err)
	}
	objs.FwDecide = f.decide
	next := &instance{policy: p, objs: *objs}
	for _, a := range f.attached {
		if err := next.objs.Zones.Put(uint32(a.iface.Index), uint8(p.Zone(a.iface.Name))); err != nil {
			tb.Fatal(err)
		}
	}
	return next
}

// exchange swaps the instance in force with another, the way that Apply does.
func (f *Firewall) exchange(other *instance) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.update(other)
	f.instance, *other = *other, f.instance
	return err
}
