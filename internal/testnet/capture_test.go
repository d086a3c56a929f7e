package testnet_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// handmade is a datagram from the client to the server, ready for the client's
// eth0.
func handmade(t *testing.T, r *testnet.Routed, client, server netip.Addr) testnet.Packet {
	t.Helper()
	return testnet.Packet{
		EthSrc:  r.Client.MustMAC(t, "eth0"),
		EthDst:  r.Firewall.MustMAC(t, r.Lan),
		Src:     netip.AddrPortFrom(client, 1234),
		Dst:     netip.AddrPortFrom(server, 5678),
		Payload: []byte("made by hand"),
	}
}

func TestVLANFrameArrivesWithItsTags(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{})
	for _, f := range families {
		for _, tags := range [][]uint16{nil, {7}, {0x2000 | 100, 200}} {
			lan := r.Firewall.MustCapture(t, r.Lan)
			p := handmade(t, r, f.client, f.server)
			p.VLANs = tags
			want := p.Frame()
			r.Client.MustSend(t, "eth0", want)
			got, err := lan.Wait(testnet.Patience(t), func(fr testnet.Frame) bool { return carries(fr, "made by hand") })
			if err != nil {
				t.Fatalf("%s, tags %x: %v", f.name, tags, err)
			}
			if !bytes.Equal(got.Data, want) {
				t.Errorf("%s, tags %x: frame\n%s arrived as\n%s", f.name, tags, hex.Dump(want), hex.Dump(got.Data))
			}
			if _, err := lan.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestHandmadeDatagramReachesASocket(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
	for _, f := range families {
		conn := r.Server.MustListenPacket(t, "udp", netip.AddrPortFrom(f.server, 5678).String())
		r.Client.MustSend(t, "eth0", handmade(t, r, f.client, f.server).Frame())
		deadline, _ := testnet.Patience(t).Deadline()
		if err := conn.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		if string(buf[:n]) != "made by hand" || from.String() != netip.AddrPortFrom(f.client, 1234).String() {
			t.Errorf("%s: %q from %s arrived", f.name, buf[:n], from)
		}
	}
}

func TestHandmadeSynIsAnswered(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{NoOffload: true})
	if _, err := r.Server.ServeTCPEcho("[::]:5678"); err != nil {
		t.Fatal(err)
	}
	client := r.Client.MustCapture(t, "eth0")
	for _, f := range families {
		syn := handmade(t, r, f.client, f.server)
		syn.TCP, syn.Payload = &testnet.TCP{Seq: 41, Flags: 2}, nil
		r.Client.MustSend(t, "eth0", syn.Frame())
		answer, err := client.Wait(testnet.Patience(t), func(fr testnet.Frame) bool {
			p, ok := testnet.Dissect(fr.Data)
			return ok && !fr.Out && p.TCP != nil && p.Src == syn.Dst && p.TCP.Flags == 0x12
		})
		if err != nil {
			t.Fatalf("%s: no SYN+ACK: %v", f.name, err)
		}
		if p, _ := testnet.Dissect(answer.Data); p.TCP.Ack != 42 {
			t.Errorf("%s: acknowledged %d, want 42", f.name, p.TCP.Ack)
		}
		if !testnet.ChecksumsOK(answer.Data) {
			t.Errorf("%s: wrong checksum in\n%s", f.name, hex.Dump(answer.Data))
		}
	}
}

func TestChecksumsAreFinishedOnlyWithoutOffload(t *testing.T) {
	for _, off := range []bool{true, false} {
		r := testnet.MustRouted(t, testnet.RoutedOptions{NoOffload: off})
		if _, err := r.Server.ServeUDPEcho("[::]:7"); err != nil {
			t.Fatal(err)
		}
		client := r.Client.MustCapture(t, "eth0")
		for _, f := range families {
			conn := r.Client.MustDial(t, "udp", netip.AddrPortFrom(f.server, 7).String())
			exchange(t, conn, "checksum")
		}
		frames, err := client.Stop()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, fr := range frames {
			if !carries(fr, "checksum") {
				continue
			}
			seen++
			if fr.ChecksumUnfinished == off || testnet.ChecksumsOK(fr.Data) != off {
				t.Errorf("no offload %v: unfinished %v, checksums ok %v", off, fr.ChecksumUnfinished, testnet.ChecksumsOK(fr.Data))
			}
		}
		if seen != 4 {
			t.Errorf("captured %d datagrams, want one to and one from the server for each family", seen)
		}
	}
}

func TestCaptureSeesBothDirectionsInTime(t *testing.T) {
	r := testnet.MustRouted(t, testnet.RoutedOptions{StaticNeighbours: true})
	client := r.Client.MustCapture(t, "eth0")
	start := time.Now()
	for range 3 {
		if err := r.Client.Ping(testnet.Patience(t), testnet.Server4); err != nil {
			t.Fatal(err)
		}
	}
	frames, err := client.Stop()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[bool]int{}
	last := start.Add(-time.Millisecond) // clocks are read in different places
	for _, fr := range frames {
		if !carries(fr, "hybridfw") {
			continue
		}
		counts[fr.Out]++
		if fr.Time.Before(last) || fr.Time.After(time.Now()) {
			t.Errorf("frame of %s after one of %s, test began %s", fr.Time, last, start)
		}
		last = fr.Time
	}
	if counts[true] != 3 || counts[false] != 3 {
		t.Errorf("%d sent and %d received, want 3 each", counts[true], counts[false])
	}
	if n := client.Count(func(fr testnet.Frame) bool { return fr.Out && carries(fr, "hybridfw") }); n != 3 {
		t.Errorf("Count is %d, want 3", n)
	}
}

func TestWaitEndsWithItsContextAndWithTheCapture(t *testing.T) {
	h := testnet.MustNew(t).MustHost(t, "h")
	c := h.MustCapture(t, "lo")
	nothing := func(testnet.Frame) bool { return false }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Wait(ctx, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if _, err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(testnet.Patience(t), nothing); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v, want %v", err, os.ErrClosed)
	}
	if _, err := c.Stop(); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
}

func TestWhatIsNoFrameIsNotSent(t *testing.T) {
	h := testnet.MustNew(t).MustHost(t, "h")
	if err := h.Send("lo", make([]byte, 13)); err == nil || !strings.Contains(err.Error(), "13 bytes") {
		t.Errorf("error %v, want one about 13 bytes", err)
	}
	if err := h.Send("missing0", make([]byte, 60)); err == nil || !strings.Contains(err.Error(), "missing0") {
		t.Errorf("error %v, want one that names the interface", err)
	}
	if _, err := h.Capture("missing0"); err == nil || !strings.Contains(err.Error(), "missing0") {
		t.Errorf("error %v, want one that names the interface", err)
	}
}
