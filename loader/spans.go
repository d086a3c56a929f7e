package loader

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// words is an address in words, in host byte order; of IPv4 only the last counts.
type words [4]uint32

const lastWord = len(words{}) - 1

func wordsOf(addr netip.Addr) (w words) {
	b := addr.As16()
	for i := range w {
		w[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	if addr.Is4() {
		w[0], w[1], w[2] = 0, 0, 0
	}
	return w
}

// endsAt tells that all words behind one are 0.
func (w words) endsAt(word int) bool { return w == w.cut(word) }

// cut sets all words behind one to 0.
func (w words) cut(word int) words {
	clear(w[word+1:])
	return w
}

// next is the address behind; ok is false behind the last one of width words.
func (w words) next(width int) (n words, ok bool) {
	for i := lastWord; i > lastWord-width; i-- {
		if w[i]++; w[i] != 0 {
			return w, true
		}
	}
	return w, false
}

// addrRange is a set that is the answer from an address on, to where the next
// range begins.
type addrRange struct {
	from words
	set  uint32
}

// span is a prefix of which the end has not come yet.
type span struct {
	last words
	set  uint32
}

// rangesOf makes ranges of prefixes that are sorted as those of an addrTable are.
// Both families have their root, so the first range begins at 0.
func rangesOf(prefixes []addrSet) (v4, v6 []addrRange) {
	i := 0
	for i < len(prefixes) && prefixes[i].prefix.Addr().Is4() {
		i++
	}
	return flatten(prefixes[:i], 1), flatten(prefixes[i:], len(words{}))
}

// flatten does so for one family, whose addresses have width words.
func flatten(prefixes []addrSet, width int) []addrRange {
	var ranges []addrRange
	begin := func(from words, set uint32) {
		n := len(ranges)
		if n > 0 && ranges[n-1].from == from {
			ranges, n = ranges[:n-1], n-1
		}
		if n == 0 || ranges[n-1].set != set {
			ranges = append(ranges, addrRange{from, set})
		}
	}
	var around []span // the last one is the innermost
	leave := func() {
		n := len(around) - 1
		ended := around[n]
		around = around[:n]
		if next, ok := ended.last.next(width); ok && n > 0 {
			begin(next, around[n-1].set)
		}
	}
	for _, p := range prefixes {
		from := wordsOf(p.prefix.Addr())
		for len(around) > 0 && compareWords(around[len(around)-1].last, from) < 0 {
			leave()
		}
		begin(from, p.set)
		around = append(around, span{lastOf(from, p.prefix), p.set})
	}
	for len(around) > 0 {
		leave()
	}
	return ranges
}

// lastOf is the last address of a prefix.
func lastOf(from words, p netip.Prefix) words {
	host := p.Addr().BitLen() - p.Bits()
	for i := lastWord; host > 0; i-- {
		from[i] |= uint32(1<<min(host, 32) - 1)
		host -= 32
	}
	return from
}

func compareWords(a, b words) int { return slices.Compare(a[:], b[:]) }
