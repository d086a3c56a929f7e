package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Verdicts, include/uapi/linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
	nfQueue  = 3
	nfRepeat = 4
)

// verdict is what is done with one packet.
type verdict struct {
	accept   bool
	keepMark bool   // mark says nothing
	mark     uint32 // the packet's whole new mark; accepted packets only
	code     uint32 // NF_REPEAT or NF_QUEUE in place of NF_ACCEPT, 0 for that
	more     []byte // further attributes; alone in its message
	payload  []byte // the changed packet, nil to leave it as it is
}

// alone reports whether no other packet can have the same verdict.
func (v *verdict) alone() bool { return v.payload != nil || v.more != nil || v.code != 0 }

// moreMax is the most that further attributes take, see Verdict.attributes.
const moreMax = 128

// verdictLen is the most a verdict takes beside its payload: headers, verdict,
// mark, further attributes, the payload's attribute header and its padding.
const verdictLen = nlHeaderLen + nfHeaderLen + 12 + 8 + moreMax + attrHeader + 3

// verdicts collects verdicts and sends them in one go, as one netlink message
// each or, for a run of equal ones, as one for all. The kernel takes them in
// order. Payloads are sent from where they lie.
type verdicts struct {
	q   *queue
	buf []byte // headers of all messages
	iov []unix.Iovec
	seg int // where the part of buf starts that is not in iov yet
	len int // bytes of all messages so far

	// The run of equal verdicts that is not in buf yet.
	run     int
	runLast uint32
	runWhat verdict
}

// newVerdicts returns room for as many verdicts as are given between two sends.
// It never grows: the vector points into buf.
func newVerdicts(q *queue, most int) *verdicts {
	return &verdicts{
		q:   q,
		buf: make([]byte, 0, most*verdictLen),
		iov: make([]unix.Iovec, 0, 2*most+1),
	}
}

// add puts the verdict on a packet behind those on earlier packets. Ids must
// come in the order the kernel gave them: the verdict on a run is on all packets
// up to its last.
func (vs *verdicts) add(id uint32, v verdict) error {
	if !v.alone() {
		if vs.run > 0 && v.accept == vs.runWhat.accept && v.mark == vs.runWhat.mark && v.keepMark == vs.runWhat.keepMark {
			vs.run++
			vs.runLast = id
			return nil
		}
		vs.endRun()
		vs.run, vs.runLast, vs.runWhat = 1, id, v
		return nil
	}
	vs.endRun()
	// The kernel refuses a send larger than the socket's buffer as a whole.
	if vs.len+verdictLen+len(v.payload) > vs.q.room {
		if err := vs.send(); err != nil {
			return err
		}
	}
	vs.put(id, msgVerdict, v)
	return nil
}

// endRun writes the message of the run. A run of one gets the plain verdict: the
// kernel need not walk its queue for it.
func (vs *verdicts) endRun() {
	switch {
	case vs.run == 1:
		vs.put(vs.runLast, msgVerdict, vs.runWhat)
	case vs.run > 1:
		vs.put(vs.runLast, msgVerdictBatch, vs.runWhat)
	}
	vs.run = 0
}

// put writes one message.
func (vs *verdicts) put(id uint32, kind uint16, v verdict) {
	n := nlHeaderLen + nfHeaderLen + 12
	what := uint32(nfDrop)
	if v.accept {
		what = max(nfAccept, v.code)
		n += len(v.more)
		if !v.keepMark {
			n += 8
		}
	}
	if v.payload != nil {
		n += attrHeader + align4(len(v.payload))
	}
	b := vs.buf
	b = binary.NativeEndian.AppendUint32(b, uint32(n))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence, port
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, vs.q.num)
	b = binary.NativeEndian.AppendUint16(b, 12)
	b = binary.NativeEndian.AppendUint16(b, nfqaVerdictHdr)
	b = binary.BigEndian.AppendUint32(b, what)
	b = binary.BigEndian.AppendUint32(b, id)
	if v.accept {
		if !v.keepMark {
			b = binary.NativeEndian.AppendUint16(b, 8)
			b = binary.NativeEndian.AppendUint16(b, nfqaMark)
			b = binary.BigEndian.AppendUint32(b, v.mark)
		}
		b = append(b, v.more...)
	}
	if v.payload != nil {
		// The attribute's length leaves padding out, the message's does not.
		b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+len(v.payload)))
		b = binary.NativeEndian.AppendUint16(b, nfqaPayload)
		vs.addIov(b[vs.seg:])
		vs.addIov(v.payload)
		vs.seg = len(b)
		for range align4(len(v.payload)) - len(v.payload) {
			b = append(b, 0)
		}
	}
	vs.buf = b
	vs.len += n
}

// addIov lets the send go on with b, which must stay where it is until then.
func (vs *verdicts) addIov(b []byte) {
	if len(b) == 0 {
		return
	}
	vs.iov = vs.iov[:len(vs.iov)+1]
	iov := &vs.iov[len(vs.iov)-1]
	iov.Base = &b[0]
	iov.SetLen(len(b))
}

// A kernel without memory is offered the verdicts for a second before the worker
// gives up. The packets stay queued meanwhile.
const (
	sendRetries  = 100
	sendPatience = 10 * time.Millisecond
)

var errShortSend = errors.New("the kernel took only a part")

// send sends all verdicts. Its error means that packets are left without one.
func (vs *verdicts) send() error {
	vs.endRun()
	vs.addIov(vs.buf[vs.seg:])
	if len(vs.iov) == 0 {
		return nil
	}
	var err error
	for range sendRetries {
		var errno unix.Errno
		var n uintptr
		n, _, errno = unix.Syscall(unix.SYS_WRITEV, uintptr(vs.q.fd),
			uintptr(unsafe.Pointer(&vs.iov[0])), uintptr(len(vs.iov)))
		if errno == 0 {
			if err = nil; int(n) != vs.len {
				err = errShortSend
			}
			break
		}
		err = errno
		if errno == unix.EINTR {
			continue
		}
		if errno != unix.EAGAIN && errno != unix.ENOBUFS && errno != unix.ENOMEM {
			break
		}
		time.Sleep(sendPatience)
	}
	// Pointers to packets are not kept longer than needed.
	clear(vs.iov)
	vs.buf, vs.iov, vs.seg, vs.len = vs.buf[:0], vs.iov[:0], 0, 0
	if err != nil {
		return fmt.Errorf("sending verdicts of queue %d: %w", vs.q.num, err)
	}
	return nil
}
