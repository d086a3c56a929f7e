package userspace

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

func numbers(all ...uint16) (b []byte) {
	for _, n := range all {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return b
}

// bodyWith is a ClientHello's body with cipher suites.
func bodyWith(ciphers []byte, extensions ...[]byte) []byte {
	return slices.Concat([]byte{3, 3}, make([]byte, 33), vec16(ciphers), []byte{1, 0}, vec16(extensions...))
}

// TestFingerprint is the example of the method's description.
func TestFingerprint(t *testing.T) {
	ciphers := numbers(0x2a2a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035)
	empty := func(typ uint16) []byte { return extension(typ, nil) }
	extensions := [][]byte{
		empty(0x4a4a), empty(0x1b), sni("a.example"), empty(0x33), extension(16, []byte{0, 12, 2, 'h', '2', 8, 'h', 't', 't', 'p', '/', '1', '.', '1'}),
		empty(0x4469), empty(0x17), empty(0x2d), extension(13, vec16(numbers(0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601))),
		empty(5), empty(0x23), empty(0x12), extension(43, []byte{6, 0x7a, 0x7a, 3, 4, 3, 3}), empty(0xff01), empty(0x0b), empty(0x0a), empty(0x15),
	}
	body := bodyWith(ciphers, extensions...)
	const want = "t13d1516h2_8daaf6152771_e5627efa2ab1"
	if got := ja4(&policy.Sight{L7: policy.L7TLS, Hello: body, Name: []byte("x")}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// The order of suites and extensions does not matter.
	slices.Reverse(extensions)
	if got := ja4(&policy.Sight{L7: policy.L7QUIC, Hello: bodyWith(ciphers, extensions...), Name: []byte("x")}); got != "q"+want[1:] {
		t.Errorf("reversed, over QUIC: %s", got)
	}
}

func TestFingerprintOfPoorHellos(t *testing.T) {
	for want, body := range map[string][]byte{
		"t12i010000_0f2cb44170f4_000000000000": helloBody(),
		"t12i0101-4_":                          bodyWith(numbers(0x1301), extension(16, []byte{0, 3, 2, '-', '4'})),
		"t12i0101a1_":                          bodyWith(numbers(0x1301), extension(16, []byte{0, 3, 2, 'a', '1'})),
		"ts3i0100":                             append([]byte{3, 0}, helloBody()[2:]...),
	} {
		got := ja4(&policy.Sight{L7: policy.L7TLS, Hello: body})
		if strings.HasPrefix(want, "t12i0101-4") {
			want = "t12i010124_" // 2d and 34 in hex: its first digit and its last
		}
		if want == "t12i010000_0f2cb44170f4_000000000000" {
			want = "t12i010000_" + ja4Hash("1301", 1) + "_000000000000"
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	var in tlsInspector
	b := realHello(t, "a.example")
	if in.inspect(b) != sawNames || !bytes.Contains(b, in.next().Hello) {
		t.Error("the hello is not handed on")
	}
}

// TestWhatAHelloOffers besides its name: versions, and a session to resume.
func TestWhatAHelloOffers(t *testing.T) {
	versions := func(list ...byte) []byte { return extension(tlsVersions, append([]byte{byte(len(list))}, list...)) }
	for name, c := range map[string]struct {
		extensions [][]byte
		versions   string
		resumes    bool
	}{
		"old":         {nil, "1.2", false},
		"new":         {[][]byte{versions(0x7a, 0x7a, 3, 4, 3, 3)}, "1.3,1.2", false},
		"unknown":     {[][]byte{versions(3, 9, 3, 0)}, "1.8,0x0300", false},
		"a key":       {[][]byte{versions(3, 4), extension(tlsPreShared, make([]byte, 40))}, "1.3", true},
		"a ticket":    {[][]byte{extension(tlsTicket, make([]byte, 100))}, "1.2", true},
		"asks for it": {[][]byte{extension(tlsTicket, nil)}, "1.2", false},
		"DTLS":        {[][]byte{versions(0xfe, 0xfc, 0xfe, 0xfd)}, "1.3,1.2", false},
	} {
		var in tlsInspector
		if in.inspect(hello(append(c.extensions, sni("a.example"))...)) != sawNames {
			t.Errorf("%s: no hello", name)
			continue
		}
		seen := in.next()
		if got := helloVersions(seen); got != c.versions || seen.Resumes != c.resumes {
			t.Errorf("%s: versions %q, resumes %v", name, got, seen.Resumes)
		}
	}
}
