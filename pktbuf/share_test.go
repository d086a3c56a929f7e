package pktbuf

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// holder is a view and the plain model of it: a view over a copy of its own,
// with room for everything, to which the same is done.
type holder struct {
	view  *View
	model *View
}

func newHolder(tb testing.TB, p []byte) *holder {
	tb.Helper()
	h := &holder{view: mustView(tb, family(p), p, 40), model: mustView(tb, family(p), p, 2000)}
	h.view.Init(family(p), h.view.pkt, make([]byte, len(p)+80))
	if err := h.view.Parse(); err != nil {
		tb.Fatal(err)
	}
	return h
}

// clone clones the view, and copies the model.
func (h *holder) clone(tb testing.TB, head []byte) *holder {
	tb.Helper()
	c := &holder{view: new(View), model: new(View)}
	if err := h.view.Clone(c.view, head); err != nil {
		tb.Fatalf("cloning: %v", err)
	}
	*c.model = *h.model
	c.model.pkt = append(make([]byte, 0, len(h.model.pkt)+2000), h.model.pkt...)
	return c
}

// act does a random change to a holder. The model must follow where the view
// allowed it; where it did not, the view must be as it was.
func (h *holder) act(tb testing.TB, rnd *rand.Rand) {
	tb.Helper()
	var do func(*View) error
	n := h.model.PayloadLen()
	switch rnd.IntN(9) {
	case 0:
		ttl := uint8(rnd.IntN(256))
		do = func(v *View) error { return v.SetTTL(ttl) }
	case 1:
		port := uint16(rnd.IntN(1 << 16))
		do = func(v *View) error { return v.SetDstPort(port) }
	case 2:
		addr := other4
		if h.model.Version() == 6 {
			addr = other6
		}
		do = func(v *View) error { return v.SetSrc(addr) }
	case 3, 4:
		off := rnd.IntN(n + 1)
		m := rnd.IntN(min(20, n-off) + 1)
		rep := pattern(m, rnd.IntN(99)) // in place
		do = func(v *View) error { return v.ReplacePayload(off, m, rep) }
	case 5:
		off := rnd.IntN(n + 1)
		m := rnd.IntN(min(20, n-off) + 1)
		rep := pattern(rnd.IntN(25), rnd.IntN(99))
		do = func(v *View) error { return v.ReplacePayload(off, m, rep) }
	case 6:
		m := rnd.IntN(n + 1)
		do = func(v *View) error { return v.Trim(m) }
	case 7:
		grow := pattern(rnd.IntN(15), 3)
		do = func(v *View) error { return v.Append(grow) }
	case 8:
		at := rnd.IntN(h.model.Len())
		do = func(v *View) error {
			b, err := v.Writable(at + 1)
			if err == nil && at >= v.HeaderLen() {
				b[at] ^= 0x55
			}
			return err
		}
	}
	before := *h.view
	if err := do(h.view); err == nil {
		if err := do(h.model); err != nil {
			tb.Fatalf("the model refuses what the view allowed: %v", err)
		}
	} else if before.flags != h.view.flags || before.Len() != h.view.Len() {
		tb.Fatalf("refused with %v, and yet changed", err)
	}
}

// TestShared runs random sequences of clone, write, grow and shrink over many
// holders of one packet against models that copy everything. After each step
// every holder must show exactly what its model shows.
func TestShared(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		runShared(t, rnd, 60)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runShared(tb testing.TB, rnd *rand.Rand, steps int) {
	tb.Helper()
	names := []string{"TCP4", "UDP4", "TCP4 options", "UDP6", "TCP6 segments", "ICMP6", "GRE4"}
	s := specs()[names[rnd.IntN(len(names))]]
	// Often no payload at all: then all of the packet is headers, and a holder
	// with its own may grow.
	s.payload = pattern(max(0, rnd.IntN(160)-40), 1)
	p := build(s)
	if rnd.IntN(3) == 0 && s.ver == 4 {
		p = append(p, pattern(rnd.IntN(9), 7)...) // padding
	}
	holders := []*holder{newHolder(tb, p)}
	for step := range steps {
		h := holders[rnd.IntN(len(holders))]
		switch what := rnd.IntN(10); {
		case what == 0 && len(holders) < 8:
			holders = append(holders, h.clone(tb, nil))
		case what == 1 && len(holders) < 8:
			holders = append(holders, h.clone(tb, make([]byte, h.view.Len()+rnd.IntN(20))))
		case what <= 3:
			makeWritable(tb, h.view, rnd)
		default:
			h.act(tb, rnd)
		}
		for i, h := range holders {
			if got, want := flat(h.view), flat(h.model); !bytes.Equal(got, want) {
				tb.Fatalf("step %d: holder %d shows\n%x, its model\n%x", step, i, got, want)
			}
			if h.view.PayloadLen() != h.model.PayloadLen() || h.view.end != h.model.end {
				tb.Fatalf("step %d: holder %d has a payload of %d, its model of %d", step, i, h.view.PayloadLen(), h.model.PayloadLen())
			}
			payload := append(append([]byte(nil), h.view.Payload()...), h.view.PayloadRest()...)
			if !bytes.Equal(payload, h.model.Payload()) {
				tb.Fatalf("step %d: holder %d has payload\n%x, its model\n%x", step, i, payload, h.model.Payload())
			}
			if w := h.view.WritableLen(); w < 0 || w > h.view.Len() {
				tb.Fatalf("step %d: holder %d: %d of %d bytes are writable", step, i, w, h.view.Len())
			}
		}
	}
}

// makeWritable makes a random part writable, and checks that it is then, that
// nothing was copied without need, and nothing beyond the memory given.
func makeWritable(tb testing.TB, v *View, rnd *rand.Rand) {
	tb.Helper()
	n := rnd.IntN(v.Len() + 1)
	had := v.WritableLen()
	mem := make([]byte, rnd.IntN(v.Len()+30))
	for i := range mem {
		mem[i] = 0xa5
	}
	switch err := v.MakeWritable(n, mem); {
	case err == ErrNoRoom:
		if had != v.WritableLen() || len(mem) >= v.Len() {
			tb.Fatalf("no room in %d bytes for %d of %d", len(mem), n, v.Len())
		}
	case err != nil:
		tb.Fatal(err)
	case n <= had:
		if !bytes.Equal(mem, bytes.Repeat([]byte{0xa5}, len(mem))) {
			tb.Fatalf("copied %d bytes of which %d were writable", n, had)
		}
	default:
		if v.WritableLen() < n {
			tb.Fatalf("%d bytes are writable, want %d", v.WritableLen(), n)
		}
		if rest := mem[v.WritableLen():]; !bytes.Equal(rest, bytes.Repeat([]byte{0xa5}, len(rest))) {
			tb.Fatalf("copied more than %d bytes", v.WritableLen())
		}
	}
}

// FuzzShared is TestShared from other seeds.
func FuzzShared(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		runShared(t, rand.New(rand.NewPCG(a, b)), 40)
	})
}

// TestHeadersInPlace: a holder with its own headers rewrites them although the
// payload is shared, and copies no byte of it.
func TestHeadersInPlace(t *testing.T) {
	s := spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(), payload: pattern(1400, 0)}
	p := build(s)
	v := mustView(t, IPv4, p, 0)
	var c, cc View
	if err := v.Clone(&c, make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	if err := c.Clone(&cc, make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	for i, h := range []*View{v, &c, &cc} {
		if h.WritableLen() != 40 || h.Changed() {
			t.Errorf("holder %d: %d bytes are writable, changed: %v", i, h.WritableLen(), h.Changed())
		}
		if err := h.MakeWritable(40, nil); err != nil {
			t.Errorf("holder %d: headers need a copy: %v", i, err)
		}
		if err := h.MakeWritable(41, nil); err != ErrNoRoom {
			t.Errorf("holder %d: payload is writable: %v", i, err)
		}
		if err := h.SetTTL(uint8(10 + i)); err != nil {
			t.Error(err)
		}
		mustBeRight(t, h, "good")
	}
	for i, h := range []*View{v, &c, &cc} {
		if h.TTL() != uint8(10+i) {
			t.Errorf("holder %d: TTL %d", i, h.TTL())
		}
	}
	rest := cc.PayloadRest()
	if len(rest) != 1400 || &rest[0] != &v.Bytes()[40] {
		t.Error("the payload was copied")
	}
	if err := v.Clone(&c, make([]byte, 39)); err != ErrNoRoom {
		t.Errorf("cloning into too little memory: %v", err)
	}
}

// TestSharedGrowth: what lies behind a shared packet is nobody's to grow into.
func TestSharedGrowth(t *testing.T) {
	var v, c View
	v.Init(IPv4, make([]byte, 0, 10), make([]byte, 10))
	if err := v.Clone(&c, nil); err != nil {
		t.Fatal(err)
	}
	if err := v.Replace(0, 0, []byte("ours")); err != nil {
		t.Fatal(err)
	}
	if err := c.Replace(0, 0, []byte("theirs")); err != ErrNoRoom {
		t.Errorf("a clone grows into memory of the other: %v", err)
	}
	// All headers: the clone may grow in its own memory only.
	v = *mustView(t, IPv4, build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader()}), 0)
	v.Init(IPv4, v.pkt, make([]byte, 100))
	if err := v.Parse(); err != nil {
		t.Fatal(err)
	}
	if err := v.Clone(&c, make([]byte, 30)); err != nil {
		t.Fatal(err)
	}
	if err := c.Append([]byte("abc")); err != ErrNoRoom {
		t.Errorf("a clone grows into the other's room: %v", err)
	}
	if err := c.Append([]byte("ab")); err != nil || c.WritableLen() != c.Len() {
		t.Errorf("a clone in its own memory: %v, %d of %d bytes writable", err, c.WritableLen(), c.Len())
	}
	mustBeRight(t, &c, "good")
}

func TestMakeWritableRange(t *testing.T) {
	v := mustView(t, IPv4, build(specs()["UDP4"]), 0)
	for _, n := range []int{-1, v.Len() + 1} {
		if err := v.MakeWritable(n, make([]byte, 2000)); err != ErrRange {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// What cannot be parsed is copied whole.
	odd := View{pkt: []byte{1, 2, 3, 4}, family: IPv4}
	var c View
	if err := odd.Clone(&c, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.MakeWritable(1, make([]byte, 3)); err != ErrNoRoom {
		t.Errorf("into too little: %v", err)
	}
	if err := c.MakeWritable(1, make([]byte, 4)); err != nil || c.WritableLen() != 4 {
		t.Errorf("%v, %d bytes are writable", err, c.WritableLen())
	}
	if b, err := c.Writable(4); err != nil || &b[0] == &odd.pkt[0] {
		t.Errorf("not copied: %v", err)
	}
}

// TestRoom: capacity behind the packet is used first, then the buffer given for
// it, and nothing else is ever written.
func TestRoom(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(20, 0)})
	mem := append(append([]byte(nil), p...), bytes.Repeat([]byte{0xee}, 20)...)
	room := bytes.Repeat([]byte{0xdd}, len(p)+30)
	var v View
	if err := v.Init(IPv4, mem[:len(p):len(p)+10], room); err != nil {
		t.Fatal(err)
	}
	if err := v.Parse(); err != nil {
		t.Fatal(err)
	}
	if v.Room() != 30 {
		t.Errorf("room for %d bytes, want 30", v.Room())
	}
	if err := v.Append(pattern(10, 1)); err != nil || &v.Bytes()[0] != &mem[0] {
		t.Errorf("into the capacity: %v", err)
	}
	if !bytes.Equal(mem[len(p)+10:], bytes.Repeat([]byte{0xee}, 10)) {
		t.Errorf("written behind the capacity: %x", mem)
	}
	if err := v.Append(pattern(21, 1)); err != ErrNoRoom {
		t.Errorf("more than there is room: %v", err)
	}
	if err := v.Append(pattern(20, 1)); err != nil || &v.Bytes()[0] != &room[0] || v.Room() != 0 {
		t.Errorf("into the buffer: %v, %d bytes of room left", err, v.Room())
	}
	mustBeRight(t, &v, "good")
	if v.Clone(new(View), nil); v.Room() != 0 {
		t.Errorf("a shared packet has room for %d bytes", v.Room())
	}
}

func TestInitCopy(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(20, 0)})
	mem := make([]byte, len(p)+5)
	v := *mustView(t, IPv4, p, 9) // used before
	v.SetUnfinished()
	if err := v.InitCopy(0, p, mem); err != ErrProto {
		t.Errorf("without a family: %v", err)
	}
	if err := v.InitCopy(IPv4, p, mem[:len(p)-1]); err != ErrNoRoom {
		t.Errorf("into too little memory: %v", err)
	}
	if err := v.InitCopy(IPv4, p, mem); err != nil {
		t.Fatal(err)
	}
	if err := v.Parse(); err != nil || v.Unfinished() || v.Room() != 5 {
		t.Errorf("%v, unfinished: %v, room for %d", err, v.Unfinished(), v.Room())
	}
	was := bytes.Clone(p)
	if err := v.Append([]byte("12345")); err != nil || !bytes.Equal(p, was) || &v.Bytes()[0] != &mem[0] {
		t.Errorf("%v: %x", err, v.Bytes())
	}
	mustBeRight(t, &v, "good")
}

func TestMove(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(20, 0)})
	v := mustView(t, IPv4, p, 0)
	var c View
	if err := v.Clone(&c, make([]byte, 28)); err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 100)
	for _, bad := range []struct{ size, head int }{{47, 0}, {60, 13}, {60, -1}, {10, 20}} {
		if err := c.Move(mem[:bad.size], bad.head); err != ErrNoRoom {
			t.Errorf("into %d bytes behind %d: %v", bad.size, bad.head, err)
		}
	}
	if err := c.Move(mem, 36); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.Bytes(), p) || c.WritableLen() != 48 || c.Headroom() != 36 || c.Room() != 16 {
		t.Errorf("%x: %d writable, %d in front, %d behind", c.Bytes(), c.WritableLen(), c.Headroom(), c.Room())
	}
	if err := c.Append(pattern(16, 0)); err != nil {
		t.Error(err)
	}
	mustBeRight(t, &c, "good")
	if !bytes.Equal(flat(v), p) {
		t.Error("the other holder has changed")
	}
}

// TestFrame lays a message around the packet where it was received.
func TestFrameAround(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoUDP, l4: udpHeader(), payload: pattern(20, 0)})
	buf := append(bytes.Repeat([]byte{0xcc}, 50), p...)
	buf = append(buf, make([]byte, 30)...)
	v := View{}
	v.Init(IPv4, buf[50:50+len(p)], nil)
	if err := v.Parse(); err != nil {
		t.Fatal(err)
	}
	for name, front := range map[string][]byte{"a gap": buf[:49], "elsewhere": make([]byte, 10, 20), "no more memory": make([]byte, 10), "nothing": nil} {
		if err := v.Reserve(front); err != ErrRange || v.Headroom() != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := v.Frame(1); err != ErrNoRoom {
		t.Errorf("without headroom: %v", err)
	}
	if err := v.Reserve(buf[14:50]); err != nil || v.Headroom() != 36 {
		t.Fatal(err)
	}
	if err := v.ReplacePayload(0, 20, pattern(41, 1)); err != nil {
		t.Fatal(err)
	}
	msg, err := v.Frame(36)
	if err != nil || &msg[0] != &buf[14] || len(msg) != 36+v.Len() {
		t.Fatalf("%v, %d bytes", err, len(msg))
	}
	copy(msg, bytes.Repeat([]byte{0x11}, 36))
	if !bytes.Equal(buf[:14], bytes.Repeat([]byte{0xcc}, 14)) || !bytes.Equal(msg[36:], v.Bytes()) {
		t.Error("the message is not around the packet")
	}
	mustBeRight(t, &v, "good")
	for _, n := range []int{-1, 37} {
		if _, err := v.Frame(n); err != ErrNoRoom {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// Memory in front that ends with the packet cannot show it once it has grown.
	short := View{}
	short.Init(IPv4, buf[50:50+len(p)], nil)
	if err := short.Reserve(buf[14:50:60]); err != nil {
		t.Fatal(err)
	}
	if _, err := short.Frame(36); err != ErrNoRoom {
		t.Errorf("beyond the capacity: %v", err)
	}
}

// TestPieces gives a changed packet to an iovec without a copy.
func TestPieces(t *testing.T) {
	p := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(), payload: pattern(1000, 0)})
	v := mustView(t, IPv4, p, 0)
	var c View
	if err := v.Clone(&c, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	header := []byte("message header")
	pieces := c.AppendPieces(nil, header)
	if len(pieces) != 3 || &pieces[0][0] != &header[0] || len(pieces[1]) != 40 || &pieces[2][0] != &v.Bytes()[40] {
		t.Errorf("%d pieces", len(pieces))
	}
	if pieces := v.AppendPieces(nil, nil); len(pieces) != 1 || &pieces[0][0] != &v.Bytes()[0] {
		t.Errorf("whole packet: %d pieces", len(pieces))
	}
	if _, err := c.Frame(0); err != ErrNoRoom {
		t.Errorf("a packet in two pieces as one: %v", err)
	}
}
