package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// notShown are sentences of the source that no policy can bring about.
var notShown = map[string]string{
	"policy: the embedded policy is wrong: ":                               "the embedded policy is tested",
	"the YAML parser gave up: ":                                            "for bugs of the YAML parser that are not known",
	" is not used in policies; expected a mapping, a sequence or a scalar": "refused as tokens before; kept for new kinds of node",
	"is one too many; expected at most ":                                   "a gibibyte of names is more than a list file may have",
	" addresses and prefixes in all lists":                                 "TestTooManyPrefixesNameTheLine",
	" GiB of names in a list":                                              "see above",
	"default ":                                                             "TestReasonNames",
	"put long lists into list files":                                       "TestParseBytesIsBounded",
}

// TestEveryMessageIsShown finds the sentences in the package's source, and each
// in a golden file or in a test's wanted text: a message that no test brings
// about may be wrong, or never come.
func TestEveryMessageIsShown(t *testing.T) {
	var shown strings.Builder
	for _, pattern := range []string{"testdata/bad/*.err", "testdata/good/*.dump"} {
		for _, file := range mustGlob(t, pattern) {
			data, err := os.ReadFile(file)
			must(t, err)
			shown.Write(data)
		}
	}
	for _, made := range madeErrors {
		shown.WriteString(made.want + "\n")
	}
	shown.WriteString("test.yaml: zones.z254 is one too many; expected at most 254 zones\n" +
		"test.yaml: glob a1000? is one too many; expected at most 1000 in all zones\n") // TestZoneLimits
	shown.WriteString(strings.Join(successionErrors, "\n"))
	verb := regexp.MustCompile(`%[-+#.*0-9]*[a-zA-Z]`)
	sentences := 0
	for _, file := range mustGlob(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			value, err := strconv.Unquote(lit.Value)
			must(t, err)
			for _, piece := range verb.Split(value, -1) {
				if strings.Count(strings.TrimSpace(piece), " ") < 1 {
					continue
				}
				sentences++
				if !strings.Contains(shown.String(), piece) && !excused(piece) {
					t.Errorf("%s: no test brings about %q", file, piece)
				}
			}
			return true
		})
	}
	if sentences < 150 {
		t.Errorf("%d sentences found; there were more", sentences)
	}
}

func excused(piece string) bool {
	for sentence := range notShown {
		if strings.Contains(piece, sentence) {
			return true
		}
	}
	return false
}
