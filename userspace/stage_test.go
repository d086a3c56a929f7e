package userspace

import (
	"encoding/binary"
	"testing"
	"time"
)

func native32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// acceptAll is a rule for everything that is not DNS.
const acceptAll = "  - { name: all, from: lan, proto: [tcp, udp], action: inspect, steps: [{ action: accept }] }\n"

func TestAcceptedKeepsForeignBitsOfItsMark(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		r := mustRun(t, Options{Policy: mustPolicy(t, "", acceptAll)})
		s := mustSink(t, addr)
		c := mustDial(t, "udp", s.addr, markOf(0))
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		data, mark, ok := s.next(t, 5*time.Second)
		if !ok || string(data) != "hello" {
			t.Fatalf("%s: %q arrived", addr, data)
		}
		if want := uint32(testForeign | 1<<16); mark != want {
			t.Errorf("%s: mark %#x, want %#x", addr, mark, want)
		}
		if c := r.settled(t, 1); c.Accepted != 1 || c.Step != 1 {
			t.Errorf("%+v", c)
		}
		hooks, err := r.steer.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if hooks[2].Queued != 1 || hooks[2].Past != 0 || hooks[0].Queued != 0 {
			t.Errorf("counters %+v", hooks)
		}
		if err := r.drain(); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
}
