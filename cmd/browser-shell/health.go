package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/process"
)

// healthTime bounds all checks together; Docker's own timeout is a second longer.
const healthTime = 4 * time.Second

// parts is where the parts of the running image answer.
type parts struct {
	public, browser, egress, vnc string // host:port
	hub                          dialer
	proc                         string // where processes are looked for
	nginxPID                     string // the pid file of nginx's master
	cages                        func(context.Context) (missing []string, err error)
}

func runHealth(ctx context.Context, args []string, std stdio) error {
	if err := parse(flag.NewFlagSet("health", flag.ContinueOnError), args, std.err); err != nil {
		return err
	}
	a, err := accountsOf(os.Getuid())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	i := parts{"127.0.0.1:8080", "127.0.0.1:9222", "127.0.0.1:8118", "127.0.0.1:5900", a.dialHub, "/proc", "/run/nginx/pid", probeCages}
	said, err := i.check(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, said)
	return err
}

// dialHub connects to the management socket, which lies in a directory of the service's account.
func (a accounts) dialHub(context.Context) (c net.Conn, err error) {
	err = as(a.service, a.self, func() error {
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: admin.DefaultSocket, Net: "unix"})
		return err
	})
	return c, err
}

// check asks all parts at once. Its error is one line that names each part that doesn't answer as it should; otherwise it
// returns a line that names the missing parts of the cages.
func (i parts) check(ctx context.Context) (said string, err error) {
	said = "healthy"
	checks := []struct {
		part string
		ask  func(context.Context) error
	}{
		// Workers answer without their master, which alone replaces one that ends.
		{"nginx's master", func(context.Context) error {
			pid := readPID(i.nginxPID)
			if pid == 0 {
				return errors.New("no pid file")
			}
			return running(i.proc, "nginx", pid)
		}},
		{"nginx", func(ctx context.Context) error {
			return get(ctx, tcp(i.public), "/", func(status int) bool { return status == http.StatusForbidden })
		}},
		{"/mcp", func(ctx context.Context) error { // 401 without a key; with none a hub likes no bare GET
			return get(ctx, tcp(i.public), "/mcp", func(status int) bool {
				return status < http.StatusInternalServerError && status != http.StatusForbidden && status != http.StatusNotFound
			})
		}},
		{"hub", func(ctx context.Context) error {
			return ready(ctx, i.hub)
		}},
		{"browser", func(ctx context.Context) error {
			return get(ctx, tcp(i.browser), "/json/version", func(status int) bool { return status == http.StatusOK })
		}},
		{"egress proxy", func(ctx context.Context) error {
			c, err := tcp(i.egress)(ctx)
			if err == nil {
				err = c.Close()
			}
			return err
		}},
		{"desktop", func(ctx context.Context) error { return greet(ctx, tcp(i.vnc)) }},
		{"window manager", func(context.Context) error { return running(i.proc, "openbox", 0) }},
		{"cages", func(ctx context.Context) error {
			missing, err := i.cages(ctx)
			if missing != nil {
				said = "healthy; cages: no " + strings.Join(missing, ", no ")
			}
			return errors.Join(err, noneStopped(i.proc, "browser-shell")) // whose supervisors connect for them
		}},
	}
	failed := make([]string, len(checks))
	var all sync.WaitGroup
	for n, c := range checks {
		all.Go(func() {
			if err := c.ask(ctx); err != nil {
				failed[n] = c.part + ": " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
		})
	}
	all.Wait()
	failed = slices.DeleteFunc(failed, func(f string) bool { return f == "" })
	if len(failed) > 0 {
		return "", errors.New("unhealthy: " + strings.Join(failed, "; "))
	}
	return said, nil
}

type dialer = func(context.Context) (net.Conn, error)

func tcp(address string) dialer {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
}

// get asks for a path, of which only the status counts.
func get(ctx context.Context, dial dialer, path string, well func(status int) bool) error {
	resp, err := ask(ctx, dial, path)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if !well(resp.StatusCode) {
		return fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	return nil
}

// ask sends a GET without following where it may lead.
func ask(ctx context.Context, dial dialer, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+path, nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	return t.RoundTrip(req)
}

// ready asks the hub, and returns what it says is wrong.
func ready(ctx context.Context, dial dialer) error {
	resp, err := ask(ctx, dial, "/healthz?detail=full")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var h admin.Health
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&h)
	switch {
	case resp.StatusCode == http.StatusOK:
		return nil
	case err == nil && h.Reason != "":
		return errors.New(h.Reason)
	}
	return fmt.Errorf("GET /healthz: status %d", resp.StatusCode)
}

// running reports that a program which answers nobody isn't among the processes, or can't work. pid is its process; 0 means
// any of that name.
func running(proc, name string, pid int) error {
	found := []string{strconv.Itoa(pid)}
	if pid == 0 {
		found, _ = filepath.Glob(proc + "/[0-9]*") // the pattern is good
	}
	state := "does not run"
	for _, f := range found {
		pid, _ := strconv.Atoi(filepath.Base(f))
		s, ok := process.ReadStatus(proc, pid)
		if !ok || s.Name != name { // one that has just ended can't be read
			continue
		}
		if s.Runs() {
			return nil
		}
		state = fmt.Sprintf("can't work: its process is in state %c", s.State)
	}
	return fmt.Errorf("%s %s", name, state)
}

// noneStopped reports a process of that name that was stopped.
func noneStopped(proc, name string) error {
	found, _ := filepath.Glob(proc + "/[0-9]*") // the pattern is good
	for _, f := range found {
		pid, _ := strconv.Atoi(filepath.Base(f))
		if s, ok := process.ReadStatus(proc, pid); ok && s.Name == name && s.State == 'T' {
			return fmt.Errorf("process %d of %s is stopped", pid, name)
		}
	}
	return nil
}

// greet speaks RFB (RFC 6143 7.1) as far as security type None: a client that leaves earlier is one that TigerVNC complains
// of in its log.
func greet(ctx context.Context, dial dialer) error {
	c, err := dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	var version [12]byte
	if _, err := io.ReadFull(c, version[:]); err != nil {
		return err
	}
	if string(version[:8]) != "RFB 003." {
		return fmt.Errorf("%q is no VNC server's greeting", version)
	}
	const none = 1
	if _, err := io.WriteString(c, "RFB 003.008\n"); err != nil {
		return err
	}
	var count [1]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return err
	}
	if count[0] == 0 {
		return fmt.Errorf("the VNC server lets nobody in: %s", reason(c))
	}
	types := make([]byte, count[0])
	if _, err := io.ReadFull(c, types); err != nil {
		return err
	}
	if bytes.IndexByte(types, none) < 0 {
		return fmt.Errorf("the VNC server asks for a password (security types %v)", types)
	}
	if _, err := c.Write([]byte{none}); err != nil {
		return err
	}
	var result [4]byte
	if _, err := io.ReadFull(c, result[:]); err != nil {
		return err
	}
	if result != [4]byte{} {
		return fmt.Errorf("the VNC server refuses: %s", reason(c))
	}
	return nil
}

// reason reads why a VNC server refuses (RFC 6143 7.1.2 and 7.1.3), as far as a line of text goes.
func reason(r io.Reader) string {
	var length uint32
	if err := binary.Read(r, binary.BigEndian, &length); err != nil {
		return "without a reason"
	}
	text, _ := io.ReadAll(io.LimitReader(r, int64(min(length, 200)))) // a part is better than none
	return strconv.Quote(string(text))
}
