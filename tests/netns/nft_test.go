package netns

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// nft is a table of somebody else's on a host, in the family inet.
type nft struct {
	host  *testnet.Host
	table *nftables.Table
}

func newNFT(host *testnet.Host, name string) *nft {
	return &nft{host, &nftables.Table{Name: name, Family: nftables.TableFamilyINet}}
}

// add adds a chain with rules, or says why the kernel does not.
func (n *nft) add(chain *nftables.Chain, rules ...[]expr.Any) error {
	return n.host.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.AddTable(n.table)
		chain.Table = n.table
		c.AddChain(chain)
		for _, exprs := range rules {
			c.AddRule(&nftables.Rule{Table: n.table, Chain: chain, Exprs: exprs})
		}
		return c.Flush()
	})
}

func (n *nft) mustAdd(tb testing.TB, chain *nftables.Chain, rules ...[]expr.Any) {
	tb.Helper()
	if err := n.add(chain, rules...); err != nil {
		tb.Fatalf("adding chain %s to nft table %s: %v", chain.Name, n.table.Name, err)
	}
}

// counted returns the packets that each rule of a chain with a counter has met.
func (n *nft) counted(tb testing.TB, chain string) (packets []uint64) {
	tb.Helper()
	n.host.MustDo(tb, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		rules, err := c.GetRules(n.table, &nftables.Chain{Name: chain})
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					packets = append(packets, counter.Packets)
				}
			}
		}
		return err
	})
	return packets
}

// protocol matches a layer 4 protocol.
func protocol(proto uint8) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

// marked compares the bits of a packet's mark that a mask has.
func marked(op expr.CmpOp, mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(value)},
	}
}

// setMark sets bits of a packet's mark and leaves the others as they are.
func setMark(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^bits), Xor: binaryutil.NativeEndian.PutUint32(bits)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// rule joins expressions and ends with a counter.
func rule(parts ...[]expr.Any) (exprs []expr.Any) {
	for _, p := range parts {
		exprs = append(exprs, p...)
	}
	return append(exprs, &expr.Counter{})
}
