package buildkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/moby/buildkit/client"
)

// Private starts a daemon from the buildkitd in PATH, with its socket in a temporary directory and its state in a new
// directory below dir. It needs neither root nor an OCI runtime, because our LLB runs nothing. stop ends the daemon and
// removes its state; the overlay form leaves nothing worth keeping.
func Private(ctx context.Context, dir string) (addr string, stop func() error, err error) {
	bin, err := exec.LookPath("buildkitd")
	if err != nil {
		return "", nil, fmt.Errorf("--builder auto: %w; install buildkitd, name a running daemon, or leave --builder out", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	state, err := os.MkdirTemp(dir, "buildkitd-")
	if err != nil {
		return "", nil, err
	}
	run, err := os.MkdirTemp("", "slimctl-bk-") // short, because a socket's path is limited to 108 bytes
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(state))
	}
	remove := func() error { return errors.Join(os.RemoveAll(run), os.RemoveAll(state)) }
	addr = "unix://" + filepath.Join(run, "s")
	args := []string{
		bin, "--config", "/dev/null", "--root", state, "--addr", addr,
		"--otel-socket-path", filepath.Join(run, "t"), // the default is the socket of the system's daemon, which would lose it
		"--containerd-worker=false",
		"--oci-worker=true", "--oci-worker-net=host", "--oci-worker-binary=/bin/true", // the daemon insists on runc otherwise
	}
	if os.Geteuid() != 0 {
		args = append([]string{"unshare", "--user", "--map-root-user", "--mount"}, append(args, "--rootless", "--oci-worker-no-process-sandbox")...)
	}
	log, err := os.Create(filepath.Join(run, "log"))
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not end it before our own clean-up does
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("--builder auto: %w", err), log.Close(), remove())
	}
	exited := make(chan struct{})
	var ended error
	go func() { ended = cmd.Wait(); close(exited) }()
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		return errors.Join(log.Close(), remove())
	}
	if err := waitReady(ctx, addr, exited, &ended); err != nil {
		said, _ := os.ReadFile(log.Name())
		return "", nil, errors.Join(fmt.Errorf("--builder auto: %s: %w\n%s", bin, err, tail(said)), stop())
	}
	return addr, stop, nil
}

// waitReady waits at most 30 seconds until the daemon answers. ended is the reason of its end, valid when exited is
// closed.
func waitReady(ctx context.Context, addr string, exited chan struct{}, ended *error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("it didn't answer within 30 s"))
	defer cancel()
	for {
		c, err := client.New(ctx, addr)
		if err == nil {
			_, err = c.Info(ctx)
			c.Close()
			if err == nil {
				return nil
			}
		}
		select {
		case <-exited:
			return fmt.Errorf("it ended: %w", *ended)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }
