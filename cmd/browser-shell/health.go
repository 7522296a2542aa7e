package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/gate"
	"github.com/slimctl/slimctl/server/process"
)

// healthTime bounds all checks together; Docker's own timeout is a second longer.
const healthTime = 4 * time.Second

// parts holds the addresses of the running image's parts.
type parts struct {
	public, browser, egress, vnc string // host:port
	mcp                          dialer
	proc                         string // directory of the processes
	nginxPID                     string // pid file of nginx's master
	chromium                     string // the tool's report about Chromium
	starts                       string // startsFile
	cages                        func(context.Context) (missing []string, err error)
}

func runHealth(ctx context.Context, args []string, std stdio) error {
	if err := parseFlags(flag.NewFlagSet("health", flag.ContinueOnError), args, std.err); err != nil {
		return err
	}
	if _, err := chooseAccounts(os.Getuid()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	i := parts{"127.0.0.1:8080", "127.0.0.1:9222", "127.0.0.1:8118", "127.0.0.1:5900", dialService(mcpSocket), "/proc", "/run/nginx/pid", filepath.Join(stateDir, server.ChromiumReport), startsFile, probeCages}
	said, err := i.check(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, said)
	return err
}

// mcpSocket is the socket of MCP in the image.
const mcpSocket = "/run/browser-shell-front/mcp.sock"

// dialService returns a dialer of a socket of browser-shell.
func dialService(socket string) dialer {
	return func(context.Context) (c net.Conn, err error) {
		err = asService(func() (err error) {
			c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
			return err
		})
		return c, err
	}
}

// asService calls do, which opens something in a directory of the service account. In the image root can't, and becomes
// that account.
func asService(do func() error) error {
	err := do()
	if errors.Is(err, fs.ErrPermission) && os.Getuid() == root.uid {
		err = doAs(serviceAccount, root, do)
	}
	return err
}

// check asks all parts at once. Its error is one line that names each failing part. Otherwise it returns a line that
// names the missing mechanisms of the cages.
func (i parts) check(ctx context.Context) (said string, err error) {
	said = "healthy"
	checks := []struct {
		part string
		ask  func(context.Context) error
	}{
		// Workers answer without their master, but only the master restarts a worker that ends.
		{"nginx's master", func(context.Context) error {
			pid := readPID(i.nginxPID)
			if pid == 0 {
				return fmt.Errorf("no pid in %s", i.nginxPID)
			}
			return checkRuns(i.proc, "nginx", pid)
		}},
		{"nginx", func(ctx context.Context) error {
			return checkStatus(ctx, dialTCP(i.public), "/", func(status int) bool { return status == http.StatusForbidden })
		}},
		{"/mcp", func(ctx context.Context) error { // 401 if a key is set; otherwise a plain GET is rejected
			return checkStatus(ctx, dialTCP(i.public), "/mcp", func(status int) bool {
				return status < http.StatusInternalServerError && status != http.StatusForbidden && status != http.StatusNotFound
			})
		}},
		{"browser-shell", func(ctx context.Context) error { return checkReady(ctx, i.mcp) }},
		{"browser", func(ctx context.Context) error {
			err := checkStatus(ctx, dialTCP(i.browser), "/json/version", func(status int) bool { return status == http.StatusOK })
			return errors.Join(err, readReport(i.chromium), checkStarts(i.starts, time.Now()))
		}},
		{"egress proxy", func(ctx context.Context) error {
			c, err := dialTCP(i.egress)(ctx)
			if err == nil {
				err = c.Close()
			}
			return err
		}},
		{"desktop", func(ctx context.Context) error { return greetVNC(ctx, dialTCP(i.vnc)) }},
		{"window manager", func(context.Context) error { return checkRuns(i.proc, "openbox", 0) }},
		{"cages", func(ctx context.Context) error {
			missing, err := i.cages(ctx)
			if missing != nil {
				said = "healthy; cages: no " + strings.Join(missing, ", no ")
			}
			return errors.Join(err, checkNoneStopped(i.proc, "browser-shell")) // a stopped supervisor makes no connections for its program
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

func dialTCP(address string) dialer {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
}

// checkStatus sends a GET and checks the status of the response.
func checkStatus(ctx context.Context, dial dialer, path string, well func(status int) bool) error {
	resp, err := sendGet(ctx, dial, path)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if !well(resp.StatusCode) {
		return fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	return nil
}

// sendGet sends a GET and follows no redirect.
func sendGet(ctx context.Context, dial dialer, path string) (*http.Response, error) {
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

// stateDir is the state directory of the image's policy file.
const stateDir = "/var/lib/browser-shell/state"

// readReport returns what the tool reports about Chromium, which answers by itself also if it can open no page.
func readReport(file string) error {
	var text []byte
	err := asService(func() (err error) {
		text, err = os.ReadFile(file)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("can open no page: %.200s", text)
}

// checkStarts returns an error if Chromium starts again and again. Between two starts it answers.
func checkStarts(file string, now time.Time) error {
	starts := readStarts(file)
	if n := len(starts); n < maxStarts || starts[n-1].Sub(starts[0]) > startsTime || now.Sub(starts[n-1]) > startsTime {
		return nil
	}
	return fmt.Errorf("Chromium has started %d times in a minute, see %s/browser.log", maxStarts, logDir) //nolint:staticcheck // a name
}

// checkReady returns browser-shell's reason for not being ready, or nil.
func checkReady(ctx context.Context, dial dialer) error {
	resp, err := sendGet(ctx, dial, "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	reason, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if text := strings.TrimSpace(string(reason)); err == nil && text != "" {
		return errors.New(text)
	}
	return fmt.Errorf("GET /healthz: status %d", resp.StatusCode)
}

// checkRuns returns an error if no process of that name runs. pid selects the process; 0 means any. It is for programs
// without a socket to ask.
func checkRuns(proc, name string, pid int) error {
	found := []string{strconv.Itoa(pid)}
	if pid == 0 {
		found, _ = filepath.Glob(proc + "/[0-9]*") // the pattern is valid
	}
	state := "does not run"
	for _, f := range found {
		pid, _ := strconv.Atoi(filepath.Base(f))
		s, ok := process.ReadStatus(proc, pid)
		if !ok || s.Name != name { // a process that has just ended can't be read
			continue
		}
		if s.Runs() {
			return nil
		}
		state = fmt.Sprintf("can't work: its process is in state %c", s.State)
	}
	return fmt.Errorf("%s %s", name, state)
}

// checkNoneStopped returns an error if a process of that name is stopped (state T).
func checkNoneStopped(proc, name string) error {
	found, _ := filepath.Glob(proc + "/[0-9]*") // the pattern is valid
	for _, f := range found {
		pid, _ := strconv.Atoi(filepath.Base(f))
		if s, ok := process.ReadStatus(proc, pid); ok && s.Name == name && s.State == 'T' {
			return fmt.Errorf("process %d of %s is stopped", pid, name)
		}
	}
	return nil
}

// greetVNC greets the VNC server as a viewer does.
func greetVNC(ctx context.Context, dial dialer) error {
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
	return gate.GreetServer(c)
}
