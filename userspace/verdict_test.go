package userspace

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/policy"
)

func TestEqualVerdictsShareAMessage(t *testing.T) {
	const rule = policy.MarkInspect << 16
	const marked, other = uint32(testForeign | rule), uint32(0x40000000 | rule)
	yes, no := tcpPacket(1, []byte("x")), udpPacket(nil) // accepted, malformed and dropped
	type in struct {
		mark    uint32
		payload []byte
	}
	for name, c := range map[string]struct {
		in   []in
		want []sent
	}{
		"one":       {[]in{{marked, yes}}, []sent{{id: 1, accept: true}}},
		"run":       {[]in{{marked, yes}, {marked, yes}, {marked, yes}}, []sent{{id: 3, accept: true, batch: true}}},
		"drop":      {[]in{{marked, yes}, {marked, no}, {marked, yes}}, []sent{{id: 1, accept: true}, {id: 2}, {id: 3, accept: true}}},
		"drops":     {[]in{{marked, no}, {other, no}, {marked, no}}, []sent{{id: 3, batch: true}}},
		"two marks": {[]in{{marked, yes}, {marked, yes}, {other, yes}}, []sent{{id: 2, accept: true, batch: true}, {id: 3, accept: true}}},
	} {
		w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
		var msgs [][]byte
		for i, in := range c.in {
			msgs = append(msgs, queued{id: uint32(i + 1), mark: in.mark, payload: in.payload}.bytes())
		}
		got := w.receives(t, msgs...)
		if len(got) != len(c.want) {
			t.Errorf("%s: verdicts %+v", name, got)
			continue
		}
		for i, want := range c.want {
			if got[i].id != want.id || got[i].accept != want.accept || got[i].batch != want.batch {
				t.Errorf("%s: verdict %d is %+v, want %+v", name, i, got[i], want)
			}
			if got[i].hasMark != want.accept {
				t.Errorf("%s: verdict %d has a mark: %v", name, i, got[i].hasMark)
			}
		}
	}
}

// Any order of verdicts, changed packets of any length among them, comes out as
// it went in, whatever the room of a send.
func TestVerdictsOfAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
	for round := range 200 {
		w.q.room = 70000 + r.IntN(1<<20)
		var want []verdict
		for i := range 1 + r.IntN(batch) {
			v := verdict{accept: r.IntN(3) > 0}
			if v.accept {
				v.mark = uint32(r.IntN(2)) << 20
				if r.IntN(4) == 0 {
					v.payload = bytes.Repeat([]byte{byte(i)}, 1+r.IntN([]int{9, 2000, payloadMax}[r.IntN(3)]))
				}
			}
			want = append(want, v)
			if err := w.verdicts.add(uint32(i), v); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.verdicts.send(); err != nil {
			t.Fatal(err)
		}
		next := uint32(0)
		for _, s := range w.sent(t) {
			if s.id < next || s.id != next && !s.batch {
				t.Fatalf("round %d: verdict on %d, expected one on %d", round, s.id, next)
			}
			for ; next <= s.id; next++ {
				v := want[next]
				if v.accept != s.accept || v.mark != s.mark || !bytes.Equal(v.payload, s.payload) {
					t.Fatalf("round %d, packet %d: accept %v, mark %#x, %d bytes; want %v, %#x, %d",
						round, next, s.accept, s.mark, len(s.payload), v.accept, v.mark, len(v.payload))
				}
			}
		}
		if int(next) != len(want) {
			t.Fatalf("round %d: verdicts on %d packets of %d", round, next, len(want))
		}
	}
}

// No send is larger than the socket takes at once.
func TestSendsFitTheSocket(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	const room, packets, length = 80000, 20, 30000
	vs := newVerdicts(&queue{num: testQueue, fd: fds[0], room: room}, packets)
	got := make(chan []int)
	go func() {
		var sizes []int
		buf := make([]byte, 1<<20)
		for total := 0; total < packets*length; {
			n, err := unix.Read(fds[1], buf)
			if err != nil || n == 0 {
				break
			}
			sizes = append(sizes, n)
			total += n
		}
		got <- sizes
	}()
	payload := make([]byte, length)
	for id := range uint32(packets) {
		if err := vs.add(id, verdict{accept: true, payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	if err := vs.send(); err != nil {
		t.Fatal(err)
	}
	sizes := <-got
	if len(sizes) != packets/2 {
		t.Errorf("%d sends of %v bytes, want two packets in each", len(sizes), sizes)
	}
	for _, n := range sizes {
		if n > room {
			t.Errorf("a send of %d bytes, the socket takes %d", n, room)
		}
	}
}

func TestSendSaysThatTheSocketIsGone(t *testing.T) {
	w := newOffline(t, Options{Policy: mustPolicy(t, "", acceptAll), Queues: 1, Flows: 8})
	w.q.fd = -1
	if err := w.verdicts.add(1, verdict{accept: true}); err != nil {
		t.Fatal(err)
	}
	contains(t, w.verdicts.send(), "queue 100", unix.EBADF.Error())
	if len(w.verdicts.buf) != 0 || len(w.verdicts.iov) != 0 {
		t.Error("verdicts are kept after a failed send")
	}
}
