package userspace

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// realHello is a ClientHello as crypto/tls sends it, one record.
func realHello(tb testing.TB, name string) []byte {
	tb.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		// It fails when the server closes: nothing but its hello is wanted.
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		client.Close()
	}()
	head := make([]byte, tlsRecordHeader)
	if _, err := io.ReadFull(server, head); err != nil {
		tb.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		tb.Fatal(err)
	}
	return append(head, body...)
}

func vec16(b ...[]byte) []byte {
	all := bytes.Join(b, nil)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(all))), all...)
}

func extension(typ uint16, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, typ), vec16(body)...)
}

// sni is a server_name extension with the names as host names.
func sni(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(list, 0)
		list = append(list, vec16([]byte(n))...)
	}
	return extension(0, vec16(list))
}

func handshake(typ byte, body []byte) []byte {
	return append([]byte{typ, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func record(typ byte, body []byte) []byte {
	return append([]byte{typ, 3, 1}, vec16(body)...)
}

// helloBody is a ClientHello's body with the extensions; nil leaves their block out.
func helloBody(extensions ...[]byte) []byte {
	b := append([]byte{3, 3}, make([]byte, 32)...)
	b = append(b, 0)               // session id
	b = append(b, 0, 2, 0x13, 0x1) // cipher suites
	b = append(b, 1, 0)            // compression
	if extensions != nil {
		b = append(b, vec16(extensions...)...)
	}
	return b
}

func hello(extensions ...[]byte) []byte {
	return record(tlsHandshake, handshake(tlsClientHello, helloBody(extensions...)))
}

// see returns what the inspector makes of b.
func see(in inspector, b []byte) (outcome, []string) {
	got := in.inspect(b)
	var names []string
	if got == sawNames {
		for seen := in.next(); seen != nil; seen = in.next() {
			names = append(names, string(seen.Name))
		}
	}
	return got, names
}

func TestServerNameOfARealHello(t *testing.T) {
	var in tlsInspector
	for _, name := range []string{"a.example", "MiXed.Example", "xn--bcher-kva.example"} {
		b := realHello(t, name)
		copied := bytes.Clone(b)
		got, names := see(&in, b)
		if got != sawNames || len(names) != 1 || names[0] != string(bytes.ToLower([]byte(name))) {
			t.Errorf("%s: %v %q", name, got, names)
		}
		if !bytes.Equal(b, copied) {
			t.Error("the payload was written to")
		}
	}
}

// A hello that continues is more, at whatever byte it was cut, and never
// something else.
func TestEveryPrefixOfAHelloIsMore(t *testing.T) {
	var in tlsInspector
	for name, b := range map[string][]byte{"real": realHello(t, "a.example"), "two records": twoRecords(hello(sni("a.example")), 40)} {
		for n := range len(b) {
			if got, _ := see(&in, b[:n]); got != sawMore {
				t.Fatalf("%s: %d bytes of %d: %v", name, n, len(b), got)
			}
		}
	}
}

// twoRecords cuts a hello of one record into two, the first with n bytes.
func twoRecords(b []byte, n int) []byte {
	body := b[tlsRecordHeader:]
	return append(record(tlsHandshake, body[:n]), record(tlsHandshake, body[n:])...)
}

func TestHelloInTwoRecords(t *testing.T) {
	var in tlsInspector
	whole := realHello(t, "two.records.example")
	for n := 1; n < len(whole)-tlsRecordHeader; n++ {
		if got, names := see(&in, twoRecords(whole, n)); got != sawNames || len(names) != 1 || names[0] != "two.records.example" {
			t.Fatalf("cut at %d: %v %q", n, got, names)
		}
	}
}

func TestWhatFollowsAHelloIsIgnored(t *testing.T) {
	b := hello(sni("first.example"))
	b = append(b, record(20, []byte{1})...)
	b = append(b, record(23, make([]byte, 200))...)
	var in tlsInspector
	if got, names := see(&in, b); got != sawNames || names[0] != "first.example" {
		t.Errorf("%v %q", got, names)
	}
	// A second handshake message in the same record is not part of the hello.
	two := append(handshake(tlsClientHello, helloBody(sni("first.example"))), handshake(tlsClientHello, helloBody(sni("second.example")))...)
	if got, names := see(&in, record(tlsHandshake, two)); got != sawNames || names[0] != "first.example" {
		t.Errorf("%v %q", got, names)
	}
}

func TestTLSOutcomes(t *testing.T) {
	other := extension(16, []byte{0, 3, 2, 'h', '2'})
	typed := extension(0, vec16([]byte{7, 0, 1, 'x', 0, 0, 1, 'y'}))
	long := bytes.Repeat([]byte("a"), 256)
	inRecord := func(body []byte) []byte { return record(tlsHandshake, handshake(tlsClientHello, body)) }
	body := helloBody(sni("a.example"))
	for name, c := range map[string]struct {
		in   []byte
		want outcome
		name string
	}{
		"no server name":             {hello(other), sawNames, ""},
		"no extensions":              {hello(), sawNames, ""},
		"empty extensions":           {inRecord(append(helloBody(), 0, 0)), sawNames, ""},
		"final dot":                  {hello(sni("a.example.")), sawNames, "a.example"},
		"behind others":              {hello(other, extension(65037, make([]byte, 300)), sni("a.example")), sawNames, "a.example"},
		"unknown type of name first": {hello(typed), sawNames, "y"},
		"two server names":           {hello(sni("good.example"), other, sni("bad.example")), sawMalformed, ""},
		"two server names, equal":    {hello(sni("good.example"), sni("good.example")), sawMalformed, ""},
		"two names in one":           {hello(sni("good.example", "bad.example")), sawMalformed, ""},
		"empty name":                 {hello(sni("")), sawMalformed, ""},
		"empty list":                 {hello(extension(0, vec16())), sawMalformed, ""},
		"empty extension":            {hello(extension(0, nil)), sawMalformed, ""},
		"name of 256 bytes":          {hello(sni(string(long))), sawMalformed, ""},
		"bytes behind the list":      {hello(extension(0, append(vec16(append([]byte{0}, vec16([]byte("a"))...)), 0))), sawMalformed, ""},
		"bytes behind extensions":    {inRecord(append(body[:len(body):len(body)], 0)), sawMalformed, ""},
		"extension beyond":           {inRecord(append(helloBody(), 0, 4, 0, 0, 0, 9)), sawMalformed, ""},
		"cut extensions length":      {inRecord(append(helloBody(), 0)), sawMalformed, ""},
		"odd cipher suites":          {inRecord(append(append([]byte{3, 3}, make([]byte, 33)...), 0, 1, 9, 1, 0)), sawMalformed, ""},
		"no cipher suites":           {inRecord(append(append([]byte{3, 3}, make([]byte, 33)...), 0, 0, 1, 0)), sawMalformed, ""},
		"long session id":            {inRecord(append(append(append([]byte{3, 3}, make([]byte, 32)...), 33), make([]byte, 40)...)), sawMalformed, ""},
		"empty record":               {record(tlsHandshake, nil), sawMalformed, ""},
		"record too long":            {append([]byte{22, 3, 1, 0x41, 0}, make([]byte, 10)...), sawMalformed, ""},
		"huge message":               {record(tlsHandshake, []byte{1, 2, 0, 0}), sawMalformed, ""},
		"other record in between":    {append(record(tlsHandshake, []byte{1, 0, 1}), record(23, []byte{0})...), sawMalformed, ""},
		"nothing":                    {nil, sawMore, ""},
		"server hello":               {record(tlsHandshake, handshake(2, make([]byte, 40))), sawNone, ""},
		"behind a change of cipher":  {append(record(20, []byte{1}), hello(sni("a.example"))...), sawNames, "a.example"},
		"behind alerts":              {append(append(record(21, []byte{1, 100}), record(21, []byte{1, 0})...), hello(sni("a.example"))...), sawNames, "a.example"},
		"change of cipher alone":     {record(20, []byte{1}), sawMore, ""},
		"half a change of cipher":    {record(20, []byte{1})[:4], sawMore, ""},
		"finished":                   {append(record(20, []byte{1}), record(23, make([]byte, 40))...), sawNone, ""},
		"empty alert":                {record(21, nil), sawMalformed, ""},
		"application data":           {record(23, make([]byte, 40)), sawNone, ""},
		"version 2.1":                {[]byte{22, 2, 1, 0, 1, 1}, sawNone, ""},
		"http":                       {[]byte("GET / HTTP/1.1\r\n"), sawNone, ""},
	} {
		var in tlsInspector
		got, names := see(&in, c.in)
		if got != c.want {
			t.Errorf("%s: outcome %v, want %v", name, got, c.want)
			continue
		}
		if got == sawNames && (len(names) != 1 || names[0] != c.name) {
			t.Errorf("%s: names %q, want %q", name, names, c.name)
		}
	}
}

// The same twice: judging leaves nothing behind that changes the next hello.
func TestDuplicateServerNameStaysMalformed(t *testing.T) {
	var in tlsInspector
	twice, good := hello(sni("good.example"), sni("bad.example")), hello(sni("good.example"))
	for range 100000 {
		if got := in.inspect(twice); got != sawMalformed {
			t.Fatal(got)
		}
		if in.next() != nil {
			t.Fatal("a malformed hello gives a name")
		}
		if got := in.inspect(good); got != sawNames {
			t.Fatal(got)
		}
	}
}

func FuzzTLS(f *testing.F) {
	f.Add(realHello(f, "a.example"))
	f.Add(hello(sni("good.example"), sni("bad.example")))
	f.Add(twoRecords(hello(sni("a.example")), 9))
	var in tlsInspector
	f.Fuzz(func(t *testing.T, b []byte) {
		copied := bytes.Clone(b)
		got, names := see(&in, b)
		if !bytes.Equal(b, copied) {
			t.Fatal("the payload was written to")
		}
		if got != sawNames {
			return
		}
		if len(names) != 1 || len(names[0]) > tlsNameMax {
			t.Fatalf("names %q", names)
		}
		// What is there alone is there whatever follows.
		if more, again := see(&in, append(copied, 1, 2, 3)); more != sawNames || again[0] != names[0] {
			t.Fatalf("%v %q with bytes behind, %q without", more, again, names)
		}
	})
}
