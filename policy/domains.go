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
// A hash table with open addressing knows names by 62 bits of a hash, whose seed is
// made anew each time: two names that nobody has planned are taken for the same once
// in 10^18 lookups. So a lookup costs one cache line, where comparing the name itself
// would cost another two. Match looks up each of the name's suffixes that can be in
// the set: one of as many labels as some name of the set has. The names lie one after
// the other in one string of bytes, for comparing sets. A million take about 40 MiB.
type Domains struct {
	seed  maphash.Seed // lists come from elsewhere: nobody else can plan collisions
	slots []slot       // a power of two of them
	names []byte
	count int

	exactLabels, belowLabels labelSet // how many labels the set's names have
}

// slot is a name's hash, but for the lowest bits, in which its form stands. It is 0
// where it is free.
type slot uint64

// is tells whether the slot is that of a name.
func (s slot) is(hash uint64) bool { return uint64(s)^hash <= formBelow|formExact }

const (
	formExact = 1 << iota // the name itself
	formBelow             // names below it
)

// maxDomain is the length of a name without its final dot, RFC 1035 2.3.4.
const maxDomain = 253

// maxNames bounds the bytes of a set's names.
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

// place returns a lower case name's slot, or the free one where it would be. There is
// always a free one.
func (d *Domains) place(name []byte) (at *slot, hash uint64) {
	hash = maphash.Bytes(d.seed, name)
	last := uint64(len(d.slots) - 1)
	// The place is in the lower bits, where the form stands in two: those say nothing.
	for i := hash >> 2 & last; ; i = (i + 1) & last {
		if s := &d.slots[i]; *s == 0 || s.is(hash) {
			return s, hash
		}
	}
}

// find tells whether a lower case name is in the set in the given form.
func (d *Domains) find(name []byte, form uint8) bool {
	at, _ := d.place(name)
	return *at&slot(form) != 0
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
	at, hash := d.place(d.names[start+2:])
	if *at == 0 {
		d.count++
	} else if *at|slot(form) == *at {
		d.names = d.names[:start] // it is there already
	}
	*at |= slot(hash&^(formBelow|formExact)) | slot(form)
}

// grow doubles the table, so that at least half of it stays free.
func (d *Domains) grow() {
	if d.slots == nil {
		d.seed = maphash.MakeSeed()
	}
	d.slots = make([]slot, max(8, 2*len(d.slots)))
	for start := 0; start < len(d.names); {
		end := start + 2 + int(d.names[start+1])
		at, hash := d.place(d.names[start+2 : end])
		*at |= slot(hash&^(formBelow|formExact)) | slot(d.names[start])
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
