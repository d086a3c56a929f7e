package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hybridfw/hybridfw/policy"
	"github.com/hybridfw/hybridfw/userspace"
)

// Reload is what a reload did.
type Reload struct {
	Policy     string   `json:"policy"`
	Rules      int      `json:"rules"`
	Interfaces int      `json:"interfaces"`
	Pinned     []string `json:"pinned,omitempty"` // rules that only the policy before has, and that stay
	Warnings   []string `json:"warnings,omitempty"`
	Seconds    float64  `json:"seconds"`
}

var reloadCommand = command{
	name:    "reload",
	summary: "put the changed policy file into force",
	about: `Has the running process read its policy file and the list files again, and
apply them without a gap: a packet meets the old policy or the new one. Known
flows are judged anew by their next packets; what the new policy denies stops.
Pinned rules that the new policy forgets stay, in front of its own. A file with
a mistake changes nothing. SIGHUP to the running process does the same, and
logs the outcome.

marks.mask can be changed by a restart only.`,
	setup: func(flags *pflag.FlagSet) runFunc {
		var p places
		dropPinned := flags.Bool("drop-pinned", false, "do not keep pinned rules that the new policy forgets")
		asJSON := flags.Bool("json", false, "print JSON")
		p.declare(flags)
		return func(ctx context.Context, e env, args []string) error {
			if err := noArgs(args); err != nil {
				return err
			}
			done, err := askReload(ctx, p.runDir, *dropPinned)
			if err != nil {
				return err
			}
			return printReload(e.stdout, done, *asJSON)
		}
	},
}

func printReload(w io.Writer, r Reload, asJSON bool) error {
	if asJSON {
		return printJSON(w, r)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if len(r.Pinned) > 0 {
		fmt.Fprintf(w, "kept, being pinned: %s\n", strings.Join(r.Pinned, ", "))
	}
	fmt.Fprintf(w, "%s is in force: %d rules, %d interfaces, applied in %.1f s\n", r.Policy, r.Rules, r.Interfaces, r.Seconds)
	return nil
}

// refusedError is what the running process says about a policy that is wrong.
type refusedError struct{ text string }

func (e refusedError) Error() string { return e.text }

// serveReload answers on the control socket.
func serveReload(reload func(dropPinned bool) (Reload, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		done, err := reload(r.URL.Query().Get("drop-pinned") == "true")
		var bad *policy.Errors
		switch {
		case errors.As(err, &bad):
			http.Error(w, bad.Error(), http.StatusUnprocessableEntity)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(done) // the client is gone: nobody is left to tell
		}
	}
}

// askReload has the running process reload.
func askReload(ctx context.Context, runDir string, dropPinned bool) (done Reload, err error) {
	client := controlClient(runDir)
	defer client.CloseIdleConnections()
	url := "http://hybridfw/reload"
	if dropPinned {
		url += "?drop-pinned=true"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return done, err
	}
	resp, err := client.Do(req)
	if isNobody(err) {
		return done, errors.New("no process is running: start one with 'hybridfw run'")
	}
	if err != nil {
		return done, fmt.Errorf("asking the running process: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return done, fmt.Errorf("reading the running process's answer: %w", err)
		}
		said := strings.TrimSpace(string(text))
		if resp.StatusCode == http.StatusUnprocessableEntity {
			return done, refusedError{said}
		}
		return done, fmt.Errorf("the running process answers: %s", said)
	}
	if err := json.NewDecoder(resp.Body).Decode(&done); err != nil {
		return done, fmt.Errorf("reading the running process's answer: %w", err)
	}
	return done, nil
}

// reload reads the policy again and applies it in both halves, or changes nothing.
func (d *daemon) reload(dropPinned bool) (done Reload, err error) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	if d.stopping {
		return done, errors.New("the process is stopping")
	}
	began := time.Now()
	p, err := d.options.loadPolicy()
	if err != nil {
		return done, err
	}
	before := d.policy.Load()
	if !dropPinned {
		if done.Pinned, err = p.KeepPinned(before); err != nil {
			return done, err
		}
	}
	if err := p.Succeed(before, d.stage.Held()); err != nil {
		return done, err
	}
	if err := d.apply(p, before); err != nil {
		return done, err
	}
	d.policy.Store(p)
	ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
	defer cancel()
	if err := d.stage.Settle(ctx); err != nil {
		d.log.Warn("numbers of earlier rules are not free yet", "err", err)
	}
	done.Policy, done.Rules, done.Interfaces = p.File, len(p.Rules), len(d.kernel.Interfaces())
	for _, w := range p.Warnings {
		done.Warnings = append(done.Warnings, w.String())
		d.log.Warn("policy", "warning", w.String())
	}
	done.Seconds = time.Since(began).Seconds()
	d.log.Info("policy reloaded", "policy", p.File, "rules", done.Rules, "interfaces", done.Interfaces,
		"pinned", done.Pinned, "seconds", done.Seconds)
	return done, nil
}

// apply puts a policy into force: user space first, which then understands the
// marks of both, the kernel half last. What fails is undone.
func (d *daemon) apply(p, before *policy.Policy) error {
	o := d.stageOptions
	o.Policy = p
	steering, err := userspace.NewSteering(o)
	if err != nil {
		return err
	}
	old := d.steering.Load()
	resteer := inspects(p) && !d.steers.Load() || p.Failure.NoListener != before.Failure.NoListener && d.steers.Load()
	if err := d.stage.Apply(p); err != nil {
		return errors.Join(err, d.stage.Apply(before))
	}
	if resteer {
		if err := steering.Install(); err != nil {
			return errors.Join(err, d.stage.Apply(before))
		}
		d.steers.Store(true)
	}
	d.steering.Store(steering)
	if err := d.kernel.Apply(p); err != nil {
		err = errors.Join(err, d.stage.Apply(before))
		d.steering.Store(old)
		if resteer {
			err = errors.Join(err, old.Install())
		}
		return err
	}
	return nil
}

// reloadBySignal reloads and leaves the outcome to the log.
func (d *daemon) reloadBySignal() {
	if _, err := d.reload(false); err != nil {
		for line := range strings.Lines(err.Error()) {
			d.log.Error("not reloaded, the policy before is in force", "err", strings.TrimSuffix(line, "\n"))
		}
	}
}
