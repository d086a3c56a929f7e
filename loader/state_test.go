package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/policy"
)

// Both zones may begin flows, so that only their states decide.
const openPolicy = `
version: 1
zones: { lan: [lan0], wan: [wan0] }
defaults: { input: accept, forward: accept, output: accept }
`

// modelFlow is what the kernel half should know about a flow, told plainly.
type modelFlow struct {
	state    policy.FlowState
	origin   int
	isn      uint32
	start    uint32
	fin, rst [2]bool
}

func (f *modelFlow) bothSpoke() bool {
	switch f.state {
	case policy.StateEstablished, policy.StateUDPReplied, policy.StateICMPReplied, policy.StateOtherReplied:
		return true
	}
	return false
}

// model is the two tables' slots of one pair of endpoints.
type model struct{ known, half *modelFlow }

// step is a packet: who sends it, and what of its header counts.
type step struct {
	sender   int
	proto    uint8
	flags    uint8
	seq, ack uint32
}

func (s step) String() string {
	return fmt.Sprintf("{from %d, proto %d, flags %#x, seq %d, ack %d}", s.sender, s.proto, s.flags, s.seq, s.ack)
}

func (s step) begins() bool  { return s.proto == protoTCP && s.flags&(syn|ack|rst) == syn }
func (s step) answers() bool { return s.proto == protoTCP && s.flags&(syn|ack|rst) == syn|ack }

func (m *model) packet(s step) {
	if s.answers() && m.known != nil && m.half != nil && m.half.state == policy.StateSynSent && m.half.origin != s.sender {
		m.known, m.half = m.half, nil // the other endpoint agrees to begin anew
	}
	f := m.known
	if f == nil {
		f = m.half
	}
	if f == nil || s.begins() {
		if m.known != nil && !m.known.bothSpoke() {
			m.known = nil
		}
		m.half = &modelFlow{origin: s.sender, state: firstState(s)}
		return
	}
	if s.proto == protoTCP {
		f.tcp(s, f == m.half)
	} else if s.sender != f.origin {
		f.state = map[policy.FlowState]policy.FlowState{
			policy.StateUDPUnreplied:   policy.StateUDPReplied,
			policy.StateICMPUnreplied:  policy.StateICMPReplied,
			policy.StateOtherUnreplied: policy.StateOtherReplied,
		}[f.state] | f.state&boolMask(f.bothSpoke())
	}
	if f == m.half && f.bothSpoke() {
		m.known, m.half = f, nil
	}
}

func boolMask(b bool) policy.FlowState {
	if b {
		return 0xff
	}
	return 0
}

func firstState(s step) policy.FlowState {
	switch {
	case s.begins():
		return policy.StateSynSent
	case s.proto == protoTCP:
		return policy.StateMidstream
	case s.proto == protoUDP:
		return policy.StateUDPUnreplied
	}
	return policy.StateOtherUnreplied
}

func (f *modelFlow) tcp(s step, half bool) {
	f.rst[s.sender] = s.flags&rst != 0
	if s.flags&(rst|fin) == fin {
		f.fin[s.sender] = true
	}
	reply := s.sender != f.origin
	switch {
	case f.rst[0] || f.rst[1]:
		f.state = policy.StateClose
	case f.fin[0] && f.fin[1]:
		f.state = policy.StateTimeWait
	case f.fin[0] || f.fin[1]:
		f.state = policy.StateFinWait
	case f.state == policy.StateClose && half:
		f.state = policy.StateMidstream
	case f.state == policy.StateClose:
		f.state = policy.StateEstablished
	case f.state == policy.StateSynSent && !reply:
		f.state = policy.StateMidstream
	case f.state == policy.StateSynSent && s.answers():
		f.state, f.isn, f.start = policy.StateSynRecv, s.seq, s.ack
	case f.state == policy.StateSynRecv && !reply && s.ack-f.isn >= 1 && s.ack-f.isn <= 1<<20:
		f.state = policy.StateEstablished
	case f.state == policy.StateMidstream && reply:
		f.state = policy.StateEstablished
	}
}

// conversation plays steps between two endpoints and compares the tables with the
// model.
type conversation struct {
	*bench
	f     *Firewall
	ends  [2]packet // as each endpoint sends
	iface [2]uint32
	model model
	key   gen.FWFlowKey
	lower int // the endpoint that the kernel half calls 0
}

func (b *bench) newConversation(f *Firewall, a packet) *conversation {
	key, sender := encodeFlow(a.flow())
	return &conversation{bench: b, f: f, ends: [2]packet{a, a.reply()}, iface: [2]uint32{b.lan, b.wan}, key: key, lower: int(sender)}
}

func (c *conversation) send(s step) {
	c.tb.Helper()
	p := c.ends[s.sender]
	p.proto, p.flags = s.proto, s.flags
	frame := p.frame()
	if s.proto == protoTCP {
		l4 := len(frame) - 20 - len(p.payload)
		binary.BigEndian.PutUint32(frame[l4+4:], s.seq)
		binary.BigEndian.PutUint32(frame[l4+8:], s.ack)
	}
	if got := c.arrivesFrame(c.f, c.iface[s.sender], frame); got != passes {
		c.tb.Fatalf("%v: %s", s, got)
	}
	c.model.packet(s)
}

// age makes a table's entry silent for so long. It tells whether that is within
// the state's timeout.
func (c *conversation) age(table *ebpf.Map, silent time.Duration) {
	c.tb.Helper()
	var e gen.FWFlow
	if err := table.Lookup(c.key, &e); err != nil {
		c.tb.Fatal(err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		c.tb.Fatal(err)
	}
	e.LastSeen = uint64(now.Nano()) - uint64(silent)
	if err := table.Put(c.key, e); err != nil {
		c.tb.Fatal(err)
	}
}

// wait lets time pass for the entries that are there.
func (c *conversation) wait(r *rand.Rand) {
	for _, slot := range []struct {
		table *ebpf.Map
		f     **modelFlow
	}{{c.f.objs.Flows, &c.model.known}, {c.f.objs.HalfOpen, &c.model.half}} {
		if *slot.f == nil {
			continue
		}
		timeout := timeouts[(*slot.f).state]
		if r.IntN(8) > 0 {
			c.age(slot.table, timeout-3*time.Second)
			continue
		}
		c.age(slot.table, timeout+3*time.Second)
		*slot.f = nil
	}
}

// compare says in what a table's entry differs from the model, or "".
func (c *conversation) compare(table *ebpf.Map, want *modelFlow) string {
	var e gen.FWFlow
	err := table.Lookup(c.key, &e)
	if want == nil {
		return "" // an entry that has timed out may still lie there
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Sprintf("no entry, want %+v", *want)
	} else if err != nil {
		return err.Error()
	}
	got := modelFlow{state: policy.FlowState(e.State), origin: int(e.Origin) ^ c.lower, isn: e.Isn, start: e.Start}
	for end := range 2 {
		got.fin[end] = e.Ends>>(end^c.lower)&1 != 0
		got.rst[end] = e.Ends>>(2+end^c.lower)&1 != 0
	}
	if got != *want {
		return fmt.Sprintf("%+v, want %+v", got, *want)
	}
	return ""
}

func randomStep(r *rand.Rand, proto uint8, isn *uint32) step {
	s := step{sender: r.IntN(2), proto: proto, seq: r.Uint32(), ack: r.Uint32()}
	if proto != protoTCP {
		return s
	}
	s.flags = pick[uint8](r, syn, syn|ack, ack, ack, psh|ack, fin|ack, rst, rst|ack, fin, syn|rst, syn|fin, syn|ack|rst, 0)
	if s.answers() {
		*isn = s.seq
	} else if r.IntN(2) == 0 {
		s.ack = *isn + pick[uint32](r, 1, 1, 2, 1460, 1<<20, 1<<20+1, 0)
	}
	return s
}

func TestFlowStatesAgreeWithTheModel(t *testing.T) {
	on(t, openPolicy, func(b *bench, f *Firewall) {
		r := rand.New(rand.NewPCG(4, 6))
		packets := 0
		for n := range 4000 {
			a, z := client4, server4
			if n%2 == 1 {
				a, z = a.Next(), z.Prev()
			}
			if n%3 == 1 {
				a, z = z, a // the lower address is the other endpoint's
			}
			c := b.newConversation(f, tcp(a, z, uint16(1024+n), 80, 0))
			proto := pick[uint8](r, protoTCP, protoTCP, protoTCP, protoUDP, protoSCTP)
			c.key.Proto = proto
			var isn uint32
			var said []string
			for range 1 + r.IntN(14) {
				c.wait(r)
				s := randomStep(r, proto, &isn)
				said = append(said, s.String())
				c.send(s)
				packets++
				for name, wrong := range map[string]string{
					"known":     c.compare(f.objs.Flows, c.model.known),
					"half open": c.compare(f.objs.HalfOpen, c.model.half),
				} {
					if wrong != "" {
						t.Fatalf("conversation %d, %s: %s, after\n%s", n, name, wrong, strings.Join(said, "\n"))
					}
				}
			}
		}
		t.Logf("%d packets compared", packets)
	})
}

func TestFloodsOfBeginningsLeaveEstablishedFlowsAlone(t *testing.T) {
	both(t, func(t *testing.T, client, server netip.Addr) {
		on(t, openPolicy, func(b *bench, f *Firewall) {
			b.arrives(f, b.lan, tcp(client, server, 40000, 80, syn))
			b.arrives(f, b.wan, tcp(server, client, 80, 40000, syn|ack))
			established := tcp(client, server, 40000, 80, ack)
			frame := established.frame()
			binary.BigEndian.PutUint32(frame[len(frame)-12:], 1) // acknowledges sequence number 0
			b.arrivesFrame(f, b.lan, frame)
			half := int(f.objs.HalfOpen.MaxEntries())
			for i := range 4 * half {
				flood := tcp(client, server, uint16(i), uint16(1000+i>>16), syn)
				if i%2 == 1 {
					flood = udp(client, server, uint16(i), uint16(1000+i>>16))
				}
				b.arrives(f, b.lan, flood)
			}
			var e gen.FWFlow
			if err := f.objs.Flows.Lookup(keyOf(established), &e); err != nil || e.State != uint8(policy.StateEstablished) {
				t.Errorf("after %d beginnings: %v, %+v", 4*half, err, e)
			}
			keys := 0
			var key gen.FWFlowKey
			for it := f.objs.Flows.Iterate(); it.Next(&key, &e); {
				keys++
			}
			if keys != 1 {
				t.Errorf("%d known flows, want 1", keys)
			}
		})
	})
}

// A reset that an outsider forges shortens the timeout of a flow only until its
// endpoint sends again.
func TestForgedResetEndsNothing(t *testing.T) {
	on(t, openPolicy, func(b *bench, f *Firewall) {
		c := b.newConversation(f, tcp(client4, server4, 40000, 80, 0))
		for _, s := range []step{
			{sender: 0, flags: syn}, {sender: 1, flags: syn | ack, seq: 9}, {sender: 0, flags: ack, ack: 10},
			{sender: 0, flags: rst}, {sender: 1, flags: ack}, {sender: 0, flags: ack},
		} {
			s.proto = protoTCP
			c.send(s)
		}
		if e, _ := f.entry(t, c.ends[0].flow()); e.State != uint8(policy.StateEstablished) || e.Ends != 0 {
			t.Errorf("%+v, want it established", e)
		}
	})
}
