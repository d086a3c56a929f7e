package loader

import (
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// Every test here runs in a mount and network namespace of this process's own.
func TestMain(m *testing.M) { testnet.MainMixed(m) }
