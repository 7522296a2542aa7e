package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

// container is a booted live stand-in in runc, in a network of its own with nothing but loopback.
type container struct {
	t      *testing.T
	id     string
	dir    string
	root   string // its files, as this machine sees them
	pid    int
	client *http.Client
}

// boot starts line's entry with more environment. It does not wait.
func boot(t *testing.T, line string, env ...string) *container {
	t.Helper()
	root := cacheRoot(t)
	layout, err := Cached(t.Context(), root, line)
	if err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+layout, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := &container{t: t, id: fmt.Sprintf("live-%s-%d", strings.ToLower(line), time.Now().UnixNano()), dir: t.TempDir()}
	c.mount(img)
	c.spec(config.Config, env)
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	run := exec.Command("runc", "--root", c.dir+"/state", "run", "--detach", "--bundle", c.dir, "--pid-file", c.dir+"/pid", c.id)
	run.Stdout, run.Stderr = log, log
	t.Cleanup(func() {
		if out, err := exec.Command("runc", "--root", c.dir+"/state", "delete", "--force", c.id).CombinedOutput(); err != nil {
			t.Errorf("runc delete: %v\n%s", err, out)
		}
		if t.Failed() {
			c.logs()
		}
	})
	if err := run.Run(); err != nil {
		c.logs()
		t.Fatal(err)
	}
	raw, err := os.ReadFile(c.dir + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(raw), &c.pid); err != nil {
		t.Fatal(err)
	}
	c.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	return c
}

// debianRoot is the bottom layer unpacked, once for all containers of this run.
var debianRoot struct {
	sync.Once
	dir string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if debianRoot.dir != "" {
		os.RemoveAll(debianRoot.dir)
	}
	os.Exit(code)
}

// mount lays the image's other layers over the bottom one.
func (c *container) mount(img v1.Image) {
	c.t.Helper()
	layers, err := img.Layers()
	if err != nil {
		c.t.Fatal(err)
	}
	debianRoot.Do(func() {
		if debianRoot.dir, err = os.MkdirTemp("", "live-debian-"); err != nil {
			return
		}
		var raw io.ReadCloser
		if raw, err = layers[0].Uncompressed(); err == nil {
			defer raw.Close()
			err = unpack(c.t.Context(), raw, debianRoot.dir)
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
	upper, work := filepath.Join(c.dir, "upper"), filepath.Join(c.dir, "work")
	c.root = filepath.Join(c.dir, "rootfs")
	for _, dir := range []string{upper, work, c.root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	rest, err := mutate.AppendLayers(empty.Image, layers[1:]...)
	if err != nil {
		c.t.Fatal(err)
	}
	raw := mutate.Extract(rest)
	defer raw.Close()
	if err := unpack(c.t.Context(), raw, upper); err != nil {
		c.t.Fatal(err)
	}
	// As Docker and Kubernetes do; runc does not, and the start scripts ask localhost.
	const hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 sandbox\n"
	if err := os.WriteFile(filepath.Join(upper, "etc/hosts"), []byte(hosts), 0o644); err != nil {
		c.t.Fatal(err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", debianRoot.dir, upper, work)
	if err := unix.Mount("overlay", c.root, "overlay", 0, options); err != nil {
		need.Missing(c.t, "overlay mount: %v", err)
	}
	c.t.Cleanup(func() { _ = unix.Unmount(c.root, unix.MNT_DETACH) })
}

func unpack(ctx context.Context, raw io.Reader, dir string) error {
	cmd := exec.CommandContext(ctx, "tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", dir)
	cmd.Stdin = raw
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, out)
	}
	return os.Chmod(dir, 0o755)
}

func (c *container) spec(config v1.Config, env []string) {
	c.t.Helper()
	// Docker's default set, which is what the base is run with.
	caps := []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
	spec := specs.Spec{
		Version:  "1.0.2",
		Hostname: "sandbox",
		Root:     &specs.Root{Path: c.root},
		Process: &specs.Process{
			Args: append(slices.Clone(config.Entrypoint), config.Cmd...), Env: append(slices.Clone(config.Env), env...), Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "nodev", "mode=1777", "size=256m"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	if config.WorkingDir != "" {
		spec.Process.Cwd = config.WorkingDir
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "config.json"), raw, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// dial opens a connection inside the container's network.
func (c *container) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer here.Close()
	there, err := netns.GetFromPid(c.pid)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	conn, dialErr := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err := netns.Set(here); err != nil {
		return nil, errors.Join(err, dialErr) // the thread stays locked, and so ends with its goroutine
	}
	runtime.UnlockOSThread()
	return conn, dialErr
}

// exec runs a program in the container, as root with the image's environment.
func (c *container) exec(argv ...string) (string, error) {
	out, err := exec.CommandContext(c.t.Context(), "runc", append([]string{"--root", c.dir + "/state", "exec", c.id}, argv...)...).CombinedOutput()
	return string(out), err
}

// answer is what came back of a request.
type answer struct {
	code int
	body string
}

// do sends a request to the public port; headers are NAME, VALUE pairs, and Host is one too.
func (c *container) do(method, path, body string, headers ...string) answer {
	c.t.Helper()
	a, err := c.try(method, path, body, headers...)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (c *container) try(method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://127.0.0.1:8080"+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(data)}, err
}

// tools is what tools/list on /mcp gives now.
func (c *container) tools(headers ...string) []string {
	c.t.Helper()
	a := c.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, append(mcpHeaders, headers...)...)
	var m struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		return nil
	}
	var out []string
	for _, tool := range m.Result.Tools {
		out = append(out, tool.Name)
	}
	return out
}

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

// until waits for a condition; what tells what is not so yet.
func (c *container) until(what func() string) {
	c.t.Helper()
	var last string
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		if last = what(); last == "" {
			return
		}
	}
	c.t.Fatal(last)
}

// ready waits for nginx.
func (c *container) ready() {
	c.t.Helper()
	began := time.Now()
	c.until(func() string {
		if a, err := c.try("GET", "/v1/ping", ""); err != nil || a.code != 200 {
			return fmt.Sprintf("not ready: %v %v", a, err)
		}
		return ""
	})
	c.t.Logf("ready after %v", time.Since(began).Round(100*time.Millisecond))
}

// programs gives the supervisord programs in a state.
func (c *container) programs(state string) []string {
	out, _ := c.exec("supervisorctl", "-c", "/opt/gem/supervisord.conf", "status") // its exit code says that one is down
	var names []string
	for row := range strings.Lines(out) {
		if f := strings.Fields(row); len(f) > 1 && f[1] == state {
			names = append(names, f[0])
		}
	}
	slices.Sort(names)
	return names
}

// listening gives the container's listening TCP sockets, from /proc/PID/net/tcp (proc_pid_net(5)).
func (c *container) listening() []string {
	c.t.Helper()
	var out []string
	for _, name := range []string{"tcp", "tcp6"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", c.pid, name))
		if err != nil {
			c.t.Fatal(err)
		}
		for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
			f := strings.Fields(s.Text())
			if len(f) < 4 || f[3] != "0A" {
				continue
			}
			host, port, _ := strings.Cut(f[1], ":")
			b, err := hex.DecodeString(host)
			if err != nil {
				c.t.Fatal(err)
			}
			for i := 0; i < len(b); i += 4 { // words in the machine's order, which is little-endian on both our platforms
				slices.Reverse(b[i : i+4])
			}
			addr, _ := netip.AddrFromSlice(b)
			var n uint16
			if _, err := fmt.Sscanf(port, "%x", &n); err != nil {
				c.t.Fatal(err)
			}
			out = append(out, netip.AddrPortFrom(addr, n).String())
		}
	}
	slices.Sort(out)
	return out
}

func (c *container) logs() {
	files, _ := filepath.Glob(filepath.Join(c.dir, "upper/var/log/gem/*"))
	for _, file := range append(files, filepath.Join(c.dir, "log")) {
		raw, _ := os.ReadFile(file)
		c.t.Logf("%s:\n%s", file, tail(string(raw), 20))
	}
}
