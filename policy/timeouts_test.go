package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const zonesOnly = "version: 1\nzones: { lan: [lan0] }\n"

func TestTimeoutsAreTheFilesOrTheDefaults(t *testing.T) {
	p, err := ParseBytes("t.yaml", []byte(zonesOnly+"timeouts: { established: 36h, udp_replied: 1m30s, close: 5s }\n"), "")
	if err != nil {
		t.Fatal(err)
	}
	want := defaultTimeouts()
	want[StateEstablished], want[StateUDPReplied], want[StateClose] = 36*time.Hour, 90*time.Second, 5*time.Second
	if p.Timeouts != want {
		t.Errorf("%v, want %v", p.Timeouts, want)
	}
	p, err = ParseBytes("t.yaml", []byte(zonesOnly), "")
	if err != nil || p.Timeouts != defaultTimeouts() {
		t.Errorf("%v, %v without timeouts", p.Timeouts, err)
	}
}

func TestEveryStateHasItsTimeout(t *testing.T) {
	seen := map[string]bool{}
	for s := range FlowStates {
		text := fmt.Sprintf("%stimeouts: { %v: 77s }\n", zonesOnly, s)
		p, err := ParseBytes("t.yaml", []byte(text), "")
		if err != nil || p.Timeouts[s] != 77*time.Second {
			t.Errorf("%v: %v", s, err)
		}
		if d := defaultTimeouts()[s]; d < minTimeout || d > maxTimeout || seen[s.String()] {
			t.Errorf("%v: by default %v", s, d)
		}
		seen[s.String()] = true
	}
	if FlowStates.String() != "unknown" {
		t.Error("a state that is none has a name")
	}
}

func TestBadTimeoutsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"timeouts: { establishd: 60s }":  `t.yaml:3:13: timeouts.establishd is unknown; did you mean established?`,
		"timeouts: { close: 10 }":        "t.yaml:3:20: timeouts.close is 10; expected a time from 5s to 8760h",
		"timeouts: { close: 1s }":        `t.yaml:3:20: timeouts.close is "1s"; expected a time`,
		"timeouts: { close: 9000h }":     `t.yaml:3:20: timeouts.close is "9000h"; expected a time`,
		"timeouts: { close: -10s }":      `t.yaml:3:20: timeouts.close is "-10s"; expected a time`,
		"timeouts: { close: [10s] }":     "t.yaml:3:20: timeouts.close is a sequence; expected a time",
		"timeouts: { close: soon }":      `t.yaml:3:20: timeouts.close is "soon"; expected a time`,
		"timeouts: 60s":                  "t.yaml:3:11: timeouts is a string; expected a mapping with the keys syn_sent, ",
		"timeouts: { close: 10s, x: 1s}": "t.yaml:3:25: timeouts.x is unknown; expected one of syn_sent, ",
	} {
		_, err := ParseBytes("t.yaml", []byte(zonesOnly+text+"\n"), "")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}
