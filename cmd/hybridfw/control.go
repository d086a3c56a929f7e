package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The run folder holds two files: "lock", which the running process holds locked
// and writes its process id into, and "control.sock", on which it answers.

func lockPath(runDir string) string { return filepath.Join(runDir, "lock") }

func socketPath(runDir string) string { return filepath.Join(runDir, "control.sock") }

// lockRunDir makes sure that one process at most uses a run folder. The lock
// goes with the process, however it ends.
func lockRunDir(runDir string) (*os.File, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("making the run folder: %w", explainPermission(err))
	}
	// Nobody else may open it: who can open a file can lock it.
	f, err := os.OpenFile(lockPath(runDir), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", explainPermission(err))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid := readPID(f)
		err = fmt.Errorf("hybridfw is already running (process %s): stop it first, or use another --run-dir, --pin-dir and --queue", pid)
		return nil, errors.Join(err, f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("writing the lock: %w", err), f.Close())
	}
	return f, nil
}

// explainPermission adds what to do where something is not permitted.
func explainPermission(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run hybridfw as root, or name another folder with --run-dir", err)
	}
	return err
}

// lockNamespace makes sure that one process at most guards a network namespace:
// abstract sockets belong to one, and go with their process.
func lockNamespace() (net.Listener, error) {
	l, err := net.Listen("unix", "@hybridfw")
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another hybridfw already guards this network namespace: stop it first")
	}
	if err != nil {
		return nil, fmt.Errorf("locking the network namespace: %w", err)
	}
	return l, nil
}

func readPID(f *os.File) string {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0) // an empty file names nobody
	return strings.TrimSpace(string(buf[:n]))
}

// cleanRunDir removes what a process that is gone left in its run folder.
func cleanRunDir(runDir string) error {
	for _, path := range []string{socketPath(runDir), lockPath(runDir), runDir} {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return fmt.Errorf("cleaning the run folder: %w", err)
		}
	}
	return nil
}

// stopRunning asks the process that holds the lock to stop, and waits until it
// has. It reports whether there was one.
func stopRunning(ctx context.Context, runDir string) (bool, error) {
	f, err := os.Open(lockPath(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("opening the lock: %w", err)
	}
	defer f.Close()
	asked := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return asked, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return asked, fmt.Errorf("looking at the lock: %w", err)
		}
		if !asked {
			pid, err := strconv.Atoi(readPID(f))
			if err != nil {
				return false, fmt.Errorf("%s is locked, but names no process: %w", lockPath(runDir), err)
			}
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				return false, fmt.Errorf("asking process %d to stop: %w", pid, err)
			}
			asked = true
		}
		select {
		case <-ctx.Done():
			return asked, fmt.Errorf("process %s has not stopped: kill it, then run 'hybridfw detach' again", readPID(f))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// serveControl answers on the control socket until the server is closed: GET
// /status gives what the status command prints, POST /reload reloads.
func serveControl(runDir string, status func() (Status, error), reload func(bool) (Reload, error)) (*http.Server, error) {
	path := socketPath(runDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening the control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protecting the control socket: %w", err), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		s, err := status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // the client is gone: nobody is left to tell
	})
	mux.HandleFunc("POST /reload", serveReload(reload))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with the server
	return server, nil
}

// controlClient talks to the process that uses a run folder.
func controlClient(runDir string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socketPath(runDir))
		},
	}}
}

// isNobody tells that no process answers on a control socket.
func isNobody(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// askStatus asks the running process. ok is false where none answers.
func askStatus(ctx context.Context, runDir string) (s Status, ok bool, err error) {
	client := controlClient(runDir)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hybridfw/status", nil)
	if err != nil {
		return s, false, err
	}
	resp, err := client.Do(req)
	if isNobody(err) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("asking the running process: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, false, fmt.Errorf("the running process answers %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return s, false, fmt.Errorf("reading the running process's answer: %w", err)
	}
	return s, true, nil
}
