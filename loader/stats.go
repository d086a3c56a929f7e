package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
)

// Counter counts the packets that were judged in one way. The segments of a
// super-packet each count; bytes are those of frames.
type Counter struct {
	Hook    string `json:"hook"`    // "xdp", "tc" (incoming), "tc_out" (leaving)
	Verdict string `json:"verdict"` // "pass", "drop", "queue"
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Stats is a plain snapshot of the kernel half's counters. Every packet that ran
// through a program is in exactly one of that program's counters. Those that
// are zero are left out.
type Stats []Counter

var (
	hookNames = [...]string{
		gen.FWHookHOOK_XDP:    "xdp",
		gen.FWHookHOOK_TC:     "tc",
		gen.FWHookHOOK_TC_OUT: "tc_out",
	}
	verdictNames = [...]string{
		gen.FWVerdictVERDICT_PASS:  "pass",
		gen.FWVerdictVERDICT_DROP:  "drop",
		gen.FWVerdictVERDICT_QUEUE: "queue",
	}
	reasonNames = [...]string{
		gen.FWReasonREASON_RULE:       "rule",
		gen.FWReasonREASON_DEFAULT:    "default",
		gen.FWReasonREASON_FLOW:       "flow",
		gen.FWReasonREASON_RELATED:    "related",
		gen.FWReasonREASON_ICMP:       "icmp",
		gen.FWReasonREASON_NON_IP:     "non_ip",
		gen.FWReasonREASON_MALFORMED:  "malformed",
		gen.FWReasonREASON_MIDSTREAM:  "midstream",
		gen.FWReasonREASON_FRAGMENT:   "fragment",
		gen.FWReasonREASON_UNDECIDED:  "undecided",
		gen.FWReasonREASON_FORWARDED:  "forwarded",
		gen.FWReasonREASON_NEXT:       "next",
		gen.FWReasonREASON_FLOWS_FULL: "flows_full",
		gen.FWReasonREASON_OFFLOADED:  "offloaded",
		gen.FWReasonREASON_OVERLOAD:   "overload",
	}
)

// Sum adds the packets of the counters that match; an empty string matches all.
func (s Stats) Sum(hook, verdict, reason string) uint64 {
	var packets uint64
	for _, c := range s {
		if (hook == "" || c.Hook == hook) && (verdict == "" || c.Verdict == verdict) && (reason == "" || c.Reason == reason) {
			packets += c.Packets
		}
	}
	return packets
}

// readStats reads a counters map.
func readStats(m *ebpf.Map) (Stats, error) {
	var stats Stats
	var perCPU []gen.FWCounter
	for i := range m.MaxEntries() {
		if err := m.Lookup(i, &perCPU); err != nil {
			return nil, fmt.Errorf("reading counter %d: %w", i, err)
		}
		c := Counter{
			Reason:  reasonNames[i%uint32(len(reasonNames))],
			Verdict: verdictNames[i/uint32(len(reasonNames))%uint32(len(verdictNames))],
			Hook:    hookNames[i/uint32(len(reasonNames)*len(verdictNames))],
		}
		c.Packets, c.Bytes = sum(perCPU)
		if c.Packets != 0 {
			stats = append(stats, c)
		}
	}
	return stats, nil
}

// sum adds up what the CPUs have counted.
func sum(perCPU []gen.FWCounter) (packets, bytes uint64) {
	for _, cpu := range perCPU {
		packets += cpu.Packets
		bytes += cpu.Bytes
	}
	return packets, bytes
}

// ReadStats reads the counters that a running or killed process has pinned under
// pinDir. It returns ErrNotRunning where there are none.
func ReadStats(pinDir string) (Stats, error) {
	m, err := ebpf.LoadPinnedMap(counterPin(pinDir), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, errNotExist) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("opening the pinned counters: %w", err)
	}
	defer m.Close()
	return readStats(m)
}
