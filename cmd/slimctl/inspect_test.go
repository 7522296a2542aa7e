package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slimctl/slimctl/internal/ocitest"
)

// imagesOf reads what was built, by go-containerregistry and not by slimctl's own readers. ref is oci:DIR,
// oci-archive:FILE, docker-archive:FILE or a registry reference.
func imagesOf(t testing.TB, ref, tmp string) map[string]v1.Image {
	t.Helper()
	kind, rest, _ := strings.Cut(ref, ":")
	switch kind {
	case "oci":
		return layoutImages(t, rest)
	case "oci-archive":
		dir, err := os.MkdirTemp(tmp, "unpacked-")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(rest)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unpack(f, dir, ""); err != nil {
			t.Fatal(err)
		}
		return layoutImages(t, dir)
	case "docker-archive":
		img, err := tarball.ImageFromPath(rest, nil)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]v1.Image{platformOf(t, img): img}
	}
	n, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	desc, err := remote.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	if desc.MediaType.IsIndex() {
		idx, err := desc.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		return ocitest.Index(t, idx)
	}
	img, err := desc.Image()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]v1.Image{platformOf(t, img): img}
}

// layoutImages returns the images of a layout in which several names may stand for one image.
func layoutImages(t testing.TB, dir string) map[string]v1.Image {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Manifests[1:] {
		if d.Digest != m.Manifests[0].Digest {
			return ocitest.Layout(t, dir)
		}
	}
	if !m.Manifests[0].MediaType.IsIndex() {
		img, err := top.Image(m.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]v1.Image{platformOf(t, img): img}
	}
	idx, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return ocitest.Index(t, idx)
}

func platformOf(t testing.TB, img v1.Image) string {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c.Platform().String()
}

// unpack writes the directories, regular files and links of a tar below prefix to dir.
func unpack(r io.Reader, dir, prefix string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if !strings.HasPrefix(p, prefix) || p == "" {
			continue
		}
		if err := root.MkdirAll(path.Dir(p), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(p, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, p)
		case tar.TypeReg:
			var data []byte
			if data, err = io.ReadAll(tr); err == nil {
				err = root.WriteFile(p, data, os.FileMode(h.Mode&0o777))
			}
		}
		if err != nil {
			return err
		}
	}
}

// fileIn returns the content of a regular file of the merged tree.
func fileIn(img v1.Image, p string) ([]byte, error) {
	r := mutate.Extract(img)
	defer r.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if path.Clean("/"+h.Name) == p && h.Typeflag == tar.TypeReg {
			return io.ReadAll(tr)
		}
	}
}

// machineOf names the machine of an ELF file.
func machineOf(data []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	return f.Machine.String(), nil
}

// listing is the merged tree, one line a path: PATH TYPE MODE UID:GID [-> TARGET].
func listing(w io.Writer, tree map[string]ocitest.Node) {
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		n := tree[p]
		fmt.Fprintf(w, "%s %s %04o %d:%d", p, n.Type, n.Mode, n.UID, n.GID)
		if n.Link != "" {
			fmt.Fprintf(w, " -> %s", n.Link)
		}
		fmt.Fprintln(w)
	}
}

// describeImage writes the config and the manifest's annotations, one line a value.
func describeImage(w io.Writer, img v1.Image) error {
	c, err := img.ConfigFile()
	if err != nil {
		return err
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "created %s\n", c.Created.UTC().Format("2006-01-02T15:04:05Z"))
	for _, kv := range c.Config.Env {
		fmt.Fprintf(w, "env %s\n", kv)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Config.Labels)) {
		fmt.Fprintf(w, "label %s=%s\n", k, c.Config.Labels[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.Annotations)) {
		fmt.Fprintf(w, "annotation %s=%s\n", k, m.Annotations[k])
	}
	rest, err := json.Marshal(map[string]any{"entrypoint": c.Config.Entrypoint, "cmd": c.Config.Cmd, "ports": c.Config.ExposedPorts})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", rest)
	return err
}

// entries lists a directory, hidden names too.
func entries(dir string) []string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names
}

// flipByte changes one byte in the middle of a file, in a new file of the same name: the old one may be linked elsewhere.
func flipByte(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	if err := os.Remove(file); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// largestBlob is the largest blob of a layout: a layer.
func largestBlob(layout string) (string, error) {
	files, err := filepath.Glob(filepath.Join(layout, "blobs", "sha256", "*"))
	if err != nil {
		return "", err
	}
	largest, size := "", int64(-1)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return "", err
		}
		if info.Size() > size {
			largest, size = f, info.Size()
		}
	}
	return largest, nil
}
