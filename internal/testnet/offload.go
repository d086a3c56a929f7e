package testnet

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of the ethtool ioctl, from include/uapi/linux/ethtool.h.
const (
	ethtoolSTxCsum = 0x17
	ethtoolSTSO    = 0x1f
	ethtoolSGSO    = 0x24
	ethtoolSGRO    = 0x2c
)

// NoOffload makes an interface finish checksums itself, cut segments before it
// sends and merge none that it receives.
func (h *Host) NoOffload(ifname string) error {
	return h.Do(func() error {
		// GSO depends on checksums in the kernel, so it goes first.
		for _, cmd := range []uint32{ethtoolSTSO, ethtoolSGSO, ethtoolSGRO, ethtoolSTxCsum} {
			if err := ethtoolSet(ifname, cmd, 0); err != nil {
				return fmt.Errorf("switching offloads of %s off on host %s: %w", ifname, h.Name, err)
			}
		}
		return nil
	})
}

// GRO makes an interface merge what it receives. For a veth it is what makes it take
// frames that XDP sends to its peer.
func (h *Host) GRO(ifname string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return h.Do(func() error {
		if err := ethtoolSet(ifname, ethtoolSGRO, value); err != nil {
			return fmt.Errorf("switching GRO of %s on host %s: %w", ifname, h.Name, err)
		}
		return nil
	})
}

// ethtoolSet runs one command with one value on an interface of the calling
// thread's namespace.
func ethtoolSet(ifname string, cmd, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(fd)
	arg := struct{ cmd, value uint32 }{cmd, value} // struct ethtool_value
	var ifr struct {                               // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		rest [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(ifr.name[:unix.IFNAMSIZ-1], ifname)
	ifr.data = unsafe.Pointer(&arg)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return fmt.Errorf("ethtool command %#x: %w", cmd, errno)
	}
	return nil
}
