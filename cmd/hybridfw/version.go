package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/pflag"
)

// version is set by the linker for releases; else the build's own record tells.
var version = ""

var versionCommand = command{
	name:    "version",
	summary: "print the version",
	about:   "Prints the version, and the Go version and platform that it was built for.",
	setup: func(*pflag.FlagSet) runFunc {
		return func(_ context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			fmt.Fprintf(e.stdout, "hybridfw %s (%s, %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		}
	},
}

func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
