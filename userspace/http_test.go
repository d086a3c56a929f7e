package userspace

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// requests returns "host path" of each request that the inspector sees.
func requests(in inspector, b []byte) (outcome, []string) {
	got := in.inspect(b)
	var all []string
	if got == sawNames {
		for seen := in.next(); seen != nil; seen = in.next() {
			all = append(all, string(seen.Name)+" "+string(seen.Path))
		}
	}
	return got, all
}

func TestHTTPRequests(t *testing.T) {
	const host = "Host: a.example\r\n\r\n"
	for name, c := range map[string]struct {
		in   string
		want outcome
		all  string
	}{
		"plain":                     {"GET / HTTP/1.1\r\n" + host, sawNames, "a.example /"},
		"mixed case":                {"GET / HTTP/1.1\r\nhOsT:\tA.ExAmPlE. \r\n\r\n", sawNames, "a.example /"},
		"with port":                 {"GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", sawNames, "a.example /"},
		"IPv6":                      {"GET / HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n\r\n", sawNames, "[2001:db8::1] /"},
		"IPv6, no port":             {"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", sawNames, "[::1] /"},
		"lines end in LF":           {"GET / HTTP/1.0\nHost: a.example\n\n", sawNames, "a.example /"},
		"empty lines first":         {"\r\n\n\r\nGET / HTTP/1.1\r\n" + host, sawNames, "a.example /"},
		"host last":                 {"GET / HTTP/1.1\r\nAccept: */*\r\nCookie: Host: b.example\r\n" + host, sawNames, "a.example /"},
		"no host":                   {"GET /x HTTP/1.0\r\nAccept: */*\r\n\r\n", sawNames, " /x"},
		"empty host":                {"GET /x HTTP/1.1\r\nHost:\r\n\r\n", sawNames, " /x"},
		"absolute":                  {"GET http://A.example:80/p?q HTTP/1.1\r\n\r\n", sawNames, "a.example /p"},
		"absolute, same host":       {"POST http://x.example:8000/ HTTP/1.1\r\nHost: x.example:8000\r\n\r\n", sawNames, "x.example /"},
		"absolute, other port":      {"GET http://x.example/ HTTP/1.1\r\nHost: x.example:80\r\n\r\n", sawNames, "x.example /"},
		"absolute, other host":      {"POST http://x.example:8000/ HTTP/1.1\r\nHost: y.example:8000\r\n\r\n", sawMalformed, ""},
		"absolute, no path":         {"GET http://x.example?q HTTP/1.1\r\n\r\n", sawNames, "x.example /"},
		"absolute, user":            {"GET http://good.example@x.example/ HTTP/1.1\r\n\r\n", sawNames, "x.example /"},
		"connect":                   {"CONNECT x.example:443 HTTP/1.1\r\nHost: x.example:443\r\n\r\n", sawNames, "x.example /"},
		"connect, other host":       {"CONNECT x.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", sawMalformed, ""},
		"asterisk":                  {"OPTIONS * HTTP/1.1\r\n" + host, sawNames, "a.example *"},
		"two hosts":                 {"GET / HTTP/1.1\r\nHost: good.example\r\nHost: bad.example\r\n\r\n", sawMalformed, ""},
		"two hosts, equal":          {"GET / HTTP/1.1\r\nHost: a.example\r\n" + host, sawMalformed, ""},
		"host in two lines":         {"GET / HTTP/1.1\r\nHost: good.example\r\n .bad.example\r\n\r\n", sawMalformed, ""},
		"other field in two lines":  {"GET / HTTP/1.1\r\nX: y\r\n Host: b.example\r\n" + host, sawNames, "a.example /"},
		"blank before colon":        {"GET / HTTP/1.1\r\nHost : a.example\r\n\r\n", sawMalformed, ""},
		"two names in one":          {"GET / HTTP/1.1\r\nHost: good.example, bad.example\r\n\r\n", sawMalformed, ""},
		"strange port":              {"GET / HTTP/1.1\r\nHost: a.example:80x\r\n\r\n", sawMalformed, ""},
		"long host":                 {"GET / HTTP/1.1\r\nHost: " + strings.Repeat("a", 256) + "\r\n\r\n", sawMalformed, ""},
		"escapes":                   {"GET /%61dmin/%2e%2E/%2fx%zz%4 HTTP/1.1\r\n" + host, sawNames, "a.example /x%zz%4"},
		"dots":                      {"GET /a/./b/../../../c//d/. HTTP/1.1\r\n" + host, sawNames, "a.example /c/d/"},
		"long path":                 {"GET /" + strings.Repeat("ab/", 2000) + " HTTP/1.1\r\n" + host, sawNames, "a.example /" + strings.Repeat("ab/", 682)},
		"HTTP/0.9":                  {"GET /old\r\n\r\n", sawNames, " /old"},
		"HTTP/0.9, a line":          {"GET /old\r\n", sawMore, ""},
		"without version":           {"GET /old\r\n" + host, sawNames, "a.example /old"},
		"without target":            {"GET HTTP/1.1\r\n" + host, sawNames, "a.example HTTP/1.1"},
		"pipelined":                 {"GET /1 HTTP/1.1\r\n" + host + "GET /2 HTTP/1.1\r\nHost: b.example\r\n\r\nGET /3 HT", sawNames, "a.example /1|b.example /2"},
		"behind a body":             {"POST /1 HTTP/1.1\r\nContent-Length: 5\r\n" + host + "12345GET /2 HTTP/1.1\r\n" + host, sawNames, "a.example /1|a.example /2"},
		"behind chunks":             {"POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + "3;x=y\r\nabc\r\n0\r\n\r\nGET /2 HTTP/1.1\r\n" + host, sawNames, "a.example /1|a.example /2"},
		"body not there":            {"POST /1 HTTP/1.1\r\nContent-Length: 50\r\n" + host + "GET /2 HTTP/1.1\r\n" + host, sawNames, "a.example /1"},
		"response":                  {"HTTP/1.1 200 OK\r\n" + host, sawNone, ""},
		"HTTP/2":                    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", sawNone, ""},
		"mail":                      {"EHLO a.example\r\n", sawNone, ""},
		"shell":                     {"SSH-2.0-OpenSSH\r\n", sawNone, ""},
		"binary behind a word":      {"GET \x00\x01", sawNone, ""},
		"small letters":             {"get / HTTP/1.1\r\n" + host, sawNone, ""},
		"long word":                 {strings.Repeat("A", 25), sawNone, ""},
		"tls":                       {"\x16\x03\x01", sawNone, ""},
		"nothing":                   {"", sawMore, ""},
		"header that does not end":  {"GET / HTTP/1.1\r\nHost: a.example\r\n", sawMore, ""},
		"request line without end":  {"GET /" + strings.Repeat("a", 5000), sawMore, ""},
		"request line of 16 KiB":    {"GET /" + strings.Repeat("a", 1<<14), sawNone, ""},
		"post without version":      {"POST /old\r\n", sawNone, ""},
		"blank in front of request": {" GET / HTTP/1.1\r\n" + host, sawNone, ""},
	} {
		var in httpInspector
		b := []byte(c.in)
		got, all := requests(&in, b)
		if got != c.want || strings.Join(all, "|") != c.all {
			t.Errorf("%s: %v %q, want %v %q", name, got, all, c.want, c.all)
		}
		if string(b) != c.in {
			t.Errorf("%s: the request was written to", name)
		}
	}
}

// TestEveryPrefixOfARequestIsMore: cut anywhere, it is never something else.
func TestEveryPrefixOfARequestIsMore(t *testing.T) {
	b := []byte("POST /path?query HTTP/1.1\r\nUser-Agent: test\r\nHost: a.example\r\n\r\n")
	var in httpInspector
	for n := range len(b) {
		if got, all := requests(&in, b[:n]); got != sawMore {
			t.Errorf("%q: %v %q", b[:n], got, all)
		}
	}
	if in.inspect(b) != sawNames {
		t.Fatal("the whole request is not seen")
	}
	if seen := in.next(); string(seen.Method) != "POST" || string(seen.Agent) != "test" || string(seen.Path) != "/path" {
		t.Errorf("%+v", seen)
	}
}

// httpRule asks for hosts and paths.
const httpRule = `  - name: web
    from: lan
    proto: tcp
    action: inspect
    until: { packets: 1000, bytes: 1MiB }
    steps:
      - { host: "*.bad.example", action: drop }
      - { host: .good.example, path: "/admin*", action: drop }
      - { path: /secret, action: drop, log: true }
      - { action: accept }
`

func TestRequestDecidesItsFlow(t *testing.T) {
	for request, want := range map[string]policy.Action{
		"GET / HTTP/1.1\r\nHost: a.BAD.example:80\r\n\r\n":                               policy.ActionDrop,
		"GET /x HTTP/1.1\r\nHost: good.example\r\n\r\n":                                  policy.ActionAccept,
		"GET /%61dmin/x HTTP/1.1\r\nHost: good.example\r\n\r\n":                          policy.ActionDrop,
		"GET /admin HTTP/1.1\r\nHost: other.example\r\n\r\n":                             policy.ActionAccept,
		"GET /x/../secret?y HTTP/1.1\r\nHost: other.example\r\n\r\n":                     policy.ActionDrop,
		"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: b.bad.example\r\n\r\n": policy.ActionDrop,
		"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n":                                   policy.ActionDrop, // malformed
		"SSH-2.0-x\r\n": policy.ActionAccept,
	} {
		s := newStreaming(t, "", httpRule, 1)
		if passed := s.segment(t, 0, []byte(request), 0); passed != (want == policy.ActionAccept) || len(s.decisions) != 1 {
			t.Errorf("%q: passed %v, decisions %+v", request, passed, s.decisions)
		}
	}
}

func TestRequestInPieces(t *testing.T) {
	s := newStreaming(t, "", httpRule, 1<<32-30)
	b := []byte("GET /a HTTP/1.1\r\nUser-Agent: a program of some kind\r\nHost: some.bad.example:80\r\nAccept: */*\r\n\r\n")
	s.recut(t, b, "some.bad.example", policy.ActionDrop)
	b = bytes.Replace(b, []byte("bad"), []byte("good"), 1)
	s.recut(t, b, "some.good.example", policy.ActionAccept)
}

func FuzzHTTP(f *testing.F) {
	f.Add([]byte("GET /a/../b HTTP/1.1\r\nHost: a.example\r\n\r\nGET / HTTP/1.0\r\n\r\n"))
	f.Add([]byte("POST http://a.example:1/%41 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"))
	var in httpInspector
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		got, all := requests(&in, b)
		if !bytes.Equal(b, copied) {
			t.Fatal("the request was written to")
		}
		if got != sawNames {
			return
		}
		if n := bytes.Count(b, []byte("\n")); len(all) > n {
			t.Fatalf("%d requests in %d lines", len(all), n)
		}
		for _, line := range all {
			_, path, _ := strings.Cut(line, " ")
			if strings.HasPrefix(path, "/") && strings.Contains(path, "/../") || len(line) > httpNameMax+1+len(b) {
				t.Fatalf("%q", line)
			}
		}
	})
}
