package policy

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
)

// Domains is a set of DNS names in three forms: "example.com" is that name
// alone, "*.example.com" each name below it, and ".example.com" both. Case and
// a final dot mean nothing. The zero value is an empty set.
//
// The names lie one after the other in one string of bytes; a hash table with
// open addressing finds them. Match looks up each of the name's suffixes that
// can be in the set: one of as many labels as some name of the set has. A
// million names take about 40 MiB.
type Domains struct {
	seed  maphash.Seed // lists come from elsewhere: nobody else can plan collisions
	slots []slot
	names []byte
	count int

	exactLabels, belowLabels labelSet // how many labels the set's names have
}

// slot points to a name: its form, its length and its bytes, in names. The tag
// is the upper half of the name's hash and saves most looks at wrong names.
type slot struct {
	tag uint32
	at  uint32 // index in names plus 1; 0 where the slot is free
}

const (
	formExact = 1 << iota // the name itself
	formBelow             // names below it
)

// maxDomain is the length of a name without its final dot, RFC 1035 2.3.4.
const maxDomain = 253

// maxNames bounds the bytes of a set's names; slots point to them with 32 bits.
const maxNames = 1 << 30

// labelSet is a set of small numbers; everything above 63 is one.
type labelSet uint64

func (s *labelSet) add(n int)     { *s |= 1 << min(n, 63) }
func (s labelSet) has(n int) bool { return s>>min(n, 63)&1 != 0 }

// Add puts a pattern into the set. Its error says what was expected.
func (d *Domains) Add(pattern string) error {
	name, form := strings.TrimSuffix(pattern, "."), uint8(formExact)
	switch {
	case strings.HasPrefix(name, "*."):
		name, form = name[2:], formBelow
	case strings.HasPrefix(name, "."):
		name, form = name[1:], formExact|formBelow
	}
	if err := checkDomain(name); err != nil {
		return err
	}
	if len(d.names) > maxNames {
		return errors.New("is one too many; expected at most 1 GiB of names in a list")
	}
	if 2*(d.count+1) > len(d.slots) {
		d.grow()
	}
	d.insert(name, form)
	return nil
}

// Len returns the number of different names in the set. A name that is there
// in several forms counts once.
func (d *Domains) Len() int { return d.count }

// Match tells whether a name from the wire is in the set. It may have upper
// case and a final dot. Match does not allocate.
func (d *Domains) Match(name []byte) bool {
	if n := len(name); n > 0 && name[n-1] == '.' {
		name = name[:n-1]
	}
	if d.count == 0 || len(name) == 0 || len(name) > maxDomain {
		return false
	}
	var lower [maxDomain]byte
	labels := 1
	for i, c := range name {
		if c == '.' {
			labels++
		}
		lower[i] = toLower(c)
	}
	if d.exactLabels.has(labels) && d.find(lower[:len(name)], formExact) {
		return true
	}
	for i, c := range lower[:len(name)] {
		if c != '.' {
			continue
		}
		labels--
		if d.belowLabels.has(labels) && d.find(lower[i+1:len(name)], formBelow) {
			return true
		}
	}
	return false
}

// find tells whether a lower case name is in the set in the given form.
func (d *Domains) find(name []byte, form uint8) bool {
	hash := maphash.Bytes(d.seed, name)
	last := uint64(len(d.slots) - 1)
	for i := hash & last; d.slots[i].at != 0; i = (i + 1) & last {
		if s := d.slots[i]; s.tag == uint32(hash>>32) {
			if at := d.names[s.at-1:]; string(at[2:2+int(at[1])]) == string(name) {
				return at[0]&form != 0
			}
		}
	}
	return false
}

// insert adds a valid name, for which there is a free slot.
func (d *Domains) insert(name string, form uint8) {
	start := len(d.names)
	d.names = append(d.names, form, byte(len(name)))
	labels := 1
	for _, c := range []byte(name) {
		if c == '.' {
			labels++
		}
		d.names = append(d.names, toLower(c))
	}
	if form&formExact != 0 {
		d.exactLabels.add(labels)
	}
	if form&formBelow != 0 {
		d.belowLabels.add(labels)
	}
	lower := d.names[start+2:]
	hash := maphash.Bytes(d.seed, lower)
	last := uint64(len(d.slots) - 1)
	i := hash & last
	for ; d.slots[i].at != 0; i = (i + 1) & last {
		at := d.names[d.slots[i].at-1:]
		if string(at[2:2+int(at[1])]) == string(lower) {
			at[0] |= form
			d.names = d.names[:start]
			return
		}
	}
	d.slots[i] = slot{tag: uint32(hash >> 32), at: uint32(start + 1)}
	d.count++
}

// grow doubles the table, so that at least half of it stays free.
func (d *Domains) grow() {
	if d.slots == nil {
		d.seed = maphash.MakeSeed()
	}
	d.slots = make([]slot, max(8, 2*len(d.slots)))
	last := uint64(len(d.slots) - 1)
	for start := 0; start < len(d.names); {
		end := start + 2 + int(d.names[start+1])
		hash := maphash.Bytes(d.seed, d.names[start+2:end])
		i := hash & last
		for d.slots[i].at != 0 {
			i = (i + 1) & last
		}
		d.slots[i] = slot{tag: uint32(hash >> 32), at: uint32(start + 1)}
		start = end
	}
}

func toLower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// checkDomain says what is wrong with a name of a list. Underscores are
// allowed: names of services have them.
func checkDomain(name string) error {
	const forms = `expected example.com, "*.example.com" or ".example.com"`
	if name == "" {
		return errors.New("is no name; " + forms)
	}
	start := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			switch {
			case i == start:
				return errors.New("has an empty label; " + forms)
			case i-start > 63:
				return errors.New("has a label of more than 63 characters; " + forms)
			}
			start = i + 1
			continue
		}
		switch c := toLower(name[i]); {
		case c >= 0x80:
			// On the wire there are only A-labels, RFC 5890.
			return errors.New("is not ASCII; expected its A-labels, such as xn--bcher-kva.example")
		case c == '*':
			return errors.New("has a * inside; " + forms)
		case !isNameByte(c):
			return fmt.Errorf("has the character %q; %s", c, forms)
		}
	}
	if len(name) > maxDomain {
		return fmt.Errorf("has more than %d characters; %s", maxDomain, forms)
	}
	return nil
}
