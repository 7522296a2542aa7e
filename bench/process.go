//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/internal/registry"
)

// sample is a measured process. Sizes are in bytes.
type sample struct {
	Table   string        `json:"table"` // push, latency, archive
	Row     string        `json:"row"`
	Latency time.Duration `json:"latency"` // added to each request
	harness.Used
	Daemon int64 `json:"daemon"` // largest resident memory of buildkitd during the process
	// BasePulled is the number of bytes pulled of the base's layers.
	BasePulled int64          `json:"basePulled"`
	Stats      registry.Stats `json:"stats"`
	Said       string         `json:"said"` // standard output
}

// maxTime limits one process.
const maxTime = 5 * time.Minute

// measure runs a process with reset counters of the registry.
func (b *bench) measure(ctx context.Context, args []string) (s sample, err error) {
	if err := b.reg.control(http.MethodPost, "/_reset", nil); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	var said strings.Builder
	cmd := b.command(ctx, args...)
	cmd.Stdout = &said
	if s.Used, err = harness.Measure(cmd); err != nil {
		return s, err
	}
	s.Said = strings.TrimSpace(said.String())
	return s, b.reg.control(http.MethodGet, "/_stats", &s.Stats)
}

// command returns a program with an environment independent of the machine's settings.
func (b *bench) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := harness.Command(ctx, args...)
	cmd.Dir = b.tmp
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.Contains([]string{"BUILDKIT_HOST", "SOURCE_DATE_EPOCH", "DOCKER_CONFIG"}, name) {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "DOCKER_CONFIG="+filepath.Join(b.tmp, "docker"))
	return cmd
}

// run runs slimctl and returns its standard output.
func (b *bench) run(ctx context.Context, args ...string) (string, error) {
	return output(b.command(ctx, append([]string{b.slimctl}, args...)...))
}

// registryProcess is a running testregistry.
type registryProcess struct {
	cmd  *exec.Cmd
	host string
}

func (b *bench) startRegistry(ctx context.Context) error {
	cmd := harness.Command(context.WithoutCancel(ctx), filepath.Join(b.tmp, "bin", "testregistry"),
		"-dir", filepath.Join(b.tmp, "registry"), "-load", baseRepo+":"+baseTag+"="+b.layout)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	b.reg = &registryProcess{cmd: cmd}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the registry didn't start: %w", err)
	}
	b.reg.host = strings.TrimSpace(line)
	return nil
}

func (r *registryProcess) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	_ = r.cmd.Wait()
}

// control sends a request to the registry's control paths, which aren't counted. into may be nil.
func (r *registryProcess) control(method, path string, into any) error {
	req, err := http.NewRequest(method, "http://"+r.host+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("registry %s: %s: %s", path, resp.Status, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

func (r *registryProcess) latency(d time.Duration) error {
	return r.control(http.MethodPost, "/_latency?d="+url.QueryEscape(d.String()), nil)
}

// daemon is a buildkitd with an empty root.
type daemon struct {
	cmd       *exec.Cmd
	root, run string
	addr      string
}

func (b *bench) startDaemon(ctx context.Context) (d *daemon, err error) {
	d = &daemon{root: filepath.Join(b.tmp, "buildkitd")}
	if d.run, err = os.MkdirTemp("", "sb-"); err != nil { // short, because a socket's path is limited to 107 bytes
		return nil, err
	}
	socket := filepath.Join(d.run, "s")
	d.addr = "unix://" + socket
	runc, err := exec.LookPath("runc")
	if err != nil {
		runc = "/bin/true" // the daemon insists on a runtime, but never runs it
	}
	d.cmd = harness.Command(context.WithoutCancel(ctx), b.daemon, "--config", os.DevNull, "--root", d.root, "--addr", d.addr, "--otel-socket-path", socket+".t",
		"--containerd-worker=false", "--oci-worker-binary="+runc, "--oci-worker-snapshotter=auto",
		"--oci-worker-net=host", "--oci-worker-gc=false")
	var log bytes.Buffer
	d.cmd.Stdout, d.cmd.Stderr = &log, &log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	for begin := time.Now(); time.Since(begin) < 30*time.Second && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		// It listens when its worker is ready (cmd/buildkitd/main.go).
		if c, err := net.Dial("unix", socket); err == nil {
			return d, c.Close()
		}
	}
	if err := d.stop(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("buildkitd did not listen within 30 s: %s", tail(log.Bytes()))
}

func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(15*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer kill.Stop()
	_ = d.cmd.Wait()
	if err := os.RemoveAll(d.run); err != nil {
		return err
	}
	return removeAll(d.root)
}

// resetPeak sets the process's peak to its current memory (proc(5), clear_refs).
func (d *daemon) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.cmd.Process.Pid), []byte("5"), 0)
}

func (d *daemon) peakMemory() (int64, error) {
	return harness.Memory(d.cmd.Process.Pid, "status", "VmHWM")
}

// removeAll unmounts everything below dir that a daemon left mounted, and removes dir.
func removeAll(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(mounts), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", f[4], err)
			}
		}
	}
	return os.RemoveAll(dir)
}
