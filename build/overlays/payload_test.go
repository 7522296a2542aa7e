package overlays

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/capture"
	"github.com/slimctl/slimctl/internal/need"
)

func TestFiles(t *testing.T) {
	for _, v := range []struct{ version, integrity string }{{nodeVersion, nodeSum}, {nativeVersion, nativeSum}} {
		p := fetched(t, v.version, v.integrity)
		for arch, c := range map[string]struct {
			binary  string
			machine elf.Machine
		}{
			"amd64": {"/opt/agent-browser/bin/agent-browser-linux-x64", elf.EM_X86_64},
			"arm64": {"/opt/agent-browser/bin/agent-browser-linux-arm64", elf.EM_AARCH64},
		} {
			t.Run(v.version+"/"+arch, func(t *testing.T) {
				files, err := p.Files(arch)
				must(t, err)
				node, last := 0, ""
				for _, f := range files {
					if f.Path <= last {
						t.Errorf("%s comes after %s", f.Path, last)
					}
					last = f.Path
					checkEntry(t, f, c.binary)
					if strings.Contains(f.Path, "/node_modules/") || strings.Contains(f.Path, "/dist/") {
						node++
					}
				}
				if (node == 0) != p.Native {
					t.Errorf("%d files of dist and node_modules, native %v", node, p.Native)
				}
				e, err := elf.NewFile(bytes.NewReader(read(t, find(t, files, c.binary))))
				must(t, err)
				if e.Machine != c.machine {
					t.Errorf("%s is for %s", c.binary, e.Machine)
				}
				if link := find(t, files, "/usr/local/bin/agent-browser"); link.Type != image.TypeSymlink || link.Link != c.binary {
					t.Errorf("agent-browser on PATH: %s to %s", link.Type, link.Link)
				}
				find(t, files, "/opt/agent-browser/package.json")
				find(t, files, "/opt/agent-browser/LICENSE")
			})
		}
		if _, err := p.Files("riscv64"); err == nil || !strings.Contains(err.Error(), "riscv64") {
			t.Errorf("riscv64: error %v", err)
		}
	}
}

// checkEntry looks at what one file of a payload says of itself.
func checkEntry(t *testing.T, f image.File, binary string) {
	t.Helper()
	if f.UID != 0 || f.GID != 0 || !f.ModTime.IsZero() || f.Xattrs != nil {
		t.Errorf("%s: %+v: want root's, no time", f.Path, f.Entry)
	}
	if f.Type == image.TypeSymlink {
		return
	}
	want := int64(0o644)
	if f.Path == binary {
		want = 0o755
	}
	if f.Type != image.TypeFile || f.Mode != want {
		t.Errorf("%s: %s %04o, want %04o", f.Path, f.Type, f.Mode, want)
	}
	if path.Base(path.Dir(f.Path)) == "bin" && f.Path != binary {
		t.Errorf("%s: another architecture's", f.Path)
	}
}

func TestExportAndPrepared(t *testing.T) {
	p := fetched(t, nodeVersion, nodeSum)
	dir := filepath.Join(t.TempDir(), "out")
	must(t, p.Export(dir))
	info, err := os.Stat(filepath.Join(dir, "bin", "agent-browser-linux-arm64"))
	must(t, err)
	if info.Mode().Perm() != 0o755 {
		t.Errorf("exported binary has mode %v", info.Mode())
	}
	again, err := Prepared(dir)
	must(t, err)
	if again.Digest != p.Digest || again.Version != p.Version || again.Integrity != p.Integrity {
		t.Errorf("prepared %+v, exported %+v", again, p)
	}
	must(t, again.Matches(nodeVersion, nodeSum))
	if err := again.Matches(nodeVersion, nativeSum); !errors.Is(err, ErrIntegrity) {
		t.Errorf("other integrity: %v", err)
	}
	if err := again.Matches("0.8.9", nodeSum); !errors.Is(err, ErrIntegrity) {
		t.Errorf("other version: %v", err)
	}
	if err := p.Export(dir); err == nil || !strings.Contains(err.Error(), "isn't empty") {
		t.Errorf("a second export: %v", err)
	}
	empty := t.TempDir()
	must(t, p.Export(empty))
	if _, err := Prepared(empty); err != nil {
		t.Errorf("export to an empty directory: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, manifestName)))
	if _, err := Prepared(dir); !errors.Is(err, ErrIntegrity) || !strings.Contains(err.Error(), "no integrity known") {
		t.Errorf("a directory without a list: %v", err)
	}
}

func TestPreparedRefuses(t *testing.T) {
	node, native := fetched(t, nodeVersion, nodeSum), fetched(t, nativeVersion, nativeSum)
	in := filepath.Join
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				must(t, os.RemoveAll(in(dir, name)))
			}
		}
	}
	for name, c := range map[string]struct {
		of    *Payload
		spoil func(t *testing.T, dir string)
		says  string
	}{
		"empty":           {node, remove("payload.json", "package.json", "dist", "node_modules", "bin", "LICENSE"), "slimctl payload fetch"},
		"a file less":     {node, remove("dist/actions.js"), "actions.js"},
		"no dist":         {node, relisted(remove("dist")), "dist/daemon.js: missing"},
		"no dependency":   {node, relisted(remove("node_modules/ws")), "node_modules/ws/package.json: missing"},
		"no arm64":        {native, relisted(remove("bin/agent-browser-linux-arm64")), "linux-arm64"},
		"bad list":        {native, func(t *testing.T, dir string) { put(t, in(dir, manifestName), "[]") }, manifestName},
		"up in the list":  {native, func(t *testing.T, dir string) { put(t, in(dir, manifestName), `{"files":[{"path":"../x"}]}`) }, "../x"},
		"setuid in list":  {native, func(t *testing.T, dir string) { sedFile(t, in(dir, manifestName), `"0755"`, `"4755"`) }, "4755"},
		"another version": {native, func(t *testing.T, dir string) { sedFile(t, in(dir, manifestName), "0.41.2", "0.41.1") }, "0.41.1"},
		"another program": {native, relisted(func(t *testing.T, dir string) { put(t, in(dir, "bin/extra"), "") }), "bin/extra: not part"},
		"dist beside":     {native, relisted(func(t *testing.T, dir string) { put(t, in(dir, "dist/daemon.js"), "") }), "daemon.js: not part"},
		"another package": {native, relisted(func(t *testing.T, dir string) {
			put(t, in(dir, "package.json"), `{"name":"x","version":"1.0.0"}`)
		}), `package "x"`},
		"not a program": {native, relisted(func(t *testing.T, dir string) {
			put(t, in(dir, "bin/agent-browser-linux-x64"), "#!/bin/sh\n")
		}), "not a Linux program"},
		"link out": {node, func(t *testing.T, dir string) {
			remove("dist/types.js")(t, dir)
			must(t, os.Symlink("/etc/passwd", in(dir, "dist/types.js")))
		}, "regular files only"},
		"wrong machine":    {native, relisted(swapBinaries), "EM_AARCH64"},
		"false claim":      {native, falseClaim, "claims the integrity of agent-browser 0.41.2"},
		"false claim node": {node, falseClaim, "claims the integrity of agent-browser 0.8.10"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := in(t.TempDir(), "payload")
			must(t, c.of.Export(dir))
			c.spoil(t, dir)
			if _, err := Prepared(dir); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
	if _, err := Prepared(in(t.TempDir(), "absent")); err == nil {
		t.Error("an absent directory is taken")
	}
}

// relisted spoils a directory and writes its list anew, with no integrity.
func relisted(spoil func(t *testing.T, dir string)) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		m, err := readManifest(dir)
		must(t, err)
		spoil(t, dir)
		m.Integrity = ""
		m.Files, err = listFiles(dir)
		must(t, err)
		put(t, filepath.Join(dir, manifestName), string(m.encode()))
	}
}

// describe makes the manifest of what lies in dir.
func describe(dir, integrity string) (manifest, error) {
	version, err := packageVersion(dir)
	if err != nil {
		return manifest{}, err
	}
	files, err := listFiles(dir)
	return manifest{Version: version, Integrity: integrity, Native: isNative(version), Files: files}, err
}

func sedFile(t *testing.T, name, old, replacement string) {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	put(t, name, strings.ReplaceAll(string(data), old, replacement))
}

func swapBinaries(t *testing.T, dir string) {
	x64, arm := filepath.Join(dir, arches["amd64"].binary), filepath.Join(dir, arches["arm64"].binary)
	must(t, os.Rename(x64, x64+"~"))
	must(t, os.Rename(arm, x64))
	must(t, os.Rename(x64+"~", arm))
}

// falseClaim changes a file and makes the directory's own list agree.
func falseClaim(t *testing.T, dir string) {
	m, err := readManifest(dir)
	must(t, err)
	put(t, filepath.Join(dir, "LICENSE"), "none")
	changed, err := describe(dir, m.Integrity)
	must(t, err)
	put(t, filepath.Join(dir, manifestName), string(changed.encode()))
}

var (
	requires = regexp.MustCompile(`\brequire\("(\.[^"]*)"\)`)
	imports  = regexp.MustCompile(`(?m)^\s*(?:import|export) [^'"]*['"](\.[^'"]*)['"]`)
)

// TestPrunedImportsResolve: no file that is left asks for one that was pruned.
func TestPrunedImportsResolve(t *testing.T) {
	p := fetched(t, nodeVersion, nodeSum)
	have := map[string]bool{}
	for _, f := range p.files {
		have[f.Path] = true
	}
	asked := 0
	for _, f := range p.files {
		if ext := path.Ext(f.Path); ext != ".js" && ext != ".mjs" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(p.dir, f.Path))
		must(t, err)
		for _, m := range append(requires.FindAllSubmatch(data, -1), imports.FindAllSubmatch(data, -1)...) {
			asked++
			to := path.Join(path.Dir(f.Path), string(m[1]))
			if !have[to] && !have[to+".js"] && !have[to+".json"] && !have[to+"/index.js"] {
				t.Errorf("%s asks for %s, which is not kept", f.Path, to)
			}
		}
	}
	if asked < 500 {
		t.Errorf("only %d imports seen", asked)
	}
}

// lab is a payload laid out as in an image, ready to run on this machine.
type lab struct {
	root, sockets string
	env           []string
}

func newLab(t *testing.T, p *Payload) lab {
	t.Helper()
	if runtime.GOOS != "linux" || arches[runtime.GOARCH].machine == 0 {
		need.Missing(t, "agent-browser's Linux programs can't run here")
	}
	files, err := p.Files(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	l := lab{root: t.TempDir()}
	write(t, l.root, files)
	// A socket's path may have 103 bytes at most.
	l.sockets, err = os.MkdirTemp("", "ab")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(l.sockets) })
	l.env = []string{"HOME=" + l.sockets, "AGENT_BROWSER_SOCKET_DIR=" + l.sockets}
	if !p.Native {
		l.env = append(l.env, "PATH="+filepath.Dir(need.Program(t, "node")))
	}
	return l
}

// run calls agent-browser by its link, as on PATH.
func (l lab) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return command(t, l.env, filepath.Join(l.root, payloadLink), args...)
}

func TestVersionRuns(t *testing.T) {
	for version, integrity := range map[string]string{nodeVersion: nodeSum, nativeVersion: nativeSum} {
		out, err := newLab(t, fetched(t, version, integrity)).run(t, "--version")
		if err != nil || strings.TrimSpace(out) != "agent-browser "+version {
			t.Errorf("--version: %q, %v", out, err)
		}
	}
}

// TestDaemonStarts: the pruned tree holds all that the daemon of a version with Node imports.
func TestDaemonStarts(t *testing.T) {
	l := newLab(t, fetched(t, nodeVersion, nodeSum))
	cmd := exec.Command(need.Program(t, "node"), filepath.Join(l.root, payloadRoot, "dist", "daemon.js"))
	out := capture.Tail{Max: maxOutput}
	cmd.Env = append(l.env, "AGENT_BROWSER_DAEMON=1", "AGENT_BROWSER_SESSION=s")
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, need.Start(t, cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(need.Patience); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			t.Fatalf("the daemon ended: %v\n%s", err, out.Bytes())
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := os.Stat(filepath.Join(l.sockets, "s.sock")); err == nil {
			break
		}
	}
	if _, err := os.Stat(filepath.Join(l.sockets, "s.sock")); err != nil {
		t.Errorf("no socket: %v", err)
	}
	must(t, cmd.Process.Kill())
	<-ended
}

const labPage = `<!doctype html><title>Lab</title><h1>Lab</h1><a href="/next">next</a>
<label>Name <input id=name></label><label><input id=agree type=checkbox> agree</label>
<select id=colour><option value=r>red<option value=g>green</select>
<button id=go onclick="document.title='Went'">Go</button><div style="height:3000px"></div>`

// moving matches what agent-browser says when a navigation cut its question off.
var moving = regexp.MustCompile(`CDP error .*(Inspected target navigated or closed|Not attached to an active page)`)

// TestCommands runs what browser-shell lets through, on a real Chromium, from the tree as an image has it.
func TestCommands(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.ReplaceAll(labPage, "Lab", "Lab "+r.URL.Path))
	}))
	defer page.Close()
	port := startChromium(t)
	for version, integrity := range map[string]string{nodeVersion: nodeSum, nativeVersion: nativeSum} {
		t.Run(version, func(t *testing.T) {
			l := newLab(t, fetched(t, version, integrity))
			t.Cleanup(func() { l.stopDaemon("s") })
			shot := filepath.Join(l.sockets, "shot.png")
			for _, call := range []struct{ argv, says string }{
				{"open " + page.URL + "/", "Lab /"},
				{"snapshot -i", "textbox"},
				{"snapshot", "heading"},
				{"get title", "Lab /"},
				{"get url", page.URL},
				{"get text h1", "Lab /"},
				{"fill #name Ada", ""},
				{"type #name Lovelace", ""},
				{"get value #name", "Lovelace"},
				{"press Tab", ""},
				{"check #agree", ""},
				{"is checked #agree", "true"},
				{"uncheck #agree", ""},
				{"select #colour g", ""},
				{"hover #go", ""},
				{"focus #name", ""},
				{"scroll down 300", ""},
				{"click #go", ""},
				{"dblclick #go", ""},
				{"get title", "Went"},
				{"wait #go", ""},
				{"wait 100", ""},
				{"wait --load load", ""},
				{"screenshot " + shot, "shot.png"},
				{"open " + page.URL + "/next", "Lab /next"},
				{"back", ""},
				{"forward", ""},
				{"reload", ""},
				{"close", "closed"},
			} {
				argv := append([]string{"--session", "s", "--cdp", port, "--json"}, strings.Fields(call.argv)...)
				out, err := l.run(t, argv...)
				// A page that moves on while it is asked is Chromium's to tell, and the caller's to ask again.
				for deadline := time.Now().Add(need.Patience); moving.MatchString(out) && time.Now().Before(deadline); {
					out, err = l.run(t, argv...)
				}
				var answer struct{ Success bool }
				if jsonErr := json.Unmarshal([]byte(out), &answer); err != nil || jsonErr != nil || !answer.Success || !strings.Contains(out, call.says) {
					t.Errorf("%s: %v, %s", call.argv, err, out)
				}
			}
			if data, err := os.ReadFile(shot); err != nil || !bytes.HasPrefix(data, []byte("\x89PNG")) {
				t.Errorf("screenshot: %v", err)
			}
		})
	}
}

// stopDaemon ends what `close` may have left.
func (l lab) stopDaemon(session string) {
	data, err := os.ReadFile(filepath.Join(l.sockets, session+".pid"))
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && pid > 1 {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
}

// startChromium returns the debugging port of a headless Chromium that ends with the test. Its back-forward cache is off:
// 0.8.10's back and forward wait for a load event that a page out of that cache doesn't send.
func startChromium(t *testing.T) string {
	t.Helper()
	data := t.TempDir()
	cmd := exec.Command(need.Program(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--disable-back-forward-cache",
		"--remote-debugging-port=0", "--user-data-dir="+data, "about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+data) // killed, it leaves its socket's directory behind
	must(t, need.Start(t, cmd))
	for deadline := time.Now().Add(need.Patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		port, _, found := strings.Cut(readString(filepath.Join(data, "DevToolsActivePort")), "\n")
		if found {
			return port
		}
	}
	t.Fatalf("chromium opened no debugging port within %s", need.Patience)
	return ""
}

func readString(name string) string {
	data, _ := os.ReadFile(name)
	return string(data)
}
