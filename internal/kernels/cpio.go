package main

import (
	"fmt"
	"io"
	"os"
	"path"
)

// File types in a cpio archive's mode, as in stat(2).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeChar = 0o020000
)

// archive writes an initrd in cpio's newc format (kernel tree:
// Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed:
// the emulated machine would need longer to unpack it than to read it.
type archive struct {
	w    io.Writer
	at   int64
	ino  int
	dirs map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{".": true}}
}

// file adds a file and the directories above it. Names have no leading slash.
func (a *archive) file(name string, perm os.FileMode, data []byte) {
	a.dir(path.Dir(name))
	a.entry(name, modeFile|uint32(perm.Perm()), data)
}

// device adds a character device.
func (a *archive) device(name string, major, minor int) {
	a.dir(path.Dir(name))
	a.node(node{name: name, mode: modeChar | 0o600, major: major, minor: minor})
}

// dir adds a directory and those above it.
func (a *archive) dir(name string) {
	if a.dirs[name] {
		return
	}
	a.dirs[name] = true
	a.dir(path.Dir(name))
	a.entry(name, modeDir|0o755, nil)
}

// close ends the archive and returns the first error that any step met.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) entry(name string, mode uint32, data []byte) {
	a.node(node{name: name, mode: mode, data: data})
}

// node is one entry of an archive.
type node struct {
	name         string
	mode         uint32
	major, minor int
	data         []byte
}

func (a *archive) node(n node) {
	a.ino++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor,
	// rdevmajor, rdevminor, namesize with the final zero, check
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, n.mode, 0, 0, 1, 0, len(n.data), 0, 0, n.major, n.minor, len(n.name)+1, 0)
	a.write([]byte(header))
	a.write([]byte(n.name + "\x00"))
	a.pad()
	a.write(n.data)
	a.pad()
}

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	var n int
	n, a.err = a.w.Write(b)
	a.at += int64(n)
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad() {
	if rest := a.at % 4; rest != 0 {
		a.write(make([]byte, 4-rest))
	}
}
