package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hybridfw/hybridfw/userspace"
)

// nameLog writes the names that inspectors see, off the packet path: where the
// log is slower than the names come, names are lost and counted.
type nameLog struct {
	log   *slog.Logger
	names chan userspace.Sighting
	lost  atomic.Uint64
	ended chan struct{}
}

func newNameLog(log *slog.Logger) *nameLog {
	n := &nameLog{log: log, names: make(chan userspace.Sighting, 1024), ended: make(chan struct{})}
	go n.write()
	return n
}

// seen takes a name from a worker. It never waits.
func (n *nameLog) seen(s userspace.Sighting) {
	if !s.Log {
		return
	}
	select {
	case n.names <- s:
	default:
		n.lost.Add(1)
	}
}

func (n *nameLog) write() {
	defer close(n.ended)
	for s := range n.names {
		r := slog.NewRecord(time.Now(), slog.LevelInfo, "name seen", 0)
		r.Add("kind", s.Kind, "name", s.Name, "verdict", s.Action.String(), "reason", s.Reason.String(),
			"rule", s.Policy.Rules[s.Rule].Name, "src", s.Flow.Src().String(), "dst", s.Flow.Dst().String(), "queued", s.Queued)
		for _, more := range [...]struct{ key, value string }{
			{"method", s.Method}, {"path", s.Path}, {"agent", s.Agent}, {"alpn", s.ALPN}, {"ja4", s.JA4}, {"versions", s.Versions}} {
			if more.value != "" {
				r.Add(more.key, more.value)
			}
		}
		if s.ECH {
			r.Add("ech", true)
		}
		if s.Resumes {
			r.Add("resumes", true)
		}
		// Not by the logger, which keeps to itself what became of a line.
		if err := n.log.Handler().Handle(context.Background(), r); err != nil {
			n.lost.Add(1)
		}
	}
	if lost := n.lost.Load(); lost > 0 {
		n.log.Warn("names were not logged: the log was slower than they came", "names", lost)
	}
}

// close writes what is left. No worker may call seen any more.
func (n *nameLog) close() {
	close(n.names)
	<-n.ended
}
