package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOnlyBootableKernelsOfTheSeriesAreTaken(t *testing.T) {
	names := kernelNames("6.1", []byte(`linux-image-6.1.0-57-cloud-amd64
linux-image-6.1.0-57-cloud-amd64-unsigned
linux-image-6.1.0-57-cloud-amd64-dbg
linux-image-6.1.0-57-amd64
linux-image-6.1.0-57-rt-amd64
linux-image-6.12.117+deb12-cloud-amd64
linux-image-6.1-cloud-amd64
linux-image-6.1.0-9-cloud-amd64`))
	if want := []string{"linux-image-6.1.0-57-cloud-amd64", "linux-image-6.1.0-9-cloud-amd64"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	names = kernelNames("6.12", []byte("linux-image-6.12-cloud-amd64\nlinux-image-6.12.117+deb12-cloud-amd64\n"+
		"linux-image-6.12.9+deb13-cloud-amd64\nlinux-image-6.1.12-cloud-amd64\n"))
	if want := []string{"linux-image-6.12.117+deb12-cloud-amd64", "linux-image-6.12.9+deb13-cloud-amd64"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}

func TestPackagesAreReadFromDescriptions(t *testing.T) {
	got := parsePackages([]byte("Package: a\nVersion: 6.1.9-1\nDescription: x\n continued: y\n\n" +
		"Package: without-version\n\nPackage: b\nDepends: c, d\nVersion: 6.1.10-1~deb12u1"))
	// A package without a version is not one that can be downloaded.
	want := []debPackage{{"a", "6.1.9-1"}, {"b", "6.1.10-1~deb12u1"}}
	if !slices.Equal(got, want) {
		t.Errorf("packages %v, want %v", got, want)
	}
}

// fakePrograms puts shell scripts before everything else in PATH.
func fakePrograms(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// aptThatWorks offers two kernels and delivers an empty package; dpkg unpacks a
// kernel out of every package.
var aptThatWorks = map[string]string{
	"apt-cache": `case $1 in
pkgnames) echo linux-image-6.1.0-9-cloud-amd64; echo linux-image-6.1.0-57-cloud-amd64 ;;
show) printf 'Package: linux-image-6.1.0-9-cloud-amd64\nVersion: 6.1.9-1\n\nPackage: linux-image-6.1.0-57-cloud-amd64\nVersion: 6.1.10-1\n' ;;
esac`,
	"apt-get": `[ "$2" = download ] && [ "$3" = linux-image-6.1.0-57-cloud-amd64=6.1.10-1 ] && touch k.deb`,
	"dpkg": `if [ "$1" = -x ]; then
	mkdir -p "$3/boot" "$3/lib/modules/6.1.0-57-cloud-amd64"; touch "$3/boot/vmlinuz-6.1.0-57-cloud-amd64"
else
	[ "$2 $3 $4" = "6.1.10-1 gt 6.1.9-1" ]
fi`,
}

func TestNewestKernelIsDownloadedOnce(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	fakePrograms(t, aptThatWorks)
	k, err := findKernel(context.Background(), "6.1", cache)
	if err != nil {
		t.Fatal(err)
	}
	if k.release != "6.1.0-57-cloud-amd64" || !strings.HasPrefix(k.image, cache) {
		t.Errorf("kernel %+v", k)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v (%v), want the kernel alone", left, err)
	}

	fakePrograms(t, map[string]string{"apt-get": "echo no network >&2; exit 100"})
	again, err := findKernel(context.Background(), "6.1", cache)
	if err != nil || again != k {
		t.Errorf("second time %+v, %v, want the first's", again, err)
	}

	fakePrograms(t, map[string]string{"apt-cache": "echo no lists >&2; exit 100"})
	again, err = findKernel(context.Background(), "6.1", cache)
	if err != nil || again != k {
		t.Errorf("without a package list %+v, %v, want what is in the cache", again, err)
	}
}

func TestFailedDownloadLeavesNothingAndSaysWhy(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	fakePrograms(t, aptThatWorks)
	fakePrograms(t, map[string]string{"apt-get": "echo no network >&2; exit 100"})
	_, err := findKernel(context.Background(), "6.1", cache)
	if err == nil || !strings.Contains(err.Error(), "no network") || !strings.Contains(err.Error(), "apt-get update") {
		t.Errorf("error %v, want the cause and what to do", err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("the cache holds %v (%v), want nothing", left, err)
	}
}

func TestOldPackageListsAreUpdated(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	fakePrograms(t, aptThatWorks)
	updated := filepath.Join(t.TempDir(), "updated")
	fakePrograms(t, map[string]string{"apt-get": `
if [ "$2" = update ]; then touch ` + updated + `; exit; fi
[ -e ` + updated + ` ] || { echo 404 not found >&2; exit 100; }
touch k.deb`})
	if _, err := findKernel(context.Background(), "6.1", cache); err != nil {
		t.Error(err)
	}
}

func TestUnknownSeriesIsAnError(t *testing.T) {
	fakePrograms(t, map[string]string{"apt-cache": "exit 0", "apt-get": "exit 0"})
	_, err := findKernel(context.Background(), "9.9", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "apt knows no linux-image-9.9.*-cloud-amd64") {
		t.Errorf("error %v", err)
	}
}

func TestDamagedCacheIsAnErrorThatNamesIt(t *testing.T) {
	dir := t.TempDir()
	if _, err := openKernel(dir); err == nil || !strings.Contains(err.Error(), dir+" holds 0 kernels") {
		t.Errorf("error %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "boot"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot", "vmlinuz-1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openKernel(dir); err == nil || !strings.Contains(err.Error(), "no modules for 1") {
		t.Errorf("error %v", err)
	}
}
