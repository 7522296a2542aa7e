package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/audit"
)

// keep is a directory of the container whose regular files are copied to directories of this machine: some by Mirror while
// the container runs, all of them when no process of it is left, however it ended.
type keep struct {
	Mount string      // where it is mounted
	From  string      // the copied directory: Mount, or one below
	Mode  fs.FileMode // of the copies
	Dirs  []string    // where the copies are

	into []*collector // for each of Dirs
}

// keepsOf returns the kept directories: /output with Output, the audit log with Audit and, if the image has one, with
// Output.
func (p *plan) keepsOf(img Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	logs := slices.Equal(config.Config.Entrypoint, entry)
	if p.Output != "" {
		p.keeps = append(p.keeps, &keep{Mount: outputMount, From: outputMount, Mode: 0o644})
	}
	if p.Audit != "" || p.Output != "" && logs {
		p.keeps = append(p.keeps, &keep{Mount: AuditMount, From: AuditDir, Mode: 0o600}) // private: it records an agent's actions
	}
	p.tmpfs = slices.DeleteFunc(p.tmpfs, func(t tmpfs) bool {
		return slices.ContainsFunc(p.keeps, func(k *keep) bool { return k.Mount == t.path })
	})
	return nil
}

const outputMount = "/output"

// hostDir returns the directory on this machine for an engine that mounts kept directories.
func (k *keep) hostDir(runDir string) string {
	return filepath.Join(scratch(runDir), strings.ReplaceAll(strings.Trim(k.Mount, "/"), "/", "-"))
}

// openKeeps creates the directories for the copies. It notes them in the run's directory, for the next run to complete
// them if this process is killed.
func (s *Sandbox) openKeeps() error {
	for _, k := range s.plan.keeps {
		if k.Mount == outputMount {
			k.Dirs = []string{filepath.Join(s.artifacts(), "output")}
			continue
		}
		if s.plan.Audit != "" {
			k.Dirs = append(k.Dirs, filepath.Join(s.plan.Audit, s.ID))
		}
		if s.plan.Output != "" {
			k.Dirs = append(k.Dirs, filepath.Join(s.artifacts(), "audit"))
		}
	}
	text, err := json.Marshal(s.plan.keeps)
	for _, k := range s.plan.keeps {
		err = errors.Join(err, k.open())
	}
	return errors.Join(err, os.WriteFile(filepath.Join(s.run.dir, keepsFile), text, 0o600))
}

const keepsFile = "keeps.json"

func (k *keep) open() error {
	for _, dir := range k.Dirs {
		c, err := collectInto(dir, k.Mode)
		if err != nil {
			return err
		}
		k.into = append(k.into, c)
	}
	return nil
}

func (k *keep) close() {
	for _, c := range k.into {
		c.dst.Close()
	}
	k.into = nil
}

// copy copies a file below From; "" means all of them.
func (k *keep) copy(ctx context.Context, e engine, id, dir, file string) (err error) {
	for i, c := range k.into {
		c.out.Skipped, c.out.Left = nil, 0
		if i == 0 {
			err = e.collect(ctx, id, dir, k, file, c)
		} else {
			err = errors.Join(err, c.collectTree(k.Dirs[0]))
		}
	}
	return err
}

// Mirror copies the audit log, and a file below /output unless that is "", to the artifacts while the container runs. When
// it has ended, Mirror waits until everything is copied.
func (s *Sandbox) Mirror(ctx context.Context, file string) error {
	s.copying.Lock()
	defer s.copying.Unlock()
	var err error
	for _, k := range s.plan.keeps {
		if k.Mount != outputMount {
			err = errors.Join(err, k.copy(ctx, s.engine, s.ID, s.run.dir, ""))
		} else if file != "" {
			err = errors.Join(err, k.copy(ctx, s.engine, s.ID, s.run.dir, file))
		}
	}
	return err
}

// AuditLog describes a collected audit log of the image.
type AuditLog struct {
	File     string `json:"file"`            // the newest file; older ones have the number of their last line after the name
	Lines    int    `json:"lines"`           // consecutive valid lines
	Head     string `json:"head"`            // hash of the last of these, for browser-shell audit verify --anchor
	Complete bool   `json:"complete"`        // it begins with the log's first line
	Break    string `json:"break,omitempty"` // the first place where the chain is broken
}

// collect copies all kept files after the container's end, and describes them in the evidence.
func (s *Sandbox) collect(ctx context.Context) error {
	s.copying.Lock()
	defer s.copying.Unlock()
	var errs []error
	for _, k := range s.plan.keeps {
		if len(k.into) == 0 { // it failed to open
			continue
		}
		errs = append(errs, k.copy(ctx, s.engine, s.ID, s.run.dir, ""))
		out := k.into[0].describe()
		k.close()
		if k.Mount == outputMount {
			s.mu.Lock()
			s.evident.Output, s.evident.Files = out, out.Files
			s.mu.Unlock()
			continue
		}
		logs, err := verifyLogs(k.Dirs[0], out.Files)
		errs = append(errs, err)
		s.mu.Lock()
		s.evident.Audit, s.evident.AuditDir = logs, k.Dirs[0]
		s.mu.Unlock()
		for _, why := range out.Skipped {
			s.addNote("audit log: " + why)
		}
	}
	return errors.Join(errs...)
}

// rescue copies all kept files of a run whose process was killed.
func (s *Sandbox) rescue(ctx context.Context, id, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, keepsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var keeps []*keep
	if err == nil {
		err = json.Unmarshal(text, &keeps)
	}
	for _, k := range keeps {
		err = errors.Join(err, k.open(), k.copy(ctx, s.engine, id, dir, ""))
		k.close()
	}
	return err
}

// logFile splits the name of a log's file into the log's name and the number of a rotated file.
var logFile = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*\.jsonl)(\.[0-9]{1,19})?$`)

// verifyLogs verifies the chain of each log in a directory.
func verifyLogs(dir string, files []File) ([]AuditLog, error) {
	parts := map[string][]string{}
	var names []string
	for _, f := range files {
		if m := logFile.FindStringSubmatch(f.Path); m != nil {
			if parts[m[1]] == nil {
				names = append(names, m[1])
			}
			parts[m[1]] = append(parts[m[1]], filepath.Join(dir, f.Path))
		}
	}
	logs := []AuditLog{}
	for _, name := range names {
		r, err := audit.Verify("", parts[name]...)
		if err != nil {
			return logs, err
		}
		l := AuditLog{File: name, Lines: r.Lines, Head: r.Head, Complete: r.Complete}
		if r.Break != nil {
			l.Break = fmt.Sprintf("%s:%d: %s: %s", filepath.Base(r.Break.File), r.Break.Line, r.Break.Kind, r.Break.Text)
		}
		logs = append(logs, l)
	}
	return logs, nil
}
