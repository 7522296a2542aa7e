//go:build linux

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
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
		events  []string // between the EXEC of the command and CLEANUP
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
			runner := e.Runner
			if tt.reason == ReasonTimeout {
				runner.StopGrace = hurry
			}
			var sb *Sandbox
			dockerForgets(e.Runtime, func() bool {
				sb = engineUnderTest{runner, t}.start(guestImage(t), s)
				return tt.reason != ReasonMemory || finish(t, sb).OOMKilled
			})
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
			if want := slices.Concat([]string{EventSpawn, EventExec}, tt.events, []string{EventCleanup}); !slices.Equal(names, want) {
				t.Errorf("events %q, want %q", names, want)
			}
			first, last := ev.Events[0], ev.Events[len(ev.Events)-1]
			if first.ImageDigest != ev.Image.Digest.String() || first.Limits == nil || first.Limits.PIDs != s.PIDs || first.Limits.Memory != s.Memory || first.Limits.TimeoutSec != s.Timeout.Seconds() {
				t.Errorf("%+v", first)
			}
			if last.ExitCode == nil || *last.ExitCode != st.ExitCode || last.Reason != tt.reason || last.Code != tt.code {
				t.Errorf("%+v", last)
			}
			if !slices.Equal(ev.Events[1].Command, tt.command) {
				t.Errorf("%+v", ev.Events[1])
			}
			if tt.code != 0 {
				if limit := ev.Events[2]; limit.Code != tt.code || limit.Name != tt.code.Name() || limit.Rule != "limit."+tt.reason {
					t.Errorf("%+v", limit)
				}
			}
			if tt.stop {
				if call := ev.Events[2]; call.Name != "POLICY_BLOCKED" || call.RequestID != "r1" || len(call.Command) != 2 || len(call.Command[1]) > 100 {
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

// TestNoEventIsLost: a run that does more than events.jsonl has room for is refused the next call; every line before is there,
// and so is its end. It isn't parallel: others use the limits.
func TestNoEventIsLost(t *testing.T) {
	defer func(l audit.Limits) { journalLimits = l }(journalLimits)
	journalLimits = audit.Limits{MaxBytes: 4 << 10, Keep: 2}
	s := &Sandbox{plan: &plan{Settings: Settings{Output: t.TempDir()}}, ID: "id"}
	if err := s.openJournal(); err != nil {
		t.Fatal(err)
	}
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		if err = s.Record(Event{Event: EventExec}); n > 1000 {
			t.Fatal("it is never full")
		}
	}
	if !strings.Contains(err.Error(), "events.jsonl and its 2 older files are full") {
		t.Error(err)
	}
	if err := journalError("events.jsonl", fmt.Errorf("%w: %w", audit.ErrFull, syscall.ENOSPC)); !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a full disk: %v", err)
	}
	if err := errors.Join(s.recordCleanup(nil), s.closeJournal()); err != nil {
		t.Fatal(err)
	}
	ev := s.Evidence()
	file := filepath.Join(s.plan.Output, "id", "events.jsonl")
	older, _ := filepath.Glob(file + ".*") // the pattern is good
	r, err := audit.Verify(ev.EventsHead, append(older, file)...)
	if err != nil || !r.OK || r.FirstSeq != 1 || r.Lines != n || len(ev.Events) != n {
		t.Errorf("%d calls and the end: %+v, %v; %d in the evidence", n-1, r, err, len(ev.Events))
	}
}

// chain makes the text of an audit log of n lines.
func chain(t *testing.T, n int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := audit.Open(file, audit.Limits{MaxBytes: 1 << 20, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if err := l.Write(audit.Record{Event: audit.ToolFinished, Tool: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAuditLasts: the audit log of a container that is killed, or runs into its timeout, lies in the two directories that
// were asked for, for the caller's eyes alone, and what is wrong with it is told. Nothing else that the container left there
// is followed.
func TestAuditLasts(t *testing.T) {
	t.Parallel()
	testAuditLasts(t, runcEngineUnderTest(t))
}

// TestAuditOfKilledProcess: when slimctl itself is killed, the next run collects the log.
func TestAuditOfKilledProcess(t *testing.T) {
	t.Parallel()
	testAuditOfKilledProcess(t, runcEngineUnderTest(t))
}

func testAuditOfKilledProcess(t *testing.T, e engineUnderTest) {
	e.CacheDir = t.TempDir() // no other run sweeps it
	s := settings("log", "audit.jsonl="+chain(t, 2))
	s.Audit, s.Output = t.TempDir(), t.TempDir()
	sb, err := e.Start(t.Context(), guestImage(t), s)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "ready", says(sb, "ready"))
	if err := sb.run.lock.Unlock(); err != nil { // as if its process had been killed
		t.Fatal(err)
	}
	finish(t, e.start(guestImage(t), settings("exit", "0")))
	for _, file := range []string{filepath.Join(s.Audit, sb.ID, "audit.jsonl"), filepath.Join(s.Output, sb.ID, "audit", "audit.jsonl")} {
		if r, err := audit.Verify("", file); err != nil || !r.OK || r.Lines != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	_, _ = sb.Stop(t.Context()) // its own cleaning up finds nothing
}

func testAuditLasts(t *testing.T, e engineUnderTest) {
	e.StopGrace = hurry
	whole := chain(t, 3)
	first, rest, _ := strings.Cut(whole, "\n")
	_, last, _ := strings.Cut(rest, "\n")
	for _, tt := range []struct {
		name      string
		artifacts bool
		timeout   time.Duration
		user      string
	}{
		{name: "killed"}, {name: "killed, with artifacts", artifacts: true}, {name: "timeout", timeout: 5 * time.Second}, {name: "another user", user: "1000:1000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := settings("log", "audit.jsonl="+whole, "egress.jsonl="+first+"\n"+last, "odd.txt=x")
			s.Audit, s.User = filepath.Join(t.TempDir(), "new", "logs"), tt.user
			if tt.artifacts {
				s.Output = t.TempDir()
			}
			if tt.timeout > 0 {
				s.Timeout = tt.timeout
			}
			sb := engineUnderTest{e.Runner, t}.start(guestImage(t), s)
			if tt.timeout == 0 {
				until(t, "ready", says(sb, "ready"))
				if err := sb.engine.signal(t.Context(), "KILL"); err != nil {
					t.Fatal(err)
				}
			}
			finish(t, sb)
			dirs := []string{filepath.Join(s.Audit, sb.ID)}
			if tt.artifacts {
				dirs = append(dirs, filepath.Join(s.Output, sb.ID, "audit"))
			}
			for _, dir := range dirs {
				var got []string
				_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
					if err != nil {
						return err
					}
					info, err := d.Info()
					got = append(got, strings.TrimPrefix(p, dir)+" "+info.Mode().String())
					return err
				})
				if want := []string{" drwx------", "/audit.jsonl -rw-------", "/egress.jsonl -rw-------", "/odd.txt -rw-------"}; !slices.Equal(got, want) {
					t.Errorf("%s: %q", dir, got)
				}
				if text, err := os.ReadFile(filepath.Join(dir, "audit.jsonl")); err != nil || string(text) != whole {
					t.Errorf("%v: %s", err, text)
				}
			}
			ev := sb.Evidence()
			if len(ev.Audit) != 2 || ev.AuditDir != dirs[0] {
				t.Fatalf("%+v", ev.Audit)
			}
			if a := ev.Audit[0]; a.File != "audit.jsonl" || a.Lines != 3 || !a.Complete || a.Break != "" || !strings.Contains(whole, a.Head) {
				t.Errorf("%+v", a)
			}
			if a := ev.Audit[1]; a.File != "egress.jsonl" || a.Lines != 1 || !strings.HasPrefix(a.Break, "egress.jsonl:2: removed: seq 2 to 2") {
				t.Errorf("%+v", a)
			}
		})
	}
}

// TestHealthIsEvidence guards what an image's health check says when it passes: which parts its cages lack on this kernel.
func TestHealthIsEvidence(t *testing.T) {
	t.Parallel()
	const said = "healthy; cages: no supervised connections"
	config := sandboxtest.Guest
	config.Healthcheck = &v1.HealthConfig{Test: []string{"CMD", "/guest", "cat", "/health"}}
	img := build(t, config, sandboxtest.GuestLayer(t), sandboxtest.Layer(t, sandboxtest.File("health", said+"\n")))
	sb := runcEngineUnderTest(t).start(img, settings("sleep"))
	if err := sb.AwaitHealthy(t.Context()); err != nil || sb.Evidence().Health != said {
		t.Errorf("%v, %q, want %q", err, sb.Evidence().Health, said)
	}
}

// TestEvidenceIsPrintable: evidence.json moves no terminal's cursor, whatever the container printed.
func TestEvidenceIsPrintable(t *testing.T) {
	t.Parallel()
	const said = "\x1b[2J \u009b2J \u202etxt \x7f ü"
	var b bytes.Buffer
	e := Evidence{LogTail: said, Notes: []string{said}}
	e.Image.Digest = v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}
	e.Image.Config = e.Image.Digest
	if err := e.Write(&b); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("%q", b.String())
	}
	var read Evidence
	if err := json.Unmarshal(b.Bytes(), &read); err != nil || read.LogTail != said {
		t.Errorf("%q, %v", read.LogTail, err)
	}
}

// TestEvidenceWhileRunning guards the evidence of a slimctl that is killed: it was written at the start, and doesn't claim an end.
func TestEvidenceWhileRunning(t *testing.T) {
	t.Parallel()
	e := runcEngineUnderTest(t)
	s := settings("sleep")
	s.Output = t.TempDir()
	sb := e.start(guestImage(t), s)
	text, err := os.ReadFile(filepath.Join(s.Output, sb.ID, "evidence.json"))
	if err != nil || strings.Contains(string(text), `"exit_code"`) || strings.Contains(string(text), `"ended"`) || !strings.Contains(string(text), `"reason": "running"`) ||
		!strings.Contains(string(text), EventSpawn) || !strings.Contains(string(text), `"overlayfs"`) {
		t.Errorf("%v: %s", err, text)
	}
	until(t, "ready", says(sb, "ready"))
	if st, err := sb.Stop(t.Context()); err != nil || st.ExitCode != 7 || *sb.Evidence().ExitCode != 7 || sb.Evidence().Ended.IsZero() {
		t.Errorf("%+v, %v", st, err)
	}
}
