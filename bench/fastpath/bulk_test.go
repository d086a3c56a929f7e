package fastpath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

var bulkFilters = []filter{
	{"no filter", none},
	{"hybridfw tc, 10 rules", hybridfw("off", policyOf{rules: 10})},
	{"nft ct established first, 10 rules", nftRules(10, true)},
	{"nft 1,000 rules", nftRules(1000, false)},
	{"iptables-legacy 1,000 rules", iptables("legacy", 1000)},
}

// bulkPart sends TCP through the host by real sockets, one connection at a time.
func bulkPart(b testing.TB, r *report) {
	var sites []*site
	rates := make([]series, len(bulkFilters))
	for _, f := range bulkFilters {
		s := newNetwork(b, forwarded)
		f.set(s)
		sites = append(sites, s)
	}
	for round := range max(5, *rounds) {
		for i := range sites {
			if round%2 == 1 {
				i = len(sites) - 1 - i
			}
			rate, err := sites[i].bulk(5 * *roundFor)
			if err != nil {
				b.Fatalf("bulk, %s: %v", bulkFilters[i].name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	r.heading("TCP bulk through the host")
	r.head("filter", "Gbit/s")
	for i, f := range bulkFilters {
		r.row(f.name, rates[i].spread2())
	}
	r.want("TCP bulk, hybridfw to no filter", rates[1].median()/rates[0].median(), 0.9, false)
}

// bulk sends for a while and gives what arrived, in Gbit/s.
func (s *site) bulk(d time.Duration) (rate float64, err error) {
	to := netip.AddrPortFrom(testnet.Server4, 5001).String()
	l, err := s.Server.Listen("tcp", to)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	conn, err := s.Client.Dial(s.b.Context(), "tcp", to)
	if err != nil {
		return 0, err
	}
	sent := make(chan error, 1)
	go func() {
		chunk := make([]byte, 1<<18)
		end := time.Now().Add(d)
		var err error
		for err == nil && time.Now().Before(end) {
			_, err = conn.Write(chunk)
		}
		_ = conn.Close()
		sent <- err
	}()
	in, err := l.Accept()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	began := time.Now()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{in.(*net.TCPConn)}, make([]byte, 1<<18))
	took := time.Since(began)
	if err == nil {
		err = <-sent
	}
	if err != nil {
		return 0, fmt.Errorf("sending through the host: %w", err)
	}
	return float64(n) * 8 / took.Seconds() / 1e9, nil
}
