package userspace

import (
	"bytes"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// TestSlotsEndWhereTheNextBegins: a packet may grow to the end of its slot.
func TestSlotsEndWhereTheNextBegins(t *testing.T) {
	w := newTester(t, "", tlsRule)
	for i := range batch {
		for _, n := range []int{0, 1, slotLen, slotLen + 1} {
			if s := w.slot(i, n); len(s) != min(n, slotLen) || cap(s) != slotLen {
				t.Fatalf("slot %d, %d bytes: %d of %d", i, n, len(s), cap(s))
			}
		}
		if s := w.slot(i, slotLen); &s[0] != w.iov[i].Base || w.iov[i].Len != slotLen {
			t.Fatalf("slot %d is not where the kernel writes", i)
		}
	}
}

// growing is a DNS response that its rewriting makes longer.
func growing(tb testing.TB, w *tester) queued {
	tb.Helper()
	m := fullResponse(dnsmessage.TypeA)
	m.Answers, m.Authorities, m.Additionals = nil, nil, nil
	w.id++
	return queued{id: w.id, mark: uint32(markOf(1)), payload: ipPacket(dnsAddr, clientAddr, nil, mustPack(tb, m))}
}

// TestGrowingPacketsLeaveTheOthersAlone: each verdict carries its own packet,
// whatever the packets beside it have become, in other slots and in the same.
func TestGrowingPacketsLeaveTheOthersAlone(t *testing.T) {
	w := newTester(t, "", tlsRule+rewriteRule)
	one := growing(t, w)
	alone := w.packet(t, one)
	if !alone.accept || len(alone.payload) <= len(one.payload) {
		t.Fatalf("a packet of %d bytes: verdict %+v; it should grow", len(one.payload), alone)
	}
	// In slots of their own they all grow.
	var messages [][]byte
	for range batch {
		messages = append(messages, growing(t, w).bytes())
	}
	for i, v := range w.receives(t, messages...) {
		if !v.accept || !bytes.Equal(v.payload, alone.payload) {
			t.Errorf("packet %d of a batch: %+v", i, v)
		}
	}
	// With another message right behind it, a packet cannot: that one is judged
	// by its own bytes.
	first, second := growing(t, w), growing(t, w)
	behind := second.bytes()
	all := w.receives(t, append(first.bytes(), behind...))
	if len(all) != 2 || all[0].id != first.id || all[0].accept || all[1].id != second.id || !bytes.Equal(all[1].payload, alone.payload) {
		t.Errorf("two packets in one datagram: %+v, want a drop and a rewriting", all)
	}
	// At the very end of the slot there is no room either, and the next slot
	// stays as it is.
	last := growing(t, w)
	end := last.bytes()
	next := w.slot(1, slotLen)
	for i := range next {
		next[i] = 0xa5
	}
	body := w.slot(0, slotLen)[slotLen-len(end):]
	copy(body, end)
	if err := w.handle(body, false); err != nil {
		t.Fatal(err)
	}
	if err := w.verdicts.send(); err != nil {
		t.Fatal(err)
	}
	if v := w.sent(t); len(v) != 1 || v[0].accept {
		t.Errorf("packet at the slot's end: %+v, want a drop", v)
	}
	if bytes.Count(next, []byte{0xa5}) != slotLen {
		t.Error("the next slot has been written to")
	}
}
