// Package sandboxtest makes small images for tests: layers as a hostile or a careless builder writes them, and a guest,
// the program of testdata/guest, which tells what it sees of its container and misbehaves on demand.
package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// guest is compiled once.
var guest = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "github.com/slimctl/slimctl/inspect/sandbox/sandboxtest/testdata/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(msg)))
	}
	return os.ReadFile(out)
})

// Item is one entry of a layer.
type Item struct {
	tar.Header
	Content string
}

// Dir is a directory.
func Dir(name string, mode int64) Item {
	return Item{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}}
}

// File is a regular file of mode 0644.
func File(name, content string) Item {
	return Item{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, Content: content}
}

// Symlink is a symbolic link.
func Symlink(name, target string) Item {
	return Item{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

// Hardlink is one more name of a file.
func Hardlink(name, target string) Item {
	return Item{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o755}} // Docker gives it to the file
}

// Own assigns an item to a user and the group of that number.
func Own(i Item, uid int) Item {
	i.Uid, i.Gid = uid, uid
	return i
}

// Layer writes items as they are, in their order.
func Layer(t testing.TB, items ...Item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := i.Header
		h.Size = int64(len(i.Content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(i.Content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Image makes an image for this machine of layers, the lowest first, with a config.
func Image(t testing.TB, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, static.NewLayer(l, types.OCIUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// GuestLayer is a layer with the guest at /guest and two accounts: root, and gem, who is in the group video too.
func GuestLayer(t testing.TB) []byte {
	t.Helper()
	program, err := guest()
	if err != nil {
		t.Fatal(err)
	}
	return Layer(t, Dir("etc/", 0o755), Dir("tmp/", 0o1777),
		File("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ngem:x:1000:1000::/home/gem:/bin/sh\n"),
		File("etc/group", "root:x:0:\ngem:x:1000:\nvideo:x:44:gem\n"),
		Item{tar.Header{Typeflag: tar.TypeReg, Name: "guest", Mode: 0o755}, string(program)},
		Hardlink("usr/local/bin/browser-shell", "guest"))
}

// Tethered is the config of an image that starts as those that slimctl built do. What the guest does is in the variable
// GUEST.
var Tethered = v1.Config{Entrypoint: []string{"/usr/local/bin/browser-shell", "init"}, WorkingDir: "/tmp"}

// Guest is the config of an image whose entrypoint is the guest.
var Guest = v1.Config{Entrypoint: []string{"/guest"}, Env: []string{"FROM=image", "PATH=/"}, WorkingDir: "/tmp"}
