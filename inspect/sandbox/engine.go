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

// Engines that a Runner can be told to take.
const (
	Auto   = "auto"   // Docker when one answers, runc otherwise
	Docker = "docker" // the Docker Engine at DOCKER_HOST, or the default socket
	Runc   = "runc"   // runc, from the image's layers; it needs root
)

// Runner is how this machine runs images. The zero value works.
type Runner struct {
	Runtime  string // Auto, Docker or Runc; "" is Auto
	CacheDir string // for unpacked layers and what runs; "" is slimctl in the user's cache directory
	// Strict refuses to run where a limit can't be set. Otherwise the evidence has what did not apply.
	Strict bool
	// Watch asks for what is executed and opened in the container (Sandbox.Executed, Sandbox.Opened): with runc alone, which has
	// root.
	Watch bool
	// Stdout and Stderr take what the container prints, beside its Logs; nil for neither.
	Stdout, Stderr io.Writer
	Progress       image.Progress
	// Outgoing is a proxy through which a container with network egress goes out; nil for none.
	Outgoing *egress.Outgoing
	// World is what lies outside for network egress; the zero value is the real one.
	World policy.Network
	// Sites are served to a container with network egress by slimctl itself, by host name: http requests, and the CONNECT of an
	// https one.
	Sites map[string]http.Handler
	// StopGrace is how long a container may take to end after it was asked to; 0 is ten seconds, as with docker stop.
	StopGrace time.Duration
}

// engine is one way to run a container.
type engine interface {
	// sweep ends and removes what is left of a run whose process was killed.
	sweep(id, dir string) error
	// start starts the container of s. What it made before an error it leaves to remove. Of a tethered container it gives
	// standard input and output.
	start(ctx context.Context, s *Sandbox) (io.ReadWriteCloser, error)
	// wait gives the exit status once the container has ended.
	wait() (int, error)
	// signal sends a signal to the container's first process.
	signal(ctx context.Context, signal string) error
	exec(ctx context.Context, argv []string, o ExecOptions, stdout, stderr io.Writer) (int, error)
	// pids lists the container's processes as this machine numbers them, the first one first.
	pids(ctx context.Context) ([]int, error)
	memory(ctx context.Context) (Memory, error)
	// collect gives the files of a directory that a run keeps. A directory that isn't there has none.
	collect(id, dir string, k keep, c *collector) error
	// remove takes away everything: processes, container, cgroups, mounts. It can be called at any time, and again.
	remove(ctx context.Context) error
}

// engine chooses the engine.
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
			err = fmt.Errorf("%w; %w", err, noDocker)
		}
		return e, err
	}
	return nil, fmt.Errorf("runtime %q: want docker, runc or auto", r.Runtime)
}

// StartError tells that an image can't be run as it was asked for. Code is docker run's: 127 when the program isn't there,
// 126 when it can't be run, 125 for the rest.
type StartError struct {
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// startCode gives what a shell, and docker run, make of a program that can't be started.
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
