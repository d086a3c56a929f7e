package fastpath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const applyWithin = 5 * time.Second

// applyPart measures a policy of the most rules and a million prefixes: from the
// file until it is in force, and what it takes in memory.
func applyPart(b testing.TB, r *report) {
	var checks, starts, reloads series
	var memory string
	for range 5 {
		s := newNetwork(b, passed)
		policy := policyOf{rules: 4095, list: 1}.text(s) // with the list's rule
		s.write("bots.txt", prefixLines(1_000_000))
		check, err := s.timed("check", s.write("policy.yaml", policy))
		if err != nil {
			b.Fatal(err)
		}
		p := s.start(policy)
		reload, err := s.timed(append([]string{"reload"}, p.places...)...)
		if err != nil {
			b.Fatal(err)
		}
		checks, starts, reloads = append(checks, check), append(starts, p.ready.Seconds()), append(reloads, reload)
		if memory, err = memoryOf(p.cmd.Process.Pid); err != nil {
			b.Fatal(err)
		}
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			b.Fatal(err)
		}
	}
	r.heading("A policy of 4,096 rules and 1 million prefixes")
	r.head("step", "seconds")
	r.row("check", checks.spread2())
	r.row("start until packets are judged", starts.spread2())
	r.row("reload", reloads.spread2())
	r.text("Memory behind the reload: " + memory + ".")
	r.want("start with 4,096 rules and 1 million prefixes, s", starts.median(), applyWithin.Seconds(), true)
	r.want("reload of 4,096 rules and 1 million prefixes, s", reloads.median(), applyWithin.Seconds(), true)
}

// timed runs a hybridfw command and gives the seconds it took.
func (s *site) timed(args ...string) (float64, error) {
	path, err := built()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	out, err := s.Firewall.Command(path, args...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("hybridfw %v: %w\n%.1000s", args, err, out)
	}
	return time.Since(began).Seconds(), nil
}

// memoryOf is a process's memory, and what the kernel keeps in the maps it holds.
func memoryOf(pid int) (string, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	var now, most int
	for l := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(l, "VmRSS: %d", &now) // other lines are not meant
		_, _ = fmt.Sscanf(l, "VmHWM: %d", &most)
	}
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return "", err
	}
	maps := map[int]int{} // bytes by id: a map may be held twice
	for _, path := range infos {
		info, err := os.ReadFile(path)
		if err != nil {
			continue // closed meanwhile
		}
		_, text, ok := strings.Cut(string(info), "map_type:")
		if !ok {
			continue
		}
		var bytes, id int
		for l := range strings.Lines(text) {
			_, _ = fmt.Sscanf(l, "memlock: %d", &bytes)
			_, _ = fmt.Sscanf(l, "map_id: %d", &id)
		}
		maps[id] = bytes
	}
	sum := 0
	for _, bytes := range maps {
		sum += bytes
	}
	if now == 0 || sum == 0 {
		return "", fmt.Errorf("process %d tells no memory: %d kB, %d bytes in maps", pid, now, sum)
	}
	return fmt.Sprintf("process %d MiB, at most %d MiB; maps in the kernel %d MiB", now>>10, most>>10, sum>>20), nil
}

// prefixLines are n prefixes of /21 to /32, of which none holds another.
func prefixLines(n int) string {
	var t strings.Builder
	for i := range n {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], uint32(i)<<11|uint32(i)*2654435761>>21)
		t.WriteString(netip.PrefixFrom(netip.AddrFrom4(a), 21+i%12).Masked().String() + "\n")
	}
	return t.String()
}
