package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// The tests in this file drive a real Chromium with real agent-browser builds
// from npm. They take a minute and the network, so they run only with
// SLIMCTL_BROWSER_TESTS=1, and in CI.

func needBrowser(t *testing.T) (chromium string) {
	t.Helper()
	if os.Getenv("SLIMCTL_BROWSER_TESTS") != "1" && os.Getenv("CI") != "true" {
		t.Skip("set SLIMCTL_BROWSER_TESTS=1 to run it with a real Chromium (needs chromium, node, npm)")
	}
	for _, program := range []string{"chromium", "node", "npm"} {
		path := need.Program(t, program)
		if program == "chromium" {
			chromium = path
		}
	}
	return chromium
}

// install gets one agent-browser version and gives its program.
func install(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	npm := exec.Command("npm", "install", "--prefix", dir, "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "agent-browser@"+version)
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		need.Missing(t, "npm install agent-browser@%s: %v\n%s", version, err, out)
	}
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	program := filepath.Join(dir, "node_modules", "agent-browser", "bin", "agent-browser-linux-"+arch)
	if err := os.Chmod(program, 0o755); err != nil { // npm gives it without the execute bit
		t.Fatal(err)
	}
	return program
}

const page = `<!doctype html><title>Start</title>
<form onsubmit="event.preventDefault();out.textContent='Hello '+n.value+' '+c.value;document.title='Sent'">
<label>Name <input id="n"></label>
<label>Colour <select id="c"><option value="r">Red<option value="g">Green</select></label>
<label><input id="k" type="checkbox"> Agree</label>
<button id="go">Send</button></form>
<p id="out"></p>
<button id="later" onclick="setTimeout(()=>{let d=document.createElement('i');d.id='late';d.textContent='Arrived';document.body.append(d)},300)">Later</button>`

// startChromium starts a browser for which site.test is the given server, as
// a public site would be, and gives its DevTools port. The port is the
// browser's own choice: a fixed one may be another browser's.
func startChromium(t *testing.T, chromium, server string) int {
	t.Helper()
	profile, err := os.MkdirTemp("", "bs-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--remote-debugging-port=0", "--user-data-dir="+profile, "--host-resolver-rules=MAP site.test "+server, "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		for range 20 { // its children may still be writing
			if os.RemoveAll(profile) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if line, _, ok := strings.Cut(string(b), "\n"); err == nil && ok {
			port, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			return port
		}
	}
	t.Fatal("Chromium did not say its DevTools port within 20 s")
	return 0
}

func TestRealBrowser(t *testing.T) {
	chromium := needBrowser(t)
	for _, version := range []string{"0.8.10", "0.41.2"} {
		t.Run(version, func(t *testing.T) {
			site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				fmt.Fprint(w, page)
			}))
			t.Cleanup(site.Close)
			l := newLab(t)
			node, err := exec.LookPath("node")
			if err != nil {
				t.Fatal(err)
			}
			l.policy["agent_browser"] = map[string]any{
				"path":        install(t, version),
				"cdp_port":    startChromium(t, chromium, site.Listener.Addr().String()),
				"search_path": filepath.Dir(node) + ":/usr/bin:/bin",
			}
			s := l.connect(t)
			drive(t, s)
			if a := s.do(t, "snapshot"); a.ExitCode != 0 {
				t.Fatalf("got %+v", a)
			}
			wantNoPort(t, l)
			s.Close()
			l.wantProcesses(t, 0)
			l.wantClean(t)
		})
	}
}

// wantNoPort checks that no process of ours listens on a TCP port, where a
// page could reach it.
func wantNoPort(t *testing.T, l *lab) {
	t.Helper()
	listening := map[string]bool{} // socket inodes
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6 here
		}
		for _, line := range strings.Split(string(b), "\n") {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
				listening["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(listening) == 0 {
		t.Fatal("no listening socket was found, not even Chromium's")
	}
	l.wantProcesses(t, 1)
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || !strings.Contains(string(b), "BROWSER_SHELL_RUN="+l.state+"/") {
			continue
		}
		fds, _ := filepath.Glob(filepath.Join(filepath.Dir(f), "fd", "*"))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && listening[to] {
				t.Errorf("%s listens on a TCP port", filepath.Dir(f))
			}
		}
	}
}

// drive goes through the whole default allowlist on the test page.
func drive(t *testing.T, s *client) {
	t.Helper()
	done := func(argv ...string) answer {
		t.Helper()
		a := s.do(t, argv...)
		if a.ExitCode != 0 {
			t.Fatalf("%q: %d %s", argv, a.ExitCode, a.Stderr)
		}
		return a
	}
	if a := done("open", "http://site.test/"); !strings.Contains(a.Stdout, `"title":"Start"`) {
		t.Errorf("open: %s", a.Stdout)
	}
	var snap struct {
		Refs map[string]struct{ Name, Role string }
	}
	if err := json.Unmarshal([]byte(done("snapshot", "-i").Stdout), &snap); err != nil {
		t.Fatal(err)
	}
	ref := ""
	for r, e := range snap.Refs {
		if e.Role == "textbox" && e.Name == "Name" {
			ref = "@" + r
		}
	}
	if ref == "" {
		t.Fatalf("no reference for the text box in %+v", snap.Refs)
	}
	done("fill", ref, "Ann $(id)")
	done("type", "#n", " -5")
	done("focus", "#n")
	done("press", "End")
	done("select", "#c", "g")
	done("check", "#k")
	done("uncheck", "#k")
	done("hover", "#go")
	done("click", "#go")
	if a := done("snapshot"); !strings.Contains(a.Stdout, "Hello Ann $(id) -5 g") {
		t.Errorf("the form did not arrive as typed: %s", a.Stdout)
	}
	done("dblclick", "#later")
	done("wait", "#late")
	done("wait", "--text", "Arrived")
	done("wait", "--load", "load")
	done("wait", "50")
	if a := done("screenshot", "--full", "page.png"); len(a.raw.Content) != 2 {
		t.Errorf("screenshot without an image: %+v", a)
	} else if image, ok := a.raw.Content[1].(*mcp.ImageContent); !ok || image.MIMEType != "image/png" || len(image.Data) < 100 {
		t.Errorf("content[1]: %+v", a.raw.Content[1])
	}
	done("screenshot", "#go")

	if a := s.do(t, "wait", "--fn", "document.title='Owned'"); a.rule() != "wait.script" {
		t.Errorf("a script ran: %+v", a)
	}
	if a := s.do(t, "click", "@e999"); a.ExitCode == 0 || a.Stderr == "" {
		t.Errorf("a stale reference: %+v", a)
	}
	a := s.raw(t, map[string]any{"session_id": "s", "argv": []any{"wait", 20000}, "timeout_sec": 1})
	if a.ExitCode != 124 {
		t.Errorf("a long wait: %+v", a)
	}
	if a := done("snapshot"); !strings.Contains(a.Stdout, "Arrived") {
		t.Errorf("the page is lost after a timeout: %s", a.Stdout)
	}
	done("close")
}
