package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hybridfw/hybridfw/policy"
)

// TestReloadOverTheControlSocket asks as the reload command does.
func TestReloadOverTheControlSocket(t *testing.T) {
	dir := shortDir(t)
	var bad error = &policy.Errors{List: []*policy.Error{{File: "p.yaml", Pos: policy.Pos{Line: 3, Column: 4}, Msg: "is wrong"}}}
	done, refused, dropped := Reload{Policy: "p.yaml", Rules: 3, Interfaces: 2, Pinned: []string{"mgmt"}, Warnings: []string{"w"}}, error(nil), false
	command := func(args ...string) (stdout, stderr string, code int) {
		var out, errs bytes.Buffer
		code = execute(t.Context(), env{&out, &errs}, append([]string{"reload", "--run-dir", dir}, args...))
		return out.String(), errs.String(), code
	}
	if _, errs, code := command(); code != exitFailure || !strings.Contains(errs, "no process is running") {
		t.Errorf("without a process: %d, %q", code, errs)
	}
	server, err := serveControl(dir, nil, func(dropPinned bool) (Reload, error) {
		dropped = dropPinned
		return done, refused
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const said = "warning: w\nkept, being pinned: mgmt\np.yaml is in force: 3 rules, 2 interfaces, applied in 0.0 s\n"
	if out, errs, code := command(); code != exitOK || out != said || errs != "" || dropped {
		t.Errorf("%d, %q, %q, dropped %v", code, out, errs, dropped)
	}
	if out, _, code := command("--json", "--drop-pinned"); code != exitOK || !strings.Contains(out, `"rules": 3`) || !dropped {
		t.Errorf("%d, %q, dropped %v", code, out, dropped)
	}
	refused = bad
	if _, errs, code := command(); code != exitUsage || errs != "p.yaml:3:4: is wrong\n" {
		t.Errorf("a wrong policy: %d, %q", code, errs)
	}
	refused = errors.New("swapping: no")
	if _, errs, code := command(); code != exitFailure || errs != "hybridfw reload: the running process answers: swapping: no\n" {
		t.Errorf("a refusal: %d, %q", code, errs)
	}
}
