package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// Values of Event.Event.
const (
	EventSpawn     = "MCP_CONTAINER_SPAWN"
	EventExec      = "MCP_CONTAINER_EXEC"
	EventTimeout   = "MCP_CONTAINER_TIMEOUT"   // Settings.Timeout ended the container
	EventViolation = "MCP_CONTAINER_VIOLATION" // the memory or process limit ended it
	EventCleanup   = "MCP_CONTAINER_CLEANUP"
)

// Event is an event of a container. It is stored in plain text, so no field may contain a secret.
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
	Reason     string `json:"reason,omitempty"` // of EventCleanup: the Reason in Status

	Code policy.Code `json:"code,omitempty"` // -32004 to -32007
	Name string      `json:"name,omitempty"` // the word for Code
	Rule string      `json:"rule,omitempty"`
}

// Limits are the container's limits; 0 means none.
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

// journalLimits limits events.jsonl, which loses no line. When it is full, no command is executed any more, but the
// container's end is recorded, as with audit.when_full "stop".
var journalLimits = audit.Limits{MaxBytes: 16 << 20, Keep: 16}

// openJournal creates the directory for artifacts and opens events.jsonl in it.
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

// Record adds an event to the evidence, and with Settings.Output to events.jsonl: a chain of lines in the audit log's
// format, each written before Record returns. It sets the event's time, and its name by its code. It cuts a Command of
// more than 8 KiB. If events.jsonl is full or fails, an EventExec is recorded nowhere and must not be executed.
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

// writeEvent adds an event to events.jsonl, if that is open. The caller holds s.mu.
func (s *Sandbox) writeEvent(e Event) error {
	if s.journal == nil {
		return nil
	}
	write := s.journal.Finish // succeeds on a full log, too
	if e.Event == EventExec {
		write = s.journal.Write
	}
	return journalError(s.journal.Name(), write(audit.Record{Event: e.Event, RunID: s.ID, Data: e}))
}

// journalError adds the remedy to the error of a full journal. The error of a full disk names its cause itself.
func journalError(name string, err error) error {
	if errors.Is(err, audit.ErrFull) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%s and its %d older files are full; start another run", name, journalLimits.Keep)
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

// recordSpawn records the start with the image's limits, and the user's command if there is one.
func (s *Sandbox) recordSpawn() error {
	set := s.plan.Settings
	err := s.Record(Event{
		Event: EventSpawn, Detail: s.image.Reference, ImageDigest: s.evident.Image.Digest.String(),
		Limits: &Limits{Memory: set.Memory, CPUs: set.CPUs, PIDs: set.PIDs, TimeoutSec: set.Timeout.Seconds()},
	})
	if err == nil && len(set.Command) > 0 && !s.tethered {
		err = s.Record(Event{Event: EventExec, Command: set.Command})
	}
	return err
}

// Reasons for a container's end.
const (
	ReasonRunning = "running" // it has not ended, or this process was killed
	ReasonExited  = "exited"  // its program ended by itself
	ReasonStopped = "stopped" // by Stop, the end of the context or Ctrl-C
	ReasonTimeout = "timeout" // Settings.Timeout
	ReasonMemory  = "memory"  // the limit on memory
	ReasonPIDs    = "pids"    // the limit on processes
	ReasonFailed  = "failed"  // it could not be started, or the engine lost it
)

// setReason sets the reason for the container's end.
func (st *Status) setReason(cause error, stopped bool) {
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

// recordEnd records the limit that ended the container, if one did.
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

// recordCleanup records the end, and remains that could not be removed.
func (s *Sandbox) recordCleanup(err error) error {
	e := Event{Event: EventCleanup, ExitCode: &s.status.ExitCode, Reason: s.status.Reason, Code: s.status.Code, Detail: "all is removed"}
	if err != nil {
		e.Detail = fmt.Sprintf("%.4000s", err)
	}
	return errors.Join(err, s.Record(e))
}
