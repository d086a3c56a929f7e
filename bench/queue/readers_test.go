package queue

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

// read is a reader in Go: it binds the queue, says so, and for each number on its input
// judges as many packets and prints what that took of the processor, in microseconds.
func read(name string) error {
	bind := map[string]func() (*source, error){
		readers[1]: bindStage, readers[2]: bindGoNFQueue,
		changers[2]: func() (*source, error) { return bindQueue(false) },
		changers[3]: func() (*source, error) { return bindQueue(true) },
	}[name]
	if bind == nil {
		return fmt.Errorf("no reader is called %q", name)
	}
	s, err := bind()
	if err != nil {
		return err
	}
	before, total := spent(), uint64(0)
	fmt.Println("ready")
	for {
		var n uint64
		if _, err := fmt.Scan(&n); err != nil {
			return nil // the input has ended
		}
		if s.run != nil {
			before = spent()
			go s.run()
			s.run = nil
		}
		total += n
		for s.judged() < total {
			time.Sleep(time.Millisecond)
		}
		now := spent()
		fmt.Println((now - before).Microseconds())
		before = now
	}
}

func spent() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// source is a reader that has bound the queue.
type source struct {
	run    func() // begins to judge, where binding has not
	judged func() uint64
}

const acceptPolicy = `
version: 1
zones: { lan: [lo] }
failure: { no_listener: open, overload: closed, undecided: accept, malformed: accept }
rules: [{ name: all, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: accept }] }]
`

// bindStage is hybridfw's own stage. What is queued has the mark of its rule.
func bindStage() (*source, error) {
	p, err := policy.ParseBytes("accept.yaml", []byte(acceptPolicy), "")
	if err != nil {
		return nil, err
	}
	stage, err := userspace.Open(userspace.Options{
		Policy: p, Queue: queueNumber, Queues: 1, QueueLength: 1 << 17, SocketBuffer: 256 << 20,
		Decided: func(userspace.Decision) error { return nil },
	})
	if err != nil {
		return nil, err
	}
	run := func() {
		if err := stage.Run(); err != nil {
			slog.Error("the stage ended", "err", err)
			os.Exit(1)
		}
	}
	return &source{run: run, judged: func() uint64 { return stage.Stats().Received }}, nil
}

// bindQueue is a userspace.Queue, whose function changes a byte of each payload or none.
func bindQueue(change bool) (*source, error) {
	q, err := userspace.Bind(queueNumber, userspace.QueueOptions{Length: 1 << 17, SocketBuffer: 256 << 20})
	if err != nil {
		return nil, err
	}
	judge := func(p *userspace.Packet) userspace.Verdict {
		if change {
			if p.View.Parse() != nil {
				return userspace.Verdict{}
			}
			other := [1]byte{p.View.Payload()[0] ^ 1}
			if p.View.ReplacePayload(0, 1, other[:]) != nil {
				return userspace.Verdict{}
			}
		}
		return userspace.Verdict{Action: userspace.Accept}
	}
	run := func() {
		if err := q.Serve(judge); err != nil {
			slog.Error("the queue ended", "err", err)
			os.Exit(1)
		}
	}
	return &source{run: run, judged: func() uint64 { return q.Counters().Received }}, nil
}

// bindGoNFQueue is go-nfqueue with its own receive loop.
func bindGoNFQueue() (*source, error) {
	nf, err := nfqueue.Open(&nfqueue.Config{
		NfQueue: queueNumber, MaxPacketLen: 0xffff, MaxQueueLen: 1 << 17, Copymode: nfqueue.NfQnlCopyPacket, Flags: nfqueue.NfQaCfgFlagGSO,
	})
	if err != nil {
		return nil, err
	}
	if err := nf.Con.SetReadBuffer(256 << 20); err != nil {
		return nil, err
	}
	var n atomic.Uint64
	err = nf.RegisterWithErrorFunc(context.Background(), func(a nfqueue.Attribute) int {
		if err := nf.SetVerdict(*a.PacketID, nfqueue.NfAccept); err != nil {
			slog.Error("a verdict was refused", "err", err)
		}
		n.Add(1)
		return 0
	}, func(err error) int {
		slog.Error("receiving", "err", err)
		return 0
	})
	return &source{judged: n.Load}, err
}
