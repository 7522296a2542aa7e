//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/registry"
	"github.com/slimctl/slimctl/internal/tether"
	"github.com/slimctl/slimctl/server/audit"
)

// mcpProcess is a `slimctl mcp` with its client.
type mcpProcess struct {
	*mcp.ClientSession
	cmd     *exec.Cmd
	process *os.Process
	stderr  *safeBuffer
	leave   func() // ends the client without a word, as a kill does
}

// Close ends the client and waits for the end of the process.
func (p *mcpProcess) Close() {
	_ = p.ClientSession.Close()
	_ = p.cmd.Wait()
}

// serving returns the process that the started one started: it has the container.
func (p *mcpProcess) serving(t *testing.T) *os.Process {
	t.Helper()
	var children []string
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.process.Pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		children = append(children, strings.Fields(string(text))...)
	}
	if len(children) != 1 {
		t.Fatalf("the processes of %d are %q", p.process.Pid, children)
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	child, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// nothingRuns waits until the last container of a directory's cache is removed, which goes on after slimctl's end.
func nothingRuns(t *testing.T, dir string) {
	t.Helper()
	need.Eventually(t, func() bool { return len(traces(t, dir)) == 0 }, func() string { return fmt.Sprintf("left: %q", traces(t, dir)) })
}

// startMCP starts `slimctl mcp` as a client's configuration does.
func startMCP(t *testing.T, dir, image string) *mcpProcess {
	t.Helper()
	return startMCPOf(t, dir, "oci:"+image)
}

// startMCPOf is the same with an image anywhere.
func startMCPOf(t *testing.T, dir, reference string) *mcpProcess {
	t.Helper()
	return startMCPWith(t, dir, reference, "unix:///nowhere", "auto")
}

// startMCPWith is the same with a Docker daemon and a runtime.
func startMCPWith(t *testing.T, dir, reference, docker, runtime string) *mcpProcess {
	t.Helper()
	p := &mcpProcess{stderr: &safeBuffer{}}
	t.Cleanup(func() { nothingRuns(t, dir) }) // of dir's other tests, too
	cmd := exec.Command(need.Program(t, "slimctl"), "mcp", reference, "--artifacts", "artifacts", "--runtime", runtime)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "DOCKER_HOST="+docker)
	cmd.Stderr = p.stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	p.cmd, p.process, p.leave = cmd, cmd.Process, func() {
		input.Close()
		output.Close()
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	if p.ClientSession, err = client.Connect(t.Context(), &mcp.IOTransport{Reader: output, Writer: input}, nil); err != nil {
		t.Fatalf("%v: %s", err, p.stderr.String())
	}
	return p
}

var closeCall = &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": "s", "argv": []string{"close"}}}

// failing calls the tool, whose answer has to be an error, and gives that.
func (p *mcpProcess) failing(t *testing.T) (text string, meta mcp.Meta) {
	t.Helper()
	res, err := p.CallTool(t.Context(), closeCall)
	if err != nil || !res.IsError || len(res.Content) != 1 {
		t.Fatalf("%v: %+v\n%s", err, res, p.stderr.String())
	}
	return res.Content[0].(*mcp.TextContent).Text, res.Meta
}

// TestMCPNoStart guards that an image which doesn't boot is told in the answer and on stderr, and that nothing of it is left.
func TestMCPNoStart(t *testing.T) {
	t.Parallel()
	config := sandboxtest.Tethered
	config.Env = []string{"GUEST=cat /nothing"}
	guest := guestLayoutOf(t, config)
	config.WorkingDir = "/etc/passwd"
	broken := guestLayoutOf(t, config)
	for name, c := range map[string]struct {
		image, text string
	}{
		"ends at once": {guest, "exit status 1 while it started: guest: open /nothing: no such file"},
		"can't start":  {broken, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := startMCP(t, dir, c.image)
			// What a client asks for at first is answered all the same.
			list, err := p.ListTools(t.Context(), nil)
			if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "browser-shell" {
				t.Fatalf("%+v %v\n%s", list, err, p.stderr.String())
			}
			if made, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*")); len(made) > 0 {
				t.Errorf("something ran without a call: %q", made)
			}
			text, meta := p.failing(t)
			if meta["name"] != "SERVER_DOWN" || meta["rule"] != "container.start" || !strings.Contains(text, c.text) {
				t.Errorf("%v: %s", meta, text)
			}
			p.Close()
			for _, want := range []string{"the usual one is shown", "slimctl: the image did not start: "} {
				if !strings.Contains(p.stderr.String(), want) {
					t.Errorf("on stderr, without %q: %s", want, p.stderr.String())
				}
			}
			nothingRuns(t, dir)
			files, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*", "events.jsonl"))
			if len(files) != 1 {
				t.Fatalf("%d runs are on record", len(files))
			}
			for _, file := range files {
				checkEvents(t, file, "MCP_CONTAINER_SPAWN", "MCP_CONTAINER_CLEANUP")
				// Answers name files by this directory, wherever the client started slimctl.
				evidence, err := os.ReadFile(filepath.Join(filepath.Dir(file), "evidence.json"))
				if want := fmt.Sprintf("\"output\": %q", filepath.Join(dir, "artifacts")); err != nil || !strings.Contains(string(evidence), want) {
					t.Errorf("%v, without %s: %s", err, want, evidence)
				}
			}
		})
	}
}

// TestMCPOpensAgain guards that an image whose registry isn't reached at first is read by a later call.
func TestMCPOpensAgain(t *testing.T) {
	t.Parallel()
	config := sandboxtest.Tethered
	config.Env = []string{"GUEST=cat /nothing"}
	layout := guestLayoutOf(t, config)
	host := fmt.Sprintf("127.0.0.1:%d", need.FreePort(t))
	p := startMCPOf(t, t.TempDir(), host+"/guest:1")
	if text, _ := p.failing(t); !strings.Contains(text, "connection refused") {
		t.Errorf("a registry that isn't there: %s", text)
	}
	s, err := registry.Serve(t.Context(), host, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := s.LoadLayout("guest", "1", layout); err != nil {
		t.Fatal(err)
	}
	if text, _ := p.failing(t); !strings.Contains(text, "guest: open /nothing") {
		t.Errorf("once it is there: %s", text)
	}
}

// checkEvents verifies a chain of events and that it has these.
func checkEvents(t *testing.T, file string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Verify("", file); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	for _, event := range want {
		if !strings.Contains(string(text), event) {
			t.Errorf("%s is not in %s", event, text)
		}
	}
}

// TestMCPKilled guards that a slimctl which is told to end while an image boots, or is killed, leaves nothing; and that nothing
// stays of one whose every process is killed, once the next one starts.
func TestMCPKilled(t *testing.T) {
	t.Parallel()
	config := sandboxtest.Tethered
	config.Env = []string{"GUEST=sleep"} // it boots for ever
	image := guestLayoutOf(t, config)
	for _, how := range []string{"SIGTERM", "SIGKILL", "SIGKILL of all"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			boot := func(before string) (p *mcpProcess, id string) {
				p = startMCP(t, dir, image)
				go func() { _, _ = p.CallTool(t.Context(), closeCall) }() // it comes to nothing
				var runs []string
				need.Eventually(t, func() bool {
					runs, _ = filepath.Glob(filepath.Join(dir, "cache", "slimctl", "runs", "*-*"))
					return len(runs) == 1 && len(cgroupsOf(filepath.Base(runs[0]))) > 0 && filepath.Base(runs[0]) != before
				}, func() string { return p.stderr.String() })
				return p, filepath.Base(runs[0])
			}
			p, id := boot("")
			p.endBy(t, how)
			if how == "SIGKILL of all" {
				p, _ = boot(id)
				p.endBy(t, "SIGTERM")
			}
			nothingRuns(t, dir)
			if left := cgroupsOf(id); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// endBy ends a slimctl in a way, and waits for the started process.
func (p *mcpProcess) endBy(t *testing.T, how string) {
	t.Helper()
	signal := syscall.SIGKILL
	switch how {
	case "end of input":
		p.leave()
	case "SIGTERM":
		signal = syscall.SIGTERM
	case "SIGKILL of all":
		if err := p.serving(t).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if how != "end of input" {
		_ = p.process.Signal(signal) // it may have ended
	}
	_ = p.cmd.Wait()
}

// toolLayout is an image with a tool that answers.
func toolLayout(t *testing.T, guest string) string {
	t.Helper()
	config := sandboxtest.Tethered
	config.Env = []string{"GUEST=" + guest}
	return guestLayoutOf(t, config)
}

// checkArtifacts checks what so many calls have left in the directory of a container.
func checkArtifacts(t *testing.T, run string, calls int) {
	t.Helper()
	want := map[string]string{"audit/audit.jsonl": ""}
	for i := range calls {
		want["audit/audit.jsonl"] += fmt.Sprintf("line %d\n", i+1)
		want[fmt.Sprintf("output/run/%d.png", i+1)] = fmt.Sprintf("picture %d", i+1)
	}
	for file, want := range want {
		if got, err := os.ReadFile(filepath.Join(run, file)); err != nil || string(got) != want {
			t.Errorf("after %d calls, %s is %q (%v), want %q", calls, file, got, err, want)
		}
	}
	events, err := os.ReadFile(filepath.Join(run, "events.jsonl"))
	if got := strings.Count(string(events), sandbox.EventExec) / 2; err != nil || got != calls { // each line has it twice
		t.Errorf("%d calls are on record as %d: %v", calls, got, err)
	}
}

// awaitEvidence waits until the evidence of a container has these words.
func awaitEvidence(t *testing.T, run string, want ...string) {
	t.Helper()
	var text []byte
	need.Eventually(t, func() bool {
		text, _ = os.ReadFile(filepath.Join(run, "evidence.json"))
		return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(string(text), w) })
	}, func() string { return fmt.Sprintf("want %q: %s", want, text) })
}

// TestMCPEvidence guards that what a call leaves is in the artifacts when it is answered, however slimctl ends after that, and
// that the evidence is completed and the container removed, by the next start if nobody else is left.
func TestMCPEvidence(t *testing.T) {
	t.Parallel()
	image := toolLayout(t, "tool")
	for _, how := range []string{"end of input", "SIGTERM", "SIGKILL", "SIGKILL of all"} {
		for calls := 1; calls <= 3; calls++ {
			t.Run(fmt.Sprintf("%s after %d", how, calls), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				p := startMCP(t, dir, image)
				var run string
				for i := range calls {
					res, err := p.CallTool(t.Context(), closeCall)
					if err != nil || res.IsError {
						t.Fatalf("%v: %+v\n%s", err, res, p.stderr.String())
					}
					runs, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*"))
					if len(runs) != 1 {
						t.Fatalf("%q", runs)
					}
					run = runs[0]
					checkArtifacts(t, run, i+1)
					text, err := os.ReadFile(filepath.Join(run, "evidence.json"))
					if err != nil || !strings.Contains(string(text), `"reason": "running"`) || strings.Contains(string(text), `"exit_code"`) {
						t.Errorf("%v: %s", err, text)
					}
				}
				p.endBy(t, how)
				checkArtifacts(t, run, calls)
				want := []string{`"reason": "stopped"`, sandbox.EventCleanup, fmt.Sprintf("run/%d.png", calls)}
				if how == "SIGKILL of all" {
					next := startMCP(t, dir, image)
					if res, err := next.CallTool(t.Context(), closeCall); err != nil || res.IsError {
						t.Errorf("%v: %+v", err, res)
					}
					next.endBy(t, "SIGTERM")
					want = nil
				}
				awaitEvidence(t, run, want...)
				checkArtifacts(t, run, calls)
			})
		}
	}
}

// TestMCPEndsInTime guards against clients that end a server as the official TypeScript SDKs do: SIGTERM two seconds after the
// end of input, SIGKILL after two more.
func TestMCPEndsInTime(t *testing.T) {
	t.Parallel()
	node := need.Program(t, "node")
	sdk := filepath.Dir(need.SDKClient(t, filepath.Join("..", "..", "e2e", "testdata", "client")))
	image := toolLayout(t, "tool deaf") // the container's end takes ten seconds
	for module, stdio := range map[string]string{
		"@modelcontextprotocol/sdk/client/index.js": "@modelcontextprotocol/sdk/client/stdio.js", "@modelcontextprotocol/client": "@modelcontextprotocol/client/stdio",
	} {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			script := fmt.Sprintf(`
import { Client } from %q;
import { StdioClientTransport } from %q;
const [command, ...args] = process.argv.slice(1);
const client = new Client({ name: "sdk", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: "pipe" }));
await client.callTool({ name: "browser-shell", arguments: { session_id: "s", argv: ["screenshot"] } });
const began = Date.now();
await client.close();
process.stdout.write(String(Date.now() - began));
`, module, stdio)
			need.Within(t, 1500*time.Millisecond, func() time.Duration {
				dir := t.TempDir()
				cmd := exec.Command(node, "--input-type=module", "-e", script, need.Program(t, "slimctl"), "mcp", "oci:"+image, "--artifacts", filepath.Join(dir, "artifacts"), "--runtime", "runc")
				cmd.Dir = sdk
				cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
				stderr := &safeBuffer{}
				cmd.Stderr = stderr
				out, err := cmd.Output()
				ms, perr := strconv.Atoi(string(out))
				if err != nil || perr != nil {
					t.Fatalf("%v, %v: %s", err, perr, stderr.String())
				}
				nothingRuns(t, dir)
				runs, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*"))
				if len(runs) != 1 {
					t.Fatalf("%q", runs)
				}
				checkArtifacts(t, runs[0], 1)
				awaitEvidence(t, runs[0], sandbox.EventCleanup, "run/1.png")
				return time.Duration(ms) * time.Millisecond
			})
		})
	}
}

// dockerRelay passes connections on to a Docker daemon until it is cut, which is what a daemon's end looks like.
type dockerRelay struct {
	network, daemon, address string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func newDockerRelay(t *testing.T) *dockerRelay {
	t.Helper()
	network, daemon, _ := strings.Cut(dockerd.Host(t), "://")
	r := &dockerRelay{network: network, daemon: daemon, address: "127.0.0.1:0"}
	r.open(t)
	t.Cleanup(r.cut)
	return r
}

func (r *dockerRelay) open(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	r.address, r.listener = l.Addr().String(), l
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial(r.network, r.daemon)
			if err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, near, far)
			r.mu.Unlock()
			go tether.Pump(far, near)
		}
	}()
}

func (r *dockerRelay) cut() {
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// TestMCPInDocker guards that nothing of a container stays in Docker when its client goes, when slimctl is killed, and when the
// daemon does; and that of two clients each has its own.
func TestMCPInDocker(t *testing.T) {
	t.Parallel()
	config := sandboxtest.Tethered
	config.Env = []string{"GUEST=deaf"} // it boots for ever, and hears no signal
	image := guestLayoutOf(t, config)
	relay := newDockerRelay(t)
	host := "tcp://" + relay.address
	dir := t.TempDir()
	containers := func() []string { return dockerContainers(t, dockerd.Host(t), dir) }
	start := func() (p *mcpProcess, name string) {
		t.Helper()
		before := containers()
		p = startMCPWith(t, dir, "oci:"+image, host, sandbox.Docker)
		go func() { _, _ = p.CallTool(t.Context(), closeCall) }() // it comes to nothing
		need.Eventually(t, func() bool {
			name = ""
			for _, c := range containers() {
				if !slices.Contains(before, c) {
					name = c
				}
			}
			return name != ""
		}, p.stderr.String)
		return p, name
	}
	gone := func(what string, names ...string) {
		t.Helper()
		need.Eventually(t, func() bool {
			left := containers()
			return !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(left, n) })
		}, func() string { return fmt.Sprintf("%s: %q are left of %q", what, containers(), names) })
	}

	first, one := start()
	second, two := start()
	if left := containers(); !slices.Contains(left, one) || !slices.Contains(left, two) {
		t.Errorf("of two clients %q and %q, Docker has %q", one, two, left)
	}
	first.leave() // the client was killed
	gone("a client that is gone", one)
	if left := containers(); !slices.Contains(left, two) {
		t.Errorf("the other client's container has ended with it: %q", left)
	}
	second.endBy(t, "SIGKILL of all")
	if left := containers(); !slices.Contains(left, two) {
		t.Fatalf("a killed slimctl leaves %q: it should have left a container for this test", left)
	}
	third, three := start()
	gone("a killed slimctl, after the next one's start", two)

	relay.cut()
	need.Eventually(t, func() bool { return strings.Contains(third.stderr.String(), "did not start") }, third.stderr.String)
	if list, err := third.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 {
		t.Errorf("without a daemon: %+v, %v", list, err)
	}
	if text, meta := third.failing(t); meta["name"] != "SERVER_DOWN" || !strings.Contains(text, "docker") {
		t.Errorf("without a daemon: %v: %s", meta, text)
	}
	relay.open(t)
	go func() { _, _ = third.CallTool(t.Context(), closeCall) }()
	gone("a daemon that went, after the next call", three)
	third.leave()
	need.Eventually(t, func() bool { return len(containers()) == 0 && len(traces(t, dir)) == 0 },
		func() string {
			return fmt.Sprintf("%q, %q are left: %s", containers(), traces(t, dir), third.stderr.String())
		})
	evidence, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*", "evidence.json"))
	runs, _ := filepath.Glob(filepath.Join(dir, "artifacts", "*"))
	if len(evidence) != len(runs) {
		t.Errorf("evidence of %d runs, not of %d", len(evidence), len(runs))
	}
}
