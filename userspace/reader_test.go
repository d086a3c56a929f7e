package userspace

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// accepted is the verdict that lets a packet past the table's rules.
func accepted() Verdict { return Verdict{Action: Accept, Mark: testJudged, MarkMask: testJudged} }

// mustServe binds queues and has a function judge what the table's rules queue.
func mustServe(tb testing.TB, o QueueOptions, judges ...func(*Packet) Verdict) []*Queue {
	tb.Helper()
	testnet.Need(tb)
	var all []*Queue
	for i, judge := range judges {
		q, err := Bind(uint16(testQueue+i), o)
		if err != nil {
			tb.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- q.Serve(judge) }()
		tb.Cleanup(func() {
			if err := errors.Join(q.Close(), <-served); err != nil {
				tb.Error(err)
			}
		})
		all = append(all, q)
	}
	s := mustSteer(tb, Options{Policy: mustPolicy(tb, "", acceptAll), Queue: testQueue, Queues: 1})
	if err := s.Install(); err != nil {
		tb.Fatal(err)
	}
	return all
}

func TestQueueJudgesByAFunction(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		q := mustServe(t, QueueOptions{Users: true}, func(p *Packet) Verdict {
			if p.View.Parse() != nil {
				return Verdict{}
			}
			v := accepted()
			switch text := p.View.Payload(); {
			case bytes.Equal(text, []byte("drop")):
				return Verdict{}
			case bytes.Equal(text, []byte("change")):
				if p.View.ReplacePayload(0, len(text), []byte("another, longer text")) != nil {
					return Verdict{}
				}
			case bytes.Equal(text, []byte("mark")):
				v.Mark, v.MarkMask = testJudged|0x55, testJudged|0xff
			case bytes.Equal(text, []byte("leave")):
				return Verdict{Action: Accept} // it is queued again in the next hook
			case bytes.Equal(text, []byte("who")):
				lo, err := net.InterfaceByName("lo")
				uid, gid, ok := p.User()
				if err != nil || p.Hook() != 3 || p.OutDev() != uint32(lo.Index) || p.InDev() != 0 || !ok ||
					uid != uint32(os.Getuid()) || gid != uint32(os.Getgid()) || p.Len() != len(p.Payload()) || p.Super() || p.Mark() != uint32(markOf(0)) {
					t.Errorf("hook %d, devices %d %d, user %d %d %v, mark %#x: %v", p.Hook(), p.InDev(), p.OutDev(), uid, gid, ok, p.Mark(), err)
				}
			}
			return v
		})[0]
		s := mustSink(t, addr)
		conn := mustDial(t, "udp", s.addr, markOf(0))
		mark := uint32(markOf(0))
		for _, c := range []struct {
			text, want string
			mark       uint32
		}{
			{"plain", "plain", mark | testJudged},
			{"change", "another, longer text", mark | testJudged},
			{"mark", "mark", mark&^0xff | 0x55 | testJudged},
			{"leave", "leave", mark},
			{"who", "who", mark | testJudged},
		} {
			mustWrite(t, conn, []byte("drop"))
			mustWrite(t, conn, []byte(c.text))
			data, mark, ok := s.next(t, 5*time.Second)
			if !ok || string(data) != c.want || mark != c.mark {
				t.Errorf("%s: %q with mark %#x, %v; want mark %#x", c.text, data, mark, ok, c.mark)
			}
		}
		if err := q.Drain(); err != nil {
			t.Fatal(err)
		}
		if c := q.Counters(); c.Received != 11 || c.Dropped != 5 || c.Rewritten != 1 || c.Accepted != 5 || c.VerdictErrors != 0 {
			t.Errorf("counted %+v", c)
		}
		if err := q.Serve(nil); err == nil {
			t.Error("a queue was served twice")
		}
		if err := errors.Join(q.Close(), q.Close(), q.Stop(), q.Drain()); err != nil {
			t.Error(err)
		}
	}
}

func TestQueueRepeatsAndHandsOn(t *testing.T) {
	var first, second atomic.Int32
	mustServe(t, QueueOptions{}, func(p *Packet) Verdict {
		if n := first.Add(1); n == 1 {
			return Verdict{Action: Repeat} // the same rule queues it again
		}
		return Verdict{Action: ToQueue, Queue: testQueue + 1}
	}, func(*Packet) Verdict {
		second.Add(1)
		return accepted()
	})
	s := mustSink(t, "127.0.0.1:0")
	mustWrite(t, mustDial(t, "udp", s.addr, markOf(0)), []byte("x"))
	if _, _, ok := s.next(t, 5*time.Second); !ok || first.Load() != 2 || second.Load() != 1 {
		t.Errorf("arrived %v, judged %d and %d times, want 2 and 1", ok, first.Load(), second.Load())
	}
}

// TestQueueSurvivesAPanic: the packet gets the verdict for what is broken, and what it
// had changed is not sent.
func TestQueueSurvivesAPanic(t *testing.T) {
	q := mustServe(t, QueueOptions{Broken: accepted()}, func(p *Packet) Verdict {
		if p.View.Parse() == nil && p.View.ReplacePayload(0, 1, []byte("y")) == nil {
			panic("on purpose")
		}
		return Verdict{}
	})[0]
	s := mustSink(t, "127.0.0.1:0")
	conn := mustDial(t, "udp", s.addr, markOf(0))
	for range 2 {
		mustWrite(t, conn, []byte("x"))
		if data, _, ok := s.next(t, 5*time.Second); !ok || string(data) != "x" {
			t.Errorf("arrived %q, %v", data, ok)
		}
	}
	if err := q.Drain(); err != nil {
		t.Fatal(err)
	}
	if c := q.Counters(); c.Panics != 2 || c.Accepted != 2 {
		t.Errorf("counted %+v", c)
	}
}

// behind counts the packets that meet conditions in the output hook, behind the queue.
func behind(tb testing.TB, conditions ...expr.Any) (count func() uint64) {
	tb.Helper()
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Name: "behind", Family: nftables.TableFamilyINet})
	priority := nftables.ChainPriority(100)
	chain := c.AddChain(&nftables.Chain{Name: "behind", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: &priority})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(conditions, &expr.Counter{})})
	if err := c.Flush(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			tb.Error(err)
		}
	})
	return func() (packets uint64) {
		rules, err := c.GetRules(table, chain)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if n, ok := e.(*expr.Counter); ok {
					packets += n.Packets
				}
			}
		}
		return packets
	}
}

func TestQueueSetsThePriority(t *testing.T) {
	mustServe(t, QueueOptions{}, func(*Packet) Verdict {
		v := accepted()
		v.SetPriority, v.Priority = true, 7
		return v
	})
	count := behind(t, &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{7, 0, 0, 0}})
	s := mustSink(t, "127.0.0.1:0")
	mustWrite(t, mustDial(t, "udp", s.addr, markOf(0)), []byte("x"))
	if _, _, ok := s.next(t, 5*time.Second); !ok || count() != 1 {
		t.Errorf("arrived %v, %d packets have the priority", ok, count())
	}
}

// TestQueueSetsTheConnectionsMark under its mask, where the packet has a conntrack entry.
func TestQueueSetsTheConnectionsMark(t *testing.T) {
	// A rule that asks for conntrack switches it on.
	var has atomic.Bool
	count := behind(t, &expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0x00, 0x12, 0, 0}})
	mustServe(t, QueueOptions{}, func(p *Packet) Verdict {
		v := accepted()
		attributes, _ := p.Conntrack()
		has.Store(attributes != nil)
		v.ConnMark, v.ConnMarkMask = 0xab12cd, 0x00ff00
		return v
	})
	s := mustSink(t, "127.0.0.1:0")
	mustWrite(t, mustDial(t, "udp", s.addr, markOf(0)), []byte("x"))
	_, _, ok := s.next(t, 5*time.Second)
	if ok && !has.Load() {
		testnet.SkipUnlessGuest(t, "conntrack entries beside queued packets")
	}
	if !ok || count() != 1 {
		t.Errorf("arrived %v, %d packets have the connection's mark", ok, count())
	}
}

// TestAttributesOfPacketAndVerdict: what the kernel may say about a packet, and what a
// verdict may set, as another library reads it.
func TestAttributesOfPacketAndVerdict(t *testing.T) {
	b := queued{id: 1, mark: 3, payload: tcpPacket(1, nil)}.attrs()
	b = append(b, attr(nfqaPhysInDev, be32(8))...)
	b = append(b, attr(nfqaPhysOutDev, be32(9))...)
	b = append(b, attr(nfqaHWAddr, []byte{0, 6, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0})...)
	b = append(b, attr(nfqaUID, be32(1000))...)
	b = append(b, attr(nfqaGID, be32(100))...)
	b = append(b, attr(nfqaSecCtx, []byte("context"))...)
	b = append(b, attr(nfqaL2Hdr, make([]byte, 18))...)
	b = append(b, attr(nfqaPriority, be32(6))...)
	b = append(b, attr(nfqaVLAN, append(attr(vlanProto, be16(0x8100)), attr(vlanTCI, be16(0x200a))...))...)
	b = append(b, attr(nfqaTimestamp, append(make([]byte, 7), 10, 0, 0, 0, 0, 0, 0, 0, 20))...)
	var p Packet
	if err := p.parse(append([]byte{0, 0, 0, 0}, b...)); err != nil {
		t.Fatal(err)
	}
	vlan, ok := p.VLAN()
	uid, gid, user := p.User()
	if p.PhysInDev() != 8 || p.PhysOutDev() != 9 || p.HWAddr().String() != "02:00:00:00:00:01" || uid != 1000 || gid != 100 || !user ||
		string(p.SecurityContext()) != "context" || len(p.LinkHeader()) != 18 || p.Priority() != 6 || !ok || vlan != (VLAN{0x8100, 0x200a}) ||
		!p.Timestamp().Equal(time.Unix(10, 20000)) || p.Protocol() != etherIPv4 {
		t.Errorf("read as %+v", p)
	}
	if err := p.parse(append([]byte{0, 0, 0, 0}, attr(nfqaHWAddr, []byte{0, 9, 0, 0, 1, 2, 3, 4})...)); err == nil {
		t.Error("a link address longer than its attribute is taken")
	}

	v := Verdict{ConnMark: 1, ConnMarkMask: 0xff, Labels: [16]byte{15: 1}, LabelsMask: [16]byte{15: 3}, Priority: 9, SetPriority: true, VLAN: &VLAN{0x88a8, 5}}
	more := v.attributes(nil)
	if len(more) > moreMax {
		t.Errorf("%d bytes of attributes, at most %d are reckoned with", len(more), moreMax)
	}
	all, err := netlink.UnmarshalAttributes(more)
	if err != nil || len(all) != 3 {
		t.Fatalf("%x: %v, %v", more, all, err)
	}
	ct, err := netlink.UnmarshalAttributes(all[0].Data)
	if err != nil || len(ct) != 4 || !bytes.Equal(ct[1].Data, be32(0xff)) || ct[2].Data[15] != 1 || ct[3].Data[15] != 3 {
		t.Errorf("conntrack: %v, %v", ct, err)
	}
	tag, err := netlink.UnmarshalAttributes(all[2].Data)
	if err != nil || len(tag) != 2 || !bytes.Equal(tag[0].Data, be16(0x88a8)) || !bytes.Equal(tag[1].Data, be16(5)) {
		t.Errorf("VLAN: %v, %v", tag, err)
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	r := &reads{judge: func(p *Packet) Verdict {
		if p.View.Parse() != nil {
			return Verdict{}
		}
		return Verdict{Action: Accept, Mark: 1, MarkMask: 1, ConnMark: 1, ConnMarkMask: 1}
	}}
	p := packet{proto: etherIPv4, payload: tcpPacket(1, []byte("hello"))}
	var counted tally
	if n := testing.AllocsPerRun(1000, func() { r.verdict(&p, &counted, false) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
