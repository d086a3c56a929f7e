package userspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hybridfw/hybridfw/policy"
)

// Stage is the user-space half at work: its queues and their workers.
type Stage struct {
	workers []*worker
	kernel  *os.File // the kernel's list of queues in our namespace, nil where there is none

	book atomic.Pointer[book]

	mu      sync.Mutex
	running bool
	closed  bool
	ended   chan struct{} // all workers have returned
	err     error         // the first worker's that failed, after ended
}

// Open binds the queues, in the network namespace of the calling thread, and
// prepares their workers. From then on packets may wait; Run judges them. An
// error leaves nothing bound.
func Open(o Options) (*Stage, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("opening the user-space stage: %w", err)
	}
	s := &Stage{ended: make(chan struct{})}
	s.book.Store(newBook(o.Policy, nil))
	for i := range o.Queues {
		q, err := openQueue(queueOptions{
			num:          o.Queue + uint16(i),
			length:       o.QueueLength,
			socketBuffer: o.SocketBuffer,
			failOpen:     o.Policy.Failure.Overload == policy.Open,
		})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		w := newWorker(q, &o)
		w.book = &s.book
		s.workers = append(s.workers, w)
	}
	// Its counters are worth having, but not worth failing for: kernels may be
	// built without /proc/net/netfilter.
	if s.kernel, err = os.Open(ownQueuesFile); err != nil {
		o.Log.Warn("the kernel's own counters of the queues are not available", "error", err)
		s.kernel = nil
	}
	return s, nil
}

// Run judges packets, one worker a queue, until Drain or Close. It returns early
// with an error when one of the queues cannot be served any more; the others are
// stopped then.
func (s *Stage) Run() error {
	s.mu.Lock()
	if s.running || s.closed {
		s.mu.Unlock()
		return errors.New("running the user-space stage: it runs already or is closed")
	}
	s.running = true
	s.mu.Unlock()

	// One worker that fails ends all: a queue without a worker fills up, and then
	// its packets are lost one way or the other.
	errs := make(chan error)
	for _, w := range s.workers {
		go func() { errs <- w.run() }()
	}
	var first error
	for range s.workers {
		if err := <-errs; err != nil && first == nil {
			first = errors.Join(err, s.tellAll(stopping))
		}
	}
	s.err = first
	close(s.ended)
	return first
}

func (s *Stage) tellAll(order int32) error {
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.tellTo(order))
	}
	return errors.Join(errs...)
}

// Drain judges what is queued until nothing is left, and ends Run. When the
// context ends first, the workers stop with the packet they are at, and the
// error says how many are left; the kernel drops those on Close. First stop
// marking packets, else the queues need not ever be empty.
func (s *Stage) Drain(ctx context.Context) error {
	s.mu.Lock()
	running, closed := s.running, s.closed
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.tellAll(draining)
	if !running {
		return err // a Run that begins now drains, and ends
	}
	if err != nil {
		return errors.Join(err, s.stop())
	}
	select {
	case <-s.ended:
		return s.err
	case <-ctx.Done():
	}
	if err := s.stop(); err != nil {
		return err
	}
	left := uint64(0)
	for _, q := range s.Stats().Queues {
		left += q.Kernel.Waiting
	}
	if left == 0 {
		return nil
	}
	return fmt.Errorf("draining the queues: %d packets are left: %w", left, context.Cause(ctx))
}

// stop ends all workers after the batch they are at.
func (s *Stage) stop() error {
	err := s.tellAll(stopping)
	<-s.ended
	return errors.Join(err, s.err)
}

// Close stops the workers and unbinds the queues. The kernel drops what is still
// queued. Closing twice is no error.
func (s *Stage) Close() error {
	s.mu.Lock()
	running, closed := s.running, s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	if running {
		errs = append(errs, s.stop())
	}
	for _, w := range s.workers {
		errs = append(errs, w.q.close())
	}
	if s.kernel != nil {
		errs = append(errs, s.kernel.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the user-space stage: %w", err)
	}
	return nil
}

// Stats returns a snapshot. It may be called at any time from any goroutine;
// after Close the kernel's counters are 0.
func (s *Stage) Stats() Stats {
	// When the file cannot be read, the workers' counters are still worth having.
	var kernel []KernelQueue
	if s.kernel != nil {
		kernel, _ = readKernelQueues(s.kernel)
	}
	st := Stats{Queues: make([]QueueStats, len(s.workers))}
	for i, w := range s.workers {
		q := &st.Queues[i]
		q.Counters = w.tally.snapshot()
		q.Kernel.Queue = w.q.num
		for _, k := range kernel {
			if k.Queue == w.q.num && k.PortID == w.q.portID {
				q.Kernel = k
			}
		}
		st.Counters.add(q.Counters)
	}
	return st
}
