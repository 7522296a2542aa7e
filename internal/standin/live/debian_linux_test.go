package live

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/slimctl/slimctl/internal/need"
)

func TestAptSources(t *testing.T) {
	const stanza = "Types: deb\nURIs: http://mirror.invalid/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
	const row = "deb [signed-by=/k arch=amd64] http://mirror.invalid/debian bookworm main contrib\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing":           {nil, nil},
		"deb822":            {map[string]string{"sources.list.d/debian.sources": "# words\n\n" + stanza}, []string{stanza}},
		"one line":          {map[string]string{"sources.list": "# deb http://x.invalid bookworm main\n" + row}, []string{row}},
		"both":              {map[string]string{"sources.list": row, "sources.list.d/d.sources": stanza}, []string{stanza, row}},
		"another release":   {map[string]string{"sources.list": strings.ReplaceAll(row, "bookworm", "trixie")}, nil},
		"another's":         {map[string]string{"sources.list.d/docker.list": "deb http://x.invalid bookworm stable\n"}, nil},
		"source packages":   {map[string]string{"sources.list": "deb-src http://x.invalid bookworm main\n"}, nil},
		"switched off":      {map[string]string{"sources.list.d/d.sources": stanza + "Enabled: no\n"}, nil},
		"security, old":     {map[string]string{"sources.list": "deb http://x.invalid bookworm/updates main\n"}, []string{"deb http://x.invalid bookworm/updates main\n"}},
		"not a list at all": {map[string]string{"sources.list": "deb\ndeb [\n:::\n", "sources.list.d/x.sources": ":\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			etc := t.TempDir()
			if err := os.Mkdir(filepath.Join(etc, "sources.list.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(etc, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := aptSources(etc)
			if !slices.Equal(got, c.want) || (err != nil) != (c.want == nil) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// fake puts a mmdebstrap of the test's own in the PATH.
func fake(t *testing.T, script string) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "it takes root to mount")
	}
	need.Program(t, "unshare")
	need.Program(t, "apt-config")
	if _, err := aptSources("/etc/apt"); err != nil {
		need.Missing(t, "%v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestRootfsIsMadeOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	fake(t, `echo >>`+count+`
mkdir -p "$TMPDIR/r/usr/bin" "$TMPDIR/r/etc/private" && chmod 700 "$TMPDIR/r/etc/private" && echo real >"$TMPDIR/r/usr/bin/bash" && tar -C "$TMPDIR/r" -c .`)
	root := t.TempDir()
	for _, line := range []string{"A", "B", "A"} {
		dir, err := Cached(t.Context(), root, line)
		if err != nil {
			t.Fatal(err)
		}
		idx, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(idx); err != nil {
			t.Error(err)
		}
	}
	if raw, err := os.ReadFile(count); string(raw) != "\n" {
		t.Errorf("mmdebstrap was started %d times (%v), want once", len(raw), err)
	}
	blobs, err := filepath.Glob(filepath.Join(root, "standin-debian-*", "layer.tar.gz"))
	if err != nil || len(blobs) != 1 {
		t.Fatalf("%v %v", blobs, err)
	}
	info, err := os.Stat(blobs[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := info.Sys().(*syscall.Stat_t).Nlink; n != 3 {
		t.Errorf("the blob has %d names, want 3: one and two layouts'", n)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "standin-debian-*", "work")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestFailureIsTold(t *testing.T) {
	fake(t, "echo some bytes; echo E: no space left >&2; exit 3")
	root := t.TempDir()
	if _, err := Cached(t.Context(), root, "A"); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v, want mmdebstrap's own words", err)
	}
	onlyLock(t, root)
}

// A stop in the middle leaves no process, no mount and no files, whatever mmdebstrap was at.
func TestStopLeavesNothing(t *testing.T) {
	note := filepath.Join(t.TempDir(), "note")
	fake(t, `trap "" TERM INT
mkdir "$TMPDIR/mounted" && mount -t tmpfs none "$TMPDIR/mounted" && echo >"$TMPDIR/mounted/file"
flock `+note+`.lock sleep 1000 &
while flock -n `+note+`.lock true; do sleep 0.1; done
echo "$TMPDIR" >`+note+`
wait; sleep 1000`)
	root := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("Ctrl-C")
	done := make(chan error, 1)
	go func() {
		_, err := Cached(ctx, root, "A")
		done <- err
	}()
	need.Eventually(t, func() bool { raw, _ := os.ReadFile(note); return len(raw) > 0 }, func() string { return "mmdebstrap was not started" })
	cancel(stop)
	select {
	case err := <-done:
		if !errors.Is(err, stop) {
			t.Errorf("%v, want the cause", err)
		}
	case <-time.After(need.Patience):
		t.Fatal("it goes on")
	}
	onlyLock(t, root)
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("a mount is left (%v)", err)
	}
	awaitLock(t, note+".lock")
}

// TestKilledEndsMmdebstrap guards against an mmdebstrap that goes on for minutes beside the next one, when who waits for it is
// killed.
func TestKilledEndsMmdebstrap(t *testing.T) {
	if root := os.Getenv("LIVE_ROOT"); root != "" {
		_, err := Cached(t.Context(), root, "A")
		t.Fatal(err)
	}
	root := t.TempDir()
	note := filepath.Join(root, "note")
	fake(t, "exec flock "+note+".lock sh -c 'trap \"\" TERM; echo >"+note+"; sleep 100000'")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledEndsMmdebstrap$")
	cmd.Env = append(os.Environ(), "LIVE_ROOT="+root)
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	need.Eventually(t, func() bool { _, err := os.Stat(note); return err == nil }, func() string { return "mmdebstrap was not started" })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitLock(t, note+".lock")
}

// awaitLock waits until no process holds a lock.
func awaitLock(t *testing.T, file string) {
	t.Helper()
	lock, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	need.Eventually(t, func() bool { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }, func() string {
		return "a process of mmdebstrap's is left, and holds its lock"
	})
}

func onlyLock(t *testing.T, root string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("left behind: %s", strconv.Quote(e.Name()))
		}
	}
}
