package loader

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/hybridfw/hybridfw/gen"
	"github.com/hybridfw/hybridfw/pktbuf"
)

// keepTables takes hold of the flow tables, which outlive the policy that they
// were made with.
func (f *Firewall) keepTables() (err error) {
	for i, table := range []*ebpf.Map{f.objs.Flows, f.objs.HalfOpen} {
		if f.known[i], err = table.Clone(); err != nil {
			return fmt.Errorf("keeping the flow tables: %w", err)
		}
	}
	return nil
}

// Start returns the sequence number at which the stream of a TCP flow's
// originator begins, where its handshake was seen. The flow is in the originator's
// direction.
func (f *Firewall) Start(flow pktbuf.Flow) (seq uint32, ok bool) {
	key, sender := encodeFlow(flow)
	var e gen.FWFlow
	// A flow is in one of the tables, and may be moved between the two looks: then
	// its stream has no known start, as without an entry.
	if f.known[0].Lookup(&key, &e) != nil && f.known[1].Lookup(&key, &e) != nil {
		return 0, false
	}
	return e.Start, e.Start != 0 && e.Origin == sender
}
