//go:build linux

package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gofrs/flock"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/need"
)

// tree lists what is below a directory: path, mode, owner, size or target.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d:%d", "/"+strings.Trim(strings.TrimPrefix(p, root), "/"), st.Mode, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q %d links", text, st.Nlink)
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// merged lays an image's layers over one another in a new directory.
func merged(t *testing.T, img v1.Image) string {
	t.Helper()
	layers, err := Cache{filepath.Join(t.TempDir(), "layers")}.Layers(t.Context(), img, image.NoProgress)
	if err != nil {
		t.Fatal(err)
	}
	root, err := Mount(layers, t.TempDir())
	if root != "" {
		t.Cleanup(func() {
			if err := unix.Unmount(root, 0); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// needRoot ends a test that can't make files of other owners.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "layers are unpacked with their owners and devices, and mounted, which needs root")
	}
}

// TestRootFS: the tree is the one that the layers mean.
func TestRootFS(t *testing.T) {
	t.Parallel()
	needRoot(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := sandboxtest.Image(t, v1.Config{},
		sandboxtest.Layer(t, sandboxtest.Own(sandboxtest.Dir("./", 0o711), 5), sandboxtest.Own(sandboxtest.Dir("tmp/", 0o1777), 0), sandboxtest.Own(sandboxtest.Dir("home/", 0o751), 7), sandboxtest.File("home/kept", "1"),
			sandboxtest.Dir("gone/", 0o755), sandboxtest.File("gone/a", "1"), sandboxtest.Dir("opaque/", 0o755), sandboxtest.File("opaque/below", "1"), sandboxtest.File("file", "1"),
			sandboxtest.Dir("replaced/", 0o755), sandboxtest.File("replaced/x", "1"), sandboxtest.Symlink("link", filepath.Dir(victim)), sandboxtest.Dir("again/", 0o700), sandboxtest.File("again/old", "1"),
			sandboxtest.Own(sandboxtest.Dir("hidden/", 0o700), 9), sandboxtest.Own(sandboxtest.Dir("hidden/dir/", 0o711), 9), sandboxtest.File("hidden/dir/f", "1")),
		// tmp and home are not named here, and keep what the layer below says of them.
		sandboxtest.Layer(t, sandboxtest.File("tmp/new", "2"), sandboxtest.File("home/new", "2"), sandboxtest.Hardlink("home/hard", "home/new"), sandboxtest.File(".wh.gone", ""), sandboxtest.File("opaque/.wh..wh..opq", ""), sandboxtest.File("opaque/own", "2"),
			sandboxtest.File("link/victim", "2"), sandboxtest.File("replaced", "2"), sandboxtest.Dir("file/", 0o755), sandboxtest.File("file/in", "2"), sandboxtest.File(".wh.hidden", "")),
		sandboxtest.Layer(t, sandboxtest.File("again/new", "3"), sandboxtest.File("home/.wh.kept", ""), sandboxtest.File("hidden/dir/new", "3"), sandboxtest.Own(sandboxtest.Dir("late/", 0o700), 3)),
		sandboxtest.Layer(t, sandboxtest.File(".wh.again", ""), sandboxtest.Own(sandboxtest.Dir("again/", 0o750), 4), sandboxtest.File("again/newest", "4"), sandboxtest.File("late/f", "4")))
	want := []string{
		"/ 40711 5:5",
		"/again 40750 4:4", `/again/new 100644 0:0 "3" 1 links`, `/again/newest 100644 0:0 "4" 1 links`, `/again/old 100644 0:0 "1" 1 links`,
		"/file 40755 0:0", `/file/in 100644 0:0 "2" 1 links`,
		"/hidden 40755 0:0", "/hidden/dir 40755 0:0", `/hidden/dir/new 100644 0:0 "3" 1 links`,
		"/home 40751 7:7", `/home/hard 100644 0:0 "2" 2 links`, `/home/new 100644 0:0 "2" 2 links`,
		"/late 40700 3:3", `/late/f 100644 0:0 "4" 1 links`,
		"/link 40755 0:0", `/link/victim 100644 0:0 "2" 1 links`,
		"/opaque 40755 0:0", `/opaque/own 100644 0:0 "2" 1 links`,
		`/replaced 100644 0:0 "2" 1 links`,
		"/tmp 41777 0:0", `/tmp/new 100644 0:0 "2" 1 links`,
	}
	if got := tree(t, merged(t, img)); !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "untouched" {
		t.Errorf("%q, %v", text, err)
	}
	opaqueRoot := sandboxtest.Image(t, v1.Config{}, sandboxtest.Layer(t, sandboxtest.File("below", "")), sandboxtest.Layer(t, sandboxtest.File(".wh..wh..opq", ""), sandboxtest.File("above", "")))
	if got := tree(t, merged(t, opaqueRoot)); len(got) != 3 || !strings.HasPrefix(got[1], "/above ") {
		t.Errorf("an opaque root, which overlayfs has not: %q", got)
	}
	for _, n := range []int{0, maxLayers + 1} {
		if dir, err := Mount(make([]Layer, n), t.TempDir()); err == nil {
			t.Errorf("%d layers: %s", n, dir)
		}
	}
}

// TestLayerCache: several at once unpack a layer once; a layer that isn't what its digest says is not kept; what a killed
// process left is taken away.
func TestLayerCache(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := Cache{filepath.Join(t.TempDir(), "layers")}
	var items []sandboxtest.Item
	for i := range 500 {
		items = append(items, sandboxtest.File(fmt.Sprintf("f%d", i), "content"))
	}
	img := sandboxtest.Image(t, v1.Config{}, sandboxtest.Layer(t, items...))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			layers, err := c.Layers(t.Context(), img, image.NoProgress)
			if err != nil || len(layers) != 1 {
				t.Errorf("%v, %v", layers, err)
				return
			}
			if found, err := os.ReadDir(layers[0].dir); err != nil || len(found) != 500 {
				t.Errorf("%d files, %v", len(found), err)
			}
		})
	}
	wg.Wait()

	forged := sandboxtest.Image(t, v1.Config{}, sandboxtest.Layer(t, sandboxtest.File("forged", "")))
	config, err := forged.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	digest := config.RootFS.DiffIDs[0]
	other, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := c.layer(t.Context(), other[0], digest, image.NoProgress); err == nil || !strings.Contains(err.Error(), "config says") {
		t.Errorf("a forged layer: %v, %v", l, err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, "sha256", digest.Hex+"*")); len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
		t.Errorf("left: %q", left)
	}
	for _, hash := range []v1.Hash{{Algorithm: "sha256", Hex: "../../../../etc"}, {Algorithm: "md5", Hex: digest.Hex}} {
		if l, err := c.layer(t.Context(), other[0], hash, image.NoProgress); err == nil {
			t.Errorf("%v: %v", hash, l)
		}
	}

	dead, live := filepath.Join(c.Dir, "sha256", "dead.tmp"), filepath.Join(c.Dir, "sha256", "live.tmp")
	if err := errors.Join(os.MkdirAll(filepath.Join(dead, "fs"), 0o755), os.Mkdir(live, 0o755)); err != nil {
		t.Fatal(err)
	}
	lock := flock.New(strings.TrimSuffix(live, ".tmp") + ".lock")
	if _, err := lock.TryLock(); err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	if err := c.Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed process left: %v", err)
	}
	if _, err := os.Stat(live); err != nil {
		t.Errorf("what another process is at: %v", err)
	}
}
