package assets_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/need"
)

// parseINI reads what supervisord takes: sections, keys, and indented lines that go on with the value above.
func parseINI(t *testing.T, path, text string) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	var section map[string]string
	var key string
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		name, value, isKey := strings.Cut(line, "=")
		switch {
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, ";"):
			key = ""
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section, key = map[string]string{}, ""
			out[line[1:len(line)-1]] = section
		case line[0] == ' ' && key != "":
			section[key] += "\n" + strings.TrimSpace(line)
		case isKey && section != nil && line[0] != ' ':
			key = name
			if _, twice := section[key]; twice {
				t.Errorf("%s:%d: %s twice", path, n, key)
			}
			section[key] = value
		default:
			t.Errorf("%s:%d: neither section nor key: %q", path, n, line)
		}
	}
	return out
}

func confs(t *testing.T, p *profile.Profile, line profile.Line) map[string]map[string]map[string]string {
	out := map[string]map[string]map[string]string{}
	for path, text := range laid(t, p, line) {
		if strings.HasPrefix(path, "/opt/gem/supervisord/") {
			out[path] = parseINI(t, path, text)
		}
	}
	return out
}

var (
	environment = regexp.MustCompile(`(?:^|,)([A-Z_]+)="([^"]*)"`)
	expansion   = regexp.MustCompile(`%\(ENV_([A-Z_]+)\)s`)
)

func environmentOf(conf map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range environment.FindAllStringSubmatch(conf["environment"], -1) {
		out[m[1]] = m[2]
	}
	return out
}

func TestPrograms(t *testing.T) {
	p := loadProfile(t, "l0")
	want := map[profile.Line][]string{
		"A": {"browser", "browser-shell-egress", "gem-server", "mcp-hub", "nginx", "openbox", "tigervnc", "websocat"},
		"B": {"browser", "browser-shell-egress", "browser-shell-hub", "nginx", "openbox", "python-server", "tigervnc", "websocat"},
	}
	want["C"] = want["B"]
	for _, line := range lines {
		var got []string
		for path, conf := range confs(t, p, line) {
			for section, c := range conf {
				name, ok := strings.CutPrefix(section, "program:")
				if !ok {
					continue
				}
				got = append(got, name)
				if !slices.Contains(p.Expect.Programs, name) {
					t.Errorf("line %s, %s: the profile doesn't expect %s", line, path, name)
				}
				checkProgram(t, fmt.Sprintf("line %s, %s", line, name), c)
			}
		}
		sort.Strings(got)
		if diff := cmp.Diff(want[line], got); diff != "" {
			t.Errorf("line %s (-want +got):\n%s", line, diff)
		}
	}
}

// checkProgram holds a program to what a variable at run time must not change.
func checkProgram(t *testing.T, name string, c map[string]string) {
	t.Helper()
	env := environmentOf(c)
	switch c["user"] {
	case "root":
		if env["PATH"] != "/usr/sbin:/usr/bin:/sbin:/bin" || env["HOME"] != "/root" {
			t.Errorf("%s: root with PATH %q and HOME %q", name, env["PATH"], env["HOME"])
		}
		if v, ok := env["BASH_ENV"]; !ok || v != "" {
			t.Errorf("%s: root's shell reads BASH_ENV", name)
		}
	case "%(ENV_USER)s":
		if env["PATH"] != "/usr/local/bin:/usr/bin:/bin" {
			t.Errorf("%s: PATH %q", name, env["PATH"])
		}
	default:
		t.Errorf("%s: user %q", name, c["user"])
	}
	for key, value := range c {
		for _, m := range expansion.FindAllStringSubmatch(value, -1) {
			if m[1] != "USER" && (m[1] != "LOG_DIR" || !strings.HasSuffix(key, "_logfile")) {
				t.Errorf("%s: %s takes %s from the environment", name, key, m[1])
			}
		}
		if strings.Contains(value, "0.0.0.0") {
			t.Errorf("%s: %s: %s", name, key, value)
		}
	}
	if c["autostart"] != "true" || c["autorestart"] != "true" {
		t.Errorf("%s: autostart %q, autorestart %q", name, c["autostart"], c["autorestart"])
	}
}

// Flags that would open the browser or make it another one, and the one without which nothing can drive it.
func TestBrowserFlags(t *testing.T) {
	command := confs(t, loadProfile(t, "l0"), "B")["/opt/gem/supervisord/browser.conf"]["program:browser"]["command"]
	for _, bad := range []string{"--remote-allow-origins", "--disable-web-security", "--disable-site-isolation", "--remote-debugging-address", "%(ENV_BROWSER"} {
		if strings.Contains(command, bad) {
			t.Errorf("%s in the browser's command", bad)
		}
	}
	if !strings.Contains(command, "\n--remote-debugging-port=9222\n") {
		t.Errorf("no debugging port: %s", command)
	}
}

// Of two policy files that set one key, Chromium takes the last by name; the start scripts write two at run time, out of
// variables.
func TestPolicyFileIsTheLast(t *testing.T) {
	const dir = "/etc/browser/policies/managed/"
	p := loadProfile(t, "l0")
	for _, line := range lines {
		var got []string
		for path := range laid(t, p, line) {
			if name, ok := strings.CutPrefix(path, dir); ok {
				got = append(got, name)
			}
		}
		if len(got) != 1 || got[0] <= "dns_over_https.json" || got[0] <= "url_filter.json" {
			t.Errorf("line %s: policy files %q", line, got)
		}
	}
}

// The proxy is there before what sends requests through it. A lower number starts first.
func TestEgressStartsFirst(t *testing.T) {
	p := loadProfile(t, "l0")
	for _, line := range lines {
		priority := map[string]int{}
		for _, conf := range confs(t, p, line) {
			for section, c := range conf {
				if name, ok := strings.CutPrefix(section, "program:"); ok {
					n, err := strconv.Atoi(c["priority"])
					if err != nil {
						t.Fatal(err)
					}
					priority[name] = n
				}
			}
		}
		for _, name := range []string{"browser", "browser-shell-hub", "mcp-hub"} {
			if n, ok := priority[name]; ok && n <= priority["browser-shell-egress"] {
				t.Errorf("line %s: %s has priority %d, browser-shell-egress %d", line, name, n, priority["browser-shell-egress"])
			}
		}
	}
}

// nginx waits for ports that something listens on; one that is dead keeps it down for ever.
func TestWaitPorts(t *testing.T) {
	p := loadProfile(t, "l0")
	server := regexp.MustCompile(`server 127\.0\.0\.1:(\d+);`)
	for _, line := range lines {
		var known []string
		for _, m := range server.FindAllStringSubmatch(laid(t, p, line)["/opt/gem/nginx-upstreams.conf"], -1) {
			known = append(known, m[1])
		}
		env := environmentOf(confs(t, p, line)["/opt/gem/supervisord/nginx.conf"]["program:nginx"])
		ports := strings.Split(env["WAIT_PORTS"], ",")
		if len(ports) != 2 {
			t.Errorf("line %s: WAIT_PORTS %q", line, env["WAIT_PORTS"])
		}
		for _, port := range ports {
			if !slices.Contains(known, port) {
				t.Errorf("line %s: nginx waits for %s, and has upstreams %v", line, port, known)
			}
		}
	}
	hub := environmentOf(confs(t, p, "A")["/opt/gem/supervisord/supervisord.mcp_hub.conf"]["program:mcp-hub"])
	if hub["FASTAPI_WAIT_SKIP"] != "1" || hub["MCP_HUB_WAIT_PORTS"] != "9222" {
		t.Errorf("line A: the hub waits for %v", hub)
	}
}

// The real supervisord reads the confs behind the base's main file, and its socket is root's.
func TestSupervisord(t *testing.T) {
	daemon, ctl := need.Program(t, "supervisord"), need.Program(t, "supervisorctl")
	if os.Getuid() != 0 {
		need.Missing(t, "needs root, because the base's supervisord.conf gives its socket to a group")
	}
	p := loadProfile(t, "l0")
	for _, line := range lines {
		t.Run(string(line), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "sv") // the socket's path must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			main := strings.ReplaceAll(`[supervisord]
nodaemon=true
user=root
pidfile=DIR/pid
logfile=/dev/null
logfile_maxbytes=0
[include]
files=DIR/*.conf
[unix_http_server]
file=DIR/sock
chmod=0770
chown=root:%(ENV_USER)s
[supervisorctl]
serverurl=unix://DIR/sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
`, "DIR", dir)
			if err := os.WriteFile(filepath.Join(dir, "main"), []byte(main), 0o644); err != nil {
				t.Fatal(err)
			}
			var want []string
			for path, text := range laid(t, p, line) {
				if !strings.HasPrefix(path, "/opt/gem/supervisord/") {
					continue
				}
				for section := range parseINI(t, path, text) {
					if name, ok := strings.CutPrefix(section, "program:"); ok {
						want = append(want, name+" STOPPED")
					}
				}
				text = strings.ReplaceAll(text, "autostart=true", "autostart=false")
				if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			log, err := os.Create(filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			said := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
			cmd := exec.Command(daemon, "-n", "-c", filepath.Join(dir, "main"))
			cmd.Env = []string{"USER=daemon", "LOG_DIR=" + dir, "PATH=/usr/bin:/bin"}
			cmd.Stdout, cmd.Stderr = log, log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				cmd.Process.Signal(syscall.SIGTERM)
				cmd.Wait()
			})
			for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				if _, err = os.Stat(filepath.Join(dir, "sock")); err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("no socket: %s", said())
				}
			}
			status := exec.Command(ctl, "-c", filepath.Join(dir, "main"), "status")
			status.Env = cmd.Env
			text, _ := status.Output() // it exits with 3 when programs are stopped
			var got []string
			for l := range strings.Lines(string(text)) {
				got = append(got, strings.Join(strings.Fields(l)[:2], " "))
			}
			sort.Strings(want)
			sort.Strings(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("programs (-want +got):\n%s%s", diff, said())
			}
			info, err := os.Stat(filepath.Join(dir, "sock"))
			if err != nil {
				t.Fatal(err)
			}
			if owner := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o700 || owner.Uid != 0 || owner.Gid != 0 {
				t.Errorf("socket %v %d:%d, want 0700 0:0", info.Mode().Perm(), owner.Uid, owner.Gid)
			}
		})
	}
}
