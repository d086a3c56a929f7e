package pktbuf_test

import (
	"encoding/hex"
	"fmt"

	"github.com/hybridfw/hybridfw/pktbuf"
)

// A packet is looked into and changed where it lies; what is behind it in its memory is
// room to grow, and lengths and checksums are right afterwards.
func ExampleView() {
	received, _ := hex.DecodeString("4500002100000000401190b6c0000201c6336401" + "303900350000d1a7" + "68656c6c6f")
	received[25], received[26], received[27] = 13, 0, 0 // UDP's length, and no checksum
	memory := append(make([]byte, 0, 2048), received...)

	var v pktbuf.View
	if err := v.Init(pktbuf.IPv4, memory, nil); err != nil {
		fmt.Println(err)
		return
	}
	if err := v.Parse(); err != nil {
		fmt.Println(err)
		return
	}
	flow, _ := v.Flow()
	fmt.Println(flow)
	if err := v.ReplacePayload(0, 5, []byte("good morning")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, %d bytes, changed: %v\n", v.Payload(), v.IPv4().TotalLength(), v.Changed())
	// Output:
	// 17 192.0.2.1:12345 > 198.51.100.1:53
	// good morning, 40 bytes, changed: true
}
