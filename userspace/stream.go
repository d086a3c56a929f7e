package userspace

import (
	"bytes"
	"errors"
	"math/bits"
)

const (
	// chunkLen holds a hello with a post-quantum key share, mostly.
	chunkLen = 2048
	// streamMax is how far from its start a stream is kept: no hello is longer.
	streamMax = 1 << 16
)

var (
	// errConflict says that bytes came twice and differently: two receivers could
	// understand the stream in two ways.
	errConflict = errors.New("userspace: overlapping bytes differ")
	// errNoRoom says that the memory for streams is used up.
	errNoRoom = errors.New("userspace: no room for the stream")
)

// chunk holds a part of a stream, and a bit for each byte that is there.
type chunk struct {
	data [chunkLen]byte
	have [chunkLen / 64]uint64
	next int32 // of the free ones
}

// stream is the start of one byte stream, of which parts may be missing. Its
// chunks are numbered from 1.
type stream struct {
	chunks [streamMax / chunkLen]int32
	ready  int   // bytes from the start on without a gap
	end    int   // behind the last byte that is there
	next   int32 // of the free ones
	quic   quicPeer
}

// streams are the starts of all streams of a worker that one packet does not
// decide. The memory is allocated once and free of pointers for the collector to
// follow; a stream takes of it what it needs, chunk by chunk.
type streams struct {
	chunks     []chunk
	freeChunk  int32
	all        []stream
	freeStream int32
	unused     int // chunks
	joined     []byte
}

// newStreams returns room for about n bytes.
func newStreams(n int) *streams {
	count := max(n/chunkLen, streamMax/chunkLen)
	s := &streams{
		chunks: make([]chunk, count),
		all:    make([]stream, count),
		joined: make([]byte, 0, streamMax),
		unused: count,
	}
	for i := range int32(count) {
		s.chunks[i].next, s.all[i].next = s.freeChunk, s.freeStream
		s.freeChunk, s.freeStream = i+1, i+1
	}
	return s
}

// open returns the number of an empty stream, 0 where there is no room.
func (s *streams) open() int32 {
	id := s.freeStream
	if id == 0 || s.unused == 0 {
		return 0
	}
	st := &s.all[id-1]
	s.freeStream = st.next
	*st = stream{}
	return id
}

// close gives a stream's memory back. Number 0 is no stream.
func (s *streams) close(id int32) {
	if id == 0 {
		return
	}
	st := &s.all[id-1]
	for i, n := range st.chunks {
		if n == 0 {
			continue
		}
		s.chunks[n-1].next, s.freeChunk = s.freeChunk, n
		s.unused++
		st.chunks[i] = 0
	}
	st.next, s.freeStream = s.freeStream, id
}

// put stores bytes at an offset from the stream's start. What lies outside
// [0, streamMax) is left out. Bytes that are there already must be the same.
func (s *streams) put(id int32, off int, b []byte) error {
	st := &s.all[id-1]
	if off < 0 {
		b, off = b[min(-off, len(b)):], 0
	}
	if off >= streamMax {
		return nil
	}
	b = b[:min(len(b), streamMax-off)]
	for len(b) > 0 {
		at := off % chunkLen
		n := min(len(b), chunkLen-at)
		c := &st.chunks[off/chunkLen]
		if *c == 0 {
			if s.freeChunk == 0 {
				return errNoRoom
			}
			*c = s.freeChunk
			s.freeChunk = s.chunks[*c-1].next
			s.unused--
			clear(s.chunks[*c-1].have[:])
		}
		if !s.chunks[*c-1].put(at, b[:n]) {
			return errConflict
		}
		b, off = b[n:], off+n
		st.end = max(st.end, off)
	}
	s.advance(st)
	return nil
}

// put stores bytes and reports whether those that had been there are the same.
func (c *chunk) put(at int, b []byte) (same bool) {
	for len(b) > 0 {
		word, bit := at/64, at%64
		n := min(64-bit, len(b))
		mask := ^uint64(0) >> (64 - n) << bit
		switch have := c.have[word] & mask; have {
		case 0:
			copy(c.data[at:], b[:n])
		case mask:
			if !bytes.Equal(c.data[at:at+n], b[:n]) {
				return false
			}
		default:
			for i, v := range b[:n] {
				if have>>(bit+i)&1 == 0 {
					c.data[at+i] = v
				} else if c.data[at+i] != v {
					return false
				}
			}
		}
		c.have[word] |= mask
		at, b = at+n, b[n:]
	}
	return true
}

// advance finds how far the stream goes without a gap.
func (s *streams) advance(st *stream) {
	for st.ready < st.end {
		n := st.chunks[st.ready/chunkLen]
		if n == 0 {
			return
		}
		at := st.ready % chunkLen
		there := bits.TrailingZeros64(^(s.chunks[n-1].have[at/64] >> (at % 64)))
		st.ready += there
		if there < 64-at%64 {
			return
		}
	}
}

// prefix returns the bytes from the start on without a gap, until the next call
// of prefix or put.
func (s *streams) prefix(id int32) []byte {
	st := &s.all[id-1]
	if st.ready <= chunkLen {
		if st.ready == 0 {
			return nil
		}
		return s.chunks[st.chunks[0]-1].data[:st.ready:st.ready]
	}
	joined := s.joined[:0]
	for i := 0; len(joined) < st.ready; i++ {
		c := &s.chunks[st.chunks[i]-1]
		joined = append(joined, c.data[:min(chunkLen, st.ready-len(joined))]...)
	}
	return joined
}
