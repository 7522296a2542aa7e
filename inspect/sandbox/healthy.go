package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/internal/capture"
	"github.com/slimctl/slimctl/internal/rawname"
)

// AwaitHealthy waits until the image's own health check passes; an image without one is healthy immediately. It returns
// an error if ctx ends, if the container ends, or if a program of supervisord ends repeatedly. The error names the
// program and has the last lines of its log.
func (s *Sandbox) AwaitHealthy(ctx context.Context) error {
	config, err := s.image.ConfigFile()
	if err != nil {
		return err
	}
	h := config.Config.Healthcheck
	if h == nil || len(h.Test) < 2 || h.Test[0] != "CMD" {
		return nil
	}
	said := "its health check gave no answer"
	before := s.countExits()
	for {
		answer, code, err := s.execQuietly(ctx, h.Test[1:], 64<<10)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			said = endOf([]byte(err.Error()))
		case code == 0:
			s.mu.Lock()
			s.evident.Health = endOf(answer)
			s.mu.Unlock()
			return nil
		default:
			said = endOf(answer)
		}
		select {
		case <-s.done:
			if s.status.TimedOut {
				return fmt.Errorf("the image did not become healthy: %s", said)
			}
			return fmt.Errorf("the container ended with exit status %d: %s", s.status.ExitCode, endOf(s.Logs()))
		case <-ctx.Done():
			return fmt.Errorf("the image did not become healthy: %s", said)
		case <-time.After(healthInterval):
		}
		for program, n := range s.countExits() {
			if n-before[program] >= maxExits {
				return fmt.Errorf("program %s has ended %d times: %s", program, maxExits, endOf(s.programLog(ctx, program)))
			}
		}
	}
}

const healthInterval = 250 * time.Millisecond

// execQuietly runs a program in the container, without an event of the run, and returns the beginning of its output.
func (s *Sandbox) execQuietly(ctx context.Context, argv []string, room int) ([]byte, int, error) {
	out := &capture.Head{Max: room}
	code, err := s.engine.exec(ctx, argv, ExecOptions{}, out, out)
	return out.Bytes(), code, err
}

// maxExits is the number of exits of a program, while AwaitHealthy waits, that it treats as a failure. At a
// healthy start none of our programs exits.
const maxExits = 5

var (
	// exitLine matches supervisord's message about a program that has exited, or could not be started.
	exitLine    = regexp.MustCompile(`(?m)^\S+ \S+ (?:INFO|WARN) exited: ([A-Za-z0-9_-]{1,64}) \(`)
	programName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// countExits returns how often each program has exited, by the end of the container's log.
func (s *Sandbox) countExits() map[string]int {
	const enough = 256 << 10
	log := s.Logs()
	exits := map[string]int{}
	for _, m := range exitLine.FindAllSubmatch(log[max(0, len(log)-enough):], -1) {
		exits[string(m[1])]++
	}
	return exits
}

// endOf returns the end of a program's output as one line for a message.
func endOf(text []byte) string {
	const most = 400
	lines := strings.FieldsFunc(string(text[max(0, len(text)-most):]), func(r rune) bool { return r == '\n' || r == '\r' })
	return cmp.Or(strings.TrimSpace(rawname.Line(strings.Join(lines, "; "))), "no output")
}

// The last maxProgramLog bytes of each program's log are kept.
const (
	maxProgramLog  = 1 << 20
	maxProgramLogs = 32
	logTime        = 30 * time.Second // for all of them
)

// logsCommand is the command that prints the programs' logs in an image that slimctl built, which has no other program
// for it.
var logsCommand = []string{entry[0], "logs"}

// programLog returns the end of a program's log; "" if there is none.
func (s *Sandbox) programLog(ctx context.Context, program string) []byte {
	text, code, err := s.execQuietly(ctx, append(slices.Clone(logsCommand), program), maxProgramLog)
	if err != nil || code != 0 {
		return nil
	}
	return text
}

// keepLogs copies the ends of the programs' logs to the artifacts while the container still runs. The image may have
// none.
func (s *Sandbox) keepLogs(ctx context.Context) error {
	dir := s.artifacts()
	if dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	names, code, err := s.execQuietly(ctx, logsCommand, 64<<10)
	if err != nil || code != 0 {
		return nil
	}
	dir, kept := filepath.Join(dir, "logs"), 0
	for name := range strings.FieldsSeq(string(names)) {
		if !programName.MatchString(name) || kept == maxProgramLogs {
			continue
		}
		if kept++; kept == 1 {
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name+".log"), s.programLog(ctx, name), 0o644); err != nil {
			return err
		}
	}
	return nil
}
