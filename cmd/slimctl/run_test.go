//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/moby/moby/client"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
)

// guestLayout is an image whose entrypoint is the guest, for a test that runs it with runc.
func guestLayout(t *testing.T) string { return guestLayoutOf(t, sandboxtest.Guest) }

// guestLayoutOf is the same with another config.
func guestLayoutOf(t *testing.T, config v1.Config) string {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "runc needs root")
	}
	need.Program(t, "runc")
	return writeLayout(t, sandboxtest.Image(t, config, sandboxtest.GuestLayer(t)))
}

func writeLayout(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRunScripts runs testdata/run, whose scripts have an image at $IMAGE.
func TestRunScripts(t *testing.T) {
	img, closed := guestLayout(t), guestLayoutOf(t, sandboxtest.Tethered)
	foreign := sandboxtest.Image(t, sandboxtest.Guest)
	file, err := foreign.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	if foreign, err = mutate.ConfigFile(foreign, file); err != nil {
		t.Fatal(err)
	}
	other := writeLayout(t, foreign)
	config := sandboxtest.Guest
	config.Cmd = []string{"sleep"}
	config.Healthcheck = &v1.HealthConfig{Test: []string{"CMD", "/guest", "both"}}
	healthy := guestLayoutOf(t, config)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "run"),
		Setup: func(e *testscript.Env) error {
			if err := setupScript(e); err != nil {
				return err
			}
			e.Setenv("IMAGE", img)
			e.Setenv("OTHER", other)
			e.Setenv("HEALTHY", healthy)
			e.Setenv("CLOSED", closed) // starts as an image that slimctl built; GUEST says what it does
			e.Setenv("PORT", strconv.Itoa(need.FreePort(t)))
			e.Setenv("DOCKER_HOST", "unix:///nowhere") // runc is what these are about
			return nil
		},
		Cmds:               map[string]func(*testscript.TestScript, bool, []string){"fails": cmdFails, "status": cmdStatus},
		RequireUniqueNames: true,
	})
}

// runProcess starts `slimctl run` of a guest and waits until it has said that it is ready.
func runProcess(t *testing.T, dir, img string, command ...string) (*process, *safeBuffer) {
	t.Helper()
	out := &safeBuffer{}
	p := &process{Cmd: exec.Command(need.Program(t, "slimctl"), append([]string{"run", "oci:" + img, "--artifacts", "artifacts", "--"}, command...)...)}
	p.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "DOCKER_HOST=unix:///nowhere")
	p.Dir, p.Stdout, p.Stderr = dir, out, &p.stderr
	if err := need.Start(t, p.Cmd); err != nil {
		t.Fatal(err)
	}
	need.Eventually(t, func() bool { return strings.Contains(out.String(), "ready") }, p.stderr.String)
	return p, out
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// traces are what a run has on this machine outside of its directory: mounts, cgroups, processes.
func traces(t *testing.T, dir string) (out []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			out = append(out, line)
		}
	}
	runs, _ := filepath.Glob(filepath.Join(dir, "cache", "slimctl", "runs", "*-*"))
	return append(out, runs...)
}

// cgroupsOf finds the cgroups and processes of a run by its id.
func cgroupsOf(id string) (out []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/slimctl-", "/sys/fs/cgroup/*/slimctl-"} {
		found, _ := filepath.Glob(pattern + id)
		out = append(out, found...)
	}
	return out
}

// TestRunInterrupted: after Ctrl-C, and after a kill at a bad moment, nothing is left in the end.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	img := guestLayout(t)
	t.Run("SIGINT, and the evidence can't be kept", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		p, _ := runProcess(t, dir, img, "sleep")
		artifacts := filepath.Join(dir, "artifacts")
		if err := errors.Join(os.RemoveAll(artifacts), os.WriteFile(artifacts, nil, 0o600), p.Process.Signal(syscall.SIGINT)); err != nil {
			t.Fatal(err)
		}
		if code := p.end(t); code != exitInterrupted || !strings.Contains(p.stderr.String(), "slimctl: error: ") || strings.Contains(p.stderr.String(), "unfinished outputs") {
			t.Errorf("exit code %d: %s", code, p.stderr.String())
		}
	})
	t.Run("SIGINT", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		p, out := runProcess(t, dir, img, "sleep")
		if err := p.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := p.end(t); code != exitInterrupted || !strings.Contains(out.String(), "got terminated") || strings.Contains(p.stderr.String(), "error") {
			t.Errorf("exit code %d: %s %s", code, out.String(), p.stderr.String())
		}
		if left := traces(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*", "evidence.json"))
		if len(files) != 1 {
			t.Fatalf("evidence: %q", files)
		}
		text, err := os.ReadFile(files[0])
		var ev sandbox.Evidence
		if err := errors.Join(err, json.Unmarshal(text, &ev)); err != nil || ev.ExitCode == nil || *ev.ExitCode != 7 || ev.Events[len(ev.Events)-1].Event != sandbox.EventCleanup {
			t.Errorf("%v: %s", err, text)
		}
		if left := cgroupsOf(ev.Run); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("SIGKILL", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		p, _ := runProcess(t, dir, img, "deaf")
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.end(t)
		runs, _ := filepath.Glob(filepath.Join(dir, "cache", "slimctl", "runs", "*-*"))
		if len(runs) != 1 || len(cgroupsOf(filepath.Base(runs[0]))) == 0 {
			t.Fatalf("the killed run left %q: it should have left a container for this test", runs)
		}
		next, _ := runProcess(t, dir, img, "sleep")
		if left := cgroupsOf(filepath.Base(runs[0])); len(left) > 0 {
			t.Errorf("left after the next run's start: %q", left)
		}
		if _, err := os.Stat(runs[0]); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", runs[0], err)
		}
		if err := next.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		next.end(t)
		if left := traces(t, dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// TestRunWithoutReader guards that a container ends with the terminal, and with the reader of what it prints: slimctl run | head.
func TestRunWithoutReader(t *testing.T) {
	t.Parallel()
	// A signal that is ignored here, as under nohup, is ignored by what is started here, too; one that is caught isn't.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	img := guestLayout(t)
	for name, c := range map[string]struct {
		command []string
		leave   func(*process, *os.File)
	}{
		"the terminal is closed": {[]string{"sleep"}, func(p *process, _ *os.File) { _ = p.Process.Signal(syscall.SIGHUP) }},
		"the reader has gone":    {[]string{"flood"}, func(_ *process, stdout *os.File) { stdout.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			p := &process{Cmd: exec.Command(need.Program(t, "slimctl"), append([]string{"run", "oci:" + img, "--artifacts", "artifacts", "--timeout", "0", "--"}, c.command...)...)}
			p.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "DOCKER_HOST=unix:///nowhere")
			p.Dir, p.Stdout, p.Stderr = dir, write, &p.stderr
			if err := need.Start(t, p.Cmd); err != nil {
				t.Fatal(err)
			}
			write.Close()
			if _, err := io.ReadFull(read, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			c.leave(p, read)
			if code := p.end(t); code != exitInterrupted {
				t.Errorf("exit code %d: %s", code, p.stderr.String())
			}
			runs, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*", "evidence.json"))
			if len(runs) != 1 {
				t.Fatalf("evidence: %q", runs)
			}
			if left := append(traces(t, dir), cgroupsOf(filepath.Base(filepath.Dir(runs[0])))...); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestRunDockerAsOrdinaryUser guards `run -p` for a user who may use Docker's socket and nothing else, and that his next
// run removes what a killed one left.
func TestRunDockerAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	img := guestLayoutOf(t, sandboxtest.Tethered)
	host := dockerd.Host(t)
	const nobody = 65534
	var groups []uint32
	if socket, ok := strings.CutPrefix(host, "unix://"); ok {
		info, err := os.Stat(socket)
		if err != nil {
			t.Fatal(err)
		}
		groups = []uint32{info.Sys().(*syscall.Stat_t).Gid}
	}
	dir, err := os.MkdirTemp("", "slimctl-nobody-") // the parents of a t.TempDir are for this user alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.CopyFS(filepath.Join(dir, "image"), os.DirFS(img)); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, nobody, nobody))
	}); err != nil {
		t.Fatal(err)
	}
	run := func(host string, groups []uint32, args ...string) (*process, *safeBuffer) {
		t.Helper()
		said := &safeBuffer{}
		p := &process{Cmd: &exec.Cmd{
			Path: "/proc/self/exe", // which the user can't reach by its path
			Args: append([]string{"slimctl", "run", "oci:image"}, args...),
			Dir:  dir, Env: append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "DOCKER_HOST="+host),
			Stderr: said, SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: groups}},
		}}
		if err := need.Start(t, p.Cmd); err != nil {
			t.Fatal(err)
		}
		return p, said
	}
	start := func() (*process, *safeBuffer) {
		t.Helper()
		p, said := run(host, groups, "--runtime", "docker", "-p", "0:8080", "-e", "GUEST=serve 127.0.0.1:8080", "--artifacts", "artifacts")
		need.Eventually(t, func() bool {
			return strings.Contains(said.String(), "ready") && strings.Contains(said.String(), "http://")
		}, said.String)
		return p, said
	}
	if groups != nil {
		p, said := run(host, nil)
		if code := p.end(t); code != exitNoStart || !strings.Contains(said.String(), "refuses this user: join its group by `sudo usermod -aG docker $USER`") {
			t.Errorf("without the group: exit code %d: %s", code, said)
		}
	}
	hung := filepath.Join(dir, "hung") // a daemon that never answers
	l, err := net.Listen("unix", hung)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(hung, 0o777); err != nil { //nolint:gosec // the user's
		t.Fatal(err)
	}
	never, words := run("unix://"+hung, nil)
	if code := never.end(t); code != exitNoStart || !strings.Contains(words.String(), "didn't answer within 3s: restart it") {
		t.Errorf("no answer: exit code %d: %s", code, words)
	}
	killed, _ := start()
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.end(t)
	p, said := start()
	_, address, _ := strings.Cut(said.String(), "MCP http://")
	address, _, _ = strings.Cut(address, "/")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "to the container"); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "to the container|16 from ") {
		t.Errorf("%q, %v", answer, err)
	}
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != exitInterrupted {
		t.Errorf("exit code %d: %s", code, said)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*", "evidence.json")); len(files) != 2 { // of the killed run, too
		t.Errorf("evidence: %q", files)
	}
	if left := traces(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left := dockerContainers(t, host, dir); len(left) > 0 {
		t.Errorf("containers left: %q", left)
	}
}

// dockerContainers returns the containers of the runs below dir that Docker has.
func dockerContainers(t *testing.T, host, dir string) (names []string) {
	t.Helper()
	api, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	list, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	runs, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*"))
	for _, c := range list.Items {
		for _, run := range runs {
			if name := "slimctl-" + filepath.Base(run); slices.Contains(c.Names, "/"+name) {
				names = append(names, name)
			}
		}
	}
	return names
}
