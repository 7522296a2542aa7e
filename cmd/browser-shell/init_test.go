//go:build linux

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/gate"
)

const apiKey = "0123456789abcdef0123456789abcdef"

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == name {
				return v
			}
		}
		return ""
	}
}

func TestInitRefuses(t *testing.T) {
	key := "SANDBOX_API_KEY=" + apiKey
	for _, tt := range []struct {
		name string
		uid  int
		env  []string
		want string // in the error; empty: none
	}{
		{"no key", 0, nil, "SLIM_ALLOW_ANONYMOUS=true"},
		{"no key, rootless", 1000, nil, "SANDBOX_API_KEY"},
		{"a key", 0, []string{key}, ""},
		{"a key, rootless", 1000, []string{key}, ""},
		{"anonymous", 0, []string{"SLIM_ALLOW_ANONYMOUS=true"}, ""},
		{"anonymous, oddly", 0, []string{"SLIM_ALLOW_ANONYMOUS=yes"}, "SLIM_ALLOW_ANONYMOUS"},
		{"loopback", 0, []string{"SLIM_LISTEN=loopback"}, ""},
		{"everywhere", 0, []string{key, "SLIM_LISTEN=0.0.0.0"}, "SLIM_LISTEN: must be loopback or empty"},
		{"a path", 0, []string{key, "SLIM_LISTEN=/../../etc/passwd"}, "SLIM_LISTEN"},
		{"a short key", 0, []string{"SANDBOX_API_KEY=" + apiKey[:8]}, "SANDBOX_API_KEY"},
		{"no base64", 0, []string{"JWT_PUBLIC_KEY=-----BEGIN PUBLIC KEY-----"}, "JWT_PUBLIC_KEY"},
		{"no PEM", 0, []string{"JWT_PUBLIC_KEY=" + base64.StdEncoding.EncodeToString([]byte(apiKey))}, "JWT_PUBLIC_KEY"},
		{"no key at all beside a bad one", 0, []string{"JWT_PUBLIC_KEY=x", "SLIM_ALLOW_ANONYMOUS=true"}, "JWT_PUBLIC_KEY"},
		{"two audiences", 0, []string{key, "JWT_AUDIENCE=a b"}, "JWT_AUDIENCE"},
		{"a long life", 0, []string{key, "TICKET_TTL_SECONDS=86401"}, "TICKET_TTL_SECONDS"},
		{"a file for a time zone", 0, []string{key, "TZ=:/etc/shadow"}, "TZ"},
		{"a way out of the time zones", 0, []string{key, "TZ=../../etc/shadow"}, "TZ"},
		{"supervisord's own language", 0, []string{key, "TZ=%(ENV_HOME)s"}, "TZ"},
		{"a screen", 0, []string{key, "SLIM_SCREEN=3840x2160"}, ""},
		{"a screen for ants", 0, []string{key, "SLIM_SCREEN=319x240"}, "SLIM_SCREEN"},
		{"a screen that takes all memory", 0, []string{key, "SLIM_SCREEN=9999x9999"}, "SLIM_SCREEN"},
		{"another option of Xvnc", 0, []string{key, "SLIM_SCREEN=1280x800 -localhost=0"}, "SLIM_SCREEN"},
		{"another line", 0, []string{key, "SLIM_SCREEN=1280x800\n"}, "SLIM_SCREEN"},
		{"digits that aren't ASCII", 0, []string{key, "SLIM_SCREEN=١٢٨٠x٨٠٠"}, "SLIM_SCREEN"},
		{"languages", 0, []string{key, "SLIM_LANG=zh-Hans-CN,zh,en"}, ""},
		{"another option of the browser", 0, []string{key, "SLIM_LANG=de --remote-debugging-address=0.0.0.0"}, "SLIM_LANG"},
		{"a quote", 0, []string{key, `SLIM_LANG=de"`}, "SLIM_LANG"},
		{"a language of supervisord", 0, []string{key, "SLIM_LANG=%(ENV_HOME)s"}, "SLIM_LANG"},
		{"too many languages", 0, []string{key, "SLIM_LANG=" + strings.Repeat("de,", 8) + "de"}, "SLIM_LANG"},
		{"another user", 1234, []string{key}, "--user 1000:1000"},
		{"the service's user", 1001, []string{key}, "--user 1000:1000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readPlan(env(tt.env...), tt.uid, func(string) bool { return true })
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %v, want one that says %s", err, tt.want)
			}
			if n := strings.Count(err.Error(), "SLIM_LISTEN: "); n > 1 {
				t.Errorf("the error says it %d times: %v", n, err)
			}
			if strings.Contains(err.Error(), apiKey) || strings.Contains(err.Error(), apiKey[:8]) {
				t.Errorf("the error shows a key: %v", err)
			}
			if want := tt.uid == 0 || tt.uid == 1000; errors.Is(err, errConfig) != want {
				t.Errorf("%v is an error of the configuration: %v, want %v", err, !want, want)
			}
			var said strings.Builder
			if code := reportExit(err, &said); errors.Is(err, errConfig) && code != 78 {
				t.Errorf("exit code %d, want 78", code)
			}
		})
	}
}

// Whatever the container's environment holds, the programs get these variables and no other.
func TestInitEnvironment(t *testing.T) {
	var asked []string
	getenv := func(name string) string {
		asked = append(asked, name)
		return map[string]string{"SANDBOX_API_KEY": apiKey, "TZ": "Europe/Berlin", "SLIM_SCREEN": "1280x800", "SLIM_LANG": "de-CH,de"}[name]
	}
	p, err := readPlan(getenv, 0, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "TZ=Europe/Berlin",
		"SLIM_SUPERVISOR_USER=root", "SLIM_DESKTOP_USER=gem", "SLIM_SERVICE_USER=browser-shell", "SLIM_NGINX_CONF=/opt/gem/nginx.conf",
		"SLIM_SCREEN=1280x800", "SLIM_WINDOW=1280,800", "SLIM_LANG=de-CH,de",
	}, p.env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	slices.Sort(asked)
	if diff := cmp.Diff([]string{"JWT_AUDIENCE", "JWT_ISSUER", "JWT_PUBLIC_KEY", "SANDBOX_API_KEY", "SLIM_ALLOW_ANONYMOUS", "SLIM_LANG", "SLIM_LISTEN", "SLIM_SCREEN", "TICKET_TTL_SECONDS", "TZ"}, slices.Compact(asked)); diff != "" {
		t.Errorf("variables that are read (-want +got):\n%s", diff)
	}
	if p, err = readPlan(getenv, 1000, func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if got := p.env[4:7]; !slices.Equal(got, []string{"SLIM_SUPERVISOR_USER=gem", "SLIM_DESKTOP_USER=gem", "SLIM_SERVICE_USER=gem"}) || p.env[1] != "HOME=/home/gem" {
		t.Errorf("rootless: %q", p.env)
	}
}

func TestNginxConf(t *testing.T) {
	all := func(string) bool { return true }
	none := func(string) bool { return false }
	noLoopback := func(address string) bool { return address != "[::1]:0" }
	for _, tt := range []struct {
		listen string
		ipv6   func(string) bool
		want   string
	}{
		{"", all, "/opt/gem/nginx.conf"},
		{"", none, "/opt/gem/nginx-ipv4.conf"},
		{"", noLoopback, "/opt/gem/nginx.conf"},
		{"loopback", all, "/opt/gem/nginx-loopback.conf"},
		{"loopback", none, "/opt/gem/nginx-loopback-ipv4.conf"},
		{"loopback", noLoopback, "/opt/gem/nginx-loopback-ipv4.conf"},
	} {
		if got := chooseNginxConf(tt.listen, tt.ipv6); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.listen, got, tt.want)
		}
	}
}

// system is a root directory with what the image has, and a plan for it. Started as root the plan has the image's accounts,
// otherwise the one account that there is.
func system(t *testing.T) (string, plan) {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"tmp", "home", "run", "var/lib", "var/log", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) { // other accounts pass through
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	me := account{"me", os.Getuid(), os.Getgid()}
	p := plan{accounts: accounts{me, me, me}, gate: gate.Config{APIKeySHA256: strings.Repeat("ab", 32), TicketTTL: time.Minute}}
	if me.uid == 0 {
		p.accounts = accounts{me, desktopAccount, serviceAccount}
	}
	return root, p
}

func rootOnly(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		need.Missing(t, "needs root, because it changes owners")
	}
}

func stat(t *testing.T, path string) (fs.FileMode, uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode(), info.Sys().(*syscall.Stat_t).Uid
}

func TestPrepare(t *testing.T) {
	root, p := system(t)
	for range 2 { // a container may be started again
		if err := p.prepare(root); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range p.places() {
		mode, uid := stat(t, filepath.Join(root, d.path))
		if mode != d.mode|fs.ModeDir || int(uid) != d.owner.uid {
			t.Errorf("%s: %v of user %d, want %v of %d", d.path, mode, uid, d.mode, d.owner.uid)
		}
		if entries, _ := os.ReadDir(filepath.Join(root, d.path)); d.path != "/run/browser-shell" && d.path != "/tmp" && d.path != "/var/log/browser-shell" && len(entries) > 0 {
			t.Errorf("%s holds %v", d.path, entries)
		}
	}
	file := filepath.Join(root, gateFile)
	mode, uid := stat(t, file)
	if mode != 0o400 || int(uid) != p.service.uid {
		t.Errorf("%s: %v of user %d", gateFile, mode, uid)
	}
	var got gate.Config
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &got); err != nil || got != p.gate {
		t.Errorf("%s holds %s: %v", gateFile, data, err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(file)); len(entries) != 2 { // and outgoing.json
		t.Errorf("besides the files there are %v", entries)
	}
}

// As image and volumes have them: directories of the wrong owner and mode.
func TestPrepareTakesWhatIsThere(t *testing.T) {
	rootOnly(t)
	root, p := system(t)
	for _, dir := range []string{"home/gem", "output", "run/browser-shell", "run/nginx", "var/lib/browser-shell", "var/log/browser-shell", "var/log/gem"} {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o777|fs.ModeSetgid), os.Chown(path, 1234, 1234)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	for _, d := range p.places() {
		if mode, uid := stat(t, filepath.Join(root, d.path)); mode != d.mode|fs.ModeDir || int(uid) != d.owner.uid {
			t.Errorf("%s: %v of user %d, want %v of %d", d.path, mode, uid, d.mode, d.owner.uid)
		}
	}
}

// A volume may hold anything. Root must not be led out of it.
func TestPrepareFollowsNoLink(t *testing.T) {
	type planter = func(t *testing.T, root, target string)
	plant := func(at string, do func(path, target string) error) planter {
		return func(t *testing.T, root, target string) {
			path := filepath.Join(root, at)
			err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o777), do(path, target))
			for dir := filepath.Dir(path); strings.HasPrefix(dir, root+"/home/gem"); dir = filepath.Dir(dir) {
				err = errors.Join(err, os.Chmod(dir, 0o777))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(at string) planter {
		return plant(at, func(path, target string) error { return os.Symlink(target, path) })
	}
	hard := func(at string) planter {
		return plant(at, func(path, target string) error { return os.Link(target+"/file", path) })
	}
	fifo := func(at string) planter {
		return plant(at, func(path, _ string) error { return syscall.Mkfifo(path, 0o666) })
	}
	file := func(at string) planter {
		return plant(at, func(path, _ string) error { return os.WriteFile(path, nil, 0o666) })
	}
	dir := func(at string) planter {
		return plant(at, func(path, _ string) error { return os.Mkdir(path, 0o777) })
	}
	for name, tt := range map[string]struct {
		plant planter
		want  string // in the error; empty: none, and nothing happens to the target
	}{
		"X11 directory":         {link("tmp/.X11-unix"), "/tmp/.X11-unix is a link"},
		"home":                  {link("home/gem"), "/home/gem is a link"},
		"output":                {link("output"), "/output is a link"},
		"above":                 {link("var/log"), "/var/log is a link"},
		"run directory":         {link("run/browser-shell"), "/run/browser-shell is a link"},
		"gate's file":           {link("run/browser-shell/gate.json"), ""},
		"X lock":                {link("tmp/.X99-lock"), ""},
		"X socket":              {link("tmp/.X11-unix/X99"), ""},
		"log":                   {link("var/log/gem/browser.log"), "browser.log is a link"},
		"hard link to a log":    {hard("var/log/gem/nginx.log.1"), "nginx.log.1 is a link"},
		"log that never ends":   {fifo("var/log/gem/nginx.log"), "nginx.log is a link or a special file"},
		"nginx's pid":           {link("run/nginx/pid"), "pid is a link"},
		"nginx's temporary":     {link("run/nginx/body"), "body is a link"},
		"supervisord's pid":     {link("run/supervisor/pid"), "pid is a link"},
		"file as a directory":   {file("output"), "/output is a link or a file"},
		"directory as X's lock": {dir("tmp/.X99-lock"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, p := system(t)
			target := filepath.Join(root, "etc")
			file := filepath.Join(target, "file")
			if err := os.WriteFile(file, []byte("secret"), 0o640); err != nil {
				t.Fatal(err)
			}
			dirMode, dirUID := stat(t, target)
			tt.plant(t, root, target)
			err := p.prepare(root)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), root, ""), tt.want)) {
				t.Errorf("error is %v, want one that says %q", err, tt.want)
			}
			if mode, uid := stat(t, target); mode != dirMode || uid != dirUID {
				t.Errorf("the target is %v of user %d now", mode, uid)
			}
			if mode, uid := stat(t, file); mode != 0o640 || uid != dirUID {
				t.Errorf("the file in the target is %v of user %d now", mode, uid)
			}
			if data, err := os.ReadFile(file); err != nil || string(data) != "secret" {
				t.Errorf("the file in the target holds %q: %v", data, err)
			}
			if entries, _ := os.ReadDir(target); len(entries) != 1 {
				t.Errorf("the target holds %v", entries)
			}
		})
	}
}

func TestPrepareDropsLocks(t *testing.T) {
	root, p := system(t)
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	locks := []string{"tmp/.X99-lock", "tmp/.X11-unix/X99"}
	for _, l := range locks {
		if err := os.Symlink("host-7", filepath.Join(root, l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		if _, err := os.Lstat(filepath.Join(root, l)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", l, err)
		}
	}
}

// What is in the way of X's locks goes, and what can't be removed is moved.
func TestPrepareDropsDirectories(t *testing.T) {
	root, p := system(t)
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tmp/.X99-lock", "tmp/.X11-unix/X99"} {
		for dir := filepath.Join(root, name, "full"); dir != filepath.Dir(filepath.Join(root, name)); dir = filepath.Dir(dir) {
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, p.desktop.uid, p.desktop.gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp/.X99-lock"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tmp/.X99-lock", "tmp/.X11-unix/X99"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Join(root, "tmp/.X11-unix")); len(entries) > 0 {
		t.Errorf("%v could have been removed", entries)
	}
}

// Started as uid 1000, a mount that is not its own is enough if it can be written to; otherwise the error says what to do.
func TestPrepareRootless(t *testing.T) {
	rootOnly(t)
	for _, tt := range []struct {
		name string
		make func(root string) error
		want []string
	}{
		{"mounts that everybody may write to", func(root string) error {
			return errors.Join(os.MkdirAll(root+"/output", 0o777), os.Chmod(root+"/output", 0o777), os.Chmod(root+"/run", 0o777))
		}, nil},
		{"a directory that can't be made", func(root string) error {
			return errors.Join(os.Mkdir(root+"/output", 0o755), os.Chown(root+"/output", 1000, 1000), os.Chmod(root+"/run", 0o755))
		}, []string{"/run/browser-shell: open", "permission denied", "writable for user 1000: mount a tmpfs"}},
		{"root's directory", func(root string) error { return os.Mkdir(root+"/output", 0o755) }, []string{"/output: create a file", "mount a tmpfs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, p := system(t)
			for _, dir := range []string{"home", "tmp", "var/lib", "var/log"} {
				if err := os.Chmod(filepath.Join(root, dir), 0o777); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.make(root); err != nil {
				t.Fatal(err)
			}
			self := p.self
			var err error
			p.accounts, err = chooseAccounts(1000)
			if err != nil {
				t.Fatal(err)
			}
			err = doAs(p.self, self, func() error { return p.prepare(root) })
			if tt.want == nil && err != nil {
				t.Error(err)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), root, ""), want) {
					t.Errorf("error is %v, want one that says %q", err, want)
				}
			}
			if _, err := os.Stat(root + gateFile); (err == nil) != (tt.want == nil) {
				t.Errorf("gate's file: %v", err)
			}
		})
	}
}

// TestPrepareRefusesLogOfAnotherUser: a container that was started with --user 1000:1000 is now started as root.
func TestPrepareRefusesLogOfAnotherUser(t *testing.T) {
	rootOnly(t)
	root, p := system(t)
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(root, "var/log/browser-shell/audit/egress.jsonl")
	if err := errors.Join(os.WriteFile(log, nil, 0o600), os.Chown(log, 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	if err := p.prepare(root); err == nil || !strings.Contains(err.Error(), "egress.jsonl belongs to user 4242") || !strings.Contains(err.Error(), "mount an empty volume") {
		t.Errorf("error is %v", err)
	}
	if err := os.Chown(log, p.service.uid, p.service.gid); err != nil {
		t.Fatal(err)
	}
	if err := p.prepare(root); err != nil {
		t.Error(err)
	}
}

// A mount that is read-only is found out now, and not by a program that fails.
func TestPrepareReadOnlyMount(t *testing.T) {
	rootOnly(t)
	root, p := system(t)
	if err := p.prepare(root); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "output")
	if err := errors.Join(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""), syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")); err != nil {
		need.Missing(t, "needs mounts: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	if err := p.prepare(root); err == nil || !strings.Contains(err.Error(), "/output: ") || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), "mount a tmpfs") {
		t.Errorf("error is %v", err)
	}
}
