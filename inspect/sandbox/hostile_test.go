//go:build linux

package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/sys/mountinfo"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
)

// TestHostileImage: what an image says of users, mount points and its own files leads nowhere outside of it.
func TestHostileImage(t *testing.T) {
	t.Parallel()
	testHostileImage(t, runcEngineUnderTest(t))
}

func testHostileImage(t *testing.T, e engineUnderTest) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "passwd"), []byte("evil:x:0:0::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	img := guestImage(t, sandboxtest.Layer(t,
		sandboxtest.File("etc/.wh.passwd", ""), sandboxtest.File("etc/.wh.hosts", ""),
		sandboxtest.Symlink("etc/group", "../../../../../../../.."+outside+"/passwd"), sandboxtest.Symlink("etc/hosts", outside+"/hosts"), sandboxtest.Symlink("etc/resolv.conf", "/proc/self/environ"),
		sandboxtest.Symlink("output", "../../../../../../.."+outside), sandboxtest.Symlink("work", outside), sandboxtest.Symlink("run", outside+"/run"), sandboxtest.Symlink("home", "/")),
		sandboxtest.Layer(t, sandboxtest.Symlink("etc/passwd", outside+"/passwd")))
	s := settings("report", "/output")
	s.Work, s.Output = t.TempDir(), t.TempDir()
	sb, err := e.Start(t.Context(), img, s)
	if err == nil { // runc may refuse such mount points
		finish(t, sb)
		nothingLeft(t, sb.run)
	}
	found, rerr := os.ReadDir(outside)
	if rerr != nil || len(found) != 1 {
		t.Errorf("outside of the image there is %v, %v (%v)", found, rerr, err)
	}
	s = settings("exit", "0")
	s.User, s.Tmpfs = "evil", nil
	var start *StartError
	if _, err := e.Start(t.Context(), img, s); !errors.As(err, &start) || !strings.Contains(err.Error(), "evil") {
		t.Errorf("a user of the host's passwd: %v", err)
	}
}

// TestBadImages: no panic, an error, and nothing left.
func TestBadImages(t *testing.T) {
	t.Parallel()
	testBadImages(t, runcEngineUnderTest(t))
}

func testBadImages(t *testing.T, e engineUnderTest) {
	good := guestImage(t)
	entry := v1.Config{Entrypoint: []string{"/guest"}}
	for name, img := range map[string]Image{
		"no layers":            build(t, entry),
		"a hostile layer":      build(t, entry, sandboxtest.Layer(t, sandboxtest.Hardlink("a", "/etc/shadow"))),
		"a layer cut short":    build(t, entry, sandboxtest.Layer(t, sandboxtest.File("guest", "x"))[:700]),
		"no program":           build(t, entry, sandboxtest.Layer(t, sandboxtest.Dir("d", 0o755))),
		"a device for the dir": build(t, entry, sandboxtest.Layer(t, sandboxtest.Item{Header: tar.Header{Typeflag: tar.TypeChar, Name: "proc", Devmajor: 1, Devminor: 3}})),
	} {
		s := settings()
		s.Output = t.TempDir()
		sb, err := e.Start(t.Context(), img, s)
		if err == nil {
			t.Errorf("%s: it runs", name)
			_, _ = sb.Stop(t.Context())
		}
		files, _ := filepath.Glob(filepath.Join(s.Output, "*", "evidence.json"))
		if len(files) != 1 {
			t.Errorf("%s: evidence %q", name, files)
			continue
		}
		if text, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(text), `"error": "`) {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		if points := pointsBelow(t, e.CacheDir, filepath.Base(filepath.Dir(files[0]))); len(points) > 0 {
			t.Errorf("%s: still mounted: %q", name, points)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if sb, err := e.Start(over, good, settings("sleep")); err == nil {
		t.Errorf("a context that is over: %v", sb)
	}
	s := settings("exit", "0")
	s.Output = "/proc/nowhere"
	if sb, err := e.Start(t.Context(), good, s); err == nil || !strings.Contains(err.Error(), "artifacts") {
		t.Errorf("artifacts that can't be written: %v, %v", sb, err)
	}
}

func pointsBelow(t *testing.T, dir, id string) (out []string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.Contains(m.Mountpoint, id) {
			out = append(out, m.Mountpoint)
		}
	}
	return out
}

// TestFlood: a container that prints without end costs no more memory than its logs may have, and a reader that goes away
// doesn't hold it up.
func TestFlood(t *testing.T) {
	t.Parallel()
	testFlood(t, runcEngineUnderTest(t))
}

func testFlood(t *testing.T, e engineUnderTest) {
	broken := &brokenWriter{}
	e.Stdout = broken
	sb := e.start(guestImage(t), settings("flood"))
	until(t, "the logs are full", func() bool { return len(sb.Logs()) == maxLogs })
	if st, err := sb.Stop(t.Context()); err != nil || st.ExitCode == 0 || len(sb.Logs()) != maxLogs || broken.calls != 1 {
		t.Errorf("%+v, %v, %d bytes, %d writes", st, err, len(sb.Logs()), broken.calls)
	}
}

type brokenWriter struct{ calls int }

func (b *brokenWriter) Write([]byte) (int, error) {
	b.calls++
	return 0, errors.New("gone")
}

// TestJoinNetwork: path:FILE joins a network namespace that is there, and nothing in it is changed.
func TestJoinNetwork(t *testing.T) {
	t.Parallel()
	e := runcEngineUnderTest(t)
	first := e.start(guestImage(t), settings("serve", "0.0.0.0:7000"))
	until(t, "ready", says(first, "ready"))
	pids, err := first.engine.pids(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := settings("serve", "0.0.0.0:7001")
	s.Network = fmt.Sprintf("path:/proc/%d/ns/net", pids[0])
	second := e.start(guestImage(t), s)
	until(t, "ready", says(second, "ready"))
	sockets, err := second.Sockets(t.Context())
	if err != nil || len(sockets) != 2 {
		t.Errorf("%+v, %v: want both", sockets, err)
	}
	s.Publish = []string{"7001"}
	if sb, err := e.Start(t.Context(), guestImage(t), s); err == nil {
		_, _ = sb.Stop(t.Context())
		t.Error("a port of another network is published")
	}
	for _, network := range []string{"path:/nowhere", "path:/etc/passwd", "some-docker-network"} {
		s := settings("exit", "0")
		s.Network = network
		if sb, err := e.Start(t.Context(), guestImage(t), s); err == nil {
			_, _ = sb.Stop(t.Context())
			t.Errorf("%s: it runs", network)
		}
	}
}
