package sandbox

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// Evidence is what is kept of a run: evidence.json. Values of environment variables are not in it, only their names.
type Evidence struct {
	Run   string `json:"run"`
	Image struct {
		Reference string  `json:"reference"`
		Digest    v1.Hash `json:"digest"` // of the manifest
		Config    v1.Hash `json:"config"`
		Platform  string  `json:"platform"`
	} `json:"image"`
	Settings Settings `json:"settings"`
	Engine   struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		RootFS  string `json:"rootfs"` // overlayfs; with Docker its storage driver
	} `json:"engine"`
	Host struct {
		OS   string `json:"os"`
		Arch string `json:"arch"`
	} `json:"host"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Events  []Event   `json:"events"`
	// EventsLeftOut counts events that are in events.jsonl alone.
	EventsLeftOut int `json:"events_left_out,omitempty"`
	// EventsHead is the hash of the last line of events.jsonl, for audit.Verify.
	EventsHead string `json:"events_head,omitempty"`
	Status
	PeakMemory int64 `json:"peak_memory"` // bytes
	// Health is what the image's own health check printed when it passed: one that lacks parts of its cages says so there.
	Health string `json:"health,omitempty"`
	// Executed is what was executed in the container, when the runner watched; NotWatched says why it is not known.
	Executed   []Executed `json:"executed,omitempty"`
	NotWatched string     `json:"not_watched,omitempty"`
	// NotApplied are limits that were asked for and do not hold.
	NotApplied []string `json:"not_applied"`
	Notes      []string `json:"notes,omitempty"`
	Error      string   `json:"error,omitempty"` // why it could not be started or cleaned up
	Output     Output   `json:"output"`
	// Audit are the audit logs that were collected into AuditDir.
	Audit    []AuditLog `json:"audit,omitempty"`
	AuditDir string     `json:"audit_dir,omitempty"`
	LogTail  string     `json:"log_tail"` // the last 16 KiB
}

const logTail = 16 << 10

// describe notes what is known before the start.
func (s *Sandbox) describe() error {
	e := &s.evident
	e.Run, e.Started, e.Settings = s.ID, time.Now().UTC(), s.plan.Settings
	e.Events, e.Output.Files, e.NotApplied = []Event{}, []File{}, append([]string{}, e.NotApplied...)
	e.Host.OS, e.Host.Arch = runtime.GOOS, runtime.GOARCH
	if e.Settings.Env != nil {
		e.Settings.Env = maps.Clone(e.Settings.Env)
		for k := range e.Settings.Env {
			e.Settings.Env[k] = "(set)"
		}
	}
	e.Image.Reference = s.image.Reference
	var err error
	if e.Image.Digest, err = s.image.Digest(); err != nil {
		return err
	}
	if e.Image.Config, err = s.image.ConfigName(); err != nil {
		return err
	}
	config, err := s.image.ConfigFile()
	if err != nil {
		return err
	}
	e.Image.Platform = config.Platform().String()
	return nil
}

// notApplied notes limits that do not hold.
func (s *Sandbox) notApplied(what ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evident.NotApplied = append(s.evident.NotApplied, what...)
}

func (s *Sandbox) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evident.Notes = append(s.evident.Notes, what)
}

// artifacts is the directory of what stays of the run; "" for none.
func (s *Sandbox) artifacts() string {
	if s.plan.Output == "" {
		return ""
	}
	return filepath.Join(s.plan.Output, s.ID)
}

// finish closes the journal and writes the evidence, after everything else of the artifacts.
func (s *Sandbox) finish(err error) error {
	err = errors.Join(err, s.closeJournal())
	return errors.Join(err, s.writeEvidence(err))
}

// writeEvidence completes the evidence and writes evidence.json.
func (s *Sandbox) writeEvidence(err error) error {
	s.mu.Lock()
	e := &s.evident
	e.Ended, e.Status, e.PeakMemory = time.Now().UTC(), s.status, s.peak.Peak
	if err != nil {
		e.Error = err.Error()
	}
	if s.runner.Watch {
		var unknown error
		if e.Executed, unknown = s.executed.list(); unknown != nil {
			e.NotWatched = unknown.Error()
		}
	}
	log := s.logs.bytes()
	e.LogTail = string(log[max(0, len(log)-logTail):])
	s.mu.Unlock()
	dir := s.artifacts()
	if dir == "" || !s.kept {
		return nil
	}
	return image.WriteFile(filepath.Join(dir, "evidence.json"), 0o644, s.Evidence().Write)
}

// Write writes the evidence as indented JSON.
func (e Evidence) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rawname.Quoted(e))
}
