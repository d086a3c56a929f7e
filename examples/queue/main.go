// Queue drops what asks for a name below ads.example over TLS, and accepts all else.
// Packets come to it by a rule such as
//
//	nft add rule inet filter forward tcp dport 443 queue num 0
package main

import (
	"bytes"
	"log"
	"os"
	"os/signal"

	"github.com/hybridfw/hybridfw/userspace"
)

func main() {
	q, err := userspace.Bind(0, userspace.QueueOptions{FailOpen: true})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	go func() {
		<-stop
		q.Drain()
	}()
	if err := q.Serve(judge); err != nil {
		log.Fatal(err)
	}
	log.Printf("%+v", q.Counters())
}

// judge is called with one packet after the other, and nothing is allocated for them.
func judge(p *userspace.Packet) userspace.Verdict {
	if p.View.Parse() == nil && bytes.Contains(p.View.Payload(), []byte(".ads.example")) {
		return userspace.Verdict{Action: userspace.Drop}
	}
	return userspace.Verdict{Action: userspace.Accept}
}
