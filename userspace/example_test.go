package userspace_test

import (
	"log"

	"github.com/hybridfw/hybridfw/userspace"
)

// A queue whose packets a function judges: UDP to port 9 is dropped, TCP gets a lower
// hop limit, all else passes.
func ExampleBind() {
	q, err := userspace.Bind(5, userspace.QueueOptions{FailOpen: true})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	err = q.Serve(func(p *userspace.Packet) userspace.Verdict {
		if p.View.Parse() != nil {
			return userspace.Verdict{Action: userspace.Drop}
		}
		if udp := p.View.UDP(); udp != nil && udp.DstPort() == 9 {
			return userspace.Verdict{Action: userspace.Drop}
		}
		if p.View.TCP() != nil {
			if err := p.View.SetTTL(32); err != nil {
				return userspace.Verdict{Action: userspace.Drop}
			}
		}
		// The packet's mark is 1 in its lowest bit from here on.
		return userspace.Verdict{Action: userspace.Accept, Mark: 1, MarkMask: 1}
	})
	if err != nil {
		log.Fatal(err)
	}
}
