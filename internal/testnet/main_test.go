package testnet_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/internal/testnet"
)

// Some tests start this program again, as one of these other programs.
const (
	lookEnv = "HYBRIDFW_TEST_LOOK" // prints what it sees and ends
	stayEnv = "HYBRIDFW_TEST_STAY" // prints staying and stays
	staying = "staying"
)

// bondingMasters stands among the interfaces in /sys/class/net and is none.
const bondingMasters = "bonding_masters"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(lookEnv) != "":
		if err := look(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(stayEnv) != "":
		fmt.Print(staying)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			os.Exit(1)
		}
		_, _ = l.Accept() // nobody comes
		os.Exit(0)
	}
	testnet.Main(m)
}

// look prints what a process sees of where it is.
func look() error {
	fmt.Println("args", strings.Join(os.Args[1:], " "))
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	fmt.Println("net", ns)
	for what, glob := range map[string]string{"interface": "/sys/class/net/*", "pin": "/sys/fs/bpf/*-by-all"} {
		paths, err := filepath.Glob(glob)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if what == "interface" {
				if path = filepath.Base(path); path == bondingMasters {
					continue
				}
			}
			fmt.Println(what, path)
		}
	}
	return nil
}
