package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// Names for Event.Event.
const (
	EventSpawn     = "MCP_CONTAINER_SPAWN"
	EventExec      = "MCP_CONTAINER_EXEC"
	EventTimeout   = "MCP_CONTAINER_TIMEOUT"   // Settings.Timeout ended the container
	EventViolation = "MCP_CONTAINER_VIOLATION" // the limit on memory or on processes ended it
	EventCleanup   = "MCP_CONTAINER_CLEANUP"
)

// Event is something that happened to a container. It is kept in the clear, so no field may hold a secret.
type Event struct {
	Event  string    `json:"event"`
	Time   time.Time `json:"time"`
	Detail string    `json:"detail,omitempty"`

	ImageDigest string  `json:"image_digest,omitempty"` // of EventSpawn: the manifest's
	Limits      *Limits `json:"limits,omitempty"`       // of EventSpawn

	RequestID string   `json:"request_id,omitempty"`
	Command   []string `json:"command,omitempty"` // of EventExec

	ExitCode   *int   `json:"exit_code,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
	Reason     string `json:"reason,omitempty"` // of EventCleanup: a Reason of Status

	Code policy.Code `json:"code,omitempty"` // -32004 to -32007
	Name string      `json:"name,omitempty"` // the word for Code
	Rule string      `json:"rule,omitempty"`
}

// Limits are what a container was given at most; 0 is no limit.
type Limits struct {
	Memory     int64   `json:"memory"` // bytes
	CPUs       float64 `json:"cpus"`
	PIDs       int64   `json:"pids"`
	TimeoutSec float64 `json:"timeout_sec"`
}

const (
	maxEvents  = 1000    // in evidence.json; events.jsonl has all
	maxCommand = 8 << 10 // bytes of Event.Command
)

// journalLimits bound events.jsonl. It loses no line: when it is full nothing more is run, and the container's end is still
// recorded, as with audit.when_full "stop".
var journalLimits = audit.Limits{MaxBytes: 16 << 20, Keep: 16}

// openJournal makes the directory of the artifacts and begins events.jsonl in it.
func (s *Sandbox) openJournal() error {
	if s.plan.Audit != "" {
		if err := os.MkdirAll(s.plan.Audit, 0o700); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	dir := s.artifacts()
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(s.plan.Output, 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("artifacts: %w", err)
	}
	s.kept = true
	s.journal, err = audit.Open(filepath.Join(dir, "events.jsonl"), journalLimits)
	return err
}

func (s *Sandbox) closeJournal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal == nil {
		return nil
	}
	_, s.evident.EventsHead = s.journal.Head()
	err := s.journal.Close()
	s.journal = nil
	return err
}

// Record adds an event to the evidence, and with Settings.Output to events.jsonl: a chain of lines of the audit log's
// format, each written before Record returns. It sets the event's time, and its name by its code. A Command of more than
// 8 KiB is cut. An EventExec that can't be written, because events.jsonl is full or fails, is in neither and must not run.
func (s *Sandbox) Record(e Event) error {
	e.Time = time.Now().UTC()
	e.Name = e.Code.Name()
	e.Command = cutCommand(e.Command)
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.writeEvent(e)
	switch {
	case err != nil && e.Event == EventExec:
	case len(s.evident.Events) < maxEvents || e.Event == EventCleanup:
		s.evident.Events = append(s.evident.Events, e)
	default:
		s.evident.EventsLeftOut++
	}
	return err
}

// writeEvent adds an event to events.jsonl, if there is one. The caller holds s.mu.
func (s *Sandbox) writeEvent(e Event) error {
	if s.journal == nil {
		return nil
	}
	write := s.journal.Finish // which a full log takes, too
	if e.Event == EventExec {
		write = s.journal.Write
	}
	err := write(audit.Record{Event: e.Event, RunID: s.ID, Data: e})
	if errors.Is(err, audit.ErrFull) {
		err = fmt.Errorf("%s and its %d older files are full; start another run", s.journal.Name(), journalLimits.Keep)
	}
	return err
}

func cutCommand(argv []string) []string {
	room := maxCommand
	for i, a := range argv {
		if room -= len(a); room < 0 {
			return append(argv[:i:i], fmt.Sprintf("[%d more words cut]", len(argv)-i))
		}
	}
	return argv
}

// recordSpawn notes the start, with what the image may use.
func (s *Sandbox) recordSpawn() error {
	set := s.plan.Settings
	return s.Record(Event{
		Event: EventSpawn, Detail: s.image.Reference, ImageDigest: s.evident.Image.Digest.String(),
		Limits: &Limits{Memory: set.Memory, CPUs: set.CPUs, PIDs: set.PIDs, TimeoutSec: set.Timeout.Seconds()},
	})
}

// Reasons why a container ended.
const (
	ReasonExited  = "exited"  // its program ended by itself
	ReasonStopped = "stopped" // it was stopped: Stop, the end of the context, Ctrl-C
	ReasonTimeout = "timeout" // Settings.Timeout
	ReasonMemory  = "memory"  // the limit on memory
	ReasonPIDs    = "pids"    // the limit on processes
	ReasonFailed  = "failed"  // it could not be started, or the engine lost it
)

// judge fills in why the container ended.
func (st *Status) judge(cause error, stopped bool) {
	switch {
	case st.TimedOut:
		st.Reason, st.Code = ReasonTimeout, policy.Timeout
	case cause != nil:
		st.Reason = ReasonFailed
	case stopped:
		st.Reason = ReasonStopped
	case st.OOMKilled && st.ExitCode != 0:
		st.Reason, st.Code = ReasonMemory, policy.SandboxViolation
	case st.PIDsRefused > 0 && st.ExitCode != 0:
		st.Reason, st.Code = ReasonPIDs, policy.SandboxViolation
	default:
		st.Reason = ReasonExited
	}
}

// recordEnd notes the limit that ended the container, if one did.
func (s *Sandbox) recordEnd() error {
	set := s.plan.Settings
	switch s.status.Reason {
	case ReasonTimeout:
		return s.Record(Event{Event: EventTimeout, Code: s.status.Code, Rule: "limit.timeout", Detail: fmt.Sprintf("it ran for %s", set.Timeout)})
	case ReasonMemory:
		return s.Record(Event{Event: EventViolation, Code: s.status.Code, Rule: "limit.memory", Detail: fmt.Sprintf("it needed more than %d bytes of memory", set.Memory)})
	case ReasonPIDs:
		return s.Record(Event{Event: EventViolation, Code: s.status.Code, Rule: "limit.pids", Detail: fmt.Sprintf("it wanted more than %d processes", set.PIDs)})
	}
	return nil
}

// recordCleanup notes the end, and what could not be removed.
func (s *Sandbox) recordCleanup(err error) error {
	e := Event{Event: EventCleanup, ExitCode: &s.status.ExitCode, Reason: s.status.Reason, Code: s.status.Code, Detail: "all is removed"}
	if err != nil {
		e.Detail = fmt.Sprintf("%.4000s", err)
	}
	return errors.Join(err, s.Record(e))
}
