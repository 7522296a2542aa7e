package front

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// TestListenUnix: nginx reaches MCP by a unix socket, which is its owner's and group's whatever the umask is.
func TestListenUnix(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "mcp.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Listen("unix:"+path, false)
	if err != nil {
		t.Fatalf("a socket that nobody answers on: %v", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := Listen("unix:"+path, true); err == nil || !strings.Contains(err.Error(), "another program answers") {
		t.Errorf("a socket that somebody answers on: %v", err)
	}

	// A web page's request, by a name that leads to us or from another site, is refused here as it is on loopback.
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	go func() { ended <- Serve(ctx, l, refuseForeign(ok)) }()
	client := &http.Client{Timeout: need.Patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1", "", 204},
		{"127.0.0.1:8079", "", 204},
		{"[::1]:8079", "", 204},
		{"localhost", "http://localhost", 204},
		{"localhost", "http://evil.test", 403},
		{"localhost", "null", 403},
		{"evil.test", "", 403},
		{"evil.test", "http://evil.test", 403},
		{"192.0.2.1", "", 403},
		{"127.0.0.1.evil.test", "", 403},
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.host+"/mcp", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != c.want {
				t.Errorf("%s for %s from %q: %d, want %d", method, c.host, c.origin, answer.StatusCode, c.want)
			}
		}
	}
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket stays")
	}
}

func TestListenUnixRefuses(t *testing.T) {
	dir := t.TempDir()
	file, world := filepath.Join(dir, "file"), filepath.Join(dir, "world")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(world, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(world, 0o777); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"unix:":                  "absolute path",
		"unix:mcp.sock":          "absolute path",
		"unix:@abstract":         "absolute path",
		"unix:" + file:           "not a socket",
		"unix:" + dir:            "not a socket",
		"unix:" + world + "/s":   "others may write",
		"unix:" + dir + "/no/s":  "no such file",
		filepath.Join(dir, "s"):  "unix:/absolute/path",
		"unix" + dir + "/hub":    "unix:/absolute/path",
		"UNIX:" + dir + "/hub":   "unix:/absolute/path",
		"unix://host" + "/x/y/z": "no such file",
	} {
		l, err := Listen(address, true)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", address, err, want)
		}
	}
}

func TestListenUnixIsConfined(t *testing.T) {
	dir := t.TempDir()
	sub := func(name string, mode os.FileMode) string {
		d := filepath.Join(dir, name)
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
		return d
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/nowhere", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"mcp.sock":                        "absolute path",
		"/" + strings.Repeat("x", 107):    "absolute path of at most",
		dir + "/none/mcp.sock":            "no such file",
		file + "/mcp.sock":                "not a directory",
		file:                              "not a socket",
		link:                              "not a socket",
		sub("d", 0o700):                   "not a socket",
		sub("world", 0o777) + "/mcp.sock": "others may write directory",
		sub("sticky", 0o777|os.ModeSticky) + "/s": "others may write directory",
		sub("group", 0o770) + "/mcp.sock":         "others may write directory",
	} {
		l, err := Listen("unix:"+path, false)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %q", path, err, want)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
}

func TestListenOthersDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		need.Missing(t, "only root can give a directory away")
	}
	path := filepath.Join(t.TempDir(), "s")
	if err := os.Chown(filepath.Dir(path), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen("unix:"+path, false); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("%v %v", l, err)
	}
}

// TestStale: a socket that a dead program left is replaced, a living one's is not.
func TestStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	living, err := Listen("unix:"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	if l, err := Listen("unix:"+path, false); err == nil || !strings.Contains(err.Error(), "another program answers on "+path) {
		t.Errorf("%v %v", l, err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the living one is disturbed: %v", err)
	}
	c.Close()
}

// TestRace: of programs that start at once on a stale socket, exactly one wins, and it is the one that is reached.
func TestRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 100 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		var wg sync.WaitGroup
		won := make(chan net.Listener, 8)
		for range cap(won) {
			wg.Go(func() {
				if l, err := Listen("unix:"+path, false); err == nil {
					won <- l
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d listen", len(won))
		}
		l := <-won
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Close()
	}
}
