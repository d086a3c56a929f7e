package policy

import (
	"time"
)

// FlowState is how far a flow has come. The kernel half keeps it, and forgets a
// flow that has been silent for its state's timeout.
type FlowState uint8

// From StateEstablished on both endpoints have spoken.
const (
	StateSynSent   FlowState = iota // a SYN, no answer yet
	StateSynRecv                    // its SYN-ACK, not acknowledged yet
	StateMidstream                  // TCP whose start or whose other endpoint was not seen
	StateFinWait                    // one endpoint has finished
	StateTimeWait                   // both have
	StateClose                      // reset
	StateUDPUnreplied
	StateICMPUnreplied
	StateOtherUnreplied
	StateEstablished
	StateUDPReplied
	StateICMPReplied
	StateOtherReplied
	FlowStates // their number
)

// flowStates are the states' names, as the policy's "timeouts" has them, and how
// long a flow is remembered. Names and times are those of nf_conntrack where it
// has them; replied UDP is kept longer (RFC 4787 asks for two minutes at least).
var flowStates = [FlowStates]struct {
	name    string
	timeout time.Duration
}{
	StateSynSent:        {"syn_sent", 120 * time.Second},
	StateSynRecv:        {"syn_recv", 60 * time.Second},
	StateMidstream:      {"midstream", 300 * time.Second},
	StateFinWait:        {"fin_wait", 120 * time.Second},
	StateTimeWait:       {"time_wait", 120 * time.Second},
	StateClose:          {"close", 10 * time.Second},
	StateUDPUnreplied:   {"udp_unreplied", 30 * time.Second},
	StateICMPUnreplied:  {"icmp_unreplied", 30 * time.Second},
	StateOtherUnreplied: {"other_unreplied", 60 * time.Second},
	StateEstablished:    {"established", 5 * 24 * time.Hour},
	StateUDPReplied:     {"udp_replied", 180 * time.Second},
	StateICMPReplied:    {"icmp_replied", 30 * time.Second},
	StateOtherReplied:   {"other_replied", 600 * time.Second},
}

// String returns the state's name in policies, metrics and messages.
func (s FlowState) String() string {
	if s < FlowStates {
		return flowStates[s].name
	}
	return "unknown"
}

// Timeouts say for each state how long a flow without packets is remembered. The
// kernel half knows the time to about two seconds.
type Timeouts [FlowStates]time.Duration

// Shortest and longest timeouts that Parse accepts.
const (
	minTimeout = 5 * time.Second
	maxTimeout = 365 * 24 * time.Hour
)

func defaultTimeouts() (t Timeouts) {
	for s := range t {
		t[s] = flowStates[s].timeout
	}
	return t
}

// readTimeouts lays the file's values over those that apply without it.
func (p *reader) readTimeouts(n *node) {
	var known schema
	for _, s := range flowStates {
		known.built = append(known.built, s.name)
	}
	values := p.keys(n, known)
	for s := range flowStates {
		if v := values[flowStates[s].name]; v != nil {
			p.timeout(v, &p.policy.Timeouts[s])
		}
	}
}

func (p *reader) timeout(n *node, to *time.Duration) {
	const want = "a time from 5s to 8760h, such as 30s, 10m or 120h"
	if !n.scalar() {
		p.want(n, want)
		return
	}
	d, err := time.ParseDuration(n.text)
	if err != nil || d < minTimeout || d > maxTimeout {
		p.invalid(n, want)
		return
	}
	*to = d
}
