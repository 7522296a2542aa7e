package standin

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// onRootfs writes line's stand-in on a root file system of the given entries.
func onRootfs(t *testing.T, line string, real ...image.File) map[string]entry {
	t.Helper()
	below, err := image.NewLayer(withParents(real, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	var entries []image.Entry
	for _, f := range real {
		entries = append(entries, f.Entry)
	}
	laid, err := tree.Of(entries...)
	if err != nil {
		t.Fatal(err)
	}
	r := &Rootfs{File: filepath.Join(t.TempDir(), "blob"), Tree: laid}
	blob, err := below.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(r.File)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(blob); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r.DiffID, err = below.DiffID(); err != nil {
		t.Fatal(err)
	}
	if r.Layer.Digest, err = below.Digest(); err != nil {
		t.Fatal(err)
	}
	if r.Layer.Size, err = below.Size(); err != nil {
		t.Fatal(err)
	}
	if r.Layer.MediaType, err = below.MediaType(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := Write(t.Context(), dir, Options{Line: line, Platforms: []string{"linux/amd64"}, Rootfs: r}); err != nil {
		t.Fatal(err)
	}
	img := imageOf(t, dir, "linux/amd64")
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	return merged(t, img)
}

func TestRootfsComesFirst(t *testing.T) {
	private := image.Dir("/usr/local", 0o700)
	private.UID = 7
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			tree := onRootfs(t, line, private,
				image.Bytes("/usr/bin/bash", 0o755, []byte("real")), image.Bytes("/usr/bin/perl", 0o755, []byte("real")),
				image.Bytes("/usr/bin/supervisord", 0o755, []byte("real")), image.Bytes("/etc/passwd", 0o644, []byte("real")))
			for _, p := range []string{"/usr/bin/bash", "/usr/bin/perl", "/etc/passwd"} {
				if e := tree[p]; string(e.data) != "real" || e.layer != 0 {
					t.Errorf("%s holds %q in layer %d, want the root file system's", p, e.data, e.layer)
				}
			}
			if e := tree["/usr/bin/perl5.34.0"]; e.Linkname != "/usr/bin/perl" {
				t.Errorf("perl's second name leads to %q", e.Linkname)
			}
			if e := tree["/usr/local"]; e.Mode != 0o700 || e.Uid != 7 {
				t.Errorf("/usr/local is %o of %d, want the root file system's 700 of 7", e.Mode, e.Uid)
			}
			if e, ok := lookup(tree, "/usr/bin/gcc"); !ok || string(e.data[:4]) != "\x7fELF" {
				t.Error("a program that the root file system lacks is no placeholder any more")
			}
			for p, want := range map[string]string{
				"/etc/chromium": "/etc/browser", "/opt/python3.12/bin/python3.12": "/usr/bin/python3",
			} {
				if e := tree[p]; e.Linkname != want {
					t.Errorf("%s leads to %q, want %s", p, e.Linkname, want)
				}
			}
			if e := tree["/usr/bin/supervisord"]; (line == "A") != (string(e.data) == "real") {
				t.Errorf("/usr/bin/supervisord is %q to %q", e.data, e.Linkname)
			}
			if e := tree["/opt/runtime/nodejs/bin/node"]; e.Typeflag != tar.TypeLink || string(tree["/"+e.Linkname].data) != realNode {
				t.Errorf("Node's second name is %q to %q", e.Typeflag, e.Linkname)
			}
			if _, ok := tree["/usr/local/bin/gost"]; ok != (line != "A") {
				t.Errorf("gost there: %v", ok)
			}
		})
	}
}

func TestRootfsIsOfOnePlatform(t *testing.T) {
	o := Options{Line: "A", Rootfs: &Rootfs{Tree: tree.New(), DiffID: v1.Hash{Algorithm: "sha256"}}}
	if _, err := Write(t.Context(), filepath.Join(t.TempDir(), "layout"), o); err == nil {
		t.Error("no error for two platforms")
	}
}
