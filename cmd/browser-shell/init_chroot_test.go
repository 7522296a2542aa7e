//go:build linux

package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

// witness stands for supervisord and says what it was started as.
const witness = `package main

import (
	"encoding/json"
	"os"
	"syscall"
)

func main() {
	const prGetNoNewPrivs = 39
	flag, _, _ := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetNoNewPrivs, 0, 0, 0, 0, 0)
	json.NewEncoder(os.Stdout).Encode(map[string]any{"pid": os.Getpid(), "args": os.Args, "env": os.Environ(), "flag": flag, "uid": os.Getuid()})
}
`

// TestInit runs the real program in a root directory of its own, with the environment that a container could be given.
func TestInit(t *testing.T) {
	if os.Getuid() != 0 {
		need.Missing(t, "needs root, because it changes its root directory")
	}
	setpriv, chroot := need.Program(t, "setpriv"), need.Program(t, "chroot")
	const key = "0123456789abcdef0123456789abcdef"
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/witness.go", []byte(witness), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/supervisord", dir+"/witness.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	hostile := []string{
		"SANDBOX_API_KEY=" + key, "LD_LIBRARY_PATH=/tmp", "PYTHONPATH=/tmp", "PYTHONSTARTUP=/tmp/x.py", "PATH=/tmp", "HOME=/tmp", "BASH_ENV=/tmp/x",
		"NODE_OPTIONS=--require=/tmp/x.js", "EXTRA_MCP_SERVERS={}", "RUN_HOOK_INIT=touch /x", "PROXY_SERVER=http://evil", "BROWSER_EXTRA_ARGS=--remote-debugging-address=0.0.0.0",
		"DISABLE_JUPYTER=false", "PUBLIC_LISTEN_IPV4=0.0.0.0", "SLIM_NGINX_CONF=/tmp/nginx.conf", "SLIM_DESKTOP_USER=root", "SLIM_SERVICE_USER=root", "LANG=../../tmp",
	}
	for _, tt := range []struct {
		uid     uint32
		home    string
		self    string
		service string
	}{{0, "/root", "root", "browser-shell"}, {1000, "/home/gem", "gem", "gem"}} {
		t.Run(fmt.Sprint(tt.uid), func(t *testing.T) {
			root := t.TempDir()
			for d := root; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
				if err := os.Chmod(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range []string{"tmp", "home", "run", "var", "var/lib", "var/log", "output", "usr", "usr/bin", "usr/local", "usr/local/bin"} {
				if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Chown(filepath.Join(root, d), int(tt.uid), int(tt.uid)); err != nil {
					t.Fatal(err)
				}
			}
			for from, to := range map[string]string{binary: "usr/local/bin/browser-shell", dir + "/supervisord": "usr/bin/supervisord"} {
				data, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, to), data, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			hubConfig, policy := filepath.Join(root, "opt/gem/mcp-hub.json"), filepath.Join(root, "etc/agent-browser/browser-shell.policy.json")
			for file, text := range map[string]string{hubConfig: `{"mcpServers": {"browser_shell": {"type": "stdio", "command": "/usr/local/bin/browser-shell", "args": ["mcp"]}}}`, policy: `{"version": 1}`} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			run := func(env []string) (*exec.Cmd, string, string, error) {
				cmd := exec.Command("/usr/local/bin/browser-shell", "init")
				cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid}}
				if tt.uid == 0 { // with the four capabilities that root is left with, and the one for chroot
					cmd = exec.Command(setpriv, "--inh-caps=-all", "--bounding-set=-all,+chown,+setuid,+setgid,+kill,+sys_chroot",
						chroot, root, "/usr/local/bin/browser-shell", "init")
				}
				cmd.Dir, cmd.Env = "/", env
				var out, said strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &said
				err := cmd.Run()
				return cmd, out.String(), said.String(), err
			}

			if _, _, said, err := run(hostile); err != nil || said != "" {
				t.Fatalf("%v: %s", err, said)
			}
			cmd, out, said, err := run(hostile) // a container may be started again
			if err != nil || said != "" {
				t.Fatalf("the second time: %v: %s", err, said)
			}
			var got struct {
				PID, UID, Flag int
				Args, Env      []string
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got.PID != cmd.Process.Pid || got.UID != int(tt.uid) || got.Flag != 1 {
				t.Errorf("it became process %d of user %d, no_new_privs %d; init was %d", got.PID, got.UID, got.Flag, cmd.Process.Pid)
			}
			if diff := cmp.Diff([]string{"/usr/bin/supervisord", "-n", "-c", "/opt/gem/supervisord.conf"}, got.Args); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			want := []string{
				"HOME=" + tt.home, "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"SLIM_DESKTOP_USER=gem", "SLIM_LANG=en-US,en", "SLIM_NGINX_CONF=/opt/gem/nginx", "SLIM_SCREEN=1280x1024", "SLIM_SERVICE_USER=" + tt.service,
				"SLIM_SUPERVISOR_USER=" + tt.self, "SLIM_WINDOW=1280,1024", "TZ=UTC",
			}
			slices.Sort(got.Env)
			for i, kv := range got.Env { // what the machine has of IPv6 decides on the rest of it
				if strings.HasPrefix(kv, "SLIM_NGINX_CONF=/opt/gem/nginx") {
					got.Env[i] = strings.TrimSuffix(strings.TrimSuffix(kv, ".conf"), "-ipv4")
				}
			}
			if diff := cmp.Diff(want, got.Env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			written, err := os.ReadFile(root + "/run/browser-shell/gate.json")
			if err != nil || strings.Contains(string(written), key) || !strings.Contains(string(written), "api_key_sha256") {
				t.Errorf("gate.json: %s: %v", written, err)
			}

			t.Run("what gem leaves", func(t *testing.T) {
				proc := filepath.Join(root, "proc")
				if err := errors.Join(os.Mkdir(proc, 0o755), syscall.Mount("/proc", proc, "", syscall.MS_BIND|syscall.MS_REC, "")); err != nil {
					need.Missing(t, "needs mounts: %v", err)
				}
				defer syscall.Unmount(proc, syscall.MNT_DETACH)
				for _, d := range []string{"tmp/.X99-lock/full", "home/gem/.config/browser"} {
					for d = filepath.Join(root, d); filepath.Base(d) != "gem" && filepath.Base(d) != "tmp"; d = filepath.Dir(d) {
						if err := errors.Join(os.MkdirAll(d, 0o700), os.Chown(d, 1000, 1000)); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, d := range []string{"tmp/.X99-lock", "home/gem/.config", "home/gem"} {
					if err := os.Chmod(filepath.Join(root, d), 0); err != nil {
						t.Fatal(err)
					}
				}
				_, out, said, err := run(hostile)
				if err != nil || !strings.Contains(out, "supervisord") {
					t.Errorf("%v: %q, %q", err, said, out)
				}
			})

			_, out, said, err = run([]string{"SLIM_LISTEN=0.0.0.0", "SANDBOX_API_KEY=" + key[:9]})
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 78 || out != "" {
				t.Errorf("refusal: %v, %q", err, out)
			}
			if !strings.Contains(said, "SLIM_LISTEN") || !strings.Contains(said, "SANDBOX_API_KEY") || strings.Contains(said, key[:9]) {
				t.Errorf("it says %q", said)
			}

			for file, text := range map[string]string{hubConfig: `{"mcpServers": 1}`, policy: `{"version": 1, "comands": []}`} {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, out, said, err = run(hostile)
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 78 || out != "" || !strings.Contains(said, "mcp-hub.json:1:16: ") ||
				!strings.Contains(said, "browser-shell.policy.json:1:16: ") {
				t.Errorf("files that can't be read: %v, %q, %q", err, out, said)
			}
		})
	}
}
