package testnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsTTL is the time to live of every answer, in seconds.
const dnsTTL = 60

// Query is a question that a DNSServer was asked.
type Query struct {
	Name string // lower case, no final dot
	Type dnsmessage.Type
	From netip.AddrPort
}

// DNSServer answers A and AAAA queries over UDP.
type DNSServer struct {
	Addr netip.AddrPort

	conn  net.PacketConn
	names map[string][]netip.Addr
	ended chan struct{}

	mu      sync.Mutex
	queries []Query
	err     error
}

// ServeDNS starts a DNS server on the host. Keys of names are lower case without
// a final dot; other names do not exist (NXDOMAIN).
func (h *Host) ServeDNS(address string, names map[string][]netip.Addr) (*DNSServer, error) {
	conn, err := h.ListenPacket("udp", address)
	if err != nil {
		return nil, fmt.Errorf("serving DNS on host %s: %w", h.Name, err)
	}
	s := &DNSServer{
		Addr:  conn.LocalAddr().(*net.UDPAddr).AddrPort(),
		conn:  conn,
		names: names,
		ended: make(chan struct{}),
	}
	go s.run()
	h.net.onClose(s.Close)
	return s, nil
}

// Queries are the questions asked so far, in their order.
func (s *DNSServer) Queries() []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queries[:len(s.queries):len(s.queries)]
}

// Asked is the number of times that name was asked for, whatever the type.
func (s *DNSServer) Asked(name string) int {
	n := 0
	for _, q := range s.Queries() {
		if q.Name == name {
			n++
		}
	}
	return n
}

// Close stops the server and returns the first error that it met.
func (s *DNSServer) Close() error {
	err := s.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	<-s.ended
	return errors.Join(err, s.err)
}

func (s *DNSServer) run() {
	defer close(s.ended)
	buf := make([]byte, 65535)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.fail(err)
			return
		}
		reply, err := s.answer(buf[:n], from.(*net.UDPAddr).AddrPort())
		if err != nil {
			s.fail(fmt.Errorf("answering %s: %w", from, err))
			continue
		}
		if _, err := s.conn.WriteTo(reply, from); err != nil && !errors.Is(err, net.ErrClosed) {
			s.fail(fmt.Errorf("answering %s: %w", from, err))
		}
	}
}

func (s *DNSServer) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *DNSServer) answer(query []byte, from netip.AddrPort) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := p.Question()
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	s.mu.Lock()
	s.queries = append(s.queries, Query{Name: name, Type: question.Type, From: from})
	s.mu.Unlock()

	addrs, known := s.names[name]
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true,
			RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, addr := range addrs {
		var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: addr.As16()}
		kind := dnsmessage.TypeAAAA
		if addr.Is4() {
			body, kind = &dnsmessage.AResource{A: addr.As4()}, dnsmessage.TypeA
		}
		if kind != question.Type {
			continue
		}
		head := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: body})
	}
	return reply.Pack()
}

// Resolver is Go's own resolver, asking the given server from the host, whatever
// the machine's resolv.conf says. Ask for names with a final dot: others get the
// machine's search domains.
func (h *Host) Resolver(server netip.AddrPort) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return h.Dial(ctx, network, server.String())
		},
	}
}
