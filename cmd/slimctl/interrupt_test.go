package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/registry"
)

// process is slimctl as a process of its own.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(t *testing.T, s *site, args ...string) *process {
	t.Helper()
	env, err := privateEnv(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(s.dir, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(need.Program(t, "slimctl"), args...)}
	p.Env, p.Dir = append(env, "TMPDIR="+tmp), s.dir
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := need.Start(t, p.Cmd); err != nil {
		t.Fatal(err)
	}
	return p
}

// end waits for the process, not for ever, and gives its exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	timer := time.AfterFunc(need.Patience, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// interrupted checks how the process ended, and what it left.
func (p *process) interrupted(t *testing.T, s *site) {
	t.Helper()
	if code := p.end(t); code != exitInterrupted { // also of one that doesn't end
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, exitInterrupted, p.stderr.String())
	}
	if bad := badFailure(p.stdout.String(), p.stderr.String()); bad != "" {
		t.Error(bad)
	}
	if !strings.Contains(p.stderr.String(), "interrupted") {
		t.Errorf("stderr: %s", p.stderr.String())
	}
	s.untouched(t)
	p.cleanedUp(t, s)
}

// cleanedUp looks for temporary files, also in the cache.
func (p *process) cleanedUp(t *testing.T, s *site) {
	t.Helper()
	for _, root := range []string{"tmp", "cache", "cold"} {
		_ = filepath.WalkDir(filepath.Join(s.dir, root), func(path string, _ fs.DirEntry, err error) error {
			if name := filepath.Base(path); err == nil && path != filepath.Join(s.dir, root) && (strings.Contains(name, "tmp") || name[0] == '.') {
				t.Errorf("%s is left", path)
			}
			return nil
		})
	}
}

// TestInterruptedAtEachStep sends SIGINT while the registry holds back its answer to one request: the moment is exact.
func TestInterruptedAtEachStep(t *testing.T) {
	t.Parallel()
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			reached := make(chan struct{}, 100)
			hang := faultOn(stage.method, stage.path, registry.Fault{Hang: true})
			s.Fault(func(r *http.Request) *registry.Fault {
				f := hang(r)
				if f != nil {
					reached <- struct{}{}
				}
				return f
			})
			p := start(t, s, s.args(stage.push, stage.name == pushManifest)...)
			select {
			case <-reached:
			case <-time.After(need.Patience):
				t.Fatalf("the request was never sent; stderr:\n%s", p.stderr.String())
			}
			if err := p.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			p.interrupted(t, s)
		})
	}
}

// TestInterruptedAtAnyMoment sends SIGINT after more and more time, until a build has ended before it; each answer of the
// registry takes a while, so that the moments fall into each part of the build. All of it is done again when a busy machine was slow
// to start and then fast. The output is a file.
func TestInterruptedAtAnyMoment(t *testing.T) {
	t.Parallel()
	for _, push := range []bool{false, true} {
		t.Run(fmt.Sprint("push ", push), func(t *testing.T) {
			t.Parallel()
			codes := map[int]int{}
			enough := func() bool { return codes[exitInterrupted] >= 2 && codes[exitOK] > 0 }
			began := time.Now()
			for delay, code := 40*time.Millisecond, -1; !enough() && time.Since(began) < 2*need.Patience; delay *= 2 {
				if code == exitOK {
					delay = 40 * time.Millisecond
				}
				s := newSite(t)
				s.SetLatency(30 * time.Millisecond)
				var sent atomic.Bool // the request that moves the tag, which can't be called back
				s.Fault(func(r *http.Request) *registry.Fault {
					if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifests/1") {
						sent.Store(true)
					}
					return nil
				})
				p := start(t, s, s.args(push, false)...)
				time.Sleep(delay)
				_ = p.Process.Signal(syscall.SIGINT) // an error says that it has ended
				code = p.end(t)
				codes[code]++
				switch code {
				case exitOK:
				case exitInterrupted:
					if bad := badFailure(p.stdout.String(), p.stderr.String()); bad != "" {
						t.Errorf("after %s: %s", delay, bad)
					}
					if !sent.Load() {
						s.untouched(t)
					}
					p.cleanedUp(t, s)
				case -1: // killed by the signal, before the program had set up anything
					s.untouched(t)
				default:
					t.Errorf("after %s: exit code %d: %s", delay, code, p.stderr.String())
				}
			}
			if !enough() {
				t.Errorf("exit codes and their numbers: %v", codes)
			}
		})
	}
}

// TestInterruptedWhileNpmRuns: npm and what it started end with slimctl, and the payload cache holds nothing half-made.
func TestInterruptedWhileNpmRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bin := filepath.Join(s.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(s.dir, "npm-runs")
	script := "#!/bin/sh\necho $$ >" + mark + "\nsleep 300 &\nwait\n"
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	env, err := privateEnv(filepath.Join(s.dir, "private"))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(need.Program(t, "slimctl"), "--cache-dir", filepath.Join(s.dir, "cold"), "payload", "fetch", "-o", filepath.Join(s.dir, "out", "payload"))}
	p.Env = append(slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }), "PATH="+bin+":"+os.Getenv("PATH"))
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := need.Start(t, p.Cmd); err != nil {
		t.Fatal(err)
	}
	need.Eventually(t, func() bool { _, err := os.Stat(mark); return err == nil }, func() string { return "npm was never run" })
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.interrupted(t, s)
	if got := entries(filepath.Join(s.dir, "cold", "payload")); len(got) > 0 {
		t.Errorf("the payload cache holds %q", got)
	}
}
