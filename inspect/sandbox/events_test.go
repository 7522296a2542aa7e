//go:build linux

package sandbox

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// TestEvents: what happened to a container, and which limit ended it, is in evidence.json and in events.jsonl alike, and
// events.jsonl is a chain that holds.
func TestEvents(t *testing.T) {
	t.Parallel()
	testEvents(t, runcEngineUnderTest(t))
}

func testEvents(t *testing.T, e engineUnderTest) {
	for _, tt := range []struct {
		name    string
		command []string
		set     func(*Settings)
		stop    bool
		events  []string // between SPAWN and CLEANUP
		reason  string
		code    policy.Code
	}{
		{name: "exits", command: []string{"exit", "3"}, reason: ReasonExited},
		{name: "timeout", command: []string{"deaf"}, set: func(s *Settings) { s.Timeout = time.Second }, events: []string{EventTimeout}, reason: ReasonTimeout, code: -32007},
		{name: "memory", command: []string{"eat", "200"}, set: func(s *Settings) { s.Memory = 64 << 20 }, events: []string{EventViolation}, reason: ReasonMemory, code: -32006},
		{name: "pids", command: []string{"crowd", "100"}, set: func(s *Settings) { s.PIDs = 40 }, events: []string{EventViolation}, reason: ReasonPIDs, code: -32006},
		{name: "stopped", command: []string{"sleep"}, stop: true, events: []string{EventExec}, reason: ReasonStopped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "pids" && e.Runtime == Docker {
				return // Docker doesn't tell that a process was refused
			}
			s := settings(tt.command...)
			s.Output = t.TempDir()
			if tt.set != nil {
				tt.set(&s)
			}
			sb := engineUnderTest{e.Runner, t}.start(guestImage(t), s)
			if tt.stop {
				until(t, "ready", says(sb, "ready"))
				if err := sb.Record(Event{Event: EventExec, Command: []string{"open", strings.Repeat("x", 1<<20)}, RequestID: "r1", Code: policy.PolicyBlocked, Rule: "url.host"}); err != nil {
					t.Error(err)
				}
				_, _ = sb.Stop(t.Context())
			}
			st := finish(t, sb)
			if st.Reason != tt.reason || st.Code != tt.code {
				t.Errorf("%+v", st)
			}
			dir := filepath.Join(s.Output, sb.ID)
			text, err := os.ReadFile(filepath.Join(dir, "evidence.json"))
			if err != nil {
				t.Fatal(err)
			}
			var ev Evidence
			if err := json.Unmarshal(text, &ev); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range ev.Events {
				names = append(names, e.Event)
			}
			if want := slices.Concat([]string{EventSpawn}, tt.events, []string{EventCleanup}); !slices.Equal(names, want) {
				t.Errorf("events %q, want %q", names, want)
			}
			first, last := ev.Events[0], ev.Events[len(ev.Events)-1]
			if first.ImageDigest != ev.Image.Digest.String() || first.Limits == nil || first.Limits.PIDs != s.PIDs || first.Limits.Memory != s.Memory || first.Limits.TimeoutSec != s.Timeout.Seconds() {
				t.Errorf("%+v", first)
			}
			if last.ExitCode == nil || *last.ExitCode != st.ExitCode || last.Reason != tt.reason || last.Code != tt.code {
				t.Errorf("%+v", last)
			}
			if tt.code != 0 {
				if limit := ev.Events[1]; limit.Code != tt.code || limit.Name != tt.code.Name() || limit.Rule != "limit."+tt.reason {
					t.Errorf("%+v", limit)
				}
			}
			if tt.stop {
				if call := ev.Events[1]; call.Name != "POLICY_BLOCKED" || call.RequestID != "r1" || len(call.Command) != 2 || len(call.Command[1]) > 100 {
					t.Errorf("%+v", call)
				}
			}
			file := filepath.Join(dir, "events.jsonl")
			r, err := audit.Verify(ev.EventsHead, file)
			if err != nil || !r.OK || !r.Complete || r.Lines != len(names) || r.Head != ev.EventsHead {
				t.Errorf("%+v, %v", r, err)
			}
			lines, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(lines), `"event":"`+EventCleanup+`","run_id":"`+sb.ID+`","data":{"event"`) {
				t.Errorf("%v: %s", err, lines)
			}
		})
	}
}

// TestEventsAreBounded: evidence.json has the first and the last of many events, events.jsonl all.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	s := &Sandbox{plan: &plan{Settings: Settings{Output: t.TempDir()}}, ID: "id"}
	if err := s.openJournal(); err != nil {
		t.Fatal(err)
	}
	for range maxEvents + 5 {
		if err := s.Record(Event{Event: EventExec}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.recordCleanup(nil); err != nil {
		t.Fatal(err)
	}
	if err := s.closeJournal(); err != nil {
		t.Fatal(err)
	}
	ev := s.Evidence()
	if len(ev.Events) != maxEvents+1 || ev.EventsLeftOut != 5 || ev.Events[maxEvents].Event != EventCleanup {
		t.Errorf("%d events, %d left out", len(ev.Events), ev.EventsLeftOut)
	}
	if r, err := audit.Verify(ev.EventsHead, filepath.Join(s.plan.Output, "id", "events.jsonl")); err != nil || !r.OK || r.Lines != maxEvents+6 {
		t.Errorf("%+v, %v", r, err)
	}
}
