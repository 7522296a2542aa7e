package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
)

// keep is a directory of the container whose files are kept, however the container ends: they are collected when no
// process of it is left.
type keep struct {
	mount string // where it is mounted
	from  string // collected part: mount, or a directory below
}

var (
	keepOutput = keep{"/output", "/output"}
	keepAudit  = keep{AuditMount, AuditDir}
)

// keepsOf returns the kept directories: /output with Output, the audit log with Audit and, if the image has one, with
// Output.
func (p *plan) keepsOf(img Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	logs := slices.Equal(config.Config.Entrypoint, entry)
	if p.Output != "" {
		p.keeps = append(p.keeps, keepOutput)
	}
	if p.Audit != "" || p.Output != "" && logs {
		p.keeps = append(p.keeps, keepAudit)
	}
	p.tmpfs = slices.DeleteFunc(p.tmpfs, func(t tmpfs) bool {
		return slices.ContainsFunc(p.keeps, func(k keep) bool { return k.mount == t.path })
	})
	return nil
}

// hostDir returns the directory on this machine for an engine that mounts kept directories.
func (k keep) hostDir(runDir string) string {
	return filepath.Join(scratch(runDir), strings.ReplaceAll(strings.Trim(k.mount, "/"), "/", "-"))
}

// AuditLog describes a collected audit log of the image.
type AuditLog struct {
	File     string `json:"file"`            // the newest file; older ones have the number of their last line after the name
	Lines    int    `json:"lines"`           // consecutive valid lines
	Head     string `json:"head"`            // hash of the last of these, for browser-shell audit verify --anchor
	Complete bool   `json:"complete"`        // it begins with the log's first line
	Break    string `json:"break,omitempty"` // the first place where the chain is broken
}

// collect copies the container's files to the directories in the settings.
func (s *Sandbox) collect(ctx context.Context) error {
	var errs []error
	for _, k := range s.plan.keeps {
		if k == keepOutput {
			out, err := s.collectKeep(ctx, k, filepath.Join(s.artifacts(), "output"), 0o644)
			s.mu.Lock()
			s.evident.Output, s.evident.Files = out, out.Files
			s.mu.Unlock()
			errs = append(errs, err)
			continue
		}
		dirs := s.auditDirs()
		out, err := s.collectKeep(ctx, k, dirs[0], 0o600) // private: it records an agent's actions
		if err == nil && len(dirs) > 1 {
			err = copyDir(dirs[0], dirs[1])
		}
		logs, verr := verifyLogs(dirs[0], out.Files)
		s.mu.Lock()
		s.evident.Audit, s.evident.AuditDir = logs, dirs[0]
		s.mu.Unlock()
		for _, why := range out.Skipped {
			s.addNote("audit log: " + why)
		}
		errs = append(errs, err, verr)
	}
	return errors.Join(errs...)
}

func (s *Sandbox) collectKeep(ctx context.Context, k keep, dir string, mode os.FileMode) (Output, error) {
	c, err := collectInto(dir, mode)
	if err != nil {
		return Output{}, err
	}
	defer c.dst.Close()
	err = s.engine.collect(ctx, s.run.id, s.run.dir, k, c)
	return c.out, err
}

// auditDirs returns the directories for the audit log.
func (s *Sandbox) auditDirs() (dirs []string) {
	if s.plan.Audit != "" {
		dirs = append(dirs, filepath.Join(s.plan.Audit, s.ID))
	}
	if s.plan.Output != "" {
		dirs = append(dirs, filepath.Join(s.artifacts(), "audit"))
	}
	return dirs
}

// noteAuditDirs writes the audit log's destinations to the run's directory, for the next run to use if this process is
// killed.
func (s *Sandbox) noteAuditDirs() error {
	if !slices.Contains(s.plan.keeps, keepAudit) {
		return nil
	}
	text, err := json.Marshal(s.auditDirs())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.run.dir, auditDirsFile), text, 0o600)
}

const auditDirsFile = "audit-dirs.json"

// rescueAudit collects the audit log of a run whose process was killed.
func (s *Sandbox) rescueAudit(ctx context.Context, id, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, auditDirsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var dirs []string
	if err == nil {
		err = json.Unmarshal(text, &dirs)
	}
	for _, to := range dirs {
		c, cerr := collectInto(to, 0o600)
		if errors.Is(cerr, os.ErrExist) {
			continue // it was killed afterwards
		}
		if cerr == nil {
			cerr = errors.Join(s.engine.collect(ctx, id, dir, keepAudit, c), c.dst.Close())
		}
		err = errors.Join(err, cerr)
	}
	return err
}

func copyDir(from, to string) error {
	c, err := collectInto(to, 0o600)
	if err != nil {
		return err
	}
	defer c.dst.Close()
	return c.collectTree(from)
}

// logFile splits the name of a log's file into the log's name and the number of a rotated file.
var logFile = lazyregexp.New(`^([A-Za-z0-9][A-Za-z0-9._-]*\.jsonl)(\.[0-9]{1,19})?$`)

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
