package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/vishvananda/netns"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
)

// patience is how long a boot may take on a machine that does much else.
const patience = 4 * need.Patience

// container is a booted live stand-in, in a network of its own with nothing but loopback.
type container struct {
	*sandbox.Sandbox
	t      *testing.T
	client *http.Client
	key    string // the API key that requests carry; none when empty
	booted func() // lets the next one boot
}

// boot starts line's entry with more environment, NAME=VALUE each, and waits for nginx. Until booted is called no other one boots
// on this machine: each has a dozen programs, and three at once share what time a busy machine has. The stand-in comes from
// slimctl's own cache, so that a machine makes the root file system once.
func boot(t *testing.T, line string, env ...string) *container {
	t.Helper()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	layout, err := Cached(t.Context(), filepath.Join(cache, "slimctl"), line)
	if err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+layout, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := sandbox.From(src)
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox.Default()
	// What the base can't do without: it was never made for less.
	s.ReadOnly, s.NoNewPrivileges, s.Tmpfs = false, false, nil
	s.CapAdd = append(slices.Clone(s.CapAdd), "AUDIT_WRITE", "DAC_OVERRIDE", "FOWNER") // the first for sudo
	s.Memory, s.PIDs, s.CPUs, s.Timeout = 4<<30, 4096, 0, 5*patience
	s.Env = map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		s.Env[k] = v
	}
	booted := need.Alone(t, filepath.Join(cache, "slimctl", "boot.lock"))
	t.Cleanup(booted)
	sb, err := sandbox.Runner{Runtime: sandbox.Runc}.Start(context.WithoutCancel(t.Context()), img, s)
	if err != nil {
		t.Fatal(err)
	}
	c := &container{Sandbox: sb, t: t, booted: booted}
	c.client = &http.Client{Timeout: need.Patience, Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if t.Failed() {
			logs, _ := sb.Exec(ctx, []string{"/bin/sh", "-c", "tail -n 20 /var/log/gem/*"}, sandbox.ExecOptions{})
			t.Logf("%s\n%s", tail(string(sb.Logs()), 20), logs.Stdout)
		}
		if _, err := sb.Stop(ctx); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	began := time.Now()
	c.until(func() string {
		if a, err := c.try("GET", "/v1/ping", ""); err != nil || a.code != 200 {
			return fmt.Sprintf("not ready: %v %v", a, err)
		}
		return ""
	})
	t.Logf("ready after %v", time.Since(began).Round(100*time.Millisecond))
	return c
}

// dial connects from inside of the container's network.
func (c *container) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	processes, err := c.Processes(ctx)
	if err != nil || len(processes) == 0 {
		return nil, errors.Join(err, errors.New("the container has ended"))
	}
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never given back: the thread ends with the goroutine
		space, err := netns.GetFromPid(processes[0].PID)
		if err == nil {
			defer space.Close()
			err = netns.Set(space)
		}
		if err != nil {
			dialled <- result{nil, err}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		dialled <- result{conn, err}
	}()
	r := <-dialled
	return r.conn, r.err
}

// exec runs a program in the container, as root with the image's environment, and gives what it prints and its exit code.
func (c *container) exec(argv ...string) (string, int) {
	c.t.Helper()
	r, err := c.Exec(c.t.Context(), argv, sandbox.ExecOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return string(r.Stdout), r.ExitCode
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
	if c.key != "" {
		req.Header.Set("X-AIO-API-Key", c.key)
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

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

// tools is what tools/list on /mcp gives now, sorted.
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
	slices.Sort(out)
	return out
}

func (c *container) ticket(path string, headers ...string) string {
	c.t.Helper()
	a := c.do("POST", path, "", headers...)
	var got struct {
		Ticket  string
		Expires int `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(a.body), &got); a.code != 200 || err != nil || len(got.Ticket) != 36 || got.Expires != 30 {
		c.t.Errorf("POST %s: %v", path, a)
	}
	return got.Ticket
}

// banner is the first message on a WebSocket: a VNC server speaks first.
func (c *container) banner(path string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), need.Patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://127.0.0.1:8080"+path, &websocket.DialOptions{
		HTTPClient: c.client, HTTPHeader: http.Header{"X-Aio-Api-Key": {c.key}}, Subprotocols: []string{"binary"},
	})
	if err != nil {
		c.t.Error(err)
		return ""
	}
	defer func() { _ = ws.CloseNow() }()
	_, data, err := ws.Read(ctx)
	if err != nil {
		c.t.Error(err)
	}
	return string(data)
}

// until waits for a condition; what tells what is not so yet.
func (c *container) until(what func() string) {
	c.t.Helper()
	var last string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if last = what(); last == "" {
			return
		}
	}
	c.t.Fatal(last)
}

// programs returns the supervisord programs in a state.
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

// listening returns the container's listening TCP sockets.
func (c *container) listening() []string {
	c.t.Helper()
	sockets, err := c.Sockets(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, s := range sockets {
		if strings.HasPrefix(s.Network, "tcp") {
			out = append(out, s.Address.String())
		}
	}
	slices.Sort(out)
	return out
}
