package admin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

func TestListenIsPrivate(t *testing.T) {
	old := syscall.Umask(0) // the worst that a caller may have
	defer syscall.Umask(old)
	path := socket(t)
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l := listen(t, path)
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	l.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket stays")
	}
}

func TestListenRefuses(t *testing.T) {
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
		"hub.sock":                        "absolute path",
		"/" + strings.Repeat("x", 107):    "absolute path of at most",
		dir + "/none/hub.sock":            "no such file",
		file + "/hub.sock":                "not a directory",
		file:                              "not a socket",
		link:                              "not a socket",
		sub("d", 0o700):                   "not a socket",
		sub("world", 0o777) + "/hub.sock": "others may write directory",
		sub("sticky", 0o777|os.ModeSticky) + "/s": "others may write directory",
		sub("group", 0o770) + "/hub.sock":         "others may write directory",
	} {
		l, err := Listen(path)
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
	path := socket(t)
	if err := os.Chown(filepath.Dir(path), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("%v %v", l, err)
	}
}

// TestStale: a socket that a dead hub left is replaced, a living hub's is not.
func TestStale(t *testing.T) {
	path := socket(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	f := newFake()
	serve(t, listen(t, path), f, NewMetrics())
	if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another hub answers on "+path) {
		t.Errorf("%v %v", l, err)
	}
	if _, err := NewClient(path).Servers(t.Context()); err != nil {
		t.Errorf("the living one is disturbed: %v", err)
	}
}

// TestRace: of hubs that start at once on a stale socket, exactly one wins, and it is the one that is reached.
func TestRace(t *testing.T) {
	path := socket(t)
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
				if l, err := Listen(path); err == nil {
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

func TestListenTCP(t *testing.T) {
	for _, bad := range []string{"", ":80", "0.0.0.0:0", "localhost:0", "[::]:0", "10.0.0.1:80", "127.0.0.1", "/x"} {
		if l, err := ListenTCP(bad); err == nil {
			l.Close()
			t.Errorf("%q is taken", bad)
		}
	}
	l, err := ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
