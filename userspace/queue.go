package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Configuration messages and attributes, include/uapi/linux/netfilter/nfnetlink_queue.h.
const (
	msgPacket       = unix.NFNL_SUBSYS_QUEUE << 8
	msgVerdict      = unix.NFNL_SUBSYS_QUEUE<<8 | 1
	msgConfig       = unix.NFNL_SUBSYS_QUEUE<<8 | 2
	msgVerdictBatch = unix.NFNL_SUBSYS_QUEUE<<8 | 3

	cfgCmd         = 1
	cfgParams      = 2
	cfgQueueMaxLen = 3
	cfgMask        = 4
	cfgFlags       = 5

	cmdBind   = 1
	cmdPfBind = 3

	copyPacket = 2
	copyRange  = 0xffff
)

// netlinkCapAck keeps the kernel from echoing a refused verdict's payload. It
// stands in linux/netlink.h.
const netlinkCapAck = 10

// sendBuffer is the least room for verdicts of one send, the largest changed
// packet included.
const sendBuffer = 1 << 20

// queue is one netfilter queue bound to a socket of its own. The descriptor is
// blocking and unknown to the runtime's poller, whose wake-up is most of what a
// lone packet would pay for.
type queue struct {
	num    uint16
	fd     int
	portID uint32
	room   int // bytes that one send can take
}

type queueOptions struct {
	num          uint16
	length       int
	socketBuffer int
	failOpen     bool
	users        bool // whose socket has sent a packet is asked for
}

// openQueue binds the queue in the network namespace of the calling thread. It
// is ready to be received from: the kernel may queue packets at once.
func openQueue(o queueOptions) (*queue, error) {
	nf, err := nfqueue.Open(&nfqueue.Config{NfQueue: o.num})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for queue %d: %w", o.num, explainNetlink(err))
	}
	// Only the duplicate of the descriptor lives on; the queue stays bound to
	// the socket behind both.
	q, err := setUpQueue(nf.Con, o)
	if closeErr := nf.Con.Close(); closeErr != nil && err == nil {
		err = fmt.Errorf("closing the first descriptor of queue %d: %w", o.num, errors.Join(closeErr, q.close()))
	}
	if err != nil {
		return nil, err
	}
	// Blocking is a property of what both descriptors share.
	if err := unix.SetNonblock(q.fd, false); err != nil {
		return nil, fmt.Errorf("making queue %d blocking: %w", o.num, errors.Join(err, q.close()))
	}
	return q, nil
}

func setUpQueue(con *netlink.Conn, o queueOptions) (*queue, error) {
	// Buffers first: packets may come as soon as the queue is bound.
	raw, err := con.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("opening queue %d: %w", o.num, err)
	}
	q := &queue{num: o.num}
	var optErr error
	if err := raw.Control(func(fd uintptr) { optErr = q.setSocketOptions(int(fd), o.socketBuffer) }); err != nil {
		return nil, fmt.Errorf("opening queue %d: %w", o.num, err)
	}
	if optErr != nil {
		return nil, optErr
	}
	if err := configure(con, o); err != nil {
		return nil, explainBind(err, o.num, q.portID)
	}
	var dupErr error
	if err := raw.Control(func(fd uintptr) {
		q.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return nil, fmt.Errorf("opening queue %d: %w", o.num, err)
	}
	if dupErr != nil {
		return nil, fmt.Errorf("duplicating the descriptor of queue %d: %w", o.num, dupErr)
	}
	return q, nil
}

func (q *queue) setSocketOptions(fd, receiveBuffer int) error {
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		{"receive buffer", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer},
		{"send buffer", unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer},
		{"short error messages", unix.SOL_NETLINK, netlinkCapAck, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("setting %s of queue %d: %w", o.name, q.num, explainNetlink(err))
		}
	}
	// A connected netlink socket takes messages from its peer only, here the
	// kernel (netlink_getsockbyportid).
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connecting queue %d to the kernel: %w", q.num, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("asking for the address of queue %d: %w", q.num, err)
	}
	if nl, ok := sa.(*unix.SockaddrNetlink); ok {
		q.portID = nl.Pid
	}
	room, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("asking for the send buffer of queue %d: %w", q.num, err)
	}
	q.room = room / 2 // the kernel counts its own bookkeeping too
	return nil
}

// configure binds the queue and sets how packets are handed over. The whole
// packet always, super-packets in one piece always: without GSO kernels cut them
// up for us, and several lose the first packet of a UDP flow. Packets that have a
// conntrack entry bring it along, where the kernel can do that; no entry is made
// for our sake.
func configure(con *netlink.Conn, o queueOptions) error {
	flags := uint32(nfqueue.NfQaCfgFlagGSO | nfqueue.NfQaCfgFlagConntrack)
	if o.failOpen {
		flags |= nfqueue.NfQaCfgFlagFailOpen
	}
	if o.users {
		flags |= nfqueue.NfQaCfgFlagUIDGid | nfqueue.NfQaCfgFlagSecCx
	}
	err := configureFlags(con, o, flags)
	if errors.Is(err, unix.EOPNOTSUPP) {
		// Only the conntrack flag can be unknown to the kernels that run this.
		err = configureFlags(con, o, flags&^nfqueue.NfQaCfgFlagConntrack)
	}
	return err
}

func configureFlags(con *netlink.Conn, o queueOptions, flags uint32) error {
	known := flags | nfqueue.NfQaCfgFlagGSO | nfqueue.NfQaCfgFlagFailOpen | nfqueue.NfQaCfgFlagConntrack
	// One message, so that no packet is queued to a half-configured queue.
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: cfgCmd, Data: []byte{cmdBind, 0, 0, 0}},
		{Type: cfgParams, Data: append(be32(copyRange), copyPacket)},
		{Type: cfgQueueMaxLen, Data: be32(uint32(o.length))},
		{Type: cfgFlags, Data: be32(flags)},
		{Type: cfgMask, Data: be32(known)},
	})
	if err != nil {
		return err
	}
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(o.num >> 8), byte(o.num)}
	_, err = con.Execute(netlink.Message{
		Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, data...),
	})
	return err
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func (q *queue) close() error {
	if q == nil || q.fd <= 0 {
		return nil
	}
	err := unix.Close(q.fd)
	q.fd = -1
	return err
}

// wakeSeq marks the request of wake among the acknowledgements, ticketSeq those of
// pass, with a ticket under the mask.
const (
	wakeSeq    = 0x68667765
	ticketSeq  = 0x68660000
	ticketMask = 0x3fff
)

// wakeRequest is an obsolete command that the kernel acknowledges and otherwise
// ignores (NFQNL_CFG_CMD_PF_BIND, nfqnl_recv_config).
var wakeRequest = configRequest(wakeSeq, 0, cfgCmd, []byte{cmdPfBind, 0, 0, 0})

// configRequest is a configuration message with attributes of 4 bytes, each given
// as a type and a value.
func configRequest(seq uint32, queue uint16, attrs ...any) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(20+8*len(attrs)/2))
	b = binary.NativeEndian.AppendUint16(b, msgConfig)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, queue)
	for i := 0; i < len(attrs); i += 2 {
		b = binary.NativeEndian.AppendUint16(b, 8)
		b = binary.NativeEndian.AppendUint16(b, uint16(attrs[i].(int)))
		b = append(b, attrs[i+1].([]byte)...)
	}
	return b
}

// setFailOpen changes what becomes of packets that the queue has no room for. A
// refusal comes as the answer to the message, and is counted there.
func (q *queue) setFailOpen(open bool) error {
	flags := uint32(0)
	if open {
		flags = nfqueue.NfQaCfgFlagFailOpen
	}
	return q.write(configRequest(0, q.num, cfgFlags, be32(flags), cfgMask, be32(nfqueue.NfQaCfgFlagFailOpen)))
}

// wake makes a blocked receive return: the kernel puts its acknowledgement into
// the queue's own socket. When there is no room for it the socket is full, and
// the receive does not block anyway.
func (q *queue) wake() error { return q.write(wakeRequest) }

// ask is wake with a sequence number of its own, by which the answer is known.
func (q *queue) ask(seq uint32) error {
	return q.write(configRequest(seq, 0, cfgCmd, []byte{cmdPfBind, 0, 0, 0}))
}

func (q *queue) write(request []byte) error {
	for {
		_, err := unix.Write(q.fd, request)
		if err != unix.EINTR {
			return err
		}
	}
}

// explainBind tells apart why the kernel refuses a configuration: it says EPERM
// both without the capability and when the queue is somebody else's.
func explainBind(err error, num uint16, own uint32) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
		queues, procErr := ReadKernelQueues()
		if procErr != nil {
			return fmt.Errorf("binding queue %d: %w", num, errors.Join(explainNetlink(err), procErr))
		}
		for _, k := range queues {
			if k.Queue == num && k.PortID != own {
				return fmt.Errorf("queue %d is in use by another process (portid %d, see %s): choose another with --queue: %w",
					num, k.PortID, kernelQueuesFile, ErrQueueInUse)
			}
		}
	}
	return fmt.Errorf("binding queue %d: %w", num, explainNetlink(err))
}

// ErrQueueInUse says that another process has bound the queue.
var ErrQueueInUse = errors.New("queue in use")

func explainNetlink(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("CAP_NET_ADMIN is missing, run as root: %w", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel has no netfilter queues: load nfnetlink_queue or use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE: %w", err)
	}
	return err
}
