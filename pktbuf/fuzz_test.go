package pktbuf

import (
	"bytes"
	"net/netip"
	"testing"
)

// addSeeds adds one packet of every shape, and the annotated ones.
func addSeeds(f *testing.F, add func(family uint8, p []byte)) {
	f.Helper()
	for _, s := range specs() {
		s.payload = pattern(21, 0)
		p := build(s)
		add(uint8(family(p)), p)
	}
	add(uint8(Bridge), mustHex(f, frameHex))
	add(uint8(IPv6), mustHex(f, v6Hex))
	add(uint8(IPv4), build(spec{ver: 4, proto: ProtoICMP, l4: make([]byte, 8)}))
	quoted := build(specs()["TCP4 options"])
	add(uint8(IPv4), build(spec{ver: 4, proto: ProtoICMP, l4: []byte{11, 0, 0, 0, 0, 0, 0, 0}, payload: quoted}))
	add(uint8(IPv6), build(spec{ver: 6, proto: ProtoICMPv6, l4: []byte{3, 0, 0, 0, 0, 0, 0, 0}, payload: build(specs()["UDP6"])}))
}

// FuzzParse: no packet makes a parser panic, read beyond its memory, or write;
// both parsers agree; what is parsed lies where it should.
func FuzzParse(f *testing.F) {
	addSeeds(f, func(fam uint8, p []byte) { f.Add(fam, false, p) })
	f.Fuzz(func(t *testing.T, fam uint8, cut bool, p []byte) {
		was := bytes.Clone(p)
		p = p[:len(p):len(p)]
		if !cut {
			sameParse(t, "fuzz", Family(fam), p)
		}
		var v View
		if v.Init(Family(fam), p, nil) != nil {
			return
		}
		if cut {
			v.SetCut()
		}
		err := v.Parse()
		readAll(&v)
		if !bytes.Equal(p, was) {
			t.Fatal("reading has written")
		}
		if err != nil {
			return
		}
		if int(v.l3) > int(v.l4) || v.l4 > v.pay || int(v.pay) > v.payloadEnd() || v.payloadEnd() > int(v.end) || int(v.end) > len(p) {
			t.Fatalf("offsets out of order: %+v", v)
		}
		if cut {
			return
		}
		j := slowJudge(&v, p)
		if !j.lengths || j.header != v.CheckHeader() {
			t.Fatalf("lengths right: %v, header checksum right: %v", j.lengths, j.header)
		}
		state := map[Checksum]string{ChecksumUnknown: "unknown", ChecksumGood: "good", ChecksumBad: "bad", ChecksumNone: "none"}
		if got := state[v.CheckTransport()]; got != j.state {
			t.Fatalf("transport checksum %s, want %s", got, j.state)
		}
	})
}

// readAll calls every accessor.
func readAll(v *View) {
	if e := v.Ethernet(); e != nil {
		for i := range e.VLANs() {
			e.VLAN(i).ID()
		}
		e.EtherType()
	}
	if h := v.IPv4(); h != nil {
		h.Options().Valid()
		h.Options().Find(IPv4OptLooseRoute)
	}
	for i := range maxExtensions + 2 {
		v.Extension(i)
	}
	if tcp := v.TCP(); tcp != nil {
		tcp.MSS()
		tcp.WindowScale()
		tcp.SACKPermitted()
		tcp.SACK(3)
		tcp.Timestamps()
	}
	v.UDP()
	v.Fragment()
	v.Flow()
	v.CheckTransport()
	v.CheckHeader()
	v.AppendLog(nil)
	v.Transport()
	v.PayloadRest()
	v.Room()
	var q View
	if v.Quoted(&q) == nil {
		q.Flow()
		q.AppendLog(nil)
		q.Quoted(new(View))
	}
}

// guarded is a packet between bytes that must stay as they are.
type guarded struct {
	mem  []byte
	room []byte
	v    View
}

const guard = 0x5a

func newGuarded(fam Family, p []byte, behind, room int) (*guarded, error) {
	g := &guarded{
		mem:  bytes.Repeat([]byte{guard}, 32+len(p)+behind+32),
		room: bytes.Repeat([]byte{guard}, room+32),
	}
	copy(g.mem[32:], p)
	if err := g.v.Init(fam, g.mem[32:32+len(p):32+len(p)+behind], g.room[:room:room]); err != nil {
		return nil, err
	}
	return g, g.v.Parse()
}

// intact reports whether nothing outside the packet and its room was written.
func (g *guarded) intact() bool {
	fence := bytes.Repeat([]byte{guard}, 32)
	return bytes.HasPrefix(g.mem, fence) && bytes.HasSuffix(g.mem, fence) && bytes.HasSuffix(g.room, fence)
}

// FuzzMangle does a sequence of changes to a packet. Each one either fails and
// leaves every byte as it was, or leaves lengths right and checksums in the
// state that they had; never is a byte outside the packet and its room written.
func FuzzMangle(f *testing.F) {
	addSeeds(f, func(fam uint8, p []byte) {
		f.Add(fam, p, uint8(20), []byte("\x00\x03\x02abcdef\x05\x09\x07\x0a\x01\x02\x03\x0b\x01\x01"), false)
		f.Add(fam, p, uint8(200), []byte("\x01\x00\x00\x03\x01\x09\x0c\x00\x08\x06\x11\x22\x0a\x1e\x08\x09\x02\x00"), true)
	})
	f.Fuzz(func(t *testing.T, fam uint8, p []byte, behind uint8, script []byte, unfinished bool) {
		g, err := newGuarded(Family(fam), p, int(behind), len(p)+300)
		if err != nil {
			return
		}
		v := &g.v
		state := slowJudge(v, v.Bytes())
		if unfinished && v.checkHeaders() == nil {
			v.SetUnfinished()
		}
		for steps := 0; len(script) >= 3 && steps < 20; steps++ {
			op, a, b := script[0]%16, script[1], script[2] // the change and what it is given
			script = script[3:]
			rep := script[:min(len(script), int(b)%40)]
			before, flags := bytes.Clone(v.Bytes()), v.flags
			err := mangle(v, op, [2]byte{a, b}, bytes.Clone(rep))
			if !g.intact() {
				t.Fatalf("operation %d has written outside the packet and its room", op)
			}
			if err != nil {
				if !bytes.Equal(before, v.Bytes()) || flags != v.flags {
					t.Fatalf("operation %d failed with %v and has changed the packet", op, err)
				}
				continue
			}
			if !bytes.Equal(before, v.Bytes()) && !v.Changed() {
				t.Fatalf("operation %d has changed the packet and does not say so", op)
			}
			want := state
			if flags&flagUnfinished != 0 && v.flags&flagUnfinished == 0 {
				want.state = "good"
				state.state = "good"
			}
			if op == 13 {
				// Recompute makes right what was wrong.
				want.header = true
				if want.state == "bad" || want.state == "none" && v.IPv6() != nil {
					want.state = "good"
				}
				state = want
			}
			again := *v
			if err := again.Parse(); err != nil {
				t.Fatalf("after operation %d: %v", op, err)
			}
			if got := slowJudge(&again, v.Bytes()); got != want && v.flags&flagUnfinished == 0 {
				t.Fatalf("after operation %d: %+v, want %+v", op, got, want)
			}
		}
	})
}

// mangle does the change with a number.
func mangle(v *View, op byte, args [2]byte, rep []byte) error {
	a, b := args[0], args[1]
	addr := netip.AddrFrom4([4]byte{a, b, a, b})
	if v.Version() == 6 {
		addr = netip.AddrFrom16([16]byte{0x20, 1, a, b, 15: b})
	}
	switch op {
	case 0:
		return v.ReplacePayload(int(a), int(b)%16, rep)
	case 1:
		return v.Append(rep)
	case 2:
		return v.Trim(int(a))
	case 3:
		return v.SetSrc(addr)
	case 4:
		return v.SetDst(addr)
	case 5:
		return v.SetSrcPort(uint16(a)<<8 | uint16(b))
	case 6:
		return v.SetDstPort(uint16(a)<<8 | uint16(b))
	case 7:
		return v.SetTTL(a)
	case 8:
		return v.DecrementTTL()
	case 9:
		return v.SetDSCP(a)
	case 10:
		return v.AddTCPOption(a, rep)
	case 11:
		return v.StripTCPOption(a)
	case 12:
		return v.ClampMSS(uint16(a)<<8 | uint16(b))
	case 13:
		return v.Recompute()
	case 14:
		return v.SetECN(a)
	}
	return v.Complete()
}
