package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// Engines for a Runner.
const (
	Auto   = "auto"   // Docker if it answers, otherwise runc
	Docker = "docker" // the Docker Engine at DOCKER_HOST, or the default socket
	Runc   = "runc"   // runc with unpacked layers; needs root
)

// Runner configures how this machine runs images. The zero value is usable.
type Runner struct {
	Runtime  string // Auto, Docker or Runc; "" is Auto
	CacheDir string // for unpacked layers and runs; "" is slimctl in the user's cache directory
	// Strict refuses to run if a limit can't be set. Otherwise the evidence lists such limits.
	Strict bool
	// Watch records executed and opened files of the container (Sandbox.Executed, Sandbox.Opened). It needs runc, which
	// has root.
	Watch bool
	// Stdout and Stderr receive the container's output, besides its Logs; may be nil.
	Stdout, Stderr io.Writer
	Progress       image.Progress
	// Outgoing is an upstream proxy for network egress; nil for none.
	Outgoing *egress.Outgoing
	// World is the network outside for network egress; the zero value is the real one.
	World policy.Network
	// Sites maps host names to handlers by which slimctl itself serves a container with network egress: http requests,
	// and the CONNECT of https ones.
	Sites map[string]http.Handler
	// StopGrace is the time for a container to end after the stop signal; 0 means ten seconds, as with docker stop.
	StopGrace time.Duration
	// answerTime is the time for an engine to do one step of a container's end; 0 means a minute.
	answerTime time.Duration
}

// engine is one way to run a container.
type engine interface {
	// sweep ends and removes the remains of a run whose process was killed.
	sweep(ctx context.Context, id, dir string) error
	// start starts the container of s. After an error, remove removes what start created. For a tethered container it
	// returns standard input and output.
	start(ctx context.Context, s *Sandbox) (io.ReadWriteCloser, error)
	// wait returns the exit status after the container's end.
	wait() (int, error)
	// signal sends a signal to the container's first process.
	signal(ctx context.Context, signal string) error
	exec(ctx context.Context, argv []string, o ExecOptions, stdout, stderr io.Writer) (int, error)
	// pids returns the container's processes with this machine's numbers, the first process first.
	pids(ctx context.Context) ([]int, error)
	memory(ctx context.Context) (Memory, error)
	// collect passes the files of a kept directory, or one file below it. A missing directory has none.
	collect(ctx context.Context, id, dir string, k *keep, file string, c *collector) error
	// remove removes everything: processes, container, cgroups, mounts. It is idempotent and can be called at any time.
	remove(ctx context.Context) error
}

// engine returns the engine to use.
func (r Runner) engine(ctx context.Context, s *Sandbox) (engine, error) {
	switch r.Runtime {
	case Runc:
		return r.runc(ctx, s)
	case Docker:
		if s.plan.netns != "" {
			return nil, errors.New("network path: with Docker a container can't join a network namespace by its file; use --runtime runc")
		}
		return r.docker(ctx, s)
	case Auto, "":
		if s.plan.netns != "" {
			return r.runc(ctx, s)
		}
		e, noDocker := r.docker(ctx, s)
		if noDocker == nil {
			return e, nil
		}
		e, err := r.runc(ctx, s)
		if err != nil {
			err = fmt.Errorf("%w; and %w", noDocker, err)
		}
		return e, err
	}
	return nil, fmt.Errorf("runtime %q: want docker, runc or auto", r.Runtime)
}

// StartError reports that an image can't be run. Code is docker run's: 127 if the program is missing, 126 if it can't
// be executed, otherwise 125.
type StartError struct {
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// startCode returns the exit code of a shell, and of docker run, for a program that can't be started.
func startCode(why string) int {
	in := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(why, p) })
	}
	switch {
	case !in("exec"):
		return 125
	case in("executable file not found", "no such file or directory"):
		return 127
	case in("permission denied", "is a directory", "exec format error"):
		return 126
	}
	return 125
}
