package loader

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
)

// This file lays tables of addresses out as bpf/addrs.h looks them up: in lines of
// a cache line each, for single addresses as hash tables, for ranges as search
// trees.

// line is struct line, in words.
type line [16]uint32

const (
	noHost    = 0xffffffff // the number in a free place of struct line.hosts4 and hosts6
	highest   = 0xffffffff // word of an address
	nodeKeys  = int(gen.FWAddressesNODE_KEYS)
	leafKeys  = int(gen.FWAddressesLEAF_KEYS)
	hostLines = int(gen.FWAddressesHOST_LINES)
	rangeTree = 1 << 31 // RANGE_TREE, a flag
)

// addrLines are the lines of all tables.
type addrLines struct {
	lines []line
	early []bool // by number of a set: it holds a rule that fw_xdp may apply; nil: none does
}

// table lays out the table of one address field.
func (a *addrLines) table(t addrTable, early []bool) gen.FWAddressTable {
	a.early = early
	var hosts4, hosts6 []addrSet
	for _, h := range t.hosts {
		if h.prefix.Addr().Is4() {
			hosts4 = append(hosts4, h)
		} else {
			hosts6 = append(hosts6, h)
		}
	}
	ranges4, ranges6 := rangesOf(t.prefixes)
	var e gen.FWAddressTable
	e.Root4 = a.tree(ranges4, lastWord)
	e.Root6 = a.tree(ranges6, 0)
	e.Hosts4, e.Bits4 = a.hosts(hosts4, hosts4Shape)
	e.Hosts6, e.Bits6 = a.hosts(hosts6, hosts6Shape)
	return e
}

// number is that of a set as the kernel half keeps it.
func (a *addrLines) number(set uint32) uint32 {
	if a.early != nil && a.early[set] {
		return set | uint32(gen.FWLimitsSET_EARLY)
	}
	return set
}

// shape is how single addresses of a family stand in a line.
type shape struct {
	places  int // in a line
	fill    int // addresses for each line at most, on the average, times 2
	words   int // of an address
	numbers int // where the numbers begin, and behind them "more"
}

var (
	hosts4Shape = shape{places: int(gen.FWAddressesHOSTS4), fill: 8, words: 1, numbers: 7}
	hosts6Shape = shape{places: int(gen.FWAddressesHOSTS6), fill: 3, words: 4, numbers: 12}
)

func (s shape) more() int { return s.numbers + s.places }

// hosts lays out a hash table and gives its first line and the bits of its hash.
func (a *addrLines) hosts(hosts []addrSet, s shape) (first uint32, hashBits uint8) {
	if len(hosts) == 0 {
		return 0, 0
	}
	first = uint32(len(a.lines))
	for hashBits = uint8(max(1, bits.Len(uint(2*len(hosts)/s.fill)))); ; hashBits++ {
		a.lines = append(a.lines[:first], make([]line, 1<<hashBits+hostLines-1)...)
		for i := range a.lines[first:] {
			for k := range s.places {
				a.lines[first:][i][s.numbers+k] = noHost
			}
		}
		if a.place(a.lines[first:], hosts, s, hashBits) {
			return first, hashBits
		}
	}
}

// place puts addresses into the first free places from their hash values' lines
// on. It returns false if some line's neighbours are full, too.
func (a *addrLines) place(lines []line, hosts []addrSet, s shape, hashBits uint8) bool {
	used := make([]uint8, len(lines))
	for _, h := range hosts {
		home := int(hashAddr(h.prefix.Addr(), hashBits))
		at := home
		for used[at] == uint8(s.places) {
			lines[at][s.more()] = 1
			if at++; at == home+hostLines {
				return false
			}
		}
		place := int(used[at])
		used[at]++
		address := h.prefix.Addr().AsSlice()
		for w := range s.words {
			lines[at][place*s.words+w] = binary.NativeEndian.Uint32(address[4*w:])
		}
		lines[at][s.numbers+place] = a.number(h.set)
	}
	return true
}

// hashAddr is the hash value of find_host4 and find_host6.
func hashAddr(addr netip.Addr, hashBits uint8) uint64 {
	const factor = 0x9e3779b97f4a7c15 // HASH_FACTOR
	b := addr.AsSlice()
	if addr.Is4() {
		return uint64(binary.NativeEndian.Uint32(b)) * factor >> (64 - hashBits)
	}
	mixed := binary.NativeEndian.Uint64(b)*factor ^ binary.NativeEndian.Uint64(b[8:])
	return mixed * factor >> (64 - hashBits)
}

// entry says that from a word of an address on the number is another: that of a
// set, or the root of the tree for the next word.
type entry struct {
	from   uint32
	number uint32
}

// tree lays out a tree for a word and those behind it, and gives its root. The
// ranges all begin with the same words before, the first one at their lowest
// address.
func (a *addrLines) tree(ranges []addrRange, word int) uint32 {
	var entries []entry
	add := func(from, number uint32) {
		if n := len(entries); n == 0 || entries[n-1].number != number {
			entries = append(entries, entry{from, number})
		}
	}
	for i := 0; i < len(ranges); {
		from := ranges[i].from[word]
		end := i + 1
		for end < len(ranges) && ranges[end].from[word] == from {
			end++
		}
		inside := ranges[i:end]
		whole := inside[0].from.endsAt(word)
		if len(inside) == 1 && whole {
			add(from, a.number(inside[0].set))
		} else {
			if !whole { // what was there before goes on
				before := addrRange{from: inside[0].from.cut(word), set: ranges[i-1].set}
				inside = append([]addrRange{before}, inside...)
			}
			add(from, a.tree(inside, word+1))
			if next := from + 1; from != highest && (end == len(ranges) || ranges[end].from[word] != next) {
				add(next, a.number(ranges[end-1].set))
			}
		}
		i = end
	}
	return a.lay(entries)
}

// lay lays entries out as a tree, leaves first, and gives its root.
func (a *addrLines) lay(entries []entry) uint32 {
	const wide = leafKeys + 1
	first := uint32(len(a.lines))
	var keys []uint32 // where each line of the level begins
	for i := 0; i < len(entries); i += wide {
		chunk := entries[i:min(i+wide, len(entries))]
		var l line
		for k := range wide {
			e := entry{from: highest, number: chunk[len(chunk)-1].number}
			if k < len(chunk) {
				e = chunk[k]
			}
			if k > 0 {
				l[k-1] = e.from
			}
			l[leafKeys+k] = e.number
		}
		a.lines = append(a.lines, l)
		keys = append(keys, chunk[0].from)
	}
	depth := uint32(0)
	for ; len(keys) > 1; depth++ {
		first, keys = a.layNodes(first, keys)
	}
	return rangeTree | depth<<gen.FWAddressesRANGE_DEPTH | first
}

// layNodes lays out the nodes above a level of lines.
func (a *addrLines) layNodes(child uint32, keys []uint32) (first uint32, above []uint32) {
	const wide = nodeKeys + 1
	first = uint32(len(a.lines))
	for i := 0; i < len(keys); i += wide {
		chunk := keys[i:min(i+wide, len(keys))]
		var l line
		for k := range wide - 1 {
			l[k] = highest
			if k+1 < len(chunk) {
				l[k] = chunk[k+1]
			}
		}
		l[wide-1] = child + uint32(i)
		l[wide] = uint32(len(chunk) - 1)
		a.lines = append(a.lines, l)
		above = append(above, chunk[0])
	}
	return first, above
}

// write writes the lines into their map.
func (a *addrLines) write(m *ebpf.Map) error {
	memory, err := m.Memory()
	if err != nil {
		return fmt.Errorf("reaching %v: %w", m, err)
	}
	const many = 4096
	buf := make([]byte, 0, many*64)
	for i := 0; i < len(a.lines); i += many {
		buf = buf[:0]
		for _, l := range a.lines[i:min(i+many, len(a.lines))] {
			for _, w := range l {
				buf = binary.NativeEndian.AppendUint32(buf, w)
			}
		}
		if _, err := memory.WriteAt(buf, int64(i)*64); err != nil {
			return fmt.Errorf("filling %v: %w", m, err)
		}
	}
	return nil
}
