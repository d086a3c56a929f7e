package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// XDPMode says where fw_xdp runs. XDP is never needed: what it does not drop,
// fw_tc judges.
type XDPMode string

const (
	XDPAuto    XDPMode = "auto"    // native on drivers known to keep their offloads, else off
	XDPNative  XDPMode = "native"  // in the driver; else generic; else off
	XDPGeneric XDPMode = "generic" // behind the driver; else off
	XDPOff     XDPMode = "off"
)

// Drivers whose receive offloads survive a native XDP program. veth and the like
// lose GRO by it, which costs bulk TCP two thirds of its rate.
var nativeDrivers = map[string]bool{
	"bnxt_en": true, "i40e": true, "ice": true, "igc": true, "ixgbe": true, "mlx5_core": true,
}

// attachXDP attaches fw_xdp in the best mode that is wanted and possible, and
// says which it was. Where it is off the hook is nil.
func attachXDP(opts Options, l netlink.Link, prog *ebpf.Program) (hook, string, error) {
	pin := linkPin(opts.PinDir, hookXDP, l.Attrs().Index)
	for _, mode := range wantedXDP(opts.XDP, l.Attrs().Name) {
		h, err := attachXDPMode(l, prog, mode, pin)
		if err == nil {
			return h, string(mode), nil
		}
		if errors.Is(err, syscall.EBUSY) {
			return nil, "", fmt.Errorf("another XDP program is attached: remove it (ip link set dev %s xdp off), or start hybridfw with --xdp off", l.Attrs().Name)
		}
		opts.Log.Warn("XDP mode refused by the kernel", "name", l.Attrs().Name, "mode", mode, "err", err)
	}
	return nil, string(XDPOff), removePinnedLink(pin)
}

// wantedXDP lists the modes to try, best first.
func wantedXDP(mode XDPMode, ifname string) []XDPMode {
	switch mode {
	case XDPNative:
		return []XDPMode{XDPNative, XDPGeneric}
	case XDPGeneric:
		return []XDPMode{XDPGeneric}
	case XDPOff:
		return nil
	}
	driver, err := os.Readlink(filepath.Join("/sys/class/net", ifname, "device/driver"))
	if err == nil && nativeDrivers[filepath.Base(driver)] {
		return []XDPMode{XDPNative}
	}
	return nil
}

func attachXDPMode(l netlink.Link, prog *ebpf.Program, mode XDPMode, pin string) (hook, error) {
	flags, attached := link.XDPDriverMode, uint32(xdpAttachedDriver)
	if mode == XDPGeneric {
		flags, attached = link.XDPGenericMode, xdpAttachedGeneric
	}
	xdp := l.Attrs().Xdp
	if xdp != nil && xdp.Attached && xdp.AttachMode == attached {
		if h, err := takeOverLink(pin, prog); h != nil || err != nil {
			return h, err
		}
	}
	// A link in the other mode would keep this one out.
	if err := removePinnedLink(pin); err != nil {
		return nil, err
	}
	raw, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.Attrs().Index, Flags: flags})
	if err != nil {
		return nil, err
	}
	return pinLink(raw, pin)
}

// Values of IFLA_XDP_ATTACHED, linux/if_link.h.
const (
	xdpAttachedDriver  = 1
	xdpAttachedGeneric = 2
)
