package pktbuf_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// TestTable holds the table in the package documentation against both sides: it
// has a line for every function in the C library's headers for packets, and
// every method that it names is there.
func TestTable(t *testing.T) {
	doc, err := os.ReadFile("../../pktbuf/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^//\t((?:pktb|nfq)_\w+) +(.+)$`)
	method := regexp.MustCompile(`View\.(\w+)`)
	table := map[string]bool{}
	for _, m := range line.FindAllStringSubmatch(string(doc), -1) {
		table[m[1]] = true
		for _, name := range method.FindAllStringSubmatch(m[2], -1) {
			if _, ok := reflect.TypeFor[*pktbuf.View]().MethodByName(name[1]); !ok {
				t.Errorf("%s: there is no method %s", m[1], name[1])
			}
		}
	}
	headers, err := filepath.Glob("/usr/include/libnetfilter_queue/*.h")
	if err != nil || len(headers) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the C library's headers: %v", err)
		}
		t.Skip("the C library's headers are not here (libnetfilter-queue-dev)")
	}
	function := regexp.MustCompile(`\b((?:pktb|nfq)_\w+)\(`)
	for _, header := range headers {
		text, err := os.ReadFile(header)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(header, "/libnetfilter_queue.h") {
			continue // the netlink side
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if !table[m[1]] {
				t.Errorf("%s has no line in the table", m[1])
			}
		}
	}
}
