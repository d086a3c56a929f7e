package fastpath

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	rounds   = flag.Int("rounds", 7, "measure each case in turn `n` times, at least 5")
	roundFor = flag.Duration("round", 200*time.Millisecond, "how long each turn takes, about")
)

// A series is what was measured of one thing, a value a round.
type series []float64

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

// A measured is a filter on its site and what it costs.
type measured struct {
	filter
	site *site
	n    int // frames a round on one CPU
	over int // frames a round where the second CPU receives

	// One CPU sends and receives: ns for each packet, sending it included.
	together series
	// The second CPU receives what the first one sends in excess: ns of its time
	// for each packet received, and thousands of them a second. Empty where there
	// is one CPU.
	alone, rate series
}

// build makes a site for each filter and sees that it does what the scene says.
func build(b testing.TB, sc scene, filters []filter) []*measured {
	b.Helper()
	var all []*measured
	for _, f := range filters {
		m := &measured{filter: f, site: newSite(b, sc)}
		f.set(m.site)
		if err := m.prove(); err != nil {
			b.Fatalf("%s, %s: %v", sc.name, f.name, err)
		}
		all = append(all, m)
	}
	return all
}

// prove sends a few packets and sees what becomes of them; where they arrive they
// are answered, so that flows are known to both sides from then on.
func (m *measured) prove() error {
	n := max(len(m.site.scene.sources), flows)
	if _, err := m.together1(n); err != nil {
		return err
	}
	if m.site.scene.arrive && len(m.site.scene.sources) == flows {
		if err := m.site.answer(); err != nil {
			return err
		}
	}
	_, err := m.together1(n)
	return err
}

// together1 sends n packets on one CPU and gives the time for each.
func (m *measured) together1(n int) (float64, error) {
	before, err := m.site.counts()
	if err != nil {
		return 0, err
	}
	took, err := m.site.source.send(n)
	if err != nil {
		return 0, err
	}
	after, err := m.site.counts()
	if err != nil {
		return 0, err
	}
	got := after.sub(before)
	// A few may still be on their way, or be another host's neighbour discovery.
	most, least := uint64(n)+uint64(n/100)+16, uint64(n)-uint64(n/100)
	if got.came < least || got.came > most {
		return 0, fmt.Errorf("%d of %d packets came to the interface", got.came, n)
	}
	if m.site.scene.arrive && got.arrived < least || !m.site.scene.arrive && got.arrived > 0 {
		return 0, fmt.Errorf("%d of %d packets arrived", got.arrived, n)
	}
	return float64(took) / float64(n), nil
}

// alone1 floods a receiver on a CPU of its own.
func (m *measured) alone1(n int) (ns, rate float64, err error) {
	pid, err := m.site.threaded(true)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_, off := m.site.threaded(false)
		err = errors.Join(err, off)
	}()
	if _, err := m.site.source.send(1024); err != nil { // warms up
		return 0, 0, err
	}
	before, err := m.site.counts()
	if err != nil {
		return 0, 0, err
	}
	ran, err := onCPUFor(pid)
	if err != nil {
		return 0, 0, err
	}
	took, err := m.site.source.send(n)
	if err != nil {
		return 0, 0, err
	}
	after, err := m.site.counts()
	if err != nil {
		return 0, 0, err
	}
	still, err := onCPUFor(pid)
	if err != nil {
		return 0, 0, err
	}
	came := float64(after.sub(before).came)
	return float64(still-ran) / came, came / took.Seconds() / 1000, nil
}

// fit finds how many frames take a round's time, half of it each way.
func (m *measured) fit(cpus int) error {
	fits := func(ns float64) int { return max(1024, int(float64(*roundFor)/ns/2)) &^ 63 }
	m.n, m.over = 1024, 1<<16
	for range 3 {
		ns, err := m.together1(m.n)
		if err != nil {
			return err
		}
		m.n = fits(ns)
	}
	if cpus < 2 {
		return nil
	}
	if _, err := m.site.threaded(true); err != nil {
		return err
	}
	took, err := m.site.source.send(m.over)
	_, off := m.site.threaded(false)
	m.over = fits(float64(took) / float64(m.over))
	return errors.Join(err, off)
}

// measure measures all in turn, the order turned round each time.
func measure(b testing.TB, all []*measured, cpus int) {
	b.Helper()
	for _, m := range all {
		if err := m.fit(cpus); err != nil {
			b.Fatalf("%s, %s: %v", m.site.scene.name, m.name, err)
		}
	}
	for round := range max(5, *rounds) {
		order := slices.Clone(all)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, m := range order {
			if err := m.round(cpus); err != nil {
				b.Fatalf("%s, %s: %v", m.site.scene.name, m.name, err)
			}
		}
	}
}

func (m *measured) round(cpus int) error {
	ns, err := m.together1(m.n)
	if err != nil {
		return err
	}
	m.together = append(m.together, ns)
	if cpus < 2 {
		return nil
	}
	alone, rate, err := m.alone1(m.over)
	if err != nil {
		return err
	}
	m.alone, m.rate = append(m.alone, alone), append(m.rate, rate)
	return nil
}

// spread is the median, and the least and the most.
func (s series) spread() string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f (%.0f–%.0f)", s.median(), slices.Min(s), slices.Max(s))
}

// spread2 is the same with two decimals.
func (s series) spread2() string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median(), slices.Min(s), slices.Max(s))
}
