package userspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

// kernelQueuesFile lists the queues of the reading thread's network namespace.
const kernelQueuesFile = "/proc/net/netfilter/nfnetlink_queue"

// ownQueuesFile is the same where threads of one process are in different
// namespaces, as in tests.
const ownQueuesFile = "/proc/thread-self/net/netfilter/nfnetlink_queue"

// KernelQueue is what the kernel says about a queue that some process has bound.
type KernelQueue struct {
	Queue       uint16 `json:"queue"`
	PortID      uint32 `json:"portid"`       // netlink address of the owner's socket
	Waiting     uint64 `json:"waiting"`      // packets without a verdict
	Dropped     uint64 `json:"dropped"`      // the queue was full
	UserDropped uint64 `json:"user_dropped"` // the socket was full
	LastID      uint64 `json:"last_id"`      // packet ids given so far
}

// ReadKernelQueues reads the queues of the calling thread's network namespace.
func ReadKernelQueues() ([]KernelQueue, error) {
	f, err := os.Open(ownQueuesFile)
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's queues: %w", err)
	}
	queues, err := readKernelQueues(f)
	return queues, errors.Join(err, f.Close())
}

// readKernelQueues reads an open queue file from its start, so that it may be
// read again and again, in whatever namespace the reader is by then.
func readKernelQueues(f io.ReaderAt) ([]KernelQueue, error) {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's queues: %w", err)
	}
	return parseKernelQueues(text)
}

// parseKernelQueues parses the columns that seq_show in
// net/netfilter/nfnetlink_queue.c writes: queue, port id, waiting, copy mode,
// copy range, dropped, dropped by the socket, last id, 1.
func parseKernelQueues(text []byte) ([]KernelQueue, error) {
	var queues []KernelQueue
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 8 {
			return nil, fmt.Errorf("%s: line %q: expected at least 8 columns", kernelQueuesFile, line)
		}
		var v [8]uint64
		for i := range v {
			n, err := strconv.ParseUint(string(fields[i]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s: column %d of line %q: %w", kernelQueuesFile, i+1, line, err)
			}
			v[i] = n
		}
		if v[0] > 0xffff {
			return nil, fmt.Errorf("%s: queue %d in line %q: expected at most 65535", kernelQueuesFile, v[0], line)
		}
		queues = append(queues, KernelQueue{
			Queue:       uint16(v[0]),
			PortID:      uint32(v[1]),
			Waiting:     v[2],
			Dropped:     v[5],
			UserDropped: v[6],
			LastID:      v[7],
		})
	}
	return queues, nil
}
