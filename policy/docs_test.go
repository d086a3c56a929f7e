package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocumentedPoliciesAreGood parses every policy that people are shown.
func TestDocumentedPoliciesAreGood(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"bots.txt": "192.0.2.1\n", "ads.txt": ".ads.example\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"../README.md", "../docs/policy.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(text), "```yaml\n")[1:]
		if len(blocks) == 0 {
			t.Errorf("%s shows no policy", file)
		}
		for i, block := range blocks {
			block, _, _ = strings.Cut(block, "```")
			p, err := ParseBytes(file, []byte(block), dir)
			if err != nil {
				t.Errorf("policy %d: %v", i, err)
				continue
			}
			for _, w := range p.Warnings {
				t.Errorf("policy %d: %v", i, w)
			}
		}
	}
}
