package sandbox

import (
	"bytes"
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

// Evidence is the record of a run: evidence.json. It contains names of environment variables, not their values.
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
	// EventsLeftOut is the number of events that only events.jsonl has.
	EventsLeftOut int `json:"events_left_out,omitempty"`
	// EventsHead is the hash of the last line of events.jsonl, for audit.Verify.
	EventsHead string `json:"events_head,omitempty"`
	Status
	ExitCode   *int  `json:"exit_code,omitempty"` // that of Status; absent if unknown
	PeakMemory int64 `json:"peak_memory"`         // bytes
	// Health is the output of the image's own health check when it passed; it names missing parts of the cages.
	Health string `json:"health,omitempty"`
	// Executed lists executed files if the runner watched; NotWatched is the reason if they are unknown.
	Executed   []Executed `json:"executed,omitempty"`
	NotWatched string     `json:"not_watched,omitempty"`
	// NotApplied lists requested limits that are not in effect.
	NotApplied []string `json:"not_applied"`
	Notes      []string `json:"notes,omitempty"`
	Error      string   `json:"error,omitempty"` // why it could not be started or cleaned up
	Files      []File   `json:"files"`           // those of Output
	Output     Output   `json:"output"`
	// Audit lists the audit logs collected into AuditDir.
	Audit    []AuditLog `json:"audit,omitempty"`
	AuditDir string     `json:"audit_dir,omitempty"`
	LogTail  string     `json:"log_tail"` // the last 16 KiB
}

const logTail = 16 << 10

// describe records what is known before the start.
func (s *Sandbox) describe() error {
	e := &s.evident
	e.Run, e.Started, e.Settings = s.ID, time.Now().UTC(), s.plan.Settings
	e.Events, e.Files, e.Output.Files, e.NotApplied = []Event{}, []File{}, []File{}, append([]string{}, e.NotApplied...)
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

// addNotApplied records limits that are not in effect.
func (s *Sandbox) addNotApplied(what ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evident.NotApplied = append(s.evident.NotApplied, what...)
}

func (s *Sandbox) addNote(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evident.Notes = append(s.evident.Notes, what)
}

// artifacts returns the directory for the run's artifacts; "" for none.
func (s *Sandbox) artifacts() string {
	if s.plan.Output == "" {
		return ""
	}
	return filepath.Join(s.plan.Output, s.ID)
}

// closeEvidence closes the journal and writes the evidence, after all other artifacts.
func (s *Sandbox) closeEvidence(err error) error {
	err = errors.Join(err, s.closeJournal())
	return errors.Join(err, s.writeEvidence(err))
}

// writeEvidence completes the evidence and writes evidence.json.
func (s *Sandbox) writeEvidence(err error) error {
	s.mu.Lock()
	e := &s.evident
	e.Status, e.PeakMemory = s.status, s.peak.Peak
	if e.Status.ExitCode >= 0 {
		e.ExitCode = &e.Status.ExitCode
	}
	if e.Reason != ReasonRunning {
		e.Ended = time.Now().UTC()
	}
	if err != nil {
		e.Error = err.Error()
	}
	if s.runner.Watch {
		var unknown error
		if e.Executed, unknown = s.Executed(); unknown != nil {
			e.NotWatched = unknown.Error()
		}
	}
	log := s.logs.Bytes()
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
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(rawname.Quoted(e)); err != nil {
		return err
	}
	_, err := w.Write(rawname.Printable(b.Bytes()))
	return err
}
