package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// corpusDir is the folder of captures that others published, beside the project.
func corpusDir(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("HYBRIDFW_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus")
	}
	if _, err := os.Stat(filepath.Join(dir, "manifest.tsv")); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatalf("no captures: %v; set HYBRIDFW_CORPUS", err)
		}
		tb.Skipf("no captures: %v; set HYBRIDFW_CORPUS", err)
	}
	return dir
}

// rows reads a table with a line of names and tabs in between.
func rows(tb testing.TB, file string) (all []map[string]string) {
	tb.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	columns := strings.Split(lines[0], "\t")
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, field := range strings.Split(line, "\t") {
			row[columns[i]] = field
		}
		all = append(all, row)
	}
	return all
}

// known says of each name in the captures where it is: by kind, how often
// "file frame name" is there.
type known map[string]map[string]int

func (k known) add(kind, file, frame, name string) {
	if k[kind] == nil {
		k[kind] = make(map[string]int)
	}
	k[kind][fmt.Sprintf("%s\t%s\t%s", file, frame, name)]++
}

// wrapped tells of what stands in a tunnel, which is not opened.
func wrapped(layers string) bool {
	ips := 0
	for layer := range strings.SplitSeq(layers, ":") {
		switch layer {
		case "ip", "ipv6":
			ips++
		case "vxlan", "geneve", "gre", "gtp", "teredo", "icmp", "icmpv6":
			return true
		}
	}
	return ips > 1
}

// wireName is a question's name as it is written here, from its raw form where
// that has no pointer: a dissector's text does not show where labels end.
func wireName(row map[string]string) string {
	wire, err := hex.DecodeString(row["name_hex"])
	if err != nil || len(wire) == 0 {
		return row["name_norm"]
	}
	var labels []string
	for len(wire) > 1 {
		n := int(wire[0])
		if n >= 192 || n+1 > len(wire) {
			return row["name_norm"]
		}
		labels = append(labels, strings.ToLower(strings.ReplaceAll(string(wire[1:1+n]), ".", `\`)))
		wire = wire[1+n:]
	}
	return strings.Join(labels, ".")
}

// truth is what an independent dissector found.
func truth(tb testing.TB, dir string) known {
	all := make(known)
	for _, row := range rows(tb, filepath.Join(dir, "truth", "dns.tsv")) {
		if !wrapped(row["layers"]) && row["note"] != "icmp-embedded" && row["l4"] != "-" {
			all.add(row["proto"], row["file"], row["frame"], wireName(row))
		}
	}
	for kind, column := range map[string]string{"tls": "sni_norm", "quic": "sni_norm", "http": "host_norm"} {
		for _, row := range rows(tb, filepath.Join(dir, "truth", kind+".tsv")) {
			if !wrapped(row["layers"]) && !strings.HasPrefix(row["version"], "Q0") && row["kind"] != "gquic" {
				all.add(kind, row["file"], row["frame"], strings.TrimSuffix(row[column], "-"))
			}
		}
	}
	return all
}

// replayed is what the command prints about all captures.
func replayed(tb testing.TB, dir string) known {
	all := make(known)
	for _, row := range rows(tb, filepath.Join(dir, "manifest.tsv")) {
		var out, errs bytes.Buffer
		status := execute(context.Background(), env{&out, &errs}, []string{"replay", "--json", filepath.Join(dir, row["file"])})
		if status != exitOK {
			tb.Errorf("%s: exit status %d: %s", row["file"], status, errs.String())
		}
		for lines := json.NewDecoder(&out); lines.More(); {
			var line sightingLine
			if err := lines.Decode(&line); err != nil {
				tb.Fatalf("%s: %v", row["file"], err)
			}
			if line.Verdict != "accept" || line.Rule != "" {
				tb.Errorf("%s: %+v; want everything accepted", row["file"], line)
			}
			all.add(line.Kind, row["file"], fmt.Sprint(line.Packet), line.Name)
			for _, addr := range line.Answers {
				all.add(answersKind, row["file"], fmt.Sprint(line.Packet), addr.String())
			}
		}
	}
	return all
}

// answersKind is what the addresses in responses count as.
const answersKind = "answers"

// TestCorpusAnswers: each address that is shown stands in that response, and each that
// a record has for the name that was asked for is shown.
func TestCorpusAnswers(t *testing.T) {
	dir := corpusDir(t)
	got := replayed(t, dir)[answersKind]
	asked := make(map[string]string) // names by file and frame
	for _, row := range rows(t, filepath.Join(dir, "truth", "dns.tsv")) {
		// Where something else was asked for, addresses stand beside the answer.
		if !wrapped(row["layers"]) && row["response"] == "1" && (row["qtype"] == "1" || row["qtype"] == "28") {
			asked[row["file"]+"\t"+row["frame"]] = row["name_norm"]
		}
	}
	there, wanted, found := make(map[string]bool), 0, 0
	for _, row := range rows(t, filepath.Join(dir, "truth", "dns_answers.tsv")) {
		addr, err := netip.ParseAddr(row["data"])
		if err != nil || row["type"] != "1" && row["type"] != "28" {
			continue
		}
		frame := row["file"] + "\t" + row["frame"]
		key := frame + "\t" + addr.String()
		there[key] = true
		if asked[frame] == strings.ToLower(row["name"]) && asked[frame] != "" {
			wanted++
			if got[key] > 0 {
				found++
			} else {
				t.Errorf("%s for %s is not shown", key, row["name"])
			}
		}
	}
	for key := range got {
		if !there[key] {
			t.Errorf("%s is shown and is not there", key)
		}
	}
	t.Logf("%d of %d addresses of the names asked for found, %d shown in all", found, wanted, len(got))
	if wanted == 0 {
		t.Error("no addresses in the truth")
	}
}

// excepted reads why some names differ: by kind and "file frame".
func excepted(tb testing.TB) map[string]string {
	why := make(map[string]string)
	for _, row := range rows(tb, filepath.Join("testdata", "corpus-exceptions.tsv")) {
		if row["reason"] == "" {
			tb.Errorf("an exception without a reason: %v", row)
		}
		why[row["kind"]+"\t"+row["file"]+"\t"+row["frame"]] = row["reason"]
	}
	return why
}

// TestCorpus: every name in the captures is found, at its frame, and none is
// invented, but for what the file of exceptions gives a reason for.
func TestCorpus(t *testing.T) {
	dir := corpusDir(t)
	want, got, why := truth(t, dir), replayed(t, dir), excepted(t)
	used := make(map[string]bool)
	for _, kind := range []string{"dns", "mdns", "llmnr", "tls", "quic", "http"} {
		found, total, excused := 0, 0, 0
		var wrong []string
		differs := func(key, format string, args ...any) {
			frame := key[:strings.LastIndexByte(key, '\t')]
			if reason := why[kind+"\t"+frame]; reason != "" {
				used[kind+"\t"+frame] = true
				excused++
				return
			}
			wrong = append(wrong, kind+"\t"+key+"\t"+fmt.Sprintf(format, args...))
		}
		for key, n := range want[kind] {
			total += n
			found += min(n, got[kind][key])
			if got[kind][key] != n {
				differs(key, "found %d times, want %d", got[kind][key], n)
			}
		}
		for key, n := range got[kind] {
			if want[kind][key] == 0 {
				differs(key, "found %d times, is not there", n)
			}
		}
		sort.Strings(wrong)
		for _, w := range wrong {
			t.Error(w)
		}
		t.Logf("%-5s %4d of %4d names found, %d differences excepted", kind, found, total, excused)
		if total == 0 {
			t.Errorf("no names of kind %s in the truth", kind)
		}
	}
	for key := range why {
		if !used[key] {
			t.Errorf("the exception %q is not needed", key)
		}
	}
}
