package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/cage"
)

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// listener gives each connection to handle and closes it then.
func listener(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return l.Addr().String()
}

// vnc is a server that takes security types and a result, and tells of each client that went the whole way.
func vnc(t *testing.T, greeting string, types []byte, result []byte, greeted chan<- bool) string {
	return listener(t, func(c net.Conn) {
		_, _ = io.WriteString(c, greeting)
		version := make([]byte, 12)
		if _, err := io.ReadFull(c, version); err != nil {
			return
		}
		_, _ = c.Write(append([]byte{byte(len(types))}, types...))
		choice := make([]byte, 1)
		if _, err := io.ReadFull(c, choice); err != nil {
			return
		}
		_, _ = c.Write(result)
		greeted <- string(version) == "RFB 003.008\n" && choice[0] == 1
	})
}

// refuse has no security type for its client, and says why (RFC 6143 7.1.2).
func refuse(reason string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, "RFB 003.008\n")
		if _, err := io.ReadFull(c, make([]byte, 12)); err == nil {
			_, _ = io.WriteString(c, "\x00"+reason)
		}
	}
}

func TestHealth(t *testing.T) {
	const greeting = "RFB 003.008\n"
	greeted := make(chan bool, 100)
	proc := t.TempDir()
	nginxPID := filepath.Join(proc, "pid")
	addProcesses(t, proc, "1 (supervisord) S 0 1 1", "12 (openbox) S 1 12 1", "20 (nginx) S 1 20 1", "21 (nginx) S 20 20 1", "30 (a) Z) R 1 30 1")
	if err := os.WriteFile(nginxPID, []byte("20\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gone := listener(t, func(net.Conn) {})
	silent := listener(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	well := parts{
		public:  serve(t, routes(403, 401)),
		browser: serve(t, status(200)),
		egress:  gone,
		vnc:     vnc(t, greeting, []byte{1}, make([]byte, 4), greeted),
		mcp:     dialTCP(serve(t, status(200))),
		proc:    proc, nginxPID: nginxPID,
		cages: func(context.Context) ([]string, error) { return nil, nil },
	}
	report := filepath.Join(t.TempDir(), server.ChromiumReport)
	if err := os.WriteFile(report, []byte("no process"), 0o600); err != nil {
		t.Fatal(err)
	}
	flapping := filepath.Join(t.TempDir(), "starts")
	for range maxStarts {
		if err := recordStart(flapping, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	missing := []string{"Landlock for signals", "supervised connections"}
	full := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "the audit log is full\n")
	}
	other := func(lines ...string) string {
		dir := t.TempDir()
		addProcesses(t, dir, lines...)
		return dir
	}
	for _, tt := range []struct {
		name   string
		change func(*parts)
		want   []string // in the error, or in the line of a healthy image
	}{
		{"well", func(*parts) {}, []string{"healthy"}},
		{"cages that lack parts", func(p *parts) {
			p.cages = func(context.Context) ([]string, error) { return missing, nil }
		}, []string{"healthy; cages: no Landlock for signals, no supervised connections"}},
		{"cages that lack what is required", func(p *parts) {
			p.cages = func(context.Context) ([]string, error) { return missing, cage.ErrIncomplete }
		}, []string{"unhealthy: cages: cage incomplete"}},
		{"well, without a key", func(p *parts) { p.public = serve(t, routes(403, 405)) }, []string{"healthy"}},
		{"open", func(p *parts) { p.public = serve(t, routes(200, 401)) }, []string{"nginx: GET /: status 200"}},
		{"no gate", func(p *parts) { p.public = serve(t, routes(403, 500)) }, []string{"/mcp: GET /mcp: status 500"}},
		{"no route", func(p *parts) { p.public = serve(t, routes(403, 403)) }, []string{"/mcp: GET /mcp: status 403"}},
		{"leads away", func(p *parts) { p.public = serve(t, routes(301, 401)) }, []string{"nginx: GET /: status 301"}},
		{"no nginx", func(p *parts) { p.public = gone }, []string{"nginx: ", "/mcp: "}},
		{"log full", func(p *parts) { p.mcp = dialTCP(serve(t, full)) }, []string{"browser-shell: the audit log is full"}},
		{"not ready", func(p *parts) { p.mcp = dialTCP(serve(t, status(503))) }, []string{"browser-shell: GET /healthz: status 503"}},
		{"no browser", func(p *parts) { p.browser = gone }, []string{"browser: "}},
		{"a browser without pages", func(p *parts) { p.chromium = report }, []string{"browser: can open no page: no process"}},
		{"a browser that starts again and again", func(p *parts) { p.starts = flapping }, []string{"browser: Chromium has started 4 times in a minute"}},
		{"no proxy", func(p *parts) { p.egress = "127.0.0.1:1" }, []string{"egress proxy: "}},
		{"no desktop", func(p *parts) { p.vnc = gone }, []string{"desktop: "}},
		{"another server", func(p *parts) { p.vnc = vnc(t, "SSH-2.0-OpenS", nil, nil, greeted) }, []string{"is not a VNC server's greeting"}},
		{"a password", func(p *parts) { p.vnc = vnc(t, greeting, []byte{2}, nil, greeted) }, []string{"asks for a password"}},
		{"refused", func(p *parts) { p.vnc = listener(t, refuse("\x00\x00\x00\x0dToo many\nauth")) }, []string{`desktop: the VNC server refuses all viewers: "Too many\nauth"`}},
		{"refused at length", func(p *parts) { p.vnc = listener(t, refuse("\xff\xff\xff\xff"+strings.Repeat("x", 1000))) }, []string{`"` + strings.Repeat("x", 200) + `"`}},
		{"refused without a word", func(p *parts) { p.vnc = listener(t, refuse("")) }, []string{"refuses all viewers: without a reason"}},
		{"shut out", func(p *parts) {
			p.vnc = vnc(t, greeting, []byte{1}, []byte("\x00\x00\x00\x01\x00\x00\x00\x02no"), greeted)
		}, []string{`the VNC server refuses: "no"`}},
		{"no window manager", func(p *parts) { p.proc = t.TempDir() }, []string{"window manager: openbox does not run"}},
		{"a stopped window manager", func(p *parts) { p.proc = other("7 (openbox) T 1 7 1") }, []string{"window manager: openbox can't work: its process is in state T"}},
		{"a dead window manager", func(p *parts) { p.proc = other("7 (openbox) Z 1 7 1") }, []string{"window manager: openbox can't work: its process is in state Z"}},
		{"a stopped supervisor", func(p *parts) { p.proc = other("8 (browser-shell) T 1 8 1") }, []string{"cages: process 8 of browser-shell is stopped"}},
		{"workers without a master", func(p *parts) { p.proc = other("21 (nginx) S 1 20 1") }, []string{"nginx's master: nginx does not run"}},
		{"a stopped master", func(p *parts) { p.proc = other("20 (nginx) T 1 20 1") }, []string{"nginx's master: nginx can't work: its process is in state T"}},
		{"a successor of the master's number", func(p *parts) { p.proc = other("20 (sh) S 1 20 1") }, []string{"nginx's master: nginx does not run"}},
		{"no pid file", func(p *parts) { p.nginxPID = proc + "/none" }, []string{"nginx's master: no pid in " + proc + "/none"}},
		{"two at once", func(p *parts) { p.browser, p.vnc = gone, gone }, []string{"browser: ", "; desktop: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := well
			tt.change(&p)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got, err := p.check(ctx)
			if healthy := strings.HasPrefix(tt.want[0], "healthy"); healthy && (err != nil || got != tt.want[0]) {
				t.Fatalf("%q, %v, want %q", got, err, tt.want[0])
			} else if !healthy && err != nil {
				got = err.Error()
			}
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q, want what says %q", got, want)
				}
			}
			if strings.Contains(got, "\n") {
				t.Errorf("more than a line: %q", got)
			}
		})
	}
	if ok := <-greeted; !ok {
		t.Error("the VNC server did not see the client through, and would count it as an attack")
	}

	t.Run("nobody answers", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := parts{silent, silent, silent, silent, dialTCP(silent), proc, nginxPID, "", "", well.cages}.check(ctx)
		for _, part := range []string{"nginx", "/mcp", "browser-shell", "browser", "desktop"} {
			if err == nil || !strings.Contains(err.Error(), part+": ") {
				t.Errorf("%s isn't named: %v", part, err)
			}
		}
	})
}

// TestCheckStarts: a Chromium that dies a third time within a minute isn't healthy until it lives for a minute.
func TestCheckStarts(t *testing.T) {
	const file = "starts"
	for _, tt := range []struct {
		name   string
		starts []int // seconds before now
		red    bool
	}{
		{"none", nil, false},
		{"booted", []int{1}, false},
		{"died twice", []int{20, 10, 0}, false},
		{"died a third time", []int{30, 20, 10, 0}, true},
		{"and lives since", []int{80, 70, 60, 50}, true},
		{"for a minute", []int{100, 90, 80, 61}, false},
		{"died now and then", []int{90, 60, 30, 0}, false},
		{"and then again and again", []int{900, 600, 50, 45, 40, 35}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			now := time.Now()
			for _, before := range tt.starts {
				if err := recordStart(file, now.Add(-time.Duration(before)*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			if err := checkStarts(file, now); (err != nil) != tt.red {
				t.Errorf("got %v", err)
			}
		})
	}
}

func routes(root, mcp int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code := map[string]int{"/": root, "/mcp": mcp}[r.URL.Path]
		if code == 301 {
			w.Header().Set("Location", "/mcp")
		}
		w.WriteHeader(code)
	}
}

// addProcesses makes lines of proc_pid_stat(5) the processes of a directory in the place of /proc.
func addProcesses(t *testing.T, proc string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		pid, _, _ := strings.Cut(line, " ")
		if err := errors.Join(os.Mkdir(filepath.Join(proc, pid), 0o755), os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(line+" 0 0\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}
