package policy

import (
	"math/bits"
	"net/netip"
)

// Pos is a place in a policy file. Line and Column count from 1.
type Pos struct {
	Line, Column int
}

// ZoneID names a zone in packets, rules and kernel tables. Zone i of
// Policy.Zones has the id i+1.
type ZoneID uint8

const (
	ZoneNone ZoneID = 0   // an interface outside every zone
	ZoneHost ZoneID = 255 // the host itself, "host" in a policy
	MaxZones        = 254
)

// Action is what a rule, a step, a default or a failure setting says.
type Action uint8

const (
	ActionNone    Action = iota // not set
	ActionAccept                // "accept"
	ActionDrop                  // "drop"
	ActionInspect               // "inspect": user space decides
	ActionRewrite               // "rewrite": steps only
)

var actionNames = [...]string{"none", "accept", "drop", "inspect", "rewrite"}

// String returns the action as policies write it.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "unknown"
}

// Policy is one policy file, parsed and validated. It is never changed after
// Parse has returned it.
type Policy struct {
	File     string    // the file's name as messages show it
	Warnings []Warning // what has no effect or is unlikely to be meant
	Zones    []Zone
	Defaults Defaults
	Failure  Failure
	Queue    Queue
	Offload  Offload // of flows that no rule has judged
	Timeouts Timeouts
	Marks    Marks
	Lists    []*List
	Rules    []Rule
}

// Zone is a named set of interfaces. A member is a name or a glob with * and ?.
type Zone struct {
	Name       string
	Interfaces []string
	Pos        Pos
}

// Defaults hold what happens to a packet that no rule matches: ActionAccept or
// ActionDrop.
type Defaults struct {
	Input, Forward, Output Action
}

// Failure names what happens to a packet that cannot be judged in the ordinary
// way. Each field is one key of the policy's "failure" mapping.
type Failure struct {
	NoListener Mode   // the user-space half is gone
	Overload   Mode   // queue or socket full, or over a limit of Queue
	Undecided  Action // budget spent without a decision: accept or drop
	Malformed  Action // could not be parsed: accept or drop
	Midstream  Action // TCP seen without its start: accept, drop or inspect
}

// Mode says whether packets pass ("open") or stop ("closed") on a failure.
type Mode uint8

const (
	Closed Mode = iota
	Open
)

// String returns "open" or "closed".
func (m Mode) String() string {
	if m == Open {
		return "open"
	}
	return "closed"
}

// Action is what becomes of one packet.
func (m Mode) Action() Action {
	if m == Open {
		return ActionAccept
	}
	return ActionDrop
}

// Marks says which bits of skb->mark belong to hybridfw. The mask is one
// contiguous run of at least two bits.
//
// Under the mask stands 0 for packets that are not ours, and MarkInspect+i for
// packets that must be judged by inspecting rule i (Rule.Inspect). The highest
// bit, Judged, is set on packets that user space has accepted; the rule's number
// stays below it where the rule rewrites, so that replies are known to be wanted
// even when NAT gives the packet another address behind the queue.
type Marks struct {
	Mask uint32
}

// MarkInspect is the number of the first inspecting rule under a mask.
const MarkInspect = 1

// Shift returns the place of the mask's lowest bit.
func (m Marks) Shift() int { return bits.TrailingZeros32(m.Mask) }

// Bits returns how many bits the mask has.
func (m Marks) Bits() int { return bits.OnesCount32(m.Mask) }

// Judged returns the mask's highest bit, in its place.
func (m Marks) Judged() uint32 { return m.Mask &^ (m.Mask >> 1) }

// Field returns what stands under the mask, moved down to bit 0.
func (m Marks) Field(mark uint32) uint32 { return mark & m.Mask >> m.Shift() }

// Room returns for how many inspecting rules the mask has values.
func (m Marks) Room() int { return 1<<(m.Bits()-1) - MarkInspect }

// ListType is the kind of a list's entries.
type ListType uint8

const (
	ListCIDR    ListType = iota + 1 // addresses and prefixes
	ListDomain                      // names
	ListDynamic                     // addresses that DNS answers have named
)

// List is a named list of prefixes or names.
type List struct {
	Name     string
	Type     ListType
	File     string // "" where the entries stand in the policy itself
	Prefixes []netip.Prefix
	Domains  Domains
	Dynamic  Dynamic
	Pos      Pos
}

// PortRange is an inclusive range of ports.
type PortRange struct {
	First, Last uint16
}

// AddrMatch matches an address against prefixes and CIDR lists. The zero value
// matches every address.
type AddrMatch struct {
	Not      bool // addresses that are in none of them, of either family
	Prefixes []netip.Prefix
	Lists    []*List
}

// FlagsMatch matches TCP flags: flags&Mask == Value. The zero value matches
// every packet.
type FlagsMatch struct {
	Mask, Value uint8
}

// Rule is one rule of the policy. A zero field matches everything; the first
// rule that matches wins.
type Rule struct {
	Name           string
	Pos            Pos
	From           ZoneID // ZoneNone matches every packet, the host's own included
	To             ZoneID
	Src            AddrMatch
	Dst            AddrMatch
	NotFrom, NotTo bool    // every zone but From, but To, and none
	Proto          []uint8 // IP protocol numbers
	Sport          []PortRange
	Dport          []PortRange
	Flags          FlagsMatch
	ICMP           ICMPMatch
	VLAN           []VLANRange // of the outer tag
	DSCP           uint64      // bit i for code point i; 0 matches all
	Fragment       FragmentMatch
	Limit          Limit
	Rewrite        Rewrite
	Offload        Offload
	Action         Action
	Pin            bool   // ActionAccept only: a reload that forgets the rule keeps it
	ID             uint32 // of what the policy says in the rule: the same text has the same in every policy

	// For ActionInspect only.
	Inspect int     // number among the inspecting rules, see Marks
	lists   []*List // that the text names
	Until   Until
	Steps   []Step
	Learns  bool // DNS answers fill dynamic lists
}

// Mark returns what stands under the mark mask for packets that an inspecting
// rule must judge.
func (r *Rule) Mark() uint16 { return uint16(MarkInspect + r.Inspect) }

// Until is an inspecting rule's budget for one flow; when it is spent
// Failure.Undecided applies. Zero fields never occur after Parse.
type Until struct {
	Packets int
	Bytes   int
}

// Step is one line of an inspecting rule's steps, matched on what was seen. A
// step without a name condition matches as soon as a flow's name, or that it
// has none, is known. The first step that matches wins.
type Step struct {
	Pos       Pos
	SNI       NameMatch
	QName     NameMatch
	QType     []uint16 // of a DNS question; none matches everything
	Host      NameMatch
	Path      string    // exact, or with a final "*" how it begins; "" matches everything
	ALPN      string    // a protocol that a hello offers; "" matches everything
	ECH       *bool     // whether an encrypted hello is offered; nil matches everything
	JA4       []string  // a hello's fingerprints, or with a final "*" how they begin; none matches everything
	List      NameMatch // a name of whatever kind
	L7        L7Set     // protocols; none matches everything
	Direction Direction
	Action    Action  // accept, drop or rewrite; ActionNone logs and goes on
	Answer    *Answer // with ActionRewrite
	Log       bool
}

// Direction is what a step looks at: requests and all else that the side sends
// which began, or responses. 0 is both.
type Direction uint8

const (
	DirectionRequest Direction = iota + 1
	DirectionResponse
)

var directions = []string{"request", "response"}

// NameMatch matches a name against one pattern or one list. The zero value
// matches every name and the absence of one.
type NameMatch struct {
	Pattern string   // as written: exact, "*.x", ".x" or "@list"
	Domains *Domains // what it stands for; set by Parse in all forms
}
