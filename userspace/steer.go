package userspace

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hybridfw/hybridfw/policy"
)

// TableName is the nftables table of hybridfw, in the family inet. Nobody else
// has anything in it.
const TableName = "hybridfw"

// The chains sit behind everybody's filter rules, so that only packets that are
// to pass are looked into. Both a bypassed packet and one that failed open go on
// at the next chain of the hook, not at the next rule (net/netfilter/nf_queue.c):
// they are counted in a chain of their own.
const (
	queuePriority = 10 // relative to filter
	pastPriority  = 11
	pastSuffix    = "_past"
)

// netlinkPatience bounds each answer of the kernel. Where a whole batch is
// refused at once there is one answer instead of one a message.
const netlinkPatience = 5 * time.Second

// hook is one netfilter hook with our two chains.
type hook struct {
	name string
	num  *nftables.ChainHook
}

var hooks = []hook{
	{"input", nftables.ChainHookInput},
	{"forward", nftables.ChainHookForward},
	{"output", nftables.ChainHookOutput},
}

// Steering is the nftables table that hands marked packets to the queues.
//
// The table's chains are made once: the kernel drops every queued packet of the
// network namespace when any base chain is deleted, so Install only ever
// replaces rules. The methods act on the network namespace of the calling
// thread and may be called from any goroutine.
type Steering struct {
	marks  policy.Marks
	queue  uint16
	queues uint16
	bypass bool
}

// NewSteering returns the steering that belongs to a Stage opened with the same
// options. Nothing is changed before Install.
func NewSteering(o Options) (*Steering, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("steering: %w", err)
	}
	return &Steering{
		marks:  o.Policy.Marks,
		queue:  o.Queue,
		queues: uint16(o.Queues),
		bypass: o.Policy.Failure.NoListener == policy.Open,
	}, nil
}

// Install makes the table, or replaces the rules of one that is there, in one
// transaction: packets meet the old rules or the new ones.
func (s *Steering) Install() error {
	found, err := findTable()
	if err != nil {
		return fmt.Errorf("installing nft table inet %s: %w", TableName, err)
	}
	err = s.install(s.nativeQueue())
	if errors.Is(err, unix.ENOENT) {
		// Only the queue expression can be missing here: everything else that
		// the transaction names it makes itself.
		if err = s.install(s.xtQueue()); errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("this kernel has neither the nft queue expression nor the xt target NFQUEUE: "+
				"load nft_queue, or nft_compat and xt_NFQUEUE: %w", err)
		}
	}
	if found != nil && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EOPNOTSUPP)) {
		err = fmt.Errorf("a table of this name with other chains is there, remove it first with hybridfw detach: %w", err)
	}
	if err != nil {
		return fmt.Errorf("installing nft table inet %s: %w", TableName, explain(err))
	}
	return nil
}

func (s *Steering) install(queue expr.Any) error {
	c, err := newConn()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyINet})
	for _, h := range hooks {
		for _, chain := range []struct {
			name     string
			priority nftables.ChainPriority
			last     expr.Any
		}{
			{h.name, *nftables.ChainPriorityFilter + queuePriority, queue},
			{h.name + pastSuffix, *nftables.ChainPriorityFilter + pastPriority, nil},
		} {
			accept := nftables.ChainPolicyAccept
			ch := c.AddChain(&nftables.Chain{
				Name:     chain.name,
				Table:    table,
				Type:     nftables.ChainTypeFilter,
				Hooknum:  h.num,
				Priority: &chain.priority,
				Policy:   &accept,
			})
			c.FlushChain(ch)
			exprs := append(s.match(), &expr.Counter{})
			if chain.last != nil {
				exprs = append(exprs, chain.last)
			}
			c.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: exprs})
		}
	}
	return c.Flush()
}

// match holds for marks with a rule's number and without the judged bit.
func (s *Steering) match() []expr.Any {
	return append(
		s.compare(s.marks.Mask, expr.CmpOpNeq),
		s.compare(s.marks.Judged(), expr.CmpOpEq)...)
}

// compare compares the bits of a packet's mark under a mask with 0.
func (s *Steering) compare(mask uint32, op expr.CmpOp) []expr.Any {
	zero := make([]byte, 4)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1,
			DestRegister:   1,
			Len:            4,
			Mask:           binaryutil.NativeEndian.PutUint32(mask),
			Xor:            zero,
		},
		&expr.Cmp{Op: op, Register: 1, Data: zero},
	}
}

func (s *Steering) nativeQueue() expr.Any {
	q := &expr.Queue{Num: s.queue, Total: s.queues}
	if s.bypass {
		q.Flag = expr.QueueFlagBypass
	}
	return q
}

// xtQueue is the same by the xt target, struct xt_NFQ_info_v3: first queue,
// number of queues, flags, each 16 bits in host order, padded to 8 bytes.
func (s *Steering) xtQueue() expr.Any {
	var flags uint16
	if s.bypass {
		flags = 1 // NFQ_FLAG_BYPASS
	}
	info := make([]byte, 0, 8)
	for _, v := range []uint16{s.queue, s.queues, flags, 0} {
		info = append(info, binaryutil.NativeEndian.PutUint16(v)...)
	}
	unknown := xt.Unknown(info)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &unknown}
}

// Remove deletes the table; it is no error if there is none. The kernel drops
// all packets of the namespace that wait in queues then: first stop marking and
// drain. A zero Steering can be used, so no policy is needed.
func (s *Steering) Remove() error {
	table, err := findTable()
	if err == nil && table != nil {
		var c *nftables.Conn
		if c, err = newConn(); err == nil {
			c.DelTable(table)
			err = c.Flush()
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, errNoTables) {
		return fmt.Errorf("removing nft table inet %s: %w", TableName, explain(err))
	}
	return nil
}

// Installed reports whether the table is there, whoever left it.
func (s *Steering) Installed() (bool, error) {
	table, err := findTable()
	if errors.Is(err, errNoTables) {
		return false, nil
	}
	return table != nil, err
}

// HookCounters are the packets of one hook, super-packets counted once.
type HookCounters struct {
	Hook   string `json:"hook"`
	Queued uint64 `json:"queued"` // met the queue rule
	Past   uint64 `json:"past"`   // came past the queue: bypassed or failed open
}

// Counters reads the counters of the table's rules. They start at 0 with each
// Install.
func (s *Steering) Counters() ([]HookCounters, error) {
	table := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	c, err := newConn()
	if err != nil {
		return nil, fmt.Errorf("reading nft counters: %w", err)
	}
	counters := make([]HookCounters, len(hooks))
	for i, h := range hooks {
		counters[i].Hook = h.name
		for name, to := range map[string]*uint64{
			h.name:              &counters[i].Queued,
			h.name + pastSuffix: &counters[i].Past,
		} {
			rules, err := c.GetRules(table, &nftables.Chain{Name: name})
			if err != nil {
				return nil, fmt.Errorf("reading nft counters of table inet %s: %w", TableName, explain(err))
			}
			for _, r := range rules {
				for _, e := range r.Exprs {
					if n, ok := e.(*expr.Counter); ok {
						*to += n.Packets
					}
				}
			}
		}
	}
	return counters, nil
}

var errNoTables = errors.New("this kernel has no nf_tables: load the module nf_tables or use a kernel with CONFIG_NF_TABLES_INET")

// findTable returns our table, nil if it is not there. It tells kernels without
// nf_tables apart before anything is sent in a batch.
func findTable() (*nftables.Table, error) {
	c, err := newConn()
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("%w (%w)", errNoTables, err)
	case err != nil:
		return nil, explain(err)
	}
	for _, t := range tables {
		if t.Name == TableName {
			return t, nil
		}
	}
	return nil, nil
}

func newConn() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(func(nl *netlink.Conn) error {
		return nl.SetDeadline(time.Now().Add(netlinkPatience))
	}))
	if err != nil {
		return nil, fmt.Errorf("opening netlink for nf_tables: %w", err)
	}
	return c, nil
}

// explain adds what to do next to the error that people can do something about.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("CAP_NET_ADMIN is missing, run as root: %w", err)
	}
	return err
}
