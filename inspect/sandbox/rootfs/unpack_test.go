//go:build linux

package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
)

// jail is a directory for a layer, in one with files that no layer may touch.
type jail struct{ outer, dir string }

func newJail(t *testing.T) jail {
	t.Helper()
	needRoot(t)
	j := jail{outer: t.TempDir()}
	j.dir = filepath.Join(j.outer, "layer", "fs")
	for _, d := range []string{j.dir, filepath.Join(j.outer, "victim")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(j.outer, "victim", "file"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return j
}

func (j jail) unpack(t *testing.T, items ...sandboxtest.Item) (*unpacked, error) {
	t.Helper()
	text := sandboxtest.Layer(t, items...)
	digest, _, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t.Context(), bytes.NewReader(text), digest, j.dir)
}

// untouched checks that nothing outside of the layer's directory has changed.
func (j jail) untouched(t *testing.T) {
	t.Helper()
	var seen []string
	err := filepath.WalkDir(j.outer, func(p string, d fs.DirEntry, err error) error {
		if p == j.dir {
			return fs.SkipDir
		}
		seen = append(seen, strings.TrimPrefix(p, j.outer))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(seen, " "), " /layer /victim /victim/file"; got != want {
		t.Errorf("outside of the layer there is %q, want %q", got, want)
	}
	file := filepath.Join(j.outer, "victim", "file")
	text, err := os.ReadFile(file)
	var st unix.Stat_t
	if serr := unix.Stat(file, &st); err != nil || serr != nil || string(text) != "untouched" || st.Mode&0o7777 != 0o600 || st.Uid != 0 || st.Nlink != 1 {
		t.Errorf("the victim's file is %q, mode %o, owner %d, %d links: %v", text, st.Mode, st.Uid, st.Nlink, errors.Join(err, serr))
	}
}

// TestHostileLayer: whatever a layer says, nothing is written, linked or changed outside of its directory.
func TestHostileLayer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	for _, tc := range []struct {
		name  string
		items func(victim string) []sandboxtest.Item
		// inside are files that are there afterwards, in the layer; none means that the layer is refused.
		inside []string
	}{
		{"dots in a name", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.File("../../victim/file", "bad"), sandboxtest.File("a/../../../victim/x", "bad")}
		}, []string{"victim/file", "victim/x"}},
		{"an absolute name", func(v string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.File(v+"/file", "bad")} }, []string{"VICTIM/file"}},
		{"below an absolute symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Dir(v, 0o755), sandboxtest.Symlink("out", v), sandboxtest.File("out/file", "bad")}
		}, []string{"VICTIM/file"}},
		{"below an absolute symlink that leads nowhere", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v), sandboxtest.File("out/file", "bad")}
		}, nil},
		{"below a relative symlink", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Dir("victim", 0o755), sandboxtest.Symlink("out", "../../../victim"), sandboxtest.File("out/file", "bad")}
		}, []string{"victim/file"}},
		{"over a symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v+"/file"), sandboxtest.File("out", "bad")}
		}, []string{"out"}},
		{"a directory over a symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v), sandboxtest.Dir("out", 0o777), sandboxtest.File("out/file", "bad")}
		}, []string{"out/file"}},
		{"symlinks in a chain", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("a", ".."), sandboxtest.Symlink("b", "a/.."), sandboxtest.Symlink("c", "b/../victim"), sandboxtest.File("c/file", "bad")}
		}, nil},
		{"a loop", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("a", "b"), sandboxtest.Symlink("b", "a"), sandboxtest.File("a/file", "bad")}
		}, nil},
		{"a magic link", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("p", "/proc/self/cwd"), sandboxtest.File("p/file", "bad")}
		}, nil},
		{"a hard link out", func(v string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.Hardlink("link", v+"/file")} }, nil},
		{"a hard link out by dots", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Hardlink("link", "../../victim/file")}
		}, nil},
		{"a hard link through a symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v), sandboxtest.Hardlink("link", "out/file"), sandboxtest.File("link", "bad")}
		}, nil},
		{"a hard link to a symlink, then written", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v+"/file"), sandboxtest.Hardlink("link", "out"), sandboxtest.File("link", "bad")}
		}, []string{"link"}},
		{"a hard link to a directory", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Dir("d", 0o755), sandboxtest.Hardlink("link", "d")}
		}, nil},
		{"a whiteout out", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.File("../../victim/.wh.file", "")}
		}, []string{"victim/file"}},
		{"a whiteout through a symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v), sandboxtest.File("out/.wh.file", "")}
		}, nil},
		{"a whiteout of ..", func(string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.File("a/.wh...", "")} }, nil},
		{"a whiteout of .", func(string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.File("a/.wh..", "")} }, nil},
		{"a whiteout of nothing", func(string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.File("a/.wh.", "")} }, nil},
		{"an opaque directory out", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.File("../../victim/.wh..wh..opq", "")}
		}, []string{"victim"}},
		{"an opaque directory through a symlink", func(v string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.Symlink("out", v), sandboxtest.File("out/.wh..wh..opq", "")}
		}, nil},
		{"the times of a directory replaced by a symlink", func(v string) []sandboxtest.Item {
			d := sandboxtest.Dir("d", 0o755)
			d.ModTime = time.Unix(1, 0)
			return []sandboxtest.Item{d, sandboxtest.Symlink("d", v)}
		}, []string{"d"}},
		{"a file in a file", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.File("f", ""), sandboxtest.File("f/g", "bad")}
		}, nil},
		{"a name too long", func(string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.File(long, "bad")} }, nil},
		{"a path too long", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{sandboxtest.File(strings.Repeat("dir/", 1500)+"f", "bad")}
		}, nil},
		{"the root as a fifo", func(string) []sandboxtest.Item {
			return []sandboxtest.Item{{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "."}}}
		}, nil},
		{"the root as a symlink", func(v string) []sandboxtest.Item { return []sandboxtest.Item{sandboxtest.Symlink("/", v)} }, nil},
		{"attributes for overlayfs", func(string) []sandboxtest.Item {
			d := sandboxtest.Dir("d", 0o755)
			d.PAXRecords = map[string]string{paxXattr + "trusted.overlay.redirect": "/../../victim"}
			return []sandboxtest.Item{d}
		}, nil},
		{"other attributes for overlayfs", func(string) []sandboxtest.Item {
			d := sandboxtest.File("f", "")
			d.PAXRecords = map[string]string{paxXattr + "user.overlay.metacopy": ""}
			return []sandboxtest.Item{d}
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			j := newJail(t)
			victim := filepath.Join(j.outer, "victim")
			_, err := j.unpack(t, tc.items(victim)...)
			j.untouched(t)
			if (err == nil) != (tc.inside != nil) {
				t.Fatalf("got %v", err)
			}
			for _, f := range tc.inside {
				if _, err := os.Lstat(filepath.Join(j.dir, strings.Replace(f, "VICTIM", victim, 1))); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestHostileStream: a stream that doesn't end as it should leaves an error.
func TestHostileStream(t *testing.T) {
	t.Parallel()
	j := newJail(t)
	good := sandboxtest.Layer(t, sandboxtest.File("f", "content"))
	digest, _, err := v1.SHA256(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		text []byte
	}{
		"another content":  {t.Context(), sandboxtest.Layer(t, sandboxtest.File("f", "other"))},
		"cut short":        {t.Context(), good[:600]},
		"more at the end":  {t.Context(), append(bytes.Clone(good), "more"...)},
		"no archive":       {t.Context(), []byte(strings.Repeat("x", 2000))},
		"over before":      {over, good},
		"an unknown entry": {t.Context(), sandboxtest.Layer(t, sandboxtest.Item{Header: tar.Header{Typeflag: 'Z', Name: "z"}})},
	} {
		dir := t.TempDir()
		if _, err := unpack(tc.ctx, bytes.NewReader(tc.text), digest, dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	j.untouched(t)
}

// TestUnpack: owners, modes, times, links, devices and attributes are the layer's.
func TestUnpack(t *testing.T) {
	t.Parallel()
	j := newJail(t)
	when := time.Unix(1_600_000_000, 0)
	owned := func(i sandboxtest.Item) sandboxtest.Item {
		i.Uid, i.Gid, i.ModTime = 1000, 1001, when
		return i
	}
	suid := sandboxtest.File("bin/tool", "tool")
	suid.Mode = 0o4755
	cap := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	suid.PAXRecords = map[string]string{paxXattr + "security.capability": cap, paxXattr + "trusted.other": "x"}
	u, err := j.unpack(t,
		owned(sandboxtest.Dir("d", 0o1770)), owned(sandboxtest.File("d/f", "content")), owned(suid), sandboxtest.Hardlink("bin/again", "bin/tool"),
		owned(sandboxtest.Symlink("d/link", "/nowhere")), sandboxtest.Item{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o622}},
		sandboxtest.Item{Header: tar.Header{Typeflag: tar.TypeChar, Name: "d/null", Mode: 0o666, Devmajor: 1, Devminor: 3}},
		sandboxtest.File("d/.wh.gone", ""), sandboxtest.File("e/.wh..wh..opq", ""), sandboxtest.Dir("both", 0o700), sandboxtest.File(".wh.both", ""), sandboxtest.File("x/.wh..wh.plnk", ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(u.Implicit, " "); got != "/ /bin /e" {
		t.Errorf("implicit directories: %s", got)
	}
	stat := func(name string) (st unix.Stat_t) {
		if err := unix.Lstat(filepath.Join(j.dir, name), &st); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return st
	}
	for name, mode := range map[string]uint32{
		"d": unix.S_IFDIR | 0o1770, "d/f": unix.S_IFREG | 0o644, "bin/tool": unix.S_IFREG | 0o4755, "d/link": unix.S_IFLNK | 0o777,
	} {
		if st := stat(name); st.Mode != mode || st.Uid != 1000 || st.Gid != 1001 || st.Mtim.Sec != when.Unix() {
			t.Errorf("%s: mode %o, owner %d:%d, time %d", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec)
		}
	}
	if a, b := stat("bin/tool"), stat("bin/again"); a.Ino != b.Ino {
		t.Error("the hard link is another file")
	}
	if st := stat("d/fifo"); st.Mode != unix.S_IFIFO|0o622 {
		t.Errorf("fifo: mode %o", st.Mode)
	}
	if st := stat("d/null"); st.Mode != unix.S_IFCHR|0o666 || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("device: mode %o, %x", st.Mode, st.Rdev)
	}
	if st := stat("d/gone"); st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("whiteout: mode %o, %x", st.Mode, st.Rdev)
	}
	for name, want := range map[string]bool{"e": true, "both": false, "d": false} {
		if opaque(filepath.Join(j.dir, name)) != want {
			t.Errorf("%s opaque: %v", name, !want)
		}
	}
	var value [64]byte
	if n, err := unix.Lgetxattr(filepath.Join(j.dir, "bin/tool"), "security.capability", value[:]); err != nil || string(value[:n]) != cap {
		t.Errorf("capability: %q, %v", value[:max(n, 0)], err)
	}
	if _, err := unix.Lgetxattr(filepath.Join(j.dir, "bin/tool"), "trusted.other", value[:]); err == nil {
		t.Error("a trusted attribute was set")
	}
}
