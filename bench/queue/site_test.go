package queue

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

const (
	udpPort = 9000
	tcpPort = 9001
	mark    = 0x00010000 // of the first inspecting rule, under the default mask
)

// site is a network namespace whose own packets to the two ports are queued.
type site struct {
	*testnet.Host
	sink net.PacketConn
	conn *net.UDPConn // to the sink
}

func newSite(b *testing.B) *site {
	b.Helper()
	testnet.Need(b)
	h := testnet.MustNew(b).MustHost(b, "queue")
	for proto, port := range map[string]int{"udp": udpPort, "tcp": tcpPort} {
		rule := []string{"-A", "INPUT", "-p", proto, "--dport", strconv.Itoa(port), "-j", "NFQUEUE", "--queue-num", strconv.Itoa(queueNumber)}
		if out, err := h.Command("iptables", rule...).CombinedOutput(); err != nil {
			b.Fatalf("iptables: %v\n%s", err, out)
		}
	}
	s := &site{Host: h, sink: h.MustListenPacket(b, "udp", fmt.Sprintf("127.0.0.1:%d", udpPort))}
	s.conn = h.MustDial(b, "udp", s.sink.LocalAddr().String()).(*net.UDPConn)
	for _, option := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 512 << 20}, // queued packets are held against it
		{unix.SOL_SOCKET, unix.SO_MARK, mark},
	} {
		setOption(b, s.conn, option)
	}
	return s
}

func setOption(b testing.TB, conn syscall.Conn, option [3]int) {
	b.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), option[0], option[1], option[2]) }); err != nil || failed != nil {
		b.Fatal(err, failed)
	}
}

// drained fills the queue, lets a reader empty it, and gives its time a packet. Nobody
// reads what arrives: the same for all.
func (s *site) drained(b *testing.B, name string, size int) float64 {
	b.Helper()
	r := startReader(b, s.Host, name)
	defer r.stop()
	r.hold()
	payload := make([]byte, size-28)
	for i := range *packets {
		if _, err := s.conn.Write(payload); err != nil {
			b.Fatalf("packet %d: %v", i, err)
		}
	}
	return r.judge(*packets).Seconds() * 1e6 / float64(*packets)
}

// flooded has a reader judge packets while they are sent as fast as one processor can,
// and gives its time a packet and how many it judged in a second.
func (s *site) flooded(b *testing.B, name string, size int) (us, rate float64) {
	b.Helper()
	r := startReader(b, s.Host, name)
	defer r.stop()
	payload := make([]byte, size-28)
	const times = 5
	var spent time.Duration
	began := time.Now()
	for range times { // so many at a time as the queue and every reader's socket hold
		r.begin(*packets)
		for i := range *packets {
			if _, err := s.conn.Write(payload); err != nil {
				b.Fatalf("packet %d: %v", i, err)
			}
		}
		spent += r.spent()
	}
	n := float64(times * *packets)
	return spent.Seconds() * 1e6 / n, n / time.Since(began).Seconds()
}

// running starts a reader that judges whatever comes.
func (s *site) running(b *testing.B, name string) *reader {
	b.Helper()
	r := startReader(b, s.Host, name)
	r.begin(math.MaxInt32) // more than come
	return r
}

// roundTrip sends packets one at a time, from the client's socket through the queue to
// the sink, and back past it, and gives the median time in us.
func (s *site) roundTrip(b *testing.B, name string) float64 {
	b.Helper()
	r := s.running(b, name)
	defer r.stop()
	const n = 2000
	times := make([]float64, 0, n)
	buf := make([]byte, 1500)
	if err := s.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.Fatal(err)
	}
	s.empty(b)
	done := make(chan error, 1)
	go func() {
		echo := make([]byte, 1500)
		for range n {
			m, from, err := s.sink.ReadFrom(echo)
			if err == nil {
				_, err = s.sink.WriteTo(echo[:m], from)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range n {
		began := time.Now()
		if _, err := s.conn.Write(buf[:64]); err != nil {
			b.Fatal(err)
		}
		if _, err := s.conn.Read(buf); err != nil {
			b.Fatal(err)
		}
		times = append(times, float64(time.Since(began).Nanoseconds())/1e3)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	return times[n/2]
}

// empty takes what a measurement before has left in the sink's buffer.
func (s *site) empty(b *testing.B) {
	b.Helper()
	buf := make([]byte, 1500)
	for {
		if err := s.sink.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			b.Fatal(err)
		}
		if _, _, err := s.sink.ReadFrom(buf); err != nil {
			break
		}
	}
	if err := s.sink.SetReadDeadline(time.Time{}); err != nil {
		b.Fatal(err)
	}
}

// bulk sends by one TCP connection for a while and gives what arrived, in Gbit/s.
func (s *site) bulk(b *testing.B, name string) float64 {
	b.Helper()
	r := s.running(b, name)
	defer r.stop()
	l, err := s.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", tcpPort))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	type result struct {
		bytes int64
		err   error
	}
	received := make(chan result, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- result{err: err}
			return
		}
		defer conn.Close()
		n, err := io.Copy(io.Discard, conn)
		received <- result{n, err}
	}()
	conn, err := s.dialMarked(b)
	if err != nil {
		b.Fatal(err)
	}
	const length = time.Second
	chunk := make([]byte, 1<<20)
	began := time.Now()
	for time.Since(began) < length {
		if _, err := conn.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	conn.Close()
	got := <-received
	if got.err != nil {
		b.Fatal(got.err)
	}
	return float64(got.bytes) * 8 / time.Since(began).Seconds() / 1e9
}

// dialMarked dials the listener with packets of the first inspecting rule's mark.
func (s *site) dialMarked(b *testing.B) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		if err == nil {
			err = failed
		}
		return err
	}}
	err = s.Do(func() error {
		conn, err = dialer.DialContext(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", tcpPort))
		return err
	})
	return conn, err
}
