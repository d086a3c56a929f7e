package userspace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

func TestQueueInUse(t *testing.T) {
	testnet.Need(t)
	q, err := openQueue(queueOptions{num: testQueue, length: 10, socketBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Policy: mustPolicy(t, "", acceptAll), Queue: testQueue - 1, Queues: 2, Flows: 8}
	_, err = Open(o)
	if !errors.Is(err, ErrQueueInUse) {
		t.Errorf("%v", err)
	}
	contains(t, err, "queue 100 is in use by another process (portid", "/proc/net/netfilter/nfnetlink_queue", "--queue")
	queues, err := ReadKernelQueues()
	if err != nil || len(queues) != 1 || queues[0].Queue != testQueue || queues[0].PortID != q.portID {
		t.Errorf("queues %+v, %v, want ours alone, portid %d", queues, err, q.portID)
	}
	if err := q.close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The descriptor is not the poller's: it is blocking, and a read of it does not
// return EAGAIN.
func TestQueueIsBlocking(t *testing.T) {
	testnet.Need(t)
	q, err := openQueue(queueOptions{num: testQueue, length: 10, socketBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer q.close()
	flags, err := unix.FcntlInt(uintptr(q.fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	fdFlags, err := unix.FcntlInt(uintptr(q.fd), unix.F_GETFD, 0)
	if err != nil || fdFlags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v", fdFlags, err)
	}
	if size, err := unix.GetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || size != 2<<20 {
		t.Errorf("receive buffer %d, %v", size, err)
	}
	if q.room < 1<<17 {
		t.Errorf("room for %d bytes of verdicts", q.room)
	}
	// What wakes a receive up is one message, the acknowledgement.
	if err := q.wake(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := unix.Read(q.fd, b)
	if err != nil {
		t.Fatal(err)
	}
	m, rest, err := nextMessage(b[:n])
	if err != nil || len(rest) != 0 || m.kind != unix.NLMSG_ERROR || m.seq != wakeSeq {
		t.Errorf("message %+v, %d more bytes, %v", m, len(rest), err)
	}
	if errno, err := m.errno(); errno != 0 || err != nil {
		t.Errorf("%v, %v", errno, err)
	}
}

// withoutRights runs one of the tests below as nobody.
const withoutRights = "HYBRIDFW_TEST_WITHOUT_RIGHTS"

func TestWithoutRights(t *testing.T) {
	testnet.Need(t)
	if os.Getenv(withoutRights) != "" {
		_, err := Open(Options{Policy: mustPolicy(t, "", acceptAll), Flows: 8})
		contains(t, err, "queue 0", "CAP_NET_ADMIN is missing, run as root")
		steer, err := NewSteering(Options{Policy: mustPolicy(t, "", acceptAll)})
		if err != nil {
			t.Fatal(err)
		}
		contains(t, steer.Install(), "installing nft table inet hybridfw", "CAP_NET_ADMIN is missing, run as root")
		contains(t, steer.Remove(), "removing nft table inet hybridfw", "CAP_NET_ADMIN is missing, run as root")
		return
	}
	// The test program where everybody may read it.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/run", "hybridfw-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program0 := filepath.Join(dir, "test")
	if err := os.WriteFile(program0, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program0, "-test.run=^TestWithoutRights$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), withoutRights+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutRights") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	good := mustPolicy(t, "", acceptAll)
	oneBit := *good
	oneBit.Marks.Mask = 1
	for _, c := range []struct {
		o     Options
		words string
	}{
		{Options{}, "no policy"},
		{Options{Policy: &oneBit}, "mark mask 0x1"},
		{Options{Policy: good, Queues: -1}, "-1 queues"},
		{Options{Policy: good, Queues: maxQueues + 1}, "257 queues"},
		{Options{Policy: good, Queue: 65535, Queues: 2}, "65536"},
		{Options{Policy: good, QueueLength: -1}, "queue length -1"},
		{Options{Policy: good, SocketBuffer: 100}, "socket buffer 100"},
		{Options{Policy: good, Flows: 1}, "flows 1"},
	} {
		_, err := Open(c.o)
		contains(t, err, "opening the user-space stage", c.words)
		_, err = NewSteering(c.o)
		contains(t, err, "steering", c.words)
	}
	o, err := Options{Policy: good}.withDefaults()
	if err != nil || o.Queues < 1 || o.QueueLength != defaultQueueLength || o.SocketBuffer != defaultSocketBuffer || o.Log == nil {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestKernelQueuesFile(t *testing.T) {
	text := "  100 2097    3 2 65531     4     5        9  1\n65535 4294967295 0 2 65531 0 0 4294967295 1\n"
	got, err := parseKernelQueues([]byte(text))
	want := []KernelQueue{
		{Queue: 100, PortID: 2097, Waiting: 3, Dropped: 4, UserDropped: 5, LastID: 9},
		{Queue: 65535, PortID: 4294967295, LastID: 4294967295},
	}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"1 2 3\n", "x 1 2 3 4 5 6 7 1\n", "65536 1 2 3 4 5 6 7 1\n", "1 -1 2 3 4 5 6 7 1\n"} {
		_, err := parseKernelQueues([]byte(bad))
		contains(t, err, kernelQueuesFile)
	}
	if got, err := parseKernelQueues(nil); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonStep; r <= ReasonUnmarked; r++ {
		if seen[r.String()] || r.String() == "unknown" {
			t.Errorf("reason %d is %q", r, r)
		}
		seen[r.String()] = true
	}
	if Reason(99).String() != "unknown" {
		t.Error("an unknown reason has a name")
	}
}
