package testnet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"time"
)

// StreamServer echoes everything that each connection sends.
type StreamServer struct {
	Addr netip.AddrPort

	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when closed
	count int
}

// ServeTCPEcho starts a TCP server on the host that echoes.
func (h *Host) ServeTCPEcho(address string) (*StreamServer, error) {
	l, err := h.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving TCP on host %s: %w", h.Name, err)
	}
	return h.serveStream(l, l.Addr()), nil
}

func (h *Host) serveStream(l net.Listener, addr net.Addr) *StreamServer {
	s := &StreamServer{
		Addr:     addr.(*net.TCPAddr).AddrPort(),
		listener: l,
		conns:    make(map[net.Conn]bool),
	}
	s.wg.Go(s.run)
	h.net.onClose(s.Close)
	return s
}

func (s *StreamServer) run() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[conn] = true
		s.count++
		s.mu.Unlock()
		s.wg.Go(func() {
			// The peer decides how a connection ends; every way is fine here.
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		})
	}
}

// Accepted is the number of connections that the server has accepted so far.
func (s *StreamServer) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Close stops the server and cuts its connections.
func (s *StreamServer) Close() error {
	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

// PacketServer sends every datagram back to where it came from.
type PacketServer struct {
	Addr netip.AddrPort

	conn  net.PacketConn
	ended chan struct{}
}

// ServeUDPEcho starts a UDP server on the host that echoes.
func (h *Host) ServeUDPEcho(address string) (*PacketServer, error) {
	conn, err := h.ListenPacket("udp", address)
	if err != nil {
		return nil, fmt.Errorf("serving UDP on host %s: %w", h.Name, err)
	}
	s := &PacketServer{
		Addr:  conn.LocalAddr().(*net.UDPAddr).AddrPort(),
		conn:  conn,
		ended: make(chan struct{}),
	}
	go s.run()
	h.net.onClose(s.Close)
	return s, nil
}

func (s *PacketServer) run() {
	defer close(s.ended)
	buf := make([]byte, 65535)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			// An unreachable client is reported by the next call; go on.
			_, _ = s.conn.WriteTo(buf[:n], from)
		}
	}
}

// Close stops the server.
func (s *PacketServer) Close() error {
	err := s.conn.Close()
	<-s.ended
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// TLSServer echoes over TLS. It has a certificate for every name, made when a
// client asks for it and signed by an authority made when the server starts.
type TLSServer struct {
	*StreamServer

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey

	mu    sync.Mutex
	names []string
}

// ServeTLS starts a TLS server on the host that echoes.
func (h *Host) ServeTLS(address string) (*TLSServer, error) {
	s := &TLSServer{}
	var err error
	s.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a certificate authority: %w", err)
	}
	ca := certificateFor("hybridfw testnet")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &s.caKey.PublicKey, s.caKey)
	if err != nil {
		return nil, fmt.Errorf("making a certificate authority: %w", err)
	}
	if s.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("making a certificate authority: %w", err)
	}
	l, err := h.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving TLS on host %s: %w", h.Name, err)
	}
	s.StreamServer = h.serveStream(tls.NewListener(l, &tls.Config{GetCertificate: s.Certificate}), l.Addr())
	return s, nil
}

func certificateFor(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

// Certificate notes the server name of a ClientHello that has arrived and makes
// a certificate for it.
func (s *TLSServer) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	s.names = append(s.names, hello.ServerName)
	s.mu.Unlock()
	leaf := certificateFor(hello.ServerName)
	if hello.ServerName != "" {
		leaf.DNSNames = []string{hello.ServerName}
	}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca, &s.caKey.PublicKey, s.caKey)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: s.caKey}, nil
}

// Names are the server names that have arrived so far, "" for a hello without.
func (s *TLSServer) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[:len(s.names):len(s.names)]
}

// ClientConfig is what a client needs to trust the server under a name. With ""
// it sends no name and trusts anybody. The key exchange is the classic one, so
// that the ClientHello fits one segment; set CurvePreferences to nil for a
// post-quantum one, which needs two.
func (s *TLSServer) ClientConfig(name string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(s.ca)
	return &tls.Config{
		ServerName:         name,
		RootCAs:            roots,
		InsecureSkipVerify: name == "",
		CurvePreferences:   []tls.CurveID{tls.X25519},
	}
}

// DialTLS opens a real TLS connection from the host, its handshake done.
func (h *Host) DialTLS(ctx context.Context, address string, config *tls.Config) (*tls.Conn, error) {
	conn, err := h.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS handshake with %s: %w", address, err), conn.Close())
	}
	return secure, nil
}
