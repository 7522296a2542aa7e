package sandbox

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Events of a run.
const (
	EventSpawn   = "MCP_CONTAINER_SPAWN"
	EventExec    = "MCP_CONTAINER_EXEC"
	EventCleanup = "MCP_CONTAINER_CLEANUP"
)

// Event is something that happened to a container.
type Event struct {
	Event  string    `json:"event"`
	Time   time.Time `json:"time"`
	Detail string    `json:"detail,omitempty"`
}

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
	Status
	PeakMemory int64 `json:"peak_memory"` // bytes
	// NotApplied are limits that were asked for and do not hold.
	NotApplied []string `json:"not_applied"`
	Notes      []string `json:"notes,omitempty"`
	Error      string   `json:"error,omitempty"` // why it could not be started or cleaned up
	Output     Output   `json:"output"`
	LogTail    string   `json:"log_tail"` // the last 16 KiB
}

const logTail = 16 << 10

// describe notes what is known before the start.
func (s *Sandbox) describe() error {
	e := &s.evident
	e.Run, e.Started, e.Settings = s.ID, time.Now().UTC(), s.plan.Settings
	e.Events, e.NotApplied = []Event{}, append([]string{}, e.NotApplied...)
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

func (s *Sandbox) event(name, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evident.Events = append(s.evident.Events, Event{name, time.Now().UTC(), detail})
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

// collect copies /output, calls remove, and writes the evidence; with no Settings.Output it is kept in memory alone. The
// directory appears whole.
func (s *Sandbox) collect(remove func() error, cause error) error {
	finish := func(out Output, err error) error {
		err = errors.Join(err, remove())
		s.mu.Lock()
		defer s.mu.Unlock()
		e := &s.evident
		e.Ended, e.Status, e.PeakMemory, e.Output = time.Now().UTC(), s.status, s.peak.Peak, out
		if why := errors.Join(cause, err); why != nil {
			e.Error = why.Error()
		}
		log := s.logs.bytes()
		e.LogTail = string(log[max(0, len(log)-logTail):])
		return err
	}
	if s.plan.Output == "" {
		return finish(Output{}, nil)
	}
	var err error
	werr := image.WriteDir(filepath.Join(s.plan.Output, s.ID), func(tmp string) error {
		var out Output
		dir := filepath.Join(tmp, "output")
		cerr := os.Mkdir(dir, 0o755)
		if cerr == nil && cause == nil { // nothing writes to it any more
			out, cerr = collectOutput(outputDir(s.run.dir), dir)
		}
		err = finish(out, cerr)
		return image.WriteFile(filepath.Join(tmp, "evidence.json"), 0o644, s.Evidence().Write)
	})
	if werr != nil && s.Evidence().Ended.IsZero() { // the directory can't be made: clean up all the same
		err = finish(Output{}, nil)
	}
	return errors.Join(err, werr)
}

// Write writes the evidence as indented JSON.
func (e Evidence) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(e)
}
