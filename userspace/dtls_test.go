package userspace

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// dtlsBody is a ClientHello's body with a cookie.
func dtlsBody(cookie []byte, extensions ...[]byte) []byte {
	b := append([]byte{0xfe, 0xfd}, make([]byte, 32)...)
	b = append(b, 0)
	b = append(append(b, byte(len(cookie))), cookie...)
	b = append(b, 0, 2, 0x13, 0x01, 1, 0)
	return append(b, vec16(extensions...)...)
}

// dtlsRecord is a record with the fragment [from:to] of a ClientHello.
func dtlsRecord(sequence uint16, body []byte, from, to int) []byte {
	b := []byte{tlsHandshake, 0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, byte(sequence)}
	b = binary.BigEndian.AppendUint16(b, uint16(dtlsMessageHeader+to-from))
	b = binary.BigEndian.AppendUint32(b, tlsClientHello<<24|uint32(len(body)))
	b = binary.BigEndian.AppendUint16(b, sequence)
	for _, n := range []int{from, to - from} {
		b = append(b, byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, body[from:to]...)
}

func TestDTLS(t *testing.T) {
	bad := dtlsBody(nil, extension(0x0a0a, make([]byte, 1500)), sni("www.bad.example"))
	again := dtlsBody(bytes.Repeat([]byte{7}, 20), extension(0x0a0a, make([]byte, 1500)), sni("www.bad.example"))
	plain := dtlsBody([]byte("cookie"), sni("A.Bad.example."))
	n := len(bad)
	twice := func(b []byte) [][]byte { return [][]byte{b, b} }
	for name, c := range map[string]struct {
		datagrams [][]byte
		reason    Reason // of the drop at the end, 0 where it is not decided
		name      string
	}{
		"whole":               {[][]byte{dtlsRecord(0, plain, 0, len(plain))}, ReasonStep, "a.bad.example"},
		"in two datagrams":    {[][]byte{dtlsRecord(0, bad, 0, 1200), dtlsRecord(0, bad, 1200, n)}, ReasonStep, "www.bad.example"},
		"the other way round": {[][]byte{dtlsRecord(0, bad, 1200, n), dtlsRecord(0, bad, 0, 1200)}, ReasonStep, "www.bad.example"},
		"in two records":      {[][]byte{slices.Concat(dtlsRecord(0, bad, 0, 600), dtlsRecord(0, bad, 600, n))}, ReasonStep, "www.bad.example"},
		"overlapping":         {[][]byte{dtlsRecord(0, bad, 0, 900), dtlsRecord(0, bad, 700, n)}, ReasonStep, "www.bad.example"},
		"with a cookie":       {[][]byte{dtlsRecord(0, bad, 0, 700), dtlsRecord(1, again, 0, 900), dtlsRecord(1, again, 900, len(again))}, ReasonStep, "www.bad.example"},
		"half":                {twice(dtlsRecord(0, bad, 0, 700)), 0, ""},
		"beyond its end":      {[][]byte{dtlsRecord(0, bad, 0, n)[:dtlsRecordHeader+1]}, 0, ""},
		"two names": {[][]byte{func() []byte {
			b := dtlsBody(nil, sni("good.example"), sni("a.bad.example"))
			return dtlsRecord(0, b, 0, len(b))
		}()}, ReasonMalformed, ""},
	} {
		w := newTester(t, "", quicRule)
		for i, b := range c.datagrams {
			last := i == len(c.datagrams)-1
			if got := w.datagram(t, b); got == (last && c.reason != 0) {
				t.Errorf("%s: datagram %d accepted: %v", name, i, got)
			}
		}
		switch {
		case c.reason == 0:
			if len(w.decisions) != 0 {
				t.Errorf("%s: %+v", name, w.decisions)
			}
			continue
		case len(w.decisions) != 1 || w.decisions[0].Action != policy.ActionDrop || w.decisions[0].Reason != c.reason:
			t.Errorf("%s: %+v", name, w.decisions)
		}
		if c.name != "" && (len(w.sightings) != 1 || w.sightings[0].Name != c.name || w.sightings[0].Kind != "dtls") {
			t.Errorf("%s: saw %+v", name, w.sightings)
		}
	}
	// Two lengths of one hello, and a whole one that differs from its beginning.
	front := len(bad) - 1504 - len(sni("www.bad.example")) - 2 // up to the extensions
	good := dtlsBody(nil, sni("good.example"))
	for name, second := range map[string][]byte{"shorter": dtlsRecord(0, bad[:front], 10, 20), "another": dtlsRecord(0, good, 0, len(good))} {
		w := newTester(t, "", quicRule)
		if !w.datagram(t, dtlsRecord(0, bad, 0, 700)) || w.datagram(t, second) || len(w.decisions) != 1 || w.decisions[0].Reason != ReasonMalformed {
			t.Errorf("%s: %+v", name, w.decisions)
		}
	}
	// Bytes that come twice and differ.
	w := newTester(t, "", quicRule)
	other := bytes.Clone(bad)
	other[100] ^= 1
	if !w.datagram(t, dtlsRecord(0, bad, 0, 700)) || w.datagram(t, dtlsRecord(0, other, 0, 900)) || w.decisions[0].Reason != ReasonMalformed {
		t.Errorf("a conflict: %+v", w.decisions)
	}
}

func FuzzDTLS(f *testing.F) {
	b := dtlsBody([]byte("cookie"), sni("a.bad.example"))
	f.Add(dtlsRecord(0, b, 0, len(b)))
	f.Add(slices.Concat(dtlsRecord(0, b, 0, 30), dtlsRecord(0, b, 20, len(b))))
	w := newTester(f, "", quicRule)
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		w.datagram(t, b)
		if !bytes.Equal(b, copied) {
			t.Fatal("the payload was written to")
		}
		w.tally.publish()
		if c := w.tally.snapshot(); c.Panics != 0 {
			t.Fatal("a panic")
		}
		w.decisions, w.sightings = nil, nil
		if f := w.judge.flows.find(&w.judge.flow); f != nil {
			w.judge.flows.remove(f)
		}
	})
}
