package userspace

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestStreamAgainstAPlainOne stores random pieces, and compares with a slice that
// has a flag for each byte.
func TestStreamAgainstAPlainOne(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	s := newStreams(4 * streamMax)
	for round := range 300 {
		size := 1 + r.IntN(3*chunkLen)
		data, there := make([]byte, size), make([]bool, size)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		id := s.open()
		for range 1 + r.IntN(60) {
			from := r.IntN(size+100) - 100
			to := min(size, from+r.IntN(1+size))
			if to <= max(from, 0) {
				continue
			}
			piece := append(make([]byte, max(-from, 0)), data[max(from, 0):to]...)
			if err := s.put(id, from, piece); err != nil {
				t.Fatal(err)
			}
			for i := max(from, 0); i < to; i++ {
				there[i] = true
			}
			ready := 0
			for ready < size && there[ready] {
				ready++
			}
			if got := s.prefix(id); !bytes.Equal(got, data[:ready]) {
				t.Fatalf("round %d: prefix of %d bytes, want %d", round, len(got), ready)
			}
		}
		// One byte that is there, with another value, is a conflict.
		if at := r.IntN(size); there[at] {
			if err := s.put(id, at, []byte{data[at] + 1}); err != errConflict {
				t.Fatalf("round %d: %v for another byte at %d", round, err, at)
			}
		}
		s.close(id)
		if s.unused != len(s.chunks) {
			t.Fatalf("round %d: %d of %d chunks came back", round, s.unused, len(s.chunks))
		}
	}
}

// TestStreamMemoryIsBounded: what does not fit is refused, and all comes back.
func TestStreamMemoryIsBounded(t *testing.T) {
	s := newStreams(streamMax)
	var ids []int32
	for {
		id := s.open()
		if id == 0 {
			break
		}
		ids = append(ids, id)
		if err := s.put(id, 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != streamMax/chunkLen {
		t.Errorf("%d streams in %d bytes", len(ids), streamMax)
	}
	if err := s.put(ids[0], chunkLen, []byte("x")); err != errNoRoom {
		t.Errorf("a chunk too much: %v", err)
	}
	s.close(ids[1])
	if err := s.put(ids[0], chunkLen, []byte("x")); err != nil {
		t.Errorf("after one has been closed: %v", err)
	}
	if got := s.prefix(ids[0]); string(got) != "x" {
		t.Errorf("prefix %q", got)
	}
	for _, outside := range []int{-5, streamMax, streamMax + 1, 1 << 30} {
		if err := s.put(ids[2], outside, []byte("abc")); err != nil || len(s.prefix(ids[2])) != 1 {
			t.Errorf("bytes at %d: %v, prefix %q", outside, err, s.prefix(ids[2]))
		}
	}
	s.close(0)
	for _, id := range append(ids[:1:1], ids[2:]...) {
		s.close(id)
	}
	if s.unused != len(s.chunks) {
		t.Errorf("%d of %d chunks came back", s.unused, len(s.chunks))
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("the same bytes, whatever the order"), uint64(1))
	s := newStreams(streamMax)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		if len(data) == 0 || len(data) > streamMax {
			return
		}
		id := s.open()
		defer s.close(id)
		r := rand.New(rand.NewPCG(seed, 0))
		cuts := pieces(r, len(data), 1+r.IntN(20))
		for _, c := range cuts {
			if err := s.put(id, c[0], data[c[0]:c[1]]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(s.prefix(id), data) {
			t.Fatal("another stream came out")
		}
	})
}

// pieces cuts n bytes into some pieces, overlapping at times, in random order.
func pieces(r *rand.Rand, n, count int) [][2]int {
	at := []int{0, n}
	for range count - 1 {
		at = append(at, r.IntN(n))
	}
	var all [][2]int
	for _, from := range at {
		to := n
		for _, next := range at {
			if next > from && next < to {
				to = next
			}
		}
		if from < to {
			all = append(all, [2]int{max(0, from-r.IntN(3)), min(n, to+r.IntN(3))})
		}
	}
	r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all
}
