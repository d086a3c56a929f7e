package userspace

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hybridfw/hybridfw/pktbuf"
	"github.com/hybridfw/hybridfw/policy"
)

const (
	// leastTTL is how long an address is learned for at least: who has asked needs
	// some time to connect, whatever the record says.
	leastTTL = time.Minute
	// mostTTL bounds what a record says.
	mostTTL = 7 * 24 * time.Hour
	// questionsKept is how many questions a worker remembers. Later ones take the
	// places of earlier ones.
	questionsKept = 4096
)

// learner fills dynamic lists from DNS answers. Only an answer to a question that was
// let through counts: who can guess ports, but not see the question, must not add to
// what is allowed.
type learner struct {
	seed  maphash.Seed
	asked []uint64 // hashes of questions, by themselves
	buf   [512]byte
}

func newLearner() *learner {
	return &learner{seed: maphash.MakeSeed(), asked: make([]uint64, questionsKept)}
}

// place returns the hash of a question with its id, and where it is kept. The flow is
// that of the question.
func (l *learner) place(flow *pktbuf.Flow, id uint16, q *dnsmessage.Question) (hash uint64, at *uint64) {
	b := append(l.buf[:0], flow.Bytes()...)
	b = binary.BigEndian.AppendUint16(b, id)
	b = binary.BigEndian.AppendUint16(b, uint16(q.Type))
	for _, c := range q.Name.Data[:q.Name.Length] {
		b = append(b, lower(c))
	}
	hash = max(1, maphash.Bytes(l.seed, b))
	return hash, &l.asked[hash%questionsKept]
}

// learnFrom learns from a message that passes, where somebody wants to know.
func (j *judge) learnFrom(rule *policy.Rule, r *ruling, msg []byte) {
	if rule.Learns && j.o.Learned != nil && r.action == policy.ActionAccept {
		j.learn(msg)
	}
}

// learn notes a question that passes, or fills the dynamic lists of the packet's policy
// from its answer.
func (j *judge) learn(msg []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return // a name is judged by a reader of our own, which takes more
	}
	q, err := p.Question()
	if err != nil || q.Class != dnsmessage.ClassINET {
		return
	}
	flow := j.flow
	if h.Response {
		flow = flow.Reverse()
	}
	hash, at := j.learner.place(&flow, h.ID, &q)
	if !h.Response {
		*at = hash
		return
	}
	if *at != hash {
		j.tally.count(countUnasked)
		return
	}
	*at = 0
	if h.RCode != dnsmessage.RCodeSuccess || p.SkipAllQuestions() != nil {
		return
	}
	j.learnAnswers(&p, q.Name)
}

// learnAnswers follows a name through its aliases to its addresses. A list that asks
// for any of these names gets them.
func (j *judge) learnAnswers(p *dnsmessage.Parser, name dnsmessage.Name) {
	lists := j.wanting(0, &name)
	for {
		h, err := p.AnswerHeader()
		if err != nil {
			return // the end, or what nobody can read
		}
		ttl := time.Duration(h.TTL) * time.Second
		ours := h.Class == dnsmessage.ClassINET && sameName(&h.Name, &name)
		switch {
		case ours && h.Type == dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return
			}
			name = r.CNAME
			lists = j.wanting(lists, &name)
		case ours && h.Type == dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return
			}
			j.tellLearned(lists, netip.AddrFrom4(r.A), ttl)
		case ours && h.Type == dnsmessage.TypeAAAA:
			r, err := p.AAAAResource()
			if err != nil {
				return
			}
			if addr := netip.AddrFrom16(r.AAAA); !addr.Is4In6() { // such packets are malformed
				j.tellLearned(lists, addr, ttl)
			}
		default:
			if p.SkipAnswer() != nil {
				return
			}
		}
	}
}

// wanting adds to a set of lists, a bit for each of the policy's, the dynamic ones that
// want the addresses of a name.
func (j *judge) wanting(lists uint64, name *dnsmessage.Name) uint64 {
	bit := uint64(1)
	for _, l := range j.policy.Lists {
		if l.Type != policy.ListDynamic {
			continue
		}
		if l.Dynamic.Wants(name.Data[:name.Length]) {
			lists |= bit
		}
		bit <<= 1
	}
	return lists
}

// tellLearned tells Options.Learned of an address.
func (j *judge) tellLearned(lists uint64, addr netip.Addr, ttl time.Duration) {
	for _, l := range j.policy.Lists {
		if l.Type != policy.ListDynamic {
			continue
		}
		if lists&1 != 0 {
			stays := l.Dynamic.TTL
			if stays == 0 {
				stays = min(max(ttl, leastTTL), mostTTL)
			}
			j.tally.count(countLearned)
			if err := j.o.Learned(l, addr, stays); err != nil {
				j.tally.count(countLearnedErrors)
			}
		}
		lists >>= 1
	}
}

// dnsAnswers returns the addresses in a response's answers, whatever their names. It
// allocates.
func dnsAnswers(msg []byte) (all []netip.Addr) {
	var p dnsmessage.Parser
	if _, err := p.Start(msg); err != nil || p.SkipAllQuestions() != nil {
		return nil
	}
	for {
		h, err := p.AnswerHeader()
		if err != nil {
			return all
		}
		var addr netip.Addr
		switch h.Type {
		case dnsmessage.TypeA:
			var r dnsmessage.AResource
			r, err = p.AResource()
			addr = netip.AddrFrom4(r.A)
		case dnsmessage.TypeAAAA:
			var r dnsmessage.AAAAResource
			r, err = p.AAAAResource()
			addr = netip.AddrFrom16(r.AAAA)
		default:
			err = p.SkipAnswer()
		}
		if err != nil {
			return all
		}
		if addr.IsValid() {
			all = append(all, addr)
		}
	}
}

func sameName(a, b *dnsmessage.Name) bool {
	if a.Length != b.Length {
		return false
	}
	for i, c := range a.Data[:a.Length] {
		if lower(c) != lower(b.Data[i]) {
			return false
		}
	}
	return true
}
