// Package fastpath measures what the kernel half costs a host, against no filter,
// bare programs and other firewalls, in network namespaces joined by veth.
package fastpath

import (
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }
