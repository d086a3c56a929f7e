package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kernel is a Debian kernel unpacked in the cache.
type kernel struct {
	release string // as uname -r says it
	image   string // the file that boots
	modules string // the folder lib/modules/<release>
}

// debPackage is one line of what apt knows.
type debPackage struct {
	name, version string
}

// findKernel returns the newest kernel of a series, such as 6.12, that apt
// offers, downloading it when the cache does not hold it. Without a package list
// or a network the newest one in the cache is used.
func findKernel(ctx context.Context, series, cache string) (kernel, error) {
	dir, err := fetchKernel(ctx, series, cache)
	if err != nil {
		// The lists may be missing, or older than the archive.
		if _, updateErr := output(ctx, "apt-get", "-q", "update"); updateErr == nil {
			dir, err = fetchKernel(ctx, series, cache)
		}
	}
	if err == nil {
		return openKernel(dir)
	}
	cached, globErr := filepath.Glob(filepath.Join(cache, "linux-image-"+series+".*"))
	if globErr != nil || len(cached) == 0 {
		return kernel{}, fmt.Errorf("getting a kernel %s: %w; run apt-get update and see that Debian's "+
			"main and security archives are among the sources", series, err)
	}
	fmt.Fprintf(os.Stderr, "kernels: using %s from the cache: %v\n", filepath.Base(cached[len(cached)-1]), err)
	return openKernel(cached[len(cached)-1])
}

// fetchKernel sees that the cache holds the newest kernel of a series and returns
// its folder there.
func fetchKernel(ctx context.Context, series, cache string) (string, error) {
	pkg, err := newestKernel(ctx, series)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, pkg.name+"_"+strings.ReplaceAll(pkg.version, ":", "%3a"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, download(ctx, pkg, dir)
}

// newestKernel asks apt for the newest cloud kernel of a series.
func newestKernel(ctx context.Context, series string) (debPackage, error) {
	out, err := output(ctx, "apt-cache", "pkgnames", "linux-image-"+series+".")
	if err != nil {
		return debPackage{}, err
	}
	names := kernelNames(series, out)
	if len(names) == 0 {
		return debPackage{}, fmt.Errorf("apt knows no linux-image-%s.*-cloud-amd64", series)
	}
	out, err = output(ctx, "apt-cache", append([]string{"show", "--no-all-versions"}, names...)...)
	if err != nil {
		return debPackage{}, err
	}
	newer := func(a, b debPackage) int {
		if exec.CommandContext(ctx, "dpkg", "--compare-versions", a.version, "gt", b.version).Run() == nil {
			return 1
		}
		return -1
	}
	packages := parsePackages(out)
	if len(packages) == 0 {
		return debPackage{}, fmt.Errorf("apt can download no linux-image-%s.*-cloud-amd64", series)
	}
	return slices.MaxFunc(packages, newer), nil
}

// kernelNames picks the bootable images of a series: not the unsigned ones, not
// debugging symbols and not packages that only depend on another.
func kernelNames(series string, pkgnames []byte) []string {
	want := regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(series) + `\.\d[^-]*(-\d+)?-cloud-amd64$`)
	var names []string
	for _, name := range strings.Fields(string(pkgnames)) {
		if want.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// parsePackages reads names and versions out of apt's package descriptions.
func parsePackages(text []byte) []debPackage {
	var all []debPackage
	var p debPackage
	lines := bufio.NewScanner(bytes.NewReader(append(text, "\n\n"...)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case key == "Package":
			p.name = value
		case key == "Version":
			p.version = value
		case key == "" && p.name != "" && p.version != "":
			all = append(all, p)
			p = debPackage{}
		}
	}
	return all
}

// download gets a package and unpacks it to dir, which appears only when it is
// complete.
func download(ctx context.Context, pkg debPackage, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "unpacking-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	get := exec.CommandContext(ctx, "apt-get", "-q", "download", pkg.name+"="+pkg.version)
	get.Dir = tmp
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("downloading %s: %w: %s", pkg.name, err, lastLine(out))
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("downloading %s: %d files came", pkg.name, len(debs))
	}
	root := filepath.Join(tmp, "root")
	if _, err := output(ctx, "dpkg", "-x", debs[0], root); err != nil {
		return fmt.Errorf("unpacking %s: %w", pkg.name, err)
	}
	return os.Rename(root, dir)
}

// openKernel finds the parts of an unpacked kernel.
func openKernel(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("%s holds %d kernels, want one; remove it and try again", dir, len(images))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	for _, lib := range []string{"lib", "usr/lib"} {
		modules := filepath.Join(dir, lib, "modules", release)
		if _, err := os.Stat(modules); err == nil {
			return kernel{release: release, image: images[0], modules: modules}, nil
		}
	}
	return kernel{}, fmt.Errorf("%s holds no modules for %s; remove it and try again", dir, release)
}

// output runs a program and returns what it prints; what it complains about
// becomes part of the error.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s %s: %w: %s", name, args[0], err, lastLine(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return out, nil
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
