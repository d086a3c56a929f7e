package pktbuf

import "testing"

// Views and flows escape here, as those of a worker do.
var (
	kept     *View
	keptFlow Flow
)

// TestNoAllocations: nothing that is done to a packet allocates.
func TestNoAllocations(t *testing.T) {
	syn := build(spec{ver: 4, proto: ProtoTCP, l4: tcpHeader(2, 4, 5, 0xb4, 1, 3, 3, 7), payload: pattern(200, 0)})
	udp6 := build(specs()["UDP6 options"])
	sctp := build(specs()["SCTP4"])
	icmp := build(spec{ver: 4, proto: ProtoICMP, l4: []byte{3, 4, 0, 0, 0, 0, 5, 0}, payload: syn[:60]})
	mem, room := make([]byte, 4000), make([]byte, 4000)
	head, work := make([]byte, 100), make([]byte, 4000)
	iov, line := make([][]byte, 0, 3), make([]byte, 0, 500)
	rep := []byte("a replacement")
	v, other := new(View), new(View)
	kept = v
	start := func(p []byte) {
		n := copy(mem, p)
		if v.Init(family(p), mem[:n:n+20], room) != nil || v.Parse() != nil {
			t.Fatal("not parsed")
		}
	}
	must := func(errs ...error) {
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, do := range map[string]func(){
		"Init": func() { must(v.Init(IPv4, mem, room), v.InitCopy(IPv4, mem, room)); v.InitIPv4(syn, &keptFlow) },
		"Parse and Flow": func() {
			for _, p := range [][]byte{syn, udp6, sctp, icmp} {
				start(p)
				if _, ok := v.Flow(); !ok {
					t.Fatal("no flow")
				}
				if ok, err := v.ParseFlow(&keptFlow); !ok || err != nil {
					t.Fatal("no flow")
				}
			}
		},
		"setters": func() {
			start(syn)
			must(v.SetSrc(other4), v.SetDst(other4), v.SetSrcPort(1), v.SetDstPort(2), v.SetTTL(9), v.DecrementTTL(), v.SetDSCP(1), v.SetECN(1))
			start(udp6)
			must(v.SetSrc(other6), v.SetDst(other6), v.SetDSCP(1))
		},
		"payload": func() {
			for _, p := range [][]byte{syn, udp6, sctp, icmp} {
				start(p)
				must(v.ReplacePayload(0, 0, rep), v.Append(rep), v.Trim(3), v.Recompute(), v.Replace(0, 1, rep))
			}
		},
		"unfinished": func() { start(syn); v.SetUnfinished(); must(v.Complete()) },
		"TCP options": func() {
			start(syn)
			must(v.ClampMSS(9), v.StripTCPOption(2), v.AddTCPOption(30, rep[:3]))
			v.TCP().Timestamps()
		},
		"sharing": func() {
			start(syn)
			must(v.Clone(other, head), other.SetTTL(3), other.MakeWritable(other.Len(), work), other.Append(rep))
			must(v.Clone(other, nil), other.MakeWritable(9, head), other.Move(work, 36))
			if _, err := other.Frame(36); err != nil {
				t.Fatal(err)
			}
			iov = v.AppendPieces(iov[:0], rep)
		},
		"quote":    func() { start(icmp); must(v.Quoted(other)); other.Flow() },
		"checksum": func() { start(sctp); v.CheckTransport(); v.CheckHeader() },
		"log":      func() { start(syn); line = v.AppendLog(line[:0]); start(udp6); line = v.AppendLog(line[:0]) },
		"errors": func() {
			if v.Init(IPv4, mem[:10], nil) != nil || v.Parse() != ErrShort || v.Append(rep) != ErrProto {
				t.Fatal("no error")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if n := testing.AllocsPerRun(100, do); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
