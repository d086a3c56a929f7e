package testnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Frame is one captured Ethernet frame.
type Frame struct {
	Time time.Time
	Data []byte // from the Ethernet header on, a VLAN tag included
	Out  bool   // sent by the host, otherwise received

	// ChecksumUnfinished says that the layer 4 checksum is left to a network
	// card that does not exist here: it holds the pseudo-header's sum only.
	ChecksumUnfinished bool
}

// Capture collects the frames that an interface sends and receives.
type Capture struct {
	conn  *os.File
	raw   syscall.RawConn
	ended chan struct{}

	reading sync.Mutex    // held while the socket is read
	buf     [1 << 17]byte // a super-packet may have 64 KiB and a header
	oob     [512]byte

	mu     sync.Mutex
	frames []Frame
	more   chan struct{} // closed and replaced with every frame
	err    error
}

// captureBuffer holds what comes in before it is read; 8 MiB is some 5,000 full
// frames.
const captureBuffer = 8 << 20

// Capture starts to capture on an interface of the host. It sees frames where
// tcpdump sees them: received ones after XDP and before tc, sent ones after tc.
func (h *Host) Capture(ifname string) (*Capture, error) {
	conn, err := h.packetSocket(ifname, unix.ETH_P_ALL)
	if err != nil {
		return nil, fmt.Errorf("capturing on %s of host %s: %w", ifname, h.Name, err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, fmt.Errorf("capturing on %s of host %s: %w", ifname, h.Name, errors.Join(err, conn.Close()))
	}
	c := &Capture{conn: conn, raw: raw, ended: make(chan struct{}), more: make(chan struct{})}
	go c.run()
	h.net.onClose(func() error {
		_, err := c.Stop()
		return err
	})
	return c, nil
}

// Frames are the frames captured so far: all that the interface has carried when
// Frames is called.
func (c *Capture) Frames() []Frame {
	// What fails here fails in run too, which keeps the error; a closed socket
	// has nothing waiting.
	_ = c.raw.Control(func(fd uintptr) { _ = c.drain(int(fd)) })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frames[:len(c.frames):len(c.frames)]
}

// Wait returns the first frame, captured or to come, that match accepts.
func (c *Capture) Wait(ctx context.Context, match func(Frame) bool) (Frame, error) {
	for seen := 0; ; {
		c.mu.Lock()
		frames, more := c.frames, c.more
		c.mu.Unlock()
		for ; seen < len(frames); seen++ {
			if match(frames[seen]) {
				return frames[seen], nil
			}
		}
		select {
		case <-more:
		case <-c.ended:
			if len(c.Frames()) == seen {
				return Frame{}, fmt.Errorf("waiting for a frame: %w", errors.Join(os.ErrClosed, c.err))
			}
		case <-ctx.Done():
			return Frame{}, fmt.Errorf("waiting for a frame, %d others seen: %w", seen, ctx.Err())
		}
	}
}

// Count is the number of frames captured so far that match accepts.
func (c *Capture) Count(match func(Frame) bool) int {
	n := 0
	for _, f := range c.Frames() {
		if match(f) {
			n++
		}
	}
	return n
}

// Stop ends the capture and returns all its frames, those included that were
// waiting to be read. It is an error if the kernel had no room for some.
func (c *Capture) Stop() ([]Frame, error) {
	// Capture has made sure that deadlines work, so an error says that run has
	// closed the socket already.
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
	<-c.ended
	return c.Frames(), c.err
}

// run reads until the deadline that Stop sets, then what is left.
func (c *Capture) run() {
	defer close(c.ended)
	var err error
	for err == nil {
		var readErr error
		err = c.raw.Read(func(fd uintptr) bool {
			readErr = c.drain(int(fd))
			return readErr != unix.EAGAIN
		})
		if err == nil {
			err = readErr
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = c.last()
	}
	c.err = errors.Join(err, c.conn.Close())
}

// last takes what is still in the socket and asks whether anything was lost.
func (c *Capture) last() (err error) {
	controlErr := c.raw.Control(func(fd uintptr) {
		if err = c.drain(int(fd)); err != unix.EAGAIN {
			return
		}
		var stats *unix.TpacketStats
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && stats.Drops > 0 {
			err = fmt.Errorf("the capture lost %d frames of %d", stats.Drops, stats.Packets)
		}
	})
	return errors.Join(controlErr, err)
}

// drain reads frames until there is none; then it returns EAGAIN.
func (c *Capture) drain(fd int) error {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, oobn, _, from, err := unix.Recvmsg(fd, c.buf[:], c.oob[:], unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		f := Frame{Data: append([]byte(nil), c.buf[:n]...)}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok {
			f.Out = ll.Pkttype == unix.PACKET_OUTGOING
		}
		if err := f.fill(c.oob[:oobn]); err != nil {
			return err
		}
		c.mu.Lock()
		c.frames = append(c.frames, f)
		close(c.more)
		c.more = make(chan struct{})
		c.mu.Unlock()
	}
}

// fill takes what the kernel says beside the bytes: when, the VLAN tag that it
// stripped (net/core/dev.c does that for every reader) and the checksum's state.
func (f *Frame) fill(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("reading control messages: %w", err)
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS:
			if len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
				ts := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
				f.Time = time.Unix(ts.Unix())
			}
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA:
			if len(m.Data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
				f.auxdata((*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0])))
			}
		}
	}
	return nil
}

func (f *Frame) auxdata(aux *unix.TpacketAuxdata) {
	f.ChecksumUnfinished = aux.Status&unix.TP_STATUS_CSUMNOTREADY != 0
	if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 || len(f.Data) < 12 {
		return
	}
	tpid := uint16(unix.ETH_P_8021Q)
	if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = aux.Vlan_tpid
	}
	tag := binary.BigEndian.AppendUint16(nil, tpid)
	tag = binary.BigEndian.AppendUint16(tag, aux.Vlan_tci)
	f.Data = append(f.Data[:12:12], append(tag, f.Data[12:]...)...)
}

// Send sends one Ethernet frame as it is from an interface of the host.
func (h *Host) Send(ifname string, frame []byte) error {
	if len(frame) < 14 {
		return fmt.Errorf("sending from %s of host %s: %d bytes are no Ethernet frame", ifname, h.Name, len(frame))
	}
	conn, err := h.packetSocket(ifname, 0)
	if err != nil {
		return fmt.Errorf("sending from %s of host %s: %w", ifname, h.Name, err)
	}
	if _, err = conn.Write(frame); err != nil {
		err = fmt.Errorf("sending from %s of host %s: %w", ifname, h.Name, err)
	}
	return errors.Join(err, conn.Close())
}

// packetSocket opens an AF_PACKET socket bound to an interface of the host that
// receives frames of protocol, of none when it is 0.
func (h *Host) packetSocket(ifname string, protocol uint16) (*os.File, error) {
	index, err := h.Index(ifname)
	if err != nil {
		return nil, err
	}
	fd := -1
	err = h.Do(func() error {
		// Made for no protocol, so that nothing of other interfaces comes in
		// before it is bound.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	conn := os.NewFile(uintptr(fd), "packet socket on "+ifname)
	if protocol != 0 {
		for _, o := range []struct{ level, name, value int }{
			{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer},
			{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
			{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
		} {
			if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
				return nil, fmt.Errorf("setting up a packet socket: %w", errors.Join(err, conn.Close()))
			}
		}
	}
	sa := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: index}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, fmt.Errorf("binding a packet socket: %w", errors.Join(err, conn.Close()))
	}
	return conn, nil
}
