package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
)

// limitPolicy has one limited rule in front of one that catches the rest.
func limitPolicy(limit, action, rest string) string {
	return `
version: 1
zones: { lan: [lan0], wan: [wan0] }
rules:
  - { name: limited, from: lan, action: ` + action + `, limit: { ` + limit + ` } }
  - { name: rest, from: lan, action: ` + rest + ` }
`
}

// sources sends one SYN of a new flow from each address, and tells how many pass.
func (b *bench) sources(f *Firewall, port *uint16, addrs ...netip.Addr) (passed int) {
	b.tb.Helper()
	for _, a := range addrs {
		*port++
		dst := server4
		if a.Is6() {
			dst = server6
		}
		if b.arrives(f, b.lan, tcp(a, dst, *port, 80, syn)) == passes {
			passed++
		}
	}
	return passed
}

func repeated(a netip.Addr, n int) []netip.Addr {
	all := make([]netip.Addr, n)
	for i := range all {
		all[i] = a
	}
	return all
}

// wait makes time pass for all buckets.
func (f *Firewall) wait(tb testing.TB, d time.Duration) {
	tb.Helper()
	var key gen.FWLimitKey
	var full uint64
	buckets := map[gen.FWLimitKey]uint64{}
	it := f.objs.Buckets.Iterate()
	for it.Next(&key, &full) {
		buckets[key] = full - min(full, uint64(d)) // the machine may not be up for so long
	}
	if err := it.Err(); err != nil {
		tb.Fatal(err)
	}
	for key, full := range buckets {
		if err := f.objs.Buckets.Put(key, full); err != nil {
			tb.Fatal(err)
		}
	}
}

func TestLimitsLetTheirBurstAndTheirRateThrough(t *testing.T) {
	for _, c := range []struct{ action, rest string }{{"accept", "drop"}, {"drop", "accept"}} {
		for _, client := range []netip.Addr{client4, client6} {
			t.Run(fmt.Sprint(c.action, " ", client), func(t *testing.T) {
				on(t, limitPolicy("rate: 2/h, burst: 5, per: src", c.action, c.rest), func(b *bench, f *Firewall) {
					port := uint16(1000)
					for _, step := range []struct {
						wait time.Duration
						sent int
						want int
					}{{0, 9, 5}, {29 * time.Minute, 3, 0}, {2 * time.Minute, 3, 1}, {61 * time.Minute, 3, 2}, {100 * time.Hour, 30, 5}, {0, 1, 0}} {
						f.wait(t, step.wait)
						if got := b.sources(f, &port, repeated(client, step.sent)...); got != step.want {
							t.Errorf("after %v %d of %d pass, want %d", step.wait, got, step.sent, step.want)
						}
					}
				})
			})
		}
	}
}

func TestLimitsTellSourcesApart(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		limit string
		addrs []string
		want  int
	}{
		{"per: src", []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"}, 2},
		{"per: src, v4: 24", []string{"192.0.2.1", "192.0.2.2", "192.0.3.1", "192.0.3.255"}, 2},
		{"per: src, v4: 22", []string{"192.0.4.1", "192.0.7.2", "192.0.8.1"}, 2},
		{"per: src", []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"}, 2},
		{"per: src, v6: 128", []string{"2001:db8::1", "2001:db8::2", "2001:db8::2"}, 2},
		{"per: src, v6: 47", []string{"2001:db8:2::1", "2001:db8:3::1", "2001:db8:4::1"}, 2},
		{"per: dst", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:9::1"}, 2},
		{"per: all", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}, 1},
	} {
		on(t, limitPolicy("rate: 1/h, "+c.limit, "accept", "drop"), func(b *bench, f *Firewall) {
			port := uint16(1000)
			var addrs []netip.Addr
			for _, a := range c.addrs {
				addrs = append(addrs, addr(a))
			}
			if got := b.sources(f, &port, addrs...); got != c.want {
				t.Errorf("%s: %d of %v pass, want %d", c.limit, got, c.addrs, c.want)
			}
		})
	}
}

// A known flow pays nothing, whatever the limit; a SYN pays each time.
func TestKnownFlowsAreNotLimited(t *testing.T) {
	on(t, limitPolicy("rate: 1/h, burst: 1", "accept", "drop"), func(b *bench, f *Firewall) {
		expect(t, "the first SYN", b.arrives(f, b.lan, tcp(client4, server4, 1, 80, syn)), passes)
		for range 10 {
			expect(t, "its flow", b.arrives(f, b.lan, tcp(client4, server4, 1, 80, ack)), passes)
		}
		expect(t, "the second SYN", b.arrives(f, b.lan, tcp(client4, server4, 1, 80, syn)), drops)
		f.wantHits(t, "then", 1, 1)
	})
}

// XDP drops what is over, and takes no token from what is not.
func TestXDPDropsWhatIsOverALimit(t *testing.T) {
	on(t, limitPolicy("rate: 1/h, burst: 3, per: src", "drop", "accept"), func(b *bench, f *Firewall) {
		frame := func(port uint16) []byte {
			p := tcp(client4, server4, port, 80, syn)
			return p.frame()
		}
		for port := range uint16(3) {
			for range 4 {
				if code := b.xdp(f, frame(port), b.lan); code != xdpPass {
					t.Fatalf("SYN %d: fw_xdp returned %d", port, code)
				}
			}
			expect(t, "within", b.arrivesFrame(f, b.lan, frame(port)), passes)
		}
		if code := b.xdp(f, frame(9), b.lan); code != xdpDrop {
			t.Errorf("over: fw_xdp returned %d, want %d", code, xdpDrop)
		}
		expect(t, "over", b.arrivesFrame(f, b.lan, frame(9)), drops)
		f.wantHits(t, "then", 2, 3)
	})
}

// A packet that is over a limit goes on, to limits behind it too; one that is over
// very many is dropped.
func TestLimitsBehindLimits(t *testing.T) {
	for _, n := range []int{3, 16, 17} {
		var text strings.Builder
		text.WriteString("version: 1\nzones: { lan: [lan0], wan: [wan0] }\nrules:\n")
		for i := range n {
			fmt.Fprintf(&text, "  - { name: r%d, from: lan, to: wan, action: accept, limit: { rate: 1/h, burst: 1 } }\n", i)
		}
		text.WriteString("  - { name: rest, from: lan, action: accept }\n")
		on(t, text.String(), func(b *bench, f *Firewall) {
			port := uint16(1000)
			tried := min(n, int(gen.FWLimitsLIMITS_TRIED))
			if got := b.sources(f, &port, repeated(client4, n)...); got != tried {
				t.Errorf("%d limits: %d of as many pass, want %d", n, got, tried)
			}
			want := 1
			if n > int(gen.FWLimitsLIMITS_TRIED) {
				want = 0
			}
			if got := b.sources(f, &port, client4); got != want {
				t.Errorf("%d limits: one more passes %d times, want %d", n, got, want)
			}
		})
	}
}

// CPUs that take from one bucket at once take no token twice.
func TestNoTokenIsTakenTwice(t *testing.T) {
	const burst, senders, each = 1000, 4, 1000
	on(t, limitPolicy(fmt.Sprintf("rate: 1/h, burst: %d", burst), "accept", "drop"), func(b *bench, f *Firewall) {
		var passed atomic.Int64
		var failed error
		var mu sync.Mutex
		var wg sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				err := b.host.Do(func() error {
					for i := range each {
						p := tcp(client4, server4, uint16(1000+i), uint16(80+s), syn)
						var out skb
						code, err := f.objs.FwTc.Run(&ebpf.RunOptions{Data: p.frame(), Context: skb{Ifindex: b.lan}, ContextOut: &out})
						if err != nil {
							return err
						}
						if code != tcDrop {
							passed.Add(1)
						}
					}
					return nil
				})
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			})
		}
		wg.Wait()
		if n := passed.Load(); failed != nil || n != burst {
			t.Errorf("%d of %d packets pass, want %d, %v", n, senders*each, burst, failed)
		}
	})
}

// TestLimitsKeepTheirRateOverTime offers several times the rate for a second, from
// some sources and to some destinations, and counts what passes: no more than the
// burst and the rate's share of the time, and no less.
func TestLimitsKeepTheirRateOverTime(t *testing.T) {
	const rate, burst, interval = 200, 20, 5 * time.Millisecond
	addr := netip.MustParseAddr
	for _, c := range []struct {
		per     string
		src     []string
		dst     []string
		buckets int
	}{
		{"src", []string{"192.0.2.7", "192.0.2.8", "192.0.2.9"}, []string{"198.51.100.2"}, 3},
		{"src", []string{"2001:db8:a::1", "2001:db8:a::2", "2001:db8:a:1::1"}, []string{"2001:db8:2::2"}, 2},
		{"dst", []string{"192.0.2.7"}, []string{"198.51.100.2", "198.51.100.3"}, 2},
		{"all", []string{"192.0.2.7", "192.0.2.8"}, []string{"198.51.100.2", "198.51.100.3"}, 1},
	} {
		t.Run(fmt.Sprint("per ", c.per, " ", c.src[0]), func(t *testing.T) {
			on(t, limitPolicy(fmt.Sprintf("rate: %d/s, burst: %d, per: %s", rate, burst, c.per), "accept", "drop"), func(b *bench, f *Firewall) {
				port, passed, offered := uint16(1), 0, 0
				var idle time.Duration // beyond what a full bucket keeps
				began, last := time.Now(), time.Now()
				for time.Since(began) < time.Second {
					for _, src := range c.src {
						for _, dst := range c.dst {
							port++
							offered++
							if b.arrives(f, b.lan, tcp(addr(src), addr(dst), port, 80, syn)) == passes {
								passed++
							}
						}
					}
					idle += max(0, time.Since(last)-burst*interval)
					last = time.Now()
					time.Sleep(time.Millisecond)
				}
				took := time.Since(began)
				most := c.buckets * (burst + int(took/interval) + 1)
				least := c.buckets * (burst + int((took-idle)/interval)) * 95 / 100
				// An emulated or watched machine may be too slow to offer much more.
				if passed < min(least, offered) || passed > most || offered < 2*most && !testing.Short() {
					t.Errorf("%d of %d packets passed in %v, want %d to %d", passed, offered, took, least, most)
				}
			})
		})
	}
}
