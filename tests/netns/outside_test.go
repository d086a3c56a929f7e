package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// outside lists what can be seen of a firewall without asking it: programs on
// interfaces, qdiscs, filters, nft tables, queues, pins, files. A line each, in
// order.
func (f *firewall) outside(tb testing.TB) (seen []string) {
	tb.Helper()
	f.host.MustDo(tb, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			lines, err := onLink(l)
			if err != nil {
				return err
			}
			seen = append(seen, lines...)
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := c.ListTables()
		for _, t := range tables {
			seen = append(seen, fmt.Sprintf("nft table family %d %s", t.Family, t.Name))
		}
		if err != nil {
			return err
		}
		lines, err := namespaceFiles()
		seen = append(seen, lines...)
		return err
	})
	for _, dir := range []string{f.runDir(), f.pinDir()} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				seen = append(seen, "file "+path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			tb.Fatal(err)
		}
	}
	slices.Sort(seen)
	return seen
}

// onLink lists what hangs on an interface.
func onLink(l netlink.Link) (seen []string, err error) {
	name := l.Attrs().Name
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		seen = append(seen, fmt.Sprintf("%s xdp program, mode %d", name, xdp.AttachMode))
	}
	for side, attach := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
		programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: attach})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, syscall.EINVAL) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("asking for TCX programs: %w", err)
		}
		for range programs.Programs {
			seen = append(seen, name+" tcx "+side)
		}
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, fmt.Errorf("listing qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		seen = append(seen, fmt.Sprintf("%s qdisc %s", name, q.Type()))
		if q.Type() != "clsact" {
			continue
		}
		for side, parent := range map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				return nil, fmt.Errorf("listing filters: %w", err)
			}
			for range filters {
				seen = append(seen, name+" filter "+side)
			}
		}
	}
	return seen, nil
}

// namespaceFiles lists what /proc shows of the calling thread's namespace:
// queues, and abstract sockets, which live there too.
func namespaceFiles() (seen []string, err error) {
	for path, wanted := range map[string]string{
		"/proc/thread-self/net/netfilter/nfnetlink_queue": "",
		"/proc/thread-self/net/unix":                      "@hybridfw",
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if wanted == "" {
				seen = append(seen, "queue "+fields[0])
			} else if fields[len(fields)-1] == wanted {
				seen = append(seen, "socket "+wanted)
			}
		}
	}
	return seen, nil
}

// expectOutside compares what is seen with what was seen before.
func (f *firewall) expectOutside(tb testing.TB, want []string) {
	tb.Helper()
	if got := f.outside(tb); !slices.Equal(got, want) {
		tb.Errorf("seen from outside:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// atWork is what there must be to see of a firewall that guards lan0 and wan0.
func (f *firewall) atWork(m mode) (want []string) {
	add := func(format string, args ...any) { want = append(want, fmt.Sprintf(format, args...)) }
	for _, name := range []string{"lan0", "wan0"} {
		add("%s qdisc noqueue", name)
		index, err := f.host.Index(name)
		if err != nil {
			f.tb.Fatal(err)
		}
		if m.xdp != "off" {
			add("%s xdp program, mode %d", name, map[string]int{"native": 1, "generic": 2}[m.xdp])
			add("file %s/xdp-%d", f.pinDir(), index)
		}
		if m.tc == "clsact" {
			add("%s qdisc clsact", name)
			add("file %s/clsact-%d", f.pinDir(), index)
		}
		for _, side := range []string{"ingress", "egress"} {
			if m.tc == "clsact" {
				add("%s filter %s", name, side)
			} else {
				add("%s tcx %s", name, side)
				add("file %s/%s-%d", f.pinDir(), side, index)
			}
		}
	}
	add("lo qdisc noqueue")
	add("nft table family %d hybridfw", nftables.TableFamilyINet)
	add("file %s", f.pinDir())
	for _, name := range []string{"counters", "flows", "fragments", "half_open", "learned", "list_ids", "state"} {
		add("file %s/%s", f.pinDir(), name)
	}
	add("file %s", f.runDir())
	add("file %s/lock", f.runDir())
	add("file %s/control.sock", f.runDir())
	add("queue 4846")
	add("queue 4847")
	add("socket @hybridfw")
	slices.Sort(want)
	return want
}

// programIDs are the ids of programs and of the pinned map that belong to a
// firewall, to see later whether they are gone from the kernel.
func (f *firewall) kernelIDs(tb testing.TB) (programs []ebpf.ProgramID, counters ebpf.MapID) {
	tb.Helper()
	pins, err := filepath.Glob(f.pinDir() + "/*-*")
	if err != nil {
		tb.Fatal(err)
	}
	for _, pin := range pins {
		if strings.HasPrefix(filepath.Base(pin), "clsact-") {
			continue // a folder, no pin
		}
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			tb.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			tb.Fatal(err)
		}
		programs = append(programs, info.Program)
		_ = l.Close()
	}
	m, err := ebpf.LoadPinnedMap(f.pinDir()+"/counters", nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		tb.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		tb.Fatal("the pinned map has no id")
	}
	return programs, id
}
