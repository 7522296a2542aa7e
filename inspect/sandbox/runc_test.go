//go:build linux

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/sys/mountinfo"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

const patience = need.Patience

// hurry is the StopGrace of a container that takes no signal.
const hurry = time.Second

// sharedCache holds the unpacked guest image for all tests.
var sharedCache = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "slimctl-sandbox-") })

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := sharedCache(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func cache(t testing.TB) string {
	t.Helper()
	dir, err := sharedCache()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// settings are the default ones with a command.
func settings(command ...string) Settings {
	s := Default()
	s.Command, s.Memory, s.Timeout = command, 256<<20, 2*patience
	return s
}

type engineUnderTest struct {
	Runner
	t testing.TB
}

func runcEngineUnderTest(t testing.TB) engineUnderTest {
	needRunc(t)
	return engineUnderTest{Runner{Runtime: Runc, CacheDir: cache(t)}, t}
}

// start starts the image and stops it with the test, which then checks that nothing is left.
func (e engineUnderTest) start(img Image, s Settings) *Sandbox {
	e.t.Helper()
	sb, err := e.Start(e.t.Context(), img, s)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := sb.Stop(ctx); err != nil {
			e.t.Error(err)
		}
		nothingLeft(e.t, sb.run)
	})
	return sb
}

// tetheredSettings are settings for tetheredImage, which does what a line says.
func tetheredSettings(line string) Settings {
	s := settings()
	s.Env = map[string]string{"GUEST": line}
	return s
}

// tetheredImage starts as an image that slimctl built does.
func tetheredImage(t testing.TB) Image {
	t.Helper()
	return build(t, sandboxtest.Tethered, sandboxtest.GuestLayer(t))
}

// finish waits for the end.
func finish(t testing.TB, sb *Sandbox) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	st, err := sb.Wait(ctx)
	if err != nil {
		t.Fatalf("%v; logs:\n%s", err, sb.Logs())
	}
	return st
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	need.Eventually(t, ok, func() string { return "not yet: " + what })
}

func says(sb *Sandbox, text string) func() bool {
	return func() bool { return bytes.Contains(sb.Logs(), []byte(text)) }
}

// nothingLeft checks that of a run there is no mount, no cgroup, no process and no directory.
func nothingLeft(t testing.TB, r *run) {
	t.Helper()
	if _, err := os.Stat(r.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", r.dir, err)
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.Contains(m.Mountpoint, r.id) {
			t.Errorf("%s is still mounted", m.Mountpoint)
		}
	}
	c, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range c {
		if _, err := os.Stat(filepath.Join(point, r.name())); err == nil {
			t.Errorf("%s is left in %s", r.name(), point)
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if text, _ := os.ReadFile(f); bytes.Contains(text, []byte("HOSTNAME="+r.name())) {
			t.Errorf("%s is left", filepath.Dir(f))
		}
	}
}

// seen is what the guest reports.
type seen struct {
	PID, UID, GID int
	Groups        []int
	Host, Cwd     string
	Env, Args     []string
	Status        map[string]string
	Nets          []string
	Writable      map[string]string
	Mounts        string
	Files, Core   uint64
	Kcore, Sysrq  string
	Keyctl        string
}

func (e engineUnderTest) report(img Image, s Settings, paths ...string) seen {
	e.t.Helper()
	s.Command = append([]string{"report"}, paths...)
	sb := e.start(img, s)
	if st := finish(e.t, sb); st.ExitCode != 0 {
		e.t.Fatalf("%+v: %s", st, sb.Logs())
	}
	var out seen
	if err := json.Unmarshal(sb.Logs(), &out); err != nil {
		e.t.Fatalf("%v: %s", err, sb.Logs())
	}
	return out
}

// TestClosed: what a container can see and do by default.
func TestClosed(t *testing.T) {
	t.Parallel()
	testClosed(t, runcEngineUnderTest(t))
}

func testClosed(t *testing.T, e engineUnderTest) {
	s := settings()
	s.Env = map[string]string{"FROM": "settings", "NEW": "a=b"}
	s.Work, s.Output = t.TempDir(), t.TempDir()
	got := e.report(guestImage(t), s, "/", "/etc", "/work", "/output", "/tmp", "/home/gem", "/dev/shm", "/sys", "/proc/sys/kernel")
	for name, want := range map[string]string{
		"NoNewPrivs": "1", "Seccomp": "2", "CapEff": "00000000000000e1", "CapBnd": "00000000000000e1", "CapPrm": "00000000000000e1",
		"CapInh": "0000000000000000", "CapAmb": "0000000000000000",
	} {
		if got.Status[name] != want {
			t.Errorf("%s is %q, want %q", name, got.Status[name], want)
		}
	}
	if got.PID != 1 || got.UID != 0 || got.Cwd != "/tmp" || got.Core != 0 || got.Files < 1024 {
		t.Errorf("pid %d, uid %d, cwd %q, core %d, files %d", got.PID, got.UID, got.Cwd, got.Core, got.Files)
	}
	if len(got.Nets) != 1 || !strings.Contains(got.Nets[0], "up|loopback") {
		t.Errorf("interfaces: %q", got.Nets)
	}
	for _, kv := range []string{"FROM=settings", "NEW=a=b", "PATH=/", "HOSTNAME=" + got.Host} {
		if !slices.Contains(got.Env, kv) {
			t.Errorf("no %s in %q", kv, got.Env)
		}
	}
	for _, p := range []string{"/output", "/tmp", "/home/gem", "/dev/shm"} {
		if got.Writable[p] != "<nil>" {
			t.Errorf("%s: %s", p, got.Writable[p])
		}
	}
	for _, p := range []string{"/", "/etc", "/work", "/sys"} {
		if !strings.Contains(got.Writable[p], "read-only") {
			t.Errorf("%s: %s", p, got.Writable[p])
		}
	}
	if got.Writable["/proc/sys/kernel"] == "<nil>" || strings.HasPrefix(got.Sysrq, "<nil>") {
		t.Errorf("/proc can be written to: %q %q", got.Writable["/proc/sys/kernel"], got.Sysrq)
	}
	if got.Keyctl != "operation not permitted" {
		t.Errorf("add_key: %s, and the seccomp profile refuses it", got.Keyctl)
	}
	for line := range strings.Lines(got.Mounts) {
		f := strings.Fields(line)
		if (f[1] == "/work" || f[1] == "/output") && e.Runtime == Docker {
			continue // its API has no such options for binds and volumes; no_new_privs and the lack of CAP_MKNOD do the same
		}
		if slices.Contains([]string{"/tmp", "/output", "/work", "/dev/shm", "/home/gem"}, f[1]) && (!strings.Contains(f[3], "nosuid") || !strings.Contains(f[3], "nodev")) {
			t.Errorf("mount %s", line)
		}
	}
}

// TestUser: users by number and by name, without capabilities unless root.
func TestUser(t *testing.T) {
	t.Parallel()
	testUser(t, runcEngineUnderTest(t))
}

func testUser(t *testing.T, e engineUnderTest) {
	for user, want := range map[string]string{
		"gem": "1000:1000[1000 44]", "1000:1000": "1000:1000[1000]", "1000": "1000:1000[1000 44]", "4321": "4321:0[0]", "0:44": "0:44[44]", "gem:video": "1000:44[44]",
	} {
		s := settings()
		s.User, s.Output = user, t.TempDir()
		s.Tmpfs = append(slices.Clone(s.Tmpfs), "/own:mode=700")
		got := e.report(guestImage(t), s, "/output", "/home/gem", "/own")
		slices.Sort(got.Groups)
		groups := got.Groups
		if !slices.Contains(groups, got.GID) {
			groups = append(groups, got.GID)
		}
		var w1, w2 int
		var more string
		_, _ = fmt.Sscanf(want, "%d:%d%s", &w1, &w2, &more)
		if got.UID != w1 || got.GID != w2 || strings.Contains(want, " 44") != (slices.Contains(groups, 44) && w2 != 44) {
			t.Errorf("%s: %d:%d %v, want %s", user, got.UID, got.GID, got.Groups, want)
		}
		if caps := got.Status["CapEff"] != "0000000000000000"; caps != (w1 == 0) {
			t.Errorf("%s: capabilities %s", user, got.Status["CapEff"])
		}
		if got.Writable["/output"] != "<nil>" || got.Writable["/home/gem"] != "<nil>" {
			t.Errorf("%s: %v", user, got.Writable)
		}
		if byNumber := !strings.HasPrefix(user, "gem"); (got.Writable["/own"] == "<nil>") != byNumber {
			t.Errorf("%s: a tmpfs for its owner alone: %s", user, got.Writable["/own"])
		}
	}
	s := settings("exit", "0")
	s.User = "nobody-here"
	var start *StartError
	if sb, err := e.Start(t.Context(), guestImage(t), s); !errors.As(err, &start) {
		t.Errorf("an unknown user: %v %v", sb, err)
	}
}

// TestEnd: how a container ended is told as it was.
func TestEnd(t *testing.T) {
	t.Parallel()
	testEnd(t, runcEngineUnderTest(t))
}

func testEnd(t *testing.T, e engineUnderTest) {
	img := guestImage(t)
	for code := range 3 {
		if st := finish(t, e.start(img, settings("exit", fmt.Sprint(code*21)))); st != (Status{ExitCode: code * 21, Reason: ReasonExited}) {
			t.Errorf("exit %d: %+v", code*21, st)
		}
	}
	t.Run("stop", func(t *testing.T) {
		sb := engineUnderTest{e.Runner, t}.start(img, settings("sleep"))
		until(t, "ready", says(sb, "ready"))
		if st, err := sb.Stop(t.Context()); err != nil || st.ExitCode != 7 || !says(sb, "got terminated")() {
			t.Errorf("%+v, %v: %s", st, err, sb.Logs())
		}
		if st, err := sb.Stop(t.Context()); err != nil || st.ExitCode != 7 {
			t.Errorf("again: %+v, %v", st, err)
		}
		if _, err := sb.Exec(t.Context(), []string{"/guest", "exit", "0"}, ExecOptions{}); err == nil {
			t.Error("exec after the end gives no error")
		}
	})
	t.Run("its own signal", func(t *testing.T) {
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		own := config.DeepCopy().Config
		own.StopSignal = "SIGUSR1"
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		sb := engineUnderTest{e.Runner, t}.start(build(t, own, text), settings("sleep"))
		until(t, "ready", says(sb, "ready"))
		if st, err := sb.Stop(t.Context()); err != nil || st.ExitCode != 9 {
			t.Errorf("%+v, %v: %s", st, err, sb.Logs())
		}
	})
	t.Run("deaf, with a timeout", func(t *testing.T) {
		s := settings("deaf")
		s.Timeout = 3 * time.Second // in which it has become deaf
		runner := e.Runner
		runner.StopGrace = hurry
		if st := finish(t, engineUnderTest{runner, t}.start(img, s)); st != (Status{ExitCode: 137, TimedOut: true, Reason: ReasonTimeout, Code: policy.Timeout}) {
			t.Errorf("%+v", st)
		}
	})
	t.Run("its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sb, err := e.Start(ctx, img, settings("sleep"))
		if err != nil {
			t.Fatal(err)
		}
		until(t, "ready", says(sb, "ready"))
		cancel()
		if st := finish(t, sb); st.ExitCode != 7 || st.TimedOut {
			t.Errorf("%+v", st)
		}
		nothingLeft(t, sb.run)
	})
	t.Run("out of memory", func(t *testing.T) {
		s := settings("eat", "200")
		s.Memory = 64 << 20
		var st Status
		dockerForgets(e.Runtime, func() bool {
			st = finish(t, engineUnderTest{e.Runner, t}.start(img, s))
			return st.OOMKilled
		})
		if !st.OOMKilled || st.ExitCode != 137 {
			t.Errorf("%+v", st)
		}
	})
}

// dockerForgets repeats, with Docker, a run that ends for want of memory until it is told why: Docker forgets that, when containerd's
// word of it comes after that of the end; on a loaded machine it may.
func dockerForgets(runtime string, run func() (told bool)) {
	for began := time.Now(); !run() && runtime == Docker && time.Since(began) < 2*patience; {
	}
}

// TestNoStart: docker run's exit codes for what can't be started, and nothing left.
func TestNoStart(t *testing.T) {
	t.Parallel()
	testNoStart(t, runcEngineUnderTest(t))
}

func testNoStart(t *testing.T, e engineUnderTest) {
	e.CacheDir = t.TempDir() // in the shared one other runs come and go
	program := sandboxtest.File("text", "no program")
	program.Mode = 0o755
	layer := sandboxtest.Layer(t, sandboxtest.Dir("bin/", 0o755), program, sandboxtest.File("plain", "x"))
	for args, want := range map[string]int{"/nowhere": 127, "nowhere": 127, "/plain": 126, "": 125} {
		config := v1.Config{Env: []string{"PATH=/bin"}}
		if args != "" {
			config.Entrypoint = []string{args}
		}
		sb, err := e.Start(t.Context(), build(t, config, layer), settings())
		var start *StartError
		if !errors.As(err, &start) || start.Code != want {
			t.Errorf("%q: %v, want code %d", args, err, want)
		}
		if sb != nil {
			t.Errorf("%q: a sandbox and an error", args)
		}
	}
	e.noRunsLeft()
}

// noRunsLeft checks that of the runs in a cache of their own nothing is left.
func (e engineUnderTest) noRunsLeft() {
	e.t.Helper()
	if left, err := filepath.Glob(filepath.Join(e.CacheDir, "runs", "*-*")); err != nil || len(left) > 0 {
		e.t.Errorf("%q is left (%v)", left, err)
	}
}

// TestStartBreaksOff guards the moment in which a container runs and runc, told to end, says that it doesn't: the start ends,
// and nothing is left.
func TestStartBreaksOff(t *testing.T) {
	e := runcEngineUnderTest(t)
	e.CacheDir = t.TempDir()
	dir := t.TempDir()
	script := "#!/bin/sh\n" + need.Program(t, "runc") + " \"$@\" || exit\ncase \"$*\" in *\" run \"*) exit 1; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "runc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ended := make(chan error, 1)
	go func() {
		_, err := e.Start(t.Context(), tetheredImage(t), tetheredSettings("sleep"))
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.As(err, new(*StartError)) {
			t.Errorf("error is %v, want a StartError", err)
		}
	case <-time.After(patience):
		t.Fatal("the start doesn't end")
	}
	e.noRunsLeft()
}

// TestNetwork: what is published, and Dial, lead to the one port of an image that slimctl built.
func TestNetwork(t *testing.T) {
	t.Parallel()
	testNetwork(t, runcEngineUnderTest(t))
}

func testNetwork(t *testing.T, e engineUnderTest) {
	s := tetheredSettings("serve 127.0.0.1:8080 127.0.0.1:9222")
	s.Publish = []string{"0:8080"}
	sb := e.start(tetheredImage(t), s)
	until(t, "ready", says(sb, "ready"))
	ports := sb.Published()
	if len(ports) != 1 || ports[0].Port != 8080 || ports[0].Host.Port() == 0 || !ports[0].Host.Addr().IsLoopback() {
		t.Fatalf("published: %+v", ports)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			c, err := net.Dial("tcp", ports[0].Host.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go func() {
				_, _ = c.Write(bytes.Repeat([]byte("x"), 300_000))
				_ = c.(*net.TCPConn).CloseWrite() // the echo and the count come after this
			}()
			text, err := io.ReadAll(c)
			if err != nil || len(text) < 300_000 || !strings.HasPrefix(string(text[300_000:]), "|300000 from ") {
				t.Errorf("%d bytes, %.40q, %v", len(text), text[max(0, len(text)-40):], err)
			}
		})
	}
	wg.Wait()
	c, err := sb.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	sockets, err := sb.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	processes, err := sb.Processes(t.Context())
	if err != nil || len(processes) != 1 || processes[0].Inside != 1 || processes[0].Args[0] != entry[0] || processes[0].RSS <= 0 {
		t.Fatalf("%+v, %v", processes, err)
	}
	var got []string
	for _, s := range sockets {
		got = append(got, s.Address.String())
		if s.PID != processes[0].PID {
			t.Errorf("%+v is not of process %d", s, processes[0].PID)
		}
	}
	slices.Sort(got)
	if want := "127.0.0.1:8080 127.0.0.1:9222"; strings.Join(got, " ") != want {
		t.Errorf("sockets %q, want %q", got, want)
	}
	if m, err := sb.Memory(t.Context()); err != nil || m.RSS <= 0 || m.Current < m.RSS/2 || m.Current > s.Memory {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", ports[0].Host.String()); err == nil {
		c.Close()
		t.Error("the published address still answers")
	}
}

// TestExec: programs beside the first one.
func TestExec(t *testing.T) {
	t.Parallel()
	testExec(t, runcEngineUnderTest(t))
}

func testExec(t *testing.T, e engineUnderTest) {
	e.StopGrace = hurry
	s := settings("deaf")
	s.Output = t.TempDir()
	sb := e.start(guestImage(t), s)
	until(t, "ready", says(sb, "ready"))
	run := func(o ExecOptions, argv ...string) ExecResult {
		t.Helper()
		r, err := sb.Exec(t.Context(), argv, o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(ExecOptions{}, "/guest", "both"); string(r.Stdout) != "to stdout\n" || string(r.Stderr) != "to stderr\n" || r.ExitCode != 0 {
		t.Errorf("%q %q %d", r.Stdout, r.Stderr, r.ExitCode)
	}
	if r := run(ExecOptions{}, "/guest", "exit", "42"); r.ExitCode != 42 {
		t.Errorf("%+v", r)
	}
	if r := run(ExecOptions{}, "/nowhere"); r.ExitCode != 127 && e.Runtime != Docker {
		t.Errorf("%+v", r)
	}
	if r := run(ExecOptions{}, "/etc/passwd"); r.ExitCode != 126 {
		t.Errorf("%+v", r)
	}
	var got seen
	r := run(ExecOptions{User: "gem"}, "/guest", "report")
	if err := json.Unmarshal(r.Stdout, &got); err != nil || got.UID != 1000 || got.Cwd != "/tmp" {
		t.Errorf("%v: %q", err, r.Stdout)
	}
	if got.Status["Seccomp"] != "2" || got.Status["NoNewPrivs"] != "1" || got.Status["CapEff"] != "0000000000000000" {
		t.Errorf("%v", got.Status)
	}
	if r := run(ExecOptions{}, "/guest", "daemon"); r.ExitCode != 0 || !strings.Contains(string(r.Stdout), "left ") {
		t.Errorf("%+v", r)
	}
	before, err := sb.Processes(t.Context())
	if err != nil || len(before) != 2 {
		t.Errorf("%+v, %v", before, err)
	}
	for _, late := range []time.Duration{time.Second, 300 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), late) // some end while the program is being started
		if r, err := sb.Exec(ctx, []string{"/guest", "deaf"}, ExecOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v", r, err)
		}
		cancel()
	}
	until(t, "the program is killed with its context", func() bool {
		now, err := sb.Processes(t.Context())
		return err == nil && len(now) == len(before)
	})
	if r := run(ExecOptions{}, "/guest", "flood", "20000000"); !r.Truncated || len(r.Stdout) != maxExecOutput {
		t.Errorf("%d bytes, truncated %v", len(r.Stdout), r.Truncated)
	}
	if events := sb.Evidence().Events; events[0].Event != EventSpawn || events[2].Event != EventExec || !slices.Contains(events[2].Command, "both") {
		t.Errorf("%+v", events)
	}
}
