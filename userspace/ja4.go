package userspace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/hybridfw/hybridfw/policy"
)

const (
	tlsSignatures = 13 // extension
	tlsVersions   = 43 // extension
)

// isGrease reports whether a number is one of those that clients throw in so that
// servers keep passing over what they do not know (RFC 8701).
func isGrease(n int) bool { return n&0x0f0f == 0x0a0a && n>>8 == n&0xff }

// ja4 returns a ClientHello's fingerprint by the JA4 method of FoxIO
// (github.com/FoxIO-LLC/ja4, technical_details/JA4.md), whose TLS part is under
// the BSD 3-clause licence. The hello must have been found sound. It allocates.
func ja4(seen *policy.Sight) string {
	r := tlsReader{b: seen.Hello}
	version := r.uint16()
	r.take(32)
	r.vector8()
	var ciphers, extensions, signatures []string
	for list := (tlsReader{b: r.vector16()}); len(list.b) > 0; {
		if n := list.uint16(); !isGrease(n) {
			ciphers = append(ciphers, fmt.Sprintf("%04x", n))
		}
	}
	r.vector8()
	count, alpn := 0, "00"
	for all := (tlsReader{b: r.vector16()}); len(all.b) > 0; {
		typ := all.uint16()
		body := all.vector16()
		if isGrease(typ) {
			continue
		}
		count++
		switch typ {
		case tlsVersions:
			version = highestVersion(body, version, seen.L7 == policy.L7DTLS)
		case tlsALPN:
			alpn = ja4ALPN(body)
		case tlsSignatures:
			for list := (tlsReader{b: body[min(2, len(body)):]}); len(list.b) > 1; {
				if n := list.uint16(); !isGrease(n) {
					signatures = append(signatures, fmt.Sprintf("%04x", n))
				}
			}
		}
		if typ != tlsServerName && typ != tlsALPN {
			extensions = append(extensions, fmt.Sprintf("%04x", typ))
		}
	}
	slices.Sort(ciphers)
	slices.Sort(extensions)
	offered := strings.Join(extensions, ",")
	if len(signatures) > 0 {
		offered += "_" + strings.Join(signatures, ",")
	}
	over, to := 't', 'i'
	switch seen.L7 {
	case policy.L7QUIC:
		over = 'q'
	case policy.L7DTLS:
		over = 'd'
	}
	if len(seen.Name) > 0 {
		to = 'd'
	}
	return fmt.Sprintf("%c%s%c%02d%02d%s_%s_%s", over, ja4Version(version), to, min(len(ciphers), 99), min(count, 99), alpn,
		ja4Hash(strings.Join(ciphers, ","), len(ciphers)), ja4Hash(offered, len(extensions)))
}

// highestVersion returns the highest version of a supported_versions extension.
// DTLS counts downwards.
func highestVersion(body []byte, version int, down bool) int {
	outer := tlsReader{b: body}
	highest := 0
	for list := (tlsReader{b: outer.vector8()}); len(list.b) > 1; {
		switch v := list.uint16(); {
		case isGrease(v):
		case down && highest != 0:
			highest = min(highest, v)
		default:
			highest = max(highest, v)
		}
	}
	if highest == 0 {
		return version
	}
	return highest
}

func ja4Version(version int) string {
	switch version {
	case 0x0304:
		return "13"
	case 0x0303:
		return "12"
	case 0x0302:
		return "11"
	case 0x0301:
		return "10"
	case 0x0300:
		return "s3"
	case 0xfefc:
		return "d3"
	case 0xfefd:
		return "d2"
	case 0xfeff:
		return "d1"
	}
	return "00"
}

// ja4ALPN returns the first and last character of the first protocol, in hex
// where they are no letters or digits.
func ja4ALPN(body []byte) string {
	outer := tlsReader{b: body}
	list := tlsReader{b: outer.vector16()}
	first := list.vector8()
	if len(first) == 0 {
		return "00"
	}
	begin, end := first[0], first[len(first)-1]
	if isAlphanumeric(begin) && isAlphanumeric(end) {
		return string([]byte{begin, end})
	}
	digits := hex.EncodeToString([]byte{begin, end})
	return digits[:1] + digits[3:]
}

func isAlphanumeric(c byte) bool { return c >= '0' && c <= '9' || lower(c) >= 'a' && lower(c) <= 'z' }

func ja4Hash(text string, count int) string {
	if count == 0 {
		return "000000000000"
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}
