package userspace

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

// initial is an Initial packet as a client makes it.
type initial struct {
	version  uint32
	keys     string // the connection id that the keys are made of, "" for dcid
	dcid     string
	scid     string
	token    string
	number   uint32
	numLen   int // 1 to 4
	frames   []byte
	otherTyp int // 1 to 3: another type of long header
}

func varint(n int) []byte {
	switch {
	case n < 1<<6:
		return []byte{byte(n)}
	case n < 1<<14:
		return binary.BigEndian.AppendUint16(nil, uint16(n)|0x4000)
	}
	return binary.BigEndian.AppendUint32(nil, uint32(n)|0x80000000)
}

// cryptoFrame carries bytes of the handshake at an offset.
func cryptoFrame(at int, b []byte) []byte {
	return slices.Concat([]byte{6}, varint(at), varint(len(b)), b)
}

func padding(n int) []byte { return make([]byte, n) }

// seal makes the packet with the functions that a client uses, and not with
// those under test, but for the keys.
func (p initial) seal(tb testing.TB) []byte {
	tb.Helper()
	var peer quicPeer
	id := p.keys
	if id == "" {
		id = p.dcid
	}
	if p.numLen == 0 {
		p.numLen = 1
	}
	peer.version, peer.idLen = p.version, uint8(copy(peer.id[:], id))
	var k quicKeys
	if err := k.derive(&peer); err != nil {
		tb.Fatal(err)
	}
	if n := 4 - p.numLen - len(p.frames); n > 0 {
		p.frames = append(padding(n), p.frames...)
	}
	typ := p.otherTyp
	if p.version == quicVersion2 {
		typ = (typ + 1) % 4
	}
	b := []byte{0xc0 | byte(typ)<<4 | byte(p.numLen-1)}
	b = binary.BigEndian.AppendUint32(b, p.version)
	b = append(append(b, byte(len(p.dcid))), p.dcid...)
	b = append(append(b, byte(len(p.scid))), p.scid...)
	if p.otherTyp == quicInitial {
		b = append(append(b, varint(len(p.token))...), p.token...)
	}
	b = append(b, varint(p.numLen+len(p.frames)+16)...)
	at := len(b)
	b = append(b, binary.BigEndian.AppendUint32(nil, p.number)[4-p.numLen:]...)
	nonce := k.iv
	for i := range 4 {
		nonce[8+i] ^= binary.BigEndian.AppendUint32(nil, p.number)[i]
	}
	b = k.aead.Seal(b, nonce[:], p.frames, b)
	mask := make([]byte, aes.BlockSize)
	k.header.Encrypt(mask, b[at+4:at+20])
	b[0] ^= mask[0] & 0x0f
	for i := range p.numLen {
		b[at+i] ^= mask[1+i]
	}
	return b
}

// quicHello is the CRYPTO stream of a client that asks for a name.
func quicHello(name string, n int) []byte {
	rest := n - len(helloBody(sni(name)))
	return handshake(tlsClientHello, helloBody(extension(0x0a0a, make([]byte, max(rest-4, 0))), sni(name)))
}

// quicRule asks for names over UDP.
const quicRule = `  - name: quic
    from: lan
    proto: [tcp, udp]
    dport: 443
    action: inspect
    until: { packets: 6 }
    steps:
      - { sni: "*.bad.example", action: drop }
      - { action: accept }
`

func (w *tester) datagram(tb testing.TB, b []byte) bool {
	tb.Helper()
	return w.judged(tb, 0, ipPacket(clientAddr, serverAddr, nil, b))
}

// TestKeysOfTheStandards: appendix A of RFC 9001 and of RFC 9369.
func TestKeysOfTheStandards(t *testing.T) {
	id, _ := hex.DecodeString("8394c8f03e515708")
	for version, want := range map[uint32][3]string{
		quicVersion1: {"1f369613dd76d5467730efcbe3b1a22d", "fa044b2f42a3fd3b46fb255c", "9f50449e04a0e810283a1e9933adedd2"},
		quicVersion2: {"8b1a0bc121284290a29e0971b5cd045d", "91f73e2351d8fa91660e909f", "45b95e15235d6f45a6b19cbcb0294ba9"},
	} {
		var k quicKeys
		peer := quicPeer{version: version, idLen: 8}
		copy(peer.id[:], id)
		if err := k.derive(&peer); err != nil {
			t.Fatal(err)
		}
		key, _ := hex.DecodeString(want[0])
		hp, _ := hex.DecodeString(want[2])
		block, _ := aes.NewCipher(key)
		aead, _ := cipher.NewGCM(block)
		header, _ := aes.NewCipher(hp)
		var a, b [16]byte
		header.Encrypt(a[:], key)
		k.header.Encrypt(b[:], key)
		if a != b {
			t.Errorf("version %#x: another key for headers", version)
		}
		if hex.EncodeToString(k.iv[:]) != want[1] {
			t.Errorf("version %#x: iv %x", version, k.iv)
		}
		if !bytes.Equal(aead.Seal(nil, k.iv[:], id, nil), k.aead.Seal(nil, k.iv[:], id, nil)) {
			t.Errorf("version %#x: another key", version)
		}
	}
}

func TestNameInQUIC(t *testing.T) {
	small, big := quicHello("a.bad.example", 300), quicHello("a.bad.example", 1750)
	one := initial{version: quicVersion1, dcid: "original", scid: "client"}
	with := func(p initial, frames ...[]byte) initial {
		p.frames = slices.Concat(frames...)
		return p
	}
	v2, draft, none := one, one, one
	v2.version, draft.version = quicVersion2, 0xff00001d
	none.scid, none.numLen, none.number = "", 4, 70000
	fb := one
	fb.version = 0xfaceb002
	token := one
	token.token = string(make([]byte, 70))
	later, changed := one, one
	later.number, later.numLen = 1, 2
	// After the server's first packet the client uses the id that the server
	// chose, and the keys stay.
	changed.keys, changed.dcid, changed.number = "original", "chosen by server", 1
	retried := one
	retried.dcid, retried.token, retried.number = "from the retry", "token", 1
	early := initial{version: quicVersion1, dcid: "original", scid: "client", otherTyp: quic0RTT, frames: padding(100)}
	early2 := early
	early2.version = quicVersion2
	ack := []byte{2, 5, 0, 1, 0, 2, 3}
	ping := []byte{1}
	for name, datagrams := range map[string][][]byte{
		"one packet":         {with(one, cryptoFrame(0, small), padding(800)).seal(t)},
		"version 2":          {with(v2, cryptoFrame(0, small), padding(800)).seal(t)},
		"draft 29":           {with(draft, cryptoFrame(0, small), padding(800)).seal(t)},
		"another's version":  {with(fb, cryptoFrame(0, small), padding(800)).seal(t)},
		"token":              {with(token, cryptoFrame(0, small), padding(800)).seal(t)},
		"no source id":       {with(none, cryptoFrame(0, small)).seal(t)},
		"padding, ack first": {with(one, padding(99), ack, ping, cryptoFrame(0, small)).seal(t)},
		"shuffled frames": {with(one, cryptoFrame(200, small[200:]), ping, cryptoFrame(0, small[:100]), padding(9),
			cryptoFrame(100, small[100:200])).seal(t)},
		"twice and overlapping": {with(one, cryptoFrame(0, small[:200]), cryptoFrame(0, small[:200]), cryptoFrame(150, small[150:])).seal(t)},
		"two datagrams": {with(one, cryptoFrame(0, big[:1170])).seal(t),
			with(later, cryptoFrame(1170, big[1170:1300]), ping, cryptoFrame(1500, big[1500:]), padding(30), cryptoFrame(1300, big[1300:1500])).seal(t)},
		"two datagrams, swapped": {with(later, cryptoFrame(1170, big[1170:])).seal(t), with(one, cryptoFrame(0, big[:1170])).seal(t)},
		"coalesced":              {slices.Concat(with(one, cryptoFrame(0, big[:900])).seal(t), with(later, cryptoFrame(900, big[900:])).seal(t))},
		"coalesced with 0-rtt":   {slices.Concat(early.seal(t), with(one, cryptoFrame(0, small)).seal(t))},
		"0-rtt first":            {early.seal(t), with(one, cryptoFrame(0, small)).seal(t)},
		"0-rtt in version 2":     {early2.seal(t), with(v2, cryptoFrame(0, small)).seal(t)},
		"changed id":             {with(one, cryptoFrame(0, big[:1100])).seal(t), with(changed, cryptoFrame(1100, big[1100:])).seal(t)},
		"after a retry":          {with(one, cryptoFrame(0, big[:1100])).seal(t), slices.Concat(with(retried, cryptoFrame(0, big[:1000])).seal(t), with(retried, cryptoFrame(1000, big[1000:])).seal(t))},
		"other version first":    {with(one, cryptoFrame(0, big[:1100])).seal(t), with(v2, cryptoFrame(0, big)).seal(t)},
		"junk in between":        {with(one, cryptoFrame(0, big[:1100])).seal(t), []byte("no QUIC at all"), early.seal(t), with(later, cryptoFrame(1100, big[1100:])).seal(t)},
		"junk in front":          {[]byte("x"), {0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 0, 0, 0}, with(one, cryptoFrame(0, small)).seal(t)},
		"trailing bytes":         {append(with(one, cryptoFrame(0, small)).seal(t), 1, 2, 3)},
	} {
		w := newTester(t, "", quicRule)
		for i, d := range datagrams {
			copied := bytes.Clone(d)
			last := i == len(datagrams)-1
			if passed := w.datagram(t, d); passed == last {
				t.Errorf("%s: datagram %d of %d passed: %v", name, i+1, len(datagrams), passed)
			}
			if !bytes.Equal(d, copied) {
				t.Errorf("%s: the datagram was written to", name)
			}
		}
		if len(w.sightings) != 1 || w.sightings[0].Name != "a.bad.example" || w.sightings[0].Kind != "quic" || w.sightings[0].Queued != len(datagrams) {
			t.Errorf("%s: sightings %+v", name, w.sightings)
		}
		if len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionDrop || w.decisions[0].Reason != ReasonStep {
			t.Errorf("%s: decisions %+v", name, w.decisions)
		}
		if s := w.judge.flows.streams; s.unused != len(s.chunks) {
			t.Errorf("%s: %d chunks are not given back", name, len(s.chunks)-s.unused)
		}
	}
}

// TestQUICOutcomes are datagrams without a name.
func TestQUICOutcomes(t *testing.T) {
	hello := quicHello("good.example", 300)
	one := initial{version: quicVersion1, dcid: "original", scid: "client"}
	with := func(frames ...[]byte) []byte {
		p := one
		p.frames = slices.Concat(frames...)
		return p.seal(t)
	}
	flipped := with(cryptoFrame(0, hello))
	flipped[len(flipped)-1] ^= 1
	long := with(cryptoFrame(0, hello))
	long[5] = 21
	changed := bytes.Clone(hello)
	changed[20]++
	notHello := bytes.Clone(hello)
	notHello[0] = 2
	for name, c := range map[string]struct {
		datagram []byte
		reason   Reason
	}{
		"good":                 {with(cryptoFrame(0, hello)), ReasonStep},
		"flipped bit":          {flipped, ReasonMalformed},
		"long connection id":   {long, ReasonMalformed},
		"cut":                  {with(cryptoFrame(0, hello))[:200], ReasonMalformed},
		"conflicting frames":   {with(cryptoFrame(100, hello[100:]), cryptoFrame(0, changed[:150]), cryptoFrame(10, hello[10:])), ReasonMalformed},
		"frame not allowed":    {with([]byte{8, 0}, cryptoFrame(0, hello)), ReasonMalformed},
		"frame beyond the end": {with([]byte{6, 0, 0x41, 0}), ReasonMalformed},
		"no hello":             {with(cryptoFrame(0, notHello)), ReasonMalformed},
		"half a hello":         {with(cryptoFrame(0, hello[:100])), ReasonMore},
		"pings":                {with([]byte{1, 1, 1}), ReasonMore},
		"far behind":           {with(cryptoFrame(1<<20, hello)), ReasonMore},
		"unknown version":      {append([]byte{0xc0, 0x1a, 0x2a, 0x3a, 0x4a}, make([]byte, 1195)...), ReasonMore},
		"short header":         {append([]byte{0x40}, make([]byte, 40)...), ReasonMore},
	} {
		for _, setting := range []string{"malformed: drop", "malformed: accept"} {
			w := newTester(t, setting, quicRule)
			passed := w.datagram(t, c.datagram)
			if want := c.reason != ReasonMalformed || setting == "malformed: accept"; passed != want {
				t.Errorf("%s, %s: passed %v", name, setting, passed)
			}
			if w.tally.own[countReason+int(c.reason)-1] != 1 {
				t.Errorf("%s: %+v, want reason %v", name, w.tally.snapshot(), c.reason)
			}
		}
	}
}

// TestNoQUICIsDecidedWhenTheBudgetIsSpent: what is not QUIC at all meets the
// steps without a name, but not at once.
func TestNoQUICIsDecidedWhenTheBudgetIsSpent(t *testing.T) {
	w := newTester(t, "undecided: drop", quicRule)
	for i := range 6 {
		if !w.datagram(t, []byte("a game")) || len(w.decisions) != i/5 {
			t.Errorf("datagram %d: %+v", i, w.decisions)
		}
	}
	if len(w.decisions) != 1 || w.decisions[0].Reason != ReasonStep || w.decisions[0].Action != policy.ActionAccept {
		t.Errorf("%+v", w.decisions)
	}
	// Half a hello is another matter.
	w = newTester(t, "undecided: drop", quicRule)
	p := initial{version: quicVersion1, dcid: "original", frames: cryptoFrame(0, quicHello("good.example", 300)[:50])}
	for i := range 6 {
		if passed := w.datagram(t, p.seal(t)); passed != (i < 5) {
			t.Errorf("datagram %d passed: %v", i, passed)
		}
	}
	if len(w.decisions) != 1 || w.decisions[0].Reason != ReasonUndecided {
		t.Errorf("%+v", w.decisions)
	}
}

// TestCryptoStreamCutAnew cuts a hello into frames of random size, in random
// order, over random packets.
func TestCryptoStreamCutAnew(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	w := newTester(t, "", quicRule)
	w.judge.policy.Rules[0].Until.Packets = 1000
	for round := range 300 {
		hello := quicHello("a.bad.example", 300+r.IntN(2000))
		port := uint16(2000 + round)
		w.decisions, w.sightings = nil, nil
		var frames []byte
		send := func(number int) {
			p := initial{version: quicVersion1, dcid: "original", number: uint32(number), numLen: 1 + number%4, frames: frames}
			w.judged(t, 0, ipPacket(netip.AddrPortFrom(clientAddr.Addr(), port), serverAddr, nil, p.seal(t)))
			frames = nil
		}
		for i, c := range pieces(r, len(hello), 1+r.IntN(20)) {
			frames = slices.Concat(frames, padding(r.IntN(5)), cryptoFrame(c[0], hello[c[0]:c[1]]))
			if r.IntN(3) == 0 {
				send(i)
			}
		}
		send(100)
		if len(w.sightings) != 1 || w.sightings[0].Name != "a.bad.example" || w.decisions[0].Action != policy.ActionDrop {
			t.Fatalf("round %d: %+v %+v", round, w.sightings, w.decisions)
		}
	}
}

func FuzzQUIC(f *testing.F) {
	p := initial{version: quicVersion1, dcid: "original", frames: cryptoFrame(0, quicHello("a.example", 300))}
	f.Add(p.seal(f), true)
	f.Add(p.frames, false)
	p.version = quicVersion2
	f.Add(p.seal(f), true)
	var w *offline
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if w == nil {
			w = newOffline(t, Options{Policy: mustPolicy(t, "", quicRule), Flows: 64, StreamMemory: streamMax})
		}
		if !whole {
			if len(b) > 1<<14 {
				return
			}
			b = initial{version: quicVersion1, dcid: "original", frames: b}.seal(t)
		}
		if len(b) > 60000 {
			return
		}
		copied := bytes.Clone(b)
		q := packet{proto: etherIPv4, mark: uint32(markOf(0)), payload: ipPacket(clientAddr, serverAddr, nil, b)}
		w.judge.now += flowLinger + 2
		w.judge.empty = w.judge.now - 1
		w.judge.verdict(&q, false)
		if !bytes.Equal(b, copied) || w.tally.own[countPanics] != 0 {
			t.Fatal("a panic, or the input was written to")
		}
		key := pktbuf.FlowOf(clientAddr, serverAddr, pktbuf.ProtoUDP)
		if found := w.judge.flows.find(&key); found != nil {
			w.judge.flows.remove(found)
		}
		if s := w.judge.flows.streams; s.unused != len(s.chunks) {
			t.Fatalf("%d chunks are lost", len(s.chunks)-s.unused)
		}
	})
}
