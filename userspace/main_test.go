package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
	"github.com/hybridfw/hybridfw/policy"
)

// The tests run in a network namespace of their own, which has loopback only.
// Packets get their marks there by SO_MARK and are queued in the output hook.
func TestMain(m *testing.M) { testnet.MainMixed(m) }

const (
	testMask    = 0x00ff0000
	testForeign = 0x12000034 // bits of others
	testJudged  = 0x80 << 16 // accepted by user space
	testQueue   = 100
)

// markOf is the mark that asks for the inspecting rule i, with bits of others.
func markOf(i int) int { return testForeign | (policy.MarkInspect+i)<<16 }

// mustPolicy returns a policy with zone lan, the given failure settings and rules.
func mustPolicy(tb testing.TB, failure, rules string) *policy.Policy {
	tb.Helper()
	if failure == "" {
		failure = "no_listener: closed, overload: closed, undecided: drop, malformed: drop, midstream: drop"
	}
	text := fmt.Sprintf("version: 1\nzones: { lan: [lo] }\nmarks: { mask: %#x }\nfailure: { %s }\nrules:\n%s", testMask, failure, rules)
	p, err := policy.ParseBytes("test.yaml", []byte(text), ".")
	if err != nil {
		tb.Fatalf("policy:\n%s\n%v", text, err)
	}
	return p
}

// running is a stage with its steering, removed with the test.
type running struct {
	*Stage
	steer *Steering
	ended chan error
}

func mustRun(tb testing.TB, o Options) *running {
	tb.Helper()
	testnet.Need(tb)
	if o.Queue == 0 {
		o.Queue = testQueue
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.StreamMemory == 0 {
		o.StreamMemory = 4 * streamMax // many stages live until their test ends
	}
	stage, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	steer, err := NewSteering(o)
	if err != nil {
		tb.Fatal(err)
	}
	r := &running{stage, steer, make(chan error, 1)}
	go func() { r.ended <- stage.Run() }()
	for !stage.isRunning() {
		time.Sleep(100 * time.Microsecond) // a drain before it would not wait for it
	}
	tb.Cleanup(func() { r.end(tb) })
	if err := steer.Install(); err != nil {
		tb.Fatal(err)
	}
	return r
}

func (s *Stage) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// end takes all down, in the order of a good stop. It may be called again.
func (r *running) end(tb testing.TB) {
	tb.Helper()
	if err := errors.Join(r.drain(), r.steer.Remove(), r.Close()); err != nil {
		tb.Error(err)
	}
}

func (r *running) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return r.Drain(ctx)
}

// settled waits until as many packets have been judged and returns the counters.
func (r *running) settled(tb testing.TB, packets uint64) Counters {
	tb.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		c := r.Stats().Counters
		if c.Received != c.Accepted+c.Dropped+c.Rewritten {
			tb.Fatalf("received is not the sum of the verdicts: %+v", c)
		}
		if c.Received != c.Step+c.Undecided+c.Malformed+c.More+c.Overload+c.Unmarked {
			tb.Fatalf("received is not the sum of the reasons: %+v", c)
		}
		if c.Received >= packets {
			return c
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%d packets judged after 5 s, want %d: %+v", c.Received, packets, c)
		}
		time.Sleep(time.Millisecond)
	}
}

func control(opts ...[3]int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) {
			for _, o := range opts {
				if err == nil {
					err = unix.SetsockoptInt(int(fd), o[0], o[1], o[2])
				}
			}
		})
		if ctlErr != nil {
			return ctlErr
		}
		return err
	}
}

func marked(mark int) func(string, string, syscall.RawConn) error {
	return control([3]int{unix.SOL_SOCKET, unix.SO_MARK, mark})
}

// mustDial opens a socket whose packets carry the mark.
func mustDial(tb testing.TB, network, addr string, mark int) net.Conn {
	tb.Helper()
	d := net.Dialer{Control: marked(mark), Timeout: 5 * time.Second}
	c, err := d.Dial(network, addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // nothing of it comes into the next test's queue
		}
		c.Close()
	})
	return c
}

// sink is a UDP socket that hands over what arrives, with each packet's mark.
type sink struct {
	*net.UDPConn
	addr string
}

// soRcvMark is SO_RCVMARK, since Linux 5.19.
const soRcvMark = 75

func mustSink(tb testing.TB, addr string) *sink {
	tb.Helper()
	lc := net.ListenConfig{Control: control([3]int{unix.SOL_SOCKET, soRcvMark, 1}, [3]int{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16 << 20})}
	c, err := lc.ListenPacket(context.Background(), "udp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return &sink{c.(*net.UDPConn), c.LocalAddr().String()}
}

// next returns the next datagram and its mark, ok is false when none comes.
func (s *sink) next(tb testing.TB, patience time.Duration) (data []byte, mark uint32, ok bool) {
	tb.Helper()
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	n, oobn, _, _, err := s.ReadMsgUDP(buf, oob)
	if err != nil {
		return nil, 0, false
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		tb.Fatal(err)
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_MARK && len(m.Data) >= 4 {
			mark = native32(m.Data)
		}
	}
	return buf[:n], mark, true
}

func contains(tb testing.TB, err error, words ...string) {
	tb.Helper()
	if err == nil {
		tb.Fatalf("no error, want one with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Errorf("error %q does not say %q", err, w)
		}
	}
}
