//go:build soak

package loader

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	soakSeed  = flag.Uint64("seed", 0, "of the first policy; 0: a random one")
	soakPairs = flag.Int("pairs", 0, "how many pairs to compare; 0: no limit")
	soakHours = flag.Float64("hours", 0, "how long to compare; 0: no limit")
)

const (
	soakPackets = 500 // of each policy
	soakReport  = 10 * time.Second
	soakWarm    = 50        // policies until memory has its size
	soakGrowth  = 256 << 20 // bytes that it may still grow by
)

// TestSoak compares the programs with policy.Match until it is stopped or has done
// what it was asked for. A seed that found something finds it again.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	t.Logf("the first seed is %d: make soak SEED=%d begins with the same policy", seed, seed)
	b := newBench(t)
	began, reported := time.Now(), time.Now()
	pairs, warm := 0, 0
	b.host.MustDo(t, func() error {
		for policies := 1; ; policies++ {
			pairs += b.agree(seed, soakPackets)
			seed++
			if policies == soakWarm {
				warm = resident(t)
			}
			done := *soakPairs > 0 && pairs >= *soakPairs || *soakHours > 0 && time.Since(began).Hours() >= *soakHours
			if done || time.Since(reported) > soakReport {
				reported = time.Now()
				t.Logf("%v: %d policies, %d pairs, next seed %d, %d MiB resident",
					time.Since(began).Round(time.Second), policies, pairs, seed, resident(t)>>20)
			}
			if warm > 0 && resident(t) > warm+soakGrowth {
				t.Errorf("memory grew from %d to %d MiB", warm>>20, resident(t)>>20)
				return nil
			}
			if done {
				return nil
			}
		}
	})
}

// resident is how many bytes of memory the process has.
func resident(t *testing.T) int {
	runtime.GC()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
