package userspace

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batch is the most packets of one receive, and of one run of verdicts.
	batch = 64
	// slotLen holds the longest message, a packet of 64 KiB with its attributes,
	// and lets a packet grow. It is an odd number of cache lines: otherwise the
	// headers of all packets would compete for the same few lines.
	slotLen = 1<<16 + 1<<11 + 3*64
	// drainQuiet is how long a socket must stay empty to count as drained: a
	// packet marked before marking stopped may still be on its way to the queue.
	drainQuiet = 10 * time.Millisecond
)

// What a worker is to do.
const (
	working int32 = iota
	draining
	stopping
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// worker reads one queue on a thread of its own, judges, and answers.
type worker struct {
	q        *queue
	judge    *judge
	reads    *reads // in place of judge, for a Queue
	verdicts *verdicts
	tally    tally
	order    atomic.Int32
	book     *atomic.Pointer[book] // that of all workers of a stage
	tickets  atomic.Uint32         // given to pass
	passed   atomic.Uint32         // the last that has come back
	start    time.Time

	// One slot of the arena for each message of a receive. Packets are judged and
	// changed where the kernel put them; a verdict is sent from there.
	pkt   packet
	arena []byte
	iov   [batch]unix.Iovec
	msgs  [batch]mmsghdr
}

// newWorker allocates all that the worker will ever need.
func newWorker(q *queue, o *Options) *worker {
	w := newReceiver(q)
	w.judge = newJudge(o, &w.tally)
	w.book.Store(w.judge.book)
	return w
}

// newReceiver is a worker that only lacks somebody who judges.
func newReceiver(q *queue) *worker {
	w := &worker{
		q:        q,
		book:     new(atomic.Pointer[book]),
		verdicts: newVerdicts(q, batch),
		arena:    make([]byte, batch*slotLen),
		start:    time.Now(),
	}
	for i := range w.msgs {
		w.iov[i].Base = &w.arena[i*slotLen]
		w.iov[i].SetLen(slotLen)
		w.msgs[i].hdr.Iov = &w.iov[i]
		w.msgs[i].hdr.SetIovlen(1)
	}
	return w
}

// slot returns the first n bytes of a slot; the capacity ends with the slot.
func (w *worker) slot(i, n int) []byte {
	at := i * slotLen
	return w.arena[at : at+min(n, slotLen) : at+slotLen]
}

// tellTo gives the worker another order and wakes it up. A worker that works
// returns from its receive by the kernel's acknowledgement; one that does not
// sees the order before it receives again.
func (w *worker) tellTo(order int32) error {
	for {
		old := w.order.Load()
		if old >= order {
			return nil
		}
		if w.order.CompareAndSwap(old, order) {
			break
		}
	}
	if err := w.q.wake(); err != nil {
		return fmt.Errorf("waking up the worker of queue %d: %w", w.q.num, err)
	}
	return nil
}

// run judges packets until it is told to stop, or to drain and nothing is left.
// Its error means that the queue cannot be served any more.
func (w *worker) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer w.tally.publish()
	for {
		// Looked at in front of every receive. An order given after this look
		// finds the receive blocked, or about to, and its acknowledgement in the
		// socket ends it.
		order := w.order.Load()
		if order == stopping {
			return nil
		}
		n, errno := w.receive(order == draining)
		switch errno {
		case 0:
			w.tally.count(countReceives)
			if err := w.handleBatch(n); err != nil {
				return err
			}
		case unix.EINTR:
		case unix.ENOBUFS:
			w.tally.count(countENOBUFS)
		default:
			if errno != unix.EAGAIN || order != draining {
				return fmt.Errorf("receiving from queue %d: %w", w.q.num, errno)
			}
			if more, err := w.quiet(); err != nil || !more {
				return err
			}
		}
		w.tally.publish()
	}
}

// receive waits for at least one message, unless draining, and takes as many as
// are there.
func (w *worker) receive(draining bool) (n int, errno unix.Errno) {
	flags := unix.MSG_WAITFORONE
	if draining {
		flags = unix.MSG_DONTWAIT
	}
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(w.q.fd),
		uintptr(unsafe.Pointer(&w.msgs[0])), batch, uintptr(flags), 0, 0)
	w.judge.now = int64(time.Since(w.start))
	if errno != 0 {
		if errno == unix.EAGAIN {
			w.judge.empty = w.judge.now
		}
		return 0, errno
	}
	if r < batch {
		// The kernel had no more to give.
		w.judge.empty = w.judge.now
	}
	return int(r), 0
}

// quiet waits a little for a last packet and reports whether there is one.
func (w *worker) quiet() (more bool, err error) {
	fds := [1]unix.PollFd{{Fd: int32(w.q.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], int(drainQuiet/time.Millisecond))
	if err == unix.EINTR {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("draining queue %d: %w", w.q.num, err)
	}
	return n > 0, nil
}

// handleBatch handles the messages of one receive and sends all their verdicts.
func (w *worker) handleBatch(n int) error {
	// The packets were queued before the look: the book knows all their marks.
	w.judge.book = w.book.Load()
	for i := range n {
		m := &w.msgs[i]
		cut := m.hdr.Flags&unix.MSG_TRUNC != 0
		if err := w.handle(w.slot(i, int(m.len)), cut); err != nil {
			return err
		}
	}
	return w.verdicts.send()
}

// handle handles one datagram of the kernel, cut where it did not fit the slot.
func (w *worker) handle(b []byte, cut bool) error {
	for len(b) > 0 {
		m, rest, err := nextMessage(b)
		cut = cut || err != nil
		switch m.kind {
		case msgPacket:
			if err := w.handlePacket(m.body, cut, len(rest) > 0); err != nil {
				return err
			}
		case unix.NLMSG_ERROR:
			w.handleError(&m)
		default:
			w.tally.count(countBroken)
		}
		b = rest
	}
	return nil
}

func (w *worker) handlePacket(body []byte, cut, shared bool) error {
	p := &w.pkt
	err := p.parse(body)
	if err != nil || cut {
		w.tally.count(countBroken)
		if !p.hasID {
			return nil
		}
	}
	// The kernel puts one message into a datagram, so that a packet may grow into
	// the rest of its slot.
	if shared {
		// Another message lies behind: no room to grow into.
		p.payload = p.payload[:len(p.payload):len(p.payload)]
	}
	if w.reads != nil {
		return w.verdicts.add(p.id, w.reads.verdict(p, &w.tally, err != nil || cut))
	}
	return w.verdicts.add(p.id, w.judge.verdict(p, err != nil || cut))
}

// handleError counts what the kernel says about a verdict. Verdicts do not ask
// for acknowledgements; one is the answer to wake.
func (w *worker) handleError(m *message) {
	switch errno, err := m.errno(); {
	case err != nil:
		w.tally.count(countBroken)
	case errno == 0 && m.seq&^ticketMask == ticketSeq:
		w.passed.Store(m.seq & ticketMask)
	case m.seq == wakeSeq || errno == 0:
	case errno == unix.ENOENT:
		w.tally.count(countVerdictENOENT)
	default:
		w.tally.count(countVerdictErrors)
	}
}
