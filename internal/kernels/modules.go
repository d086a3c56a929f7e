package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// wantedModules are those that tests use; what they depend on is found. Nothing
// in the guest can load modules on demand, so everything is loaded at its start.
var wantedModules = strings.Fields(`
	veth bridge dummy ifb macvlan ipvlan tun vxlan 8021q
	sch_ingress cls_bpf act_bpf act_mirred sch_netem sch_fq sch_fq_codel
	nf_tables nf_conntrack nf_conntrack_netlink nf_nat nf_flow_table nf_flow_table_inet
	nft_ct nft_chain_nat nft_compat nft_fib nft_fib_inet nft_fib_ipv4 nft_fib_ipv6
	nft_flow_offload nft_hash nft_limit nft_log nft_masq nft_nat nft_numgen
	nft_queue nft_redir nft_reject nft_reject_inet nft_socket nft_tproxy
	nfnetlink nfnetlink_queue nfnetlink_log
	x_tables ip_tables ip6_tables iptable_filter ip6table_filter iptable_mangle
	xt_NFQUEUE xt_mark xt_comment xt_conntrack xt_tcpudp xt_multiport
	inet_diag tcp_diag udp_diag
`)

// module is one kernel module, ready to be loaded.
type module struct {
	name  string
	image []byte
}

// moduleTree finds modules below lib/modules/<release>.
type moduleTree struct {
	paths   map[string]string // by name
	builtin map[string]bool
}

func openModules(dir string) (*moduleTree, error) {
	t := &moduleTree{paths: make(map[string]string), builtin: make(map[string]bool)}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if base, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok && err == nil {
			t.paths[moduleName(base)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("listing built-in modules: %w", err)
	}
	for _, path := range strings.Fields(string(list)) {
		t.builtin[moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))] = true
	}
	return t, nil
}

// moduleName is the name as the kernel writes it: files use either character.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// load returns the named modules and all that they need, in an order in which
// they can be loaded.
func (t *moduleTree) load(ctx context.Context, names []string) ([]module, error) {
	var order []module
	done := make(map[string]bool)
	var add func(name, whose string) error
	add = func(name, whose string) error {
		name = moduleName(name)
		if done[name] || t.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := t.paths[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s (needed by %s)", name, whose)
		}
		image, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		needs, err := dependencies(image)
		if err != nil {
			return fmt.Errorf("reading module %s: %w", name, err)
		}
		for _, need := range needs {
			if err := add(need, name); err != nil {
				return err
			}
		}
		order = append(order, module{name, image})
		return nil
	}
	for _, name := range names {
		if err := add(name, "the tests"); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// readModule reads a module's file, unpacking it where it is compressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".xz":
		return output(ctx, "xz", "-dc", path)
	case ".zst":
		return output(ctx, "zstd", "-qdc", path)
	default:
		return nil, fmt.Errorf("module %s is compressed in an unknown way", path)
	}
}

// dependencies reads the names after depends= from a module's
// section .modinfo.
func dependencies(image []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	return parseModinfo(info), nil
}

func parseModinfo(info []byte) []string {
	var needs []string
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			needs = append(needs, strings.Split(list, ",")...)
		}
	}
	return needs
}
