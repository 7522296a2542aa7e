package assets_test

import (
	"bufio"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
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

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/internal/need"
)

const supervisordConf = "/opt/gem/supervisord.conf"

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

// conf returns the sections of the image's supervisord.conf.
func conf(t *testing.T) map[string]map[string]string {
	return parseINI(t, supervisordConf, laid(t, loadProfile(t, "l0"), "A")[supervisordConf])
}

var (
	environment = regexp.MustCompile(`(?:^|,)([A-Z_]+)="([^"]*)"`)
	expansion   = regexp.MustCompile(`%\(([A-Za-z_]+)\)`)
)

func environmentOf(conf map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range environment.FindAllStringSubmatch(conf["environment"], -1) {
		out[m[1]] = m[2]
	}
	return out
}

// The programs are the profile's, each under its account, with nothing of the environment but what init writes there.
func TestPrograms(t *testing.T) {
	const service, desktop = "%(ENV_SLIM_SERVICE_USER)s", "%(ENV_SLIM_DESKTOP_USER)s"
	users := map[string]string{"browser": desktop, "browser-shell": service, "nginx": "", "openbox": desktop, "tigervnc": desktop}
	var got []string
	for section, c := range conf(t) {
		if section == "include" {
			t.Error("what lies elsewhere would be started")
		}
		name, ok := strings.CutPrefix(section, "program:")
		for key, value := range c {
			for _, m := range expansion.FindAllStringSubmatch(value, -1) {
				if !slices.Contains([]string{"ENV_SLIM_SUPERVISOR_USER", "ENV_SLIM_SERVICE_USER", "ENV_SLIM_DESKTOP_USER", "ENV_SLIM_NGINX_CONF", "ENV_SLIM_SCREEN", "ENV_SLIM_WINDOW", "ENV_SLIM_LANG"}, m[1]) {
					t.Errorf("%s: %s takes %s from elsewhere", section, key, m[1])
				}
			}
			if strings.Contains(value, "0.0.0.0") {
				t.Errorf("%s: %s: %s", section, key, value)
			}
		}
		if !ok {
			continue
		}
		got = append(got, name)
		if c["user"] != users[name] {
			t.Errorf("%s: user %q, want %q", name, c["user"], users[name])
		}
		env, path := environmentOf(c), "/usr/local/bin:/usr/bin:/bin"
		if name == "nginx" {
			path = "/usr/sbin:/usr/bin:/sbin:/bin"
		}
		if env["PATH"] != path || env["HOME"] == "" {
			t.Errorf("%s: PATH %q and HOME %q", name, env["PATH"], env["HOME"])
		}
		if program, _, _ := strings.Cut(strings.Fields(c["command"])[0], " "); !filepath.IsAbs(program) {
			t.Errorf("%s: %s is looked up in PATH", name, program)
		}
		log := "stdout_logfile"
		if name == "browser-shell" { // the other one is the container's output
			log = "stderr_logfile"
		}
		if c["autorestart"] != "true" || c["autostart"] != "" || !strings.HasPrefix(c[log], "/var/log/gem/") || c[log+"_maxbytes"] == "" {
			t.Errorf("%s: %v", name, c)
		}
	}
	sort.Strings(got)
	if diff := cmp.Diff(loadProfile(t, "l0").Expect.Programs, got); diff != "" {
		t.Errorf("programs (-profile +conf):\n%s", diff)
	}
}

// A viewer neither shuts out the others nor chooses how much memory the screen takes, and Xvnc knows the flags for it.
func TestDesktopFlags(t *testing.T) {
	words := strings.Fields(conf(t)["program:tigervnc"]["command"])
	for _, flag := range []string{"-localhost", "-UseBlacklist=0", "-AcceptSetDesktopSize=0"} {
		if !slices.Contains(words, flag) {
			t.Errorf("no %s: %q", flag, words)
		}
	}
	help, err := exec.Command(need.Program(t, "Xvnc"), "-help").CombinedOutput() // it ends with 1
	for _, name := range []string{"UseBlacklist", "AcceptSetDesktopSize"} {
		if !strings.Contains(string(help), name) {
			t.Errorf("Xvnc knows no %s: %v", name, err)
		}
	}
}

// Flags that would open the browser or make it another one, and the one without which nothing can drive it.
func TestBrowserFlags(t *testing.T) {
	command := conf(t)["program:browser"]["command"]
	for _, bad := range []string{"--remote-allow-origins", "--disable-web-security", "--disable-site-isolation", "--remote-debugging-address"} {
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

// The proxy is there before what sends requests through it, and the desktop before its windows. A lower number starts first.
func TestOrder(t *testing.T) {
	last := 0
	for _, name := range []string{"browser-shell", "tigervnc", "openbox", "browser", "nginx"} {
		n, err := strconv.Atoi(conf(t)["program:"+name]["priority"])
		if err != nil || n <= last {
			t.Errorf("%s has priority %d after %d: %v", name, n, last, err)
		}
		last = n
	}
}

// Nobody logs in: no account has a password or a shell, the two of the image are what the programs are run as, and none is
// in a second group.
func TestAccounts(t *testing.T) {
	read := func(name string, fields int) map[string][]string {
		t.Helper()
		data, err := fs.ReadFile(assets.FS, "accounts/"+name)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]string{}
		for line := range strings.Lines(string(data)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(f) != fields || out[f[0]] != nil {
				t.Errorf("%s: %q", name, line)
			}
			out[f[0]] = f
		}
		return out
	}
	users, groups, shadow := read("passwd", 7), read("group", 4), read("shadow", 9)
	ids := map[string]string{}
	for name, u := range users {
		if u[1] != "x" || shadow[name] == nil || shadow[name][1] != "*" {
			t.Errorf("%s may have a password", name)
		}
		if u[6] != "/usr/sbin/nologin" {
			t.Errorf("%s has the shell %s", name, u[6])
		}
		if ids[u[2]] != "" {
			t.Errorf("%s and %s are both user %s", name, ids[u[2]], u[2])
		}
		ids[u[2]] = name
	}
	if len(shadow) != len(users) {
		t.Errorf("%d users, %d passwords", len(users), len(shadow))
	}
	for name, g := range groups {
		if g[1] != "x" || g[3] != "" {
			t.Errorf("group %s: %q", name, g)
		}
	}
	for name, want := range map[string]string{"root": "0:0 /root", "gem": "1000:1000 /home/gem", "browser-shell": "1001:1001 /var/lib/browser-shell"} {
		if u := users[name]; u == nil || u[2]+":"+u[3]+" "+u[5] != want || groups[name] == nil || groups[name][2] != u[3] {
			t.Errorf("%s: %q", name, u)
		}
	}
	if users["nobody"] == nil || groups["nogroup"] == nil {
		t.Error("nginx needs nobody and nogroup")
	}
}

// A person at the desktop starts no program by the window manager.
func TestOpenboxStartsNothing(t *testing.T) {
	data, err := fs.ReadFile(assets.FS, "openbox/openbox.xml")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"Focus", "Raise", "Move"}
	for d := xml.NewDecoder(strings.NewReader(string(data))); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		if slices.Contains([]string{"keybind", "menu", "execute", "command"}, e.Name.Local) {
			t.Errorf("<%s>", e.Name.Local)
		}
		if e.Name.Local == "action" && !slices.Contains(allowed, e.Attr[0].Value) {
			t.Errorf("action %s", e.Attr[0].Value)
		}
	}
}

// The real supervisord takes the conf, as root and as another user, and starts each program as whom it should, with the
// environment that is written there; and its socket is its own.
func TestSupervisord(t *testing.T) {
	daemon, ctl := need.Program(t, "supervisord"), need.Program(t, "supervisorctl")
	if os.Getuid() != 0 {
		need.Missing(t, "needs root, because programs change their user")
	}
	// daemon and bin stand for gem and browser-shell, who are no users of the machine that tests.
	for _, tt := range []struct {
		name             string
		uid              uint32
		desktop, service string
	}{{"root", 0, "daemon", "bin"}, {"rootless", 1, "daemon", "daemon"}} {
		t.Run(tt.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "sv") // the socket's path must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			for _, d := range []string{"", "/run", "/log", "/said"} {
				if err := errors.Join(os.MkdirAll(dir+d, 0o755), os.Chmod(dir+d, 0o755), os.Chown(dir+d, int(tt.uid), -1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(dir+"/said", 0o777); err != nil {
				t.Fatal(err)
			}
			stub := dir + "/stub"
			script := "#!/bin/sh\n{ id -un; env; } >" + dir + "/said/$1.new && mv " + dir + "/said/$1.new " + dir + "/said/$1\necho output of $1\nexec sleep 600\n"
			if err := os.WriteFile(stub, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			// The commands are longer than their first line; of each the stub hears the program's name.
			text := laid(t, loadProfile(t, "l0"), "A")[supervisordConf]
			text = regexp.MustCompile(`(?m)(\[program:(.*)\]\ncommand=).*\n(?:  .*\n)*`).ReplaceAllString(text, "${1}"+stub+" ${2}\n")
			text = regexp.MustCompile(`(?m)^directory=.*\n`).ReplaceAllString(text, "")
			text = strings.NewReplacer("/run/supervisor", dir+"/run", "/var/log/gem", dir+"/log").Replace(text)
			if err := os.WriteFile(dir+"/conf", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			// It is opened again by its name: without O_APPEND supervisord's next line would overwrite what the program wrote.
			log, err := os.OpenFile(dir+"/out", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if err := log.Chmod(0o666); err != nil {
				t.Fatal(err)
			}
			output := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
			cmd := exec.Command(daemon, "-n", "-c", dir+"/conf")
			cmd.Dir = "/"
			self := map[uint32]string{0: "root", 1: "daemon"}[tt.uid]
			cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "TZ=UTC", "HOME=/", "SLIM_SUPERVISOR_USER=" + self, "SLIM_DESKTOP_USER=" + tt.desktop, "SLIM_SERVICE_USER=" + tt.service, "SLIM_NGINX_CONF=/x", "SLIM_SCREEN=1280x1024", "SLIM_WINDOW=1280,1024", "SLIM_LANG=en-US,en"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid}}
			cmd.Stdout, cmd.Stderr = log, log
			if err := need.Start(t, cmd); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGTERM) // it may be gone
				_ = cmd.Wait()
			})
			users := map[string]string{"browser": tt.desktop, "browser-shell": tt.service, "nginx": self, "openbox": tt.desktop, "tigervnc": tt.desktop}
			for name, user := range users {
				var said []byte
				need.Eventually(t, func() bool {
					said, err = os.ReadFile(dir + "/said/" + name)
					return err == nil
				}, output)
				who, env, _ := strings.Cut(string(said), "\n")
				if who != user {
					t.Errorf("%s runs as %s, want %s", name, who, user)
				}
				for _, want := range []string{"LANG=C.UTF-8", "TZ=UTC", "PATH=" + environmentOf(conf(t)["program:"+name])["PATH"]} {
					if !strings.Contains("\n"+env, "\n"+want+"\n") {
						t.Errorf("%s has no %s in its environment:\n%s", name, want, env)
					}
				}
			}
			need.Eventually(t, func() bool { return strings.Contains(output(), "output of browser-shell\n") }, output)
			if strings.Count(output(), "output of") != 1 {
				t.Errorf("other programs write to the container's output: %s", output())
			}
			if strings.Contains(output(), "as root") {
				t.Errorf("supervisord warns of what it runs as: %s", output())
			}
			info, err := os.Stat(dir + "/run/sock")
			if err != nil {
				t.Fatal(err)
			}
			if owner := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o700 || owner.Uid != tt.uid {
				t.Errorf("socket %v of user %d", info.Mode().Perm(), owner.Uid)
			}
			status := exec.Command(ctl, "-c", dir+"/conf", "status")
			status.Env = cmd.Env
			out, _ := status.Output() // it exits with 3 as long as a program is starting
			if n := strings.Count(string(out), "\n"); n != len(users) {
				t.Errorf("%d programs:\n%s", n, out)
			}
		})
	}
}
