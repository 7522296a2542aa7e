package buildkitd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/client"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

const (
	startTimeout = need.Patience
	stopTimeout  = 10 * time.Second
)

// Daemon is a private buildkitd for one test.
type Daemon struct {
	// Addr is the address for client.New and buildctl's --addr.
	Addr string
	// Root is the directory of the daemon's content and snapshots.
	Root string
	// CanRun reports whether RUN works, which needs an OCI runtime.
	CanRun bool
}

// Start starts a buildkitd that listens on a unix socket, keeps its state in a temporary directory, collects no
// garbage, and gives RUN the host's network. It uses overlayfs snapshots if the kernel and the file system support
// them, otherwise native ones. Without runc in PATH, RUN fails. The daemon ends with the test, which prints the
// daemon's log if it fails. args are further arguments. Start needs root; otherwise the test is skipped, or fails in
// CI.
func Start(t testing.TB, args ...string) *Daemon {
	t.Helper()
	bin, _ := Ensure(t)
	if os.Getuid() != 0 {
		need.Missing(t, "buildkitd with file operations and RUN needs root")
	}
	// t.TempDir is too long: a socket's path is limited to 107 bytes.
	sockDir := tempDir(t, "/tmp", "bkd-")
	root := tempDir(t, "", "slimctl-buildkitd-")
	d := &Daemon{Addr: "unix://" + filepath.Join(sockDir, "s"), Root: root}
	runtimeBinary := "/bin/true" // the daemon insists on a runtime, but never runs it
	if runc, err := exec.LookPath("runc"); err == nil {
		runtimeBinary, d.CanRun = runc, true
	}
	cmd := exec.Command(bin, append([]string{
		"--config", os.DevNull, "--root", root, "--addr", d.Addr,
		"--otel-socket-path", filepath.Join(sockDir, "t"), // at the default, daemons that start at once would remove each other's
		"--containerd-worker=false", "--oci-worker=true", "--oci-worker-binary=" + runtimeBinary,
		"--oci-worker-snapshotter=auto", "--oci-worker-net=host", "--oci-worker-gc=false",
	}, args...)...)
	d.run(t, cmd)
	return d
}

// RequireRun skips the test unless RUN works, or fails it in CI.
func (d *Daemon) RequireRun(t testing.TB) {
	t.Helper()
	if !d.CanRun {
		need.Missing(t, "no runc in PATH, so that buildkitd can't do RUN: apt-get install runc")
	}
}

// Client returns a connection that is closed at the end of the test.
func (d *Daemon) Client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(t.Context(), d.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func tempDir(t testing.TB, parent, pattern string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Errorf("clean up %s: %v", dir, err)
		}
	})
	return dir
}

func (d *Daemon) run(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	logName := filepath.Join(d.Root, "log")
	log, err := os.Create(logName)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the child's parent thread ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(cmd.Process, ended)
		if t.Failed() {
			if out, err := os.ReadFile(logName); err == nil {
				t.Logf("end of buildkitd's log:\n%s", tail(string(out), 60))
			}
		}
	})
	if err := waitReady(t.Context(), d.Addr, ended); err != nil {
		t.Fatalf("buildkitd: %v", err)
	}
}

func waitReady(ctx context.Context, addr string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := client.New(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		workers, err := c.ListWorkers(ctx)
		if err == nil && len(workers) > 0 {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("it ended before it listened")
		case <-ctx.Done():
			return fmt.Errorf("not ready after %s: %w", startTimeout, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func stop(p *os.Process, ended <-chan struct{}) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(stopTimeout):
	}
	syscall.Kill(-p.Pid, syscall.SIGKILL) // its process group, with the remains of RUN steps
	<-ended
}

// removeAll unmounts everything below dir, deepest first, and removes dir.
func removeAll(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return os.RemoveAll(dir)
}

func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// The fifth field is the mount point, with white space as octal escapes (proc(5)); ours has none.
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			out = append(out, fields[4])
		}
	}
	return out, lines.Err()
}
