package userspace

import (
	"hash/maphash"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// ways is how many places a flow can have in the table.
const ways = 8

const (
	// flowIdle is when an undecided flow may lose its place: a hello that takes
	// longer starts anew.
	flowIdle = int64(30e9)
	// reclaimEvery bounds what looking for idle flows costs when none are.
	reclaimEvery = int64(1e9)
	// flowLinger is how long a decision written to the kernel half is kept for
	// the packets that had been marked before. When the socket has not been
	// empty since, they may still be in it, and it is kept longer.
	flowLinger = int64(50e6)
)

// flow is what a worker remembers of a flow between its packets.
type flow struct {
	key     pktbuf.Flow
	decided bool
	kept    bool // the kernel half does not know the decision: keep it
	reason  Reason
	action  policy.Action
	rule    int32
	mark    uint16 // the rule's number, once decided
	seq     uint32 // TCP: where the stream's first bytes stand; DTLS: the hello's number
	begin   uint32 // TCP: where the whole stream begins, which may be long before; DTLS: the hello's length
	stream  int32  // in flows.streams, 0 where nothing is kept
	taken   int32  // bytes of the kept stream that have been judged
	settled bool   // undecided, but nothing of it is waiting
	packets int32  // seen, while undecided
	bytes   int64  // of their payloads
	at      int64  // last seen undecided, or decided
}

// flows is a table of fixed size, without pointers for the collector to follow.
// Who fills it up on purpose fills up single
// buckets only by chance, because the hash is seeded.
type flows struct {
	reclaimed int64 // when idle flows were last looked for
	streams   *streams
	seed      maphash.Seed
	buckets   []bucket
	used      int
}

type bucket struct {
	tags  [ways]uint32 // hashes, 0 where free
	flows [ways]flow
}

// newFlows returns a table with at least n places, and room for about memory
// bytes of the streams that wait.
func newFlows(n, memory int) *flows {
	size := 1
	for size*ways < n {
		size *= 2
	}
	return &flows{streams: newStreams(memory), seed: maphash.MakeSeed(), buckets: make([]bucket, size)}
}

// place returns the one bucket where a flow can be, and its tag there.
func (t *flows) place(k *pktbuf.Flow) (b *bucket, tag uint32) {
	h := maphash.Bytes(t.seed, k.Bytes())
	return &t.buckets[h&uint64(len(t.buckets)-1)], uint32(h>>32) | 1
}

// find returns the flow, nil where it is not known. It stays valid until the
// next insert.
func (t *flows) find(k *pktbuf.Flow) *flow {
	b, tag := t.place(k)
	for i, have := range b.tags {
		if have == tag && b.flows[i].key == *k {
			return &b.flows[i]
		}
	}
	return nil
}

// insert returns a cleared place for a flow that is not in the table: a free
// one, else that of the flow which is missed least, nil where each is needed.
// Decisions give way to new flows, flows with something that waits do not.
func (t *flows) insert(k *pktbuf.Flow, now int64) *flow {
	b, tag := t.place(k)
	victim, oldest := -1, int64(0)
	for i, have := range b.tags {
		if have == 0 {
			victim = i
			break
		}
		f := &b.flows[i]
		if (f.decided || f.settled || now-f.at > flowIdle) && (victim < 0 || f.at < oldest) {
			victim, oldest = i, f.at
		}
	}
	if victim < 0 {
		return nil
	}
	f := &b.flows[victim]
	if b.tags[victim] == 0 {
		t.used++
	} else {
		t.streams.close(f.stream)
	}
	b.tags[victim] = tag
	*f = flow{key: *k, at: now}
	return f
}

// remove forgets a flow that is in the table.
func (t *flows) remove(f *flow) {
	b, _ := t.place(&f.key)
	for i := range b.flows {
		if &b.flows[i] == f {
			t.streams.close(f.stream)
			b.tags[i] = 0
			t.used--
			return
		}
	}
}

// keep stores bytes of an undecided flow's stream. When memory is short, flows
// that have been idle for long give theirs back first.
func (t *flows) keep(f *flow, at int, b []byte, now int64) error {
	if f.stream == 0 {
		if f.stream = t.open(f, now); f.stream == 0 {
			return errNoRoom
		}
	}
	err := t.streams.put(f.stream, at, b)
	if err == errNoRoom && t.reclaim(f, now) {
		return t.streams.put(f.stream, at, b)
	}
	return err
}

// open returns the number of an empty stream for the flow, 0 without room.
func (t *flows) open(f *flow, now int64) int32 {
	id := t.streams.open()
	if id == 0 && t.reclaim(f, now) {
		id = t.streams.open()
	}
	return id
}

// reclaim forgets all flows but one that keep memory and have been idle for long.
// It reports whether it has looked.
func (t *flows) reclaim(but *flow, now int64) bool {
	if now-t.reclaimed < reclaimEvery {
		return false
	}
	t.reclaimed = now
	for i := range t.buckets {
		b := &t.buckets[i]
		for n := range b.flows {
			f := &b.flows[n]
			if b.tags[n] != 0 && f != but && f.stream != 0 && now-f.at > flowIdle {
				t.remove(f)
			}
		}
	}
	return true
}

// stale reports whether the kernel half should know a decision: all packets that
// had been marked before it have come.
func (f *flow) stale(now, lastEmpty int64) bool {
	return f.decided && !f.kept && now-f.at > flowLinger && lastEmpty > f.at
}
