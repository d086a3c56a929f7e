package fastpath

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// built builds hybridfw once.
var built = sync.OnceValues(func() (string, error) {
	path := "/run/hybridfw" // on a tmpfs of this process's own
	out, err := exec.Command("go", "build", "-trimpath", "-o", path, "../../cmd/hybridfw").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building hybridfw: %w\n%s", err, out)
	}
	return path, nil
})

// A policyOf writes a policy: how many rules, of which the last one matches, how
// many listed addresses before them, and what else rules that accept say.
type policyOf struct {
	rules, list int
	also        string // keys of the last rule
	kernelOnly  bool   // no rule inspects
}

// text has an inspecting rule, so that the nft table is there, unless none is wanted.
func (p policyOf) text(s *site) string {
	var t strings.Builder
	fmt.Fprintf(&t, "version: 1\nzones: { lan: [%s], wan: [%s] }\ndefaults: { input: accept, forward: accept }\n", s.Lan, s.Wan)
	if p.list > 0 {
		t.WriteString("lists:\n  bots: { type: cidr, file: bots.txt }\n")
		s.write("bots.txt", addressLines(p.list))
	}
	t.WriteString("rules:\n")
	if p.list > 0 {
		t.WriteString("  - { name: bots, src: \"@bots\", action: drop }\n")
	}
	if !p.kernelOnly {
		t.WriteString("  - { name: web, from: lan, to: wan, proto: tcp, dport: 443, action: inspect, steps: [{ sni: ads.example, action: drop }, { action: accept }] }\n")
	}
	for i := range max(0, p.rules-2) {
		prefix, port := unmet(i)
		fmt.Fprintf(&t, "  - { name: r%d, src: %s, proto: udp, dport: %d, action: drop }\n", i, prefix, port)
	}
	fmt.Fprintf(&t, "  - { name: last, from: lan, proto: udp, dport: %d, action: %s%s }\n", port, s.verdict(), p.also)
	return t.String()
}

func addressLines(n int) string {
	var t strings.Builder
	for i := range n {
		t.WriteString(listed(i).String() + "\n")
	}
	return t.String()
}

// hybridfw is the program with a policy, XDP where the flag says.
func hybridfw(xdp string, p policyOf) func(s *site) {
	return func(s *site) { s.start(p.text(s), "--xdp", xdp) }
}

// running is a hybridfw process.
type running struct {
	cmd    *exec.Cmd
	places []string
	ready  time.Duration // from its start until it judged packets
}

// start starts hybridfw and waits until it judges packets.
func (s *site) start(policy string, flags ...string) *running {
	s.b.Helper()
	path, err := built()
	if err != nil {
		s.b.Fatal(err)
	}
	ready := filepath.Join(s.dir, "ready")
	r := &running{places: []string{"--pin-dir", "/sys/fs/bpf/" + filepath.Base(s.dir), "--run-dir", filepath.Join(s.dir, "run")}}
	args := append([]string{"run", "--ready-file", ready, "--queues", "1", "--policy", s.write("policy.yaml", policy)}, r.places...)
	r.cmd = s.Firewall.Command(path, append(args, flags...)...)
	var log bytes.Buffer
	r.cmd.Stdout, r.cmd.Stderr = &log, &log
	began := time.Now()
	if err := r.cmd.Start(); err != nil {
		s.b.Fatal(err)
	}
	exit := make(chan error, 1)
	go func() { exit <- r.cmd.Wait() }()
	s.b.Cleanup(func() { _ = r.cmd.Process.Signal(os.Interrupt); <-exit })
	deadline := time.After(2 * time.Minute)
	for {
		if _, err := os.Stat(ready); err == nil {
			r.ready = time.Since(began)
			return r
		}
		select {
		case err := <-exit:
			exit <- err
			s.b.Fatalf("hybridfw ended: %v\n%s", err, log.String())
		case <-deadline:
			s.b.Fatalf("hybridfw is not ready\n%s", log.String())
		case <-time.After(time.Millisecond):
		}
	}
}
