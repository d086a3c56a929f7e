package userspace

import (
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// rewriteRule is inspecting rule 1: DNS with a step of each kind.
const rewriteRule = `  - name: dns
    from: lan
    proto: udp
    dport: 53
    action: inspect
    steps:
      - { qname: "*.bad.example", action: drop, log: true }
      - { qname: four.example, action: rewrite, answer: 192.0.2.99 }
      - { qname: six.example, action: rewrite, answer: "2001:db8::99" }
      - { qname: .good.example, action: accept }
`

func question(name string, typ dnsmessage.Type) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}
}

// dnsQuery is a query with one question and an OPT record, packed by a library
// that is not ours.
func dnsQuery(name string, typ dnsmessage.Type) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 0x1234, RecursionDesired: true},
		Questions: []dnsmessage.Question{question(name, typ)},
	}
	m.Additionals = append(m.Additionals, optRecord())
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func optRecord() dnsmessage.Resource {
	r := dnsmessage.Resource{Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 10, Data: []byte("cookies!")}}}}
	if err := r.Header.SetEDNS0(1232, dnsmessage.RCodeSuccess, true); err != nil {
		panic(err)
	}
	return r
}

func mustUnpack(tb testing.TB, b []byte) dnsmessage.Message {
	tb.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		tb.Fatalf("%x: %v", b, err)
	}
	return m
}
