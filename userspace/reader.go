package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// Action is what becomes of a packet.
type Action uint8

// The zero Action drops, so that a verdict that was forgotten opens nothing.
const (
	Drop    Action = iota
	Accept         // on to the next chain of the hook
	Repeat         // through the hook's chains once more
	ToQueue        // to another queue, Verdict.Queue
)

// Verdict is what a Queue's function says about a packet. All but Action is for
// packets that are not dropped. A packet goes back with its bytes where its view
// was changed (pktbuf.View.Changed).
type Verdict struct {
	Action Action
	Queue  uint16 // with ToQueue

	Mark, MarkMask         uint32 // bits of MarkMask are set to those of Mark
	ConnMark, ConnMarkMask uint32 // likewise in the packet's conntrack entry, if it has one
	Labels, LabelsMask     [16]byte
	Priority               uint32 // with SetPriority
	SetPriority            bool
	VLAN                   *VLAN // of packets that are bridged; the kernel pushes or changes the tag
}

// VLAN is a tag that the device or the bridge holds beside the packet.
type VLAN struct {
	Proto uint16 // 0x8100 or 0x88a8
	TCI   uint16 // priority, drop eligible, and 12 bits of the id
}

// Packet is a queued packet with all that the kernel says about it. It lies in the
// memory it was received in, and is good until the function returns that it was given
// to.
type Packet struct {
	packet
	View pktbuf.View // over the packet, with room to grow; Parse has not been called
}

// Protocol returns the EtherType: 0x0800 for IPv4, 0x86dd for IPv6.
func (p *Packet) Protocol() uint16 { return p.proto }

// Hook returns the netfilter hook: 0 prerouting, 1 input, 2 forward, 3 output,
// 4 postrouting.
func (p *Packet) Hook() uint8 { return p.hook }

// Mark returns the packet's mark.
func (p *Packet) Mark() uint32 { return p.mark }

// InDev and OutDev return interface indexes, 0 where there is none.
func (p *Packet) InDev() uint32  { return p.inDev }
func (p *Packet) OutDev() uint32 { return p.outDev }

// PhysInDev and PhysOutDev return the indexes of a bridge's ports.
func (p *Packet) PhysInDev() uint32  { return p.physIn }
func (p *Packet) PhysOutDev() uint32 { return p.physOut }

// Payload returns the packet, or what was copied of it, from its IP header on.
func (p *Packet) Payload() []byte { return p.payload }

// Len returns the packet's length, of which Payload may be the start only.
func (p *Packet) Len() int { return max(int(p.capLen), len(p.payload)) }

// Super reports whether it is a super-packet, which leaves in segments.
func (p *Packet) Super() bool { return p.skbInfo&skbGSO != 0 }

// HWAddr returns the sender's link address, nil where it is not known.
func (p *Packet) HWAddr() net.HardwareAddr { return p.hwAddr }

// LinkHeader returns the link header, nil but for packets that are bridged.
func (p *Packet) LinkHeader() []byte { return p.link }

// SecurityContext returns that of the local socket, nil where there is none.
func (p *Packet) SecurityContext() []byte { return p.secCtx }

// Priority returns the packet's priority, 0 where it has none.
func (p *Packet) Priority() uint32 { return p.priority }

// User returns whose local socket has sent the packet; ok is false where nobody's is
// known.
func (p *Packet) User() (uid, gid uint32, ok bool) { return p.uid, p.gid, p.hasUser }

// Timestamp returns when the packet came in, the zero time where that was not noted.
func (p *Packet) Timestamp() time.Time {
	if p.seconds == 0 {
		return time.Time{}
	}
	return time.Unix(int64(p.seconds), int64(p.micros)*1000)
}

// Conntrack returns the attributes of the packet's conntrack entry (CTA_*, as in
// linux/netfilter/nfnetlink_conntrack.h) and its state there (enum ip_conntrack_info),
// nil where it has no entry.
func (p *Packet) Conntrack() (attributes []byte, info uint32) { return p.ct, p.ctInfo }

// VLAN returns the tag that is held beside the packet; ok is false without one.
func (p *Packet) VLAN() (v VLAN, ok bool) {
	for b := p.vlan; len(b) >= attrHeader+2; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrHeader+2 || n > len(b) {
			break
		}
		value := binary.BigEndian.Uint16(b[attrHeader:])
		switch binary.NativeEndian.Uint16(b[2:]) & attrTypeMask {
		case vlanProto:
			v.Proto = value
		case vlanTCI:
			v.TCI, ok = value, true
		}
		b = b[min(align4(n), len(b)):]
	}
	return v, ok
}

// QueueOptions configure a Queue. The zero value of each field is its default.
type QueueOptions struct {
	Length       int  // packets that may wait for a verdict; 0: 8192
	SocketBuffer int  // bytes of them that may wait to be received; 0: 32 MiB
	FailOpen     bool // the kernel accepts what does not fit, in place of dropping it
	Users        bool // ask for Packet.User and SecurityContext, which cost time

	// Broken is the verdict on packets whose description by the kernel does not
	// parse, and where the function panics. The zero Verdict drops them.
	Broken Verdict

	Log *slog.Logger // nil: discard
}

// Queue is one netfilter queue whose packets a function of the program's own judges,
// without a policy: for programs that want nothing else of this package. Packets come
// in batches into memory that is allocated once; the function is called with one after
// the other, and their verdicts go back together.
type Queue struct {
	w               *worker
	mu              sync.Mutex // of running and closed
	running, closed bool
	ended           chan struct{}
}

// Bind binds a queue in the network namespace of the calling thread. Packets may wait
// from then on, until Serve judges them.
func Bind(num uint16, o QueueOptions) (*Queue, error) {
	defaults, err := Options{QueueLength: o.Length, SocketBuffer: o.SocketBuffer, Log: o.Log}.sized()
	if err != nil {
		return nil, fmt.Errorf("binding queue %d: %w", num, err)
	}
	q, err := openQueue(queueOptions{num: num, length: defaults.QueueLength, socketBuffer: defaults.SocketBuffer, failOpen: o.FailOpen, users: o.Users})
	if err != nil {
		return nil, err
	}
	w := newReceiver(q)
	w.judge = new(judge) // whose clock is read
	w.reads = &reads{broken: o.Broken, log: defaults.Log}
	return &Queue{w: w, ended: make(chan struct{})}, nil
}

// Serve has the function judge packets until Stop or Drain. It is called on one
// goroutine, whose thread is its own. An error means that the queue cannot be served
// any more.
func (q *Queue) Serve(judge func(*Packet) Verdict) error {
	q.mu.Lock()
	if q.running || q.closed {
		q.mu.Unlock()
		return errors.New("serving a queue: it is served already or is closed")
	}
	q.running = true
	q.w.reads.judge = judge
	q.mu.Unlock()
	defer close(q.ended)
	return q.w.run()
}

// Stop ends Serve after the batch that it is at. Packets that wait stay queued until
// Close, where the kernel drops them.
func (q *Queue) Stop() error { return q.end(stopping) }

// Drain ends Serve when nothing waits any more. First see to it that no more packets
// come.
func (q *Queue) Drain() error { return q.end(draining) }

func (q *Queue) end(order int32) error {
	q.mu.Lock()
	running, closed := q.running, q.closed
	q.mu.Unlock()
	if closed {
		return nil
	}
	err := q.w.tellTo(order)
	if running && err == nil {
		<-q.ended
	}
	return err
}

// Close stops the queue and unbinds it. Closing twice is no error.
func (q *Queue) Close() error {
	err := q.Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	return errors.Join(err, q.w.q.close())
}

// Counters returns what was counted so far. Of the reasons and decisions, which only a
// policy has, it counts none.
func (q *Queue) Counters() Counters { return q.w.tally.snapshot() }

// reads judges a Queue's packets.
type reads struct {
	judge   func(*Packet) Verdict
	broken  Verdict
	log     *slog.Logger
	alarmed bool // a panic has been logged
	packet  Packet
	more    [moreMax]byte
}

// verdict asks the function about a packet whose id is known.
func (r *reads) verdict(p *packet, t *tally, broken bool) verdict {
	t.count(countReceived)
	r.packet.packet = *p
	said := r.broken
	if !broken && r.view() {
		said = r.ask(t)
	}
	v := verdict{accept: said.Action != Drop, keepMark: said.MarkMask == 0, mark: p.mark&^said.MarkMask | said.Mark&said.MarkMask}
	switch said.Action {
	case Drop:
		t.count(countDropped)
		return verdict{}
	case Repeat:
		v.code = nfRepeat
	case ToQueue:
		v.code = nfQueue | uint32(said.Queue)<<16
	}
	if b := said.attributes(r.more[:0]); len(b) > 0 {
		v.more = b
	}
	if r.packet.View.Changed() {
		v.payload = r.packet.View.Bytes()
		t.count(countRewritten)
		return v
	}
	t.count(countAccepted)
	return v
}

// view lays the view over the packet.
func (r *reads) view() bool {
	p := &r.packet
	family := pktbuf.IPv4
	if p.proto == etherIPv6 {
		family = pktbuf.IPv6
	}
	if p.View.Init(family, p.payload, nil) != nil {
		return false
	}
	if p.cut() {
		p.View.SetCut()
	}
	if p.skbInfo&skbUnfinished != 0 {
		p.View.SetUnfinished()
	}
	return true
}

func (r *reads) ask(t *tally) (v Verdict) {
	defer func() {
		if what := recover(); what != nil {
			t.count(countPanics)
			v = r.broken
			// What it had changed is not sent.
			r.view()
			if !r.alarmed {
				r.alarmed = true
				r.log.Error("judging a packet panicked; further panics are only counted", "panic", what, "stack", string(debug.Stack()))
			}
		}
	}()
	return r.judge(&r.packet)
}

// Conntrack attributes, linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaMark       = 8
	ctaMarkMask   = 21
	ctaLabels     = 22
	ctaLabelsMask = 23

	nested = 1 << 15
)

// attributes appends what a verdict sets beside the mark, at most moreMax bytes.
func (v *Verdict) attributes(b []byte) []byte {
	number := func(typ uint16, n uint32) {
		b = binary.NativeEndian.AppendUint16(b, attrHeader+4)
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.BigEndian.AppendUint32(b, n)
	}
	start := len(b)
	if v.ConnMarkMask != 0 || v.LabelsMask != [16]byte{} {
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint16(b, nfqaCT|nested)
		if v.ConnMarkMask != 0 {
			// The kernel clears what is under the mask, and changes all bits of the mark.
			number(ctaMark, v.ConnMark&v.ConnMarkMask)
			number(ctaMarkMask, v.ConnMarkMask)
		}
		if v.LabelsMask != [16]byte{} {
			bits := func(typ uint16, set *[16]byte) {
				b = binary.NativeEndian.AppendUint16(b, attrHeader+16)
				b = binary.NativeEndian.AppendUint16(b, typ)
				b = append(b, set[:]...)
			}
			bits(ctaLabels, &v.Labels)
			bits(ctaLabelsMask, &v.LabelsMask)
		}
		binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	}
	if v.SetPriority {
		number(nfqaPriority, v.Priority)
	}
	if v.VLAN != nil {
		b = binary.NativeEndian.AppendUint16(b, attrHeader+16)
		b = binary.NativeEndian.AppendUint16(b, nfqaVLAN|nested)
		for _, a := range [...]struct{ typ, value uint16 }{{vlanProto, v.VLAN.Proto}, {vlanTCI, v.VLAN.TCI}} {
			b = binary.NativeEndian.AppendUint16(b, attrHeader+2)
			b = binary.NativeEndian.AppendUint16(b, a.typ)
			b = binary.BigEndian.AppendUint16(b, a.value)
			b = append(b, 0, 0)
		}
	}
	return b
}
