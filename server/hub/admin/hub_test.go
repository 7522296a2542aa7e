package admin

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// fake is a Hub of two servers.
type fake struct {
	mu     sync.Mutex
	state  map[string]upstream.State
	did    []string
	down   error
	reload error
	wait   time.Duration // of Stop
}

func newFake() *fake {
	return &fake{state: map[string]upstream.State{"files": upstream.Error, "browser_shell": upstream.Running}}
}

func (f *fake) Server(name string) (upstream.Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, ok := f.state[name]
	s := upstream.Status{Name: name, State: state, Transport: "stdio", PID: 4711, Since: time.Unix(1800000000, 0).UTC(), Restarts: 3, Tools: 1}
	if state == upstream.Error {
		s.PID, s.Attempt, s.NextRetry = 0, 2, time.Unix(1800000002, 0).UTC()
		s.LastError = "/opt/files ended with 1: password=hunter22222"
	}
	return s, ok
}

func (f *fake) Servers() []upstream.Status {
	a, _ := f.Server("files")
	b, _ := f.Server("browser_shell")
	return []upstream.Status{a, b}
}

func (f *fake) Log(name string) []byte {
	return []byte("Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789\n\x1b[2Jlog of " + name + "\xff\n")
}

func (f *fake) act(what, name string, s upstream.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, what+" "+name)
	f.state[name] = s
	return f.down
}

func (f *fake) acts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.did...)
}

func (f *fake) Start(name string) error { return f.act("start", name, upstream.Starting) }

func (f *fake) Stop(ctx context.Context, name string) error {
	select {
	case <-time.After(f.wait):
	case <-ctx.Done():
		return ctx.Err()
	}
	return f.act("stop", name, upstream.Stopped)
}

func (f *fake) Restart(_ context.Context, name string) error {
	return f.act("restart", name, upstream.Starting)
}

func (f *fake) Tools() []Tool {
	return []Tool{{Name: "read", Server: "files", Description: "x"}, {Name: "browser-shell", Server: "browser_shell"}, {Name: "delete", Server: "files", Blocked: true}}
}
func (f *fake) Reload() error { return f.reload }
func (f *fake) Ready() error  { return f.down }

func (f *fake) Warnings() []error { return []error{errors.New("misspelt")} }

var errDown = errors.New("server files is error: /opt/files is missing")

// socket returns a path that is short enough for one.
func socket(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "hub.sock")
}

// serve runs the API until the test ends and tells that it has ended without an error.
func serve(t testing.TB, l net.Listener, h Hub, m *Metrics) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h, m, "") }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(need.Patience):
			t.Error("Serve does not end")
		}
	})
}

func listen(t testing.TB, path string) net.Listener {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
