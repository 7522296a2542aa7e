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

// Daemon is a private buildkitd of one test.
type Daemon struct {
	// Addr is what client.New and buildctl's --addr take.
	Addr string
	// Root is where the daemon keeps its content and snapshots.
	Root string
	// CanRun reports whether there is an OCI runtime, so that RUN works.
	CanRun bool
}

// Start runs a buildkitd that listens on a unix socket, keeps everything in a temporary directory, collects no
// garbage, and lets RUN steps use the host's network. It takes overlayfs snapshots where the kernel and the file
// system allow, native ones elsewhere. Without runc in PATH it runs all but RUN. The daemon ends with the test, which
// shows the daemon's log when it fails. More arguments are passed on. Start needs root: otherwise the test is skipped, or
// fails when CI is "true".
func Start(t testing.TB, args ...string) *Daemon {
	t.Helper()
	bin, _ := Ensure(t)
	if os.Getuid() != 0 {
		need.Missing(t, "buildkitd with file operations and RUN needs root")
	}
	// Not t.TempDir: a socket's path may have no more than 107 bytes.
	sockDir := tempDir(t, "/tmp", "bkd-")
	root := tempDir(t, "", "slimctl-buildkitd-")
	d := &Daemon{Addr: "unix://" + filepath.Join(sockDir, "s"), Root: root}
	runtimeBinary := "/bin/true" // never run: the daemon only insists on finding one
	if runc, err := exec.LookPath("runc"); err == nil {
		runtimeBinary, d.CanRun = runc, true
	}
	cmd := exec.Command(bin, append([]string{
		"--config", os.DevNull, "--root", root, "--addr", d.Addr,
		"--otel-socket-path", filepath.Join(sockDir, "t"), // daemons that start at once would remove one another's at its default
		"--containerd-worker=false", "--oci-worker=true", "--oci-worker-binary=" + runtimeBinary,
		"--oci-worker-snapshotter=auto", "--oci-worker-net=host", "--oci-worker-gc=false",
	}, args...)...)
	d.run(t, cmd)
	return d
}

// RequireRun ends the test unless RUN steps work.
func (d *Daemon) RequireRun(t testing.TB) {
	t.Helper()
	if !d.CanRun {
		need.Missing(t, "no runc in PATH, so that buildkitd can't do RUN: apt-get install runc")
	}
}

// Client opens a connection that ends with the test.
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
		// The kernel sends Pdeathsig when the thread that started the child ends.
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
				t.Logf("end of buildkitd's log:\n%s", tail(out, 60))
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
	syscall.Kill(-p.Pid, syscall.SIGKILL) // its process group: also what RUN steps left behind
	<-ended
}

// removeAll unmounts what is mounted below dir, deepest first, and removes dir.
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
		// proc(5): the fifth field is the mount point, with white space as octal escapes; ours has none.
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			out = append(out, fields[4])
		}
	}
	return out, lines.Err()
}
