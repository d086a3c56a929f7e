package main

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// logPatience bounds how long an end waits for a log that nobody reads.
const logPatience = time.Second

var errLineLost = errors.New("the log is slower than its lines come")

// lines hands log lines to a writer that may block, such as a pipe that nobody
// reads. Whoever logs never waits for it: neither the packets nor the stop may
// hang on a log. Lines that it cannot keep up with are lost and counted.
type lines struct {
	to    io.Writer
	queue chan []byte
	lost  atomic.Uint64
	ended chan struct{}
}

func newLines(to io.Writer) *lines {
	l := &lines{to: to, queue: make(chan []byte, 256), ended: make(chan struct{})}
	go l.write()
	return l
}

// Write takes one line.
func (l *lines) Write(line []byte) (int, error) {
	select {
	case l.queue <- append([]byte(nil), line...):
		return len(line), nil
	default:
		l.lost.Add(1)
		return 0, errLineLost
	}
}

func (l *lines) write() {
	defer close(l.ended)
	for line := range l.queue {
		_, _ = l.to.Write(line) // there is no other place to report it
	}
	if lost := l.lost.Load(); lost > 0 {
		fmt.Fprintf(l.to, "hybridfw: %d log lines were lost: %v\n", lost, errLineLost)
	}
}

// close writes what is left, unless that takes too long. Nobody may write any
// more.
func (l *lines) close() {
	close(l.queue)
	select {
	case <-l.ended:
	case <-time.After(logPatience):
	}
}
