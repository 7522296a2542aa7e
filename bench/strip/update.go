//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// update is the change in a base: files and the version of their package, or only times.
type update struct {
	name    string
	files   *regexp.Regexp
	release *regexp.Regexp // matches the package's version in dpkg's status
}

var updates = []update{
	{"one library (libx11)", regexp.MustCompile(`^/usr/lib/[^/]+/libX11\.so\.[0-9.]+$`), regexp.MustCompile(`(?m)^Package: libx11-6\n(?:.+\n)*?Version: .*`)},
	{"Chromium", regexp.MustCompile(`^/usr/lib/chromium/`), regexp.MustCompile(`(?m)^Package: chromium(?:-common)?\n(?:.+\n)*?Version: .*`)},
	{"Python", regexp.MustCompile(`^/usr/(?:lib/python3\.[0-9]+/|bin/python3\.)`), regexp.MustCompile(`(?m)^Package: (?:lib)?python3\.[0-9]+(?:-minimal|-stdlib)?\n(?:.+\n)*?Version: .*`)},
	{"times only", nil, nil},
}

const dpkgStatus = "/var/lib/dpkg/status"

// rebuildTime is the difference between the times of an old and a rebuilt file.
const rebuildTime = 7 * 24 * time.Hour

// measureUpdates prints the download of a client that has the previous image, after each update.
func measureUpdates(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("update", flag.ContinueOnError)
	bin := flags.String("bin", "", "`directory` with slimctl")
	base := flags.String("base", "", "OCI `layout` of the base")
	if err := flags.Parse(args); err != nil || *bin == "" || *base == "" || flags.NArg() > 0 {
		return errors.Join(err, errors.New("start it with bash bench/strip/run update --base LAYOUT"))
	}
	tmp, err := os.MkdirTemp(*bin, "update-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	img, err := harness.OpenLayout(ctx, *base)
	if err != nil {
		return err
	}
	files, err := tree.Cache{Dir: filepath.Join(tmp, "cache")}.Open(ctx, img, tree.Options{})
	if err != nil {
		return err
	}
	pulled := func(base string) (map[v1.Hash]int64, error) {
		file := filepath.Join(tmp, "slim.lock")
		cmd := command(ctx, tmp, []string{filepath.Join(*bin, "slimctl"), "--cache-dir", filepath.Join(tmp, "cache"), "lock", "--profile", "l1",
			"--base", "oci:" + base, "--platform", "linux/" + runtime.GOARCH, "-o", file, "--progress", "quiet"})
		if said, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("lock: %w: %s", err, said)
		}
		l, err := lock.Read(file)
		if err != nil {
			return nil, err
		}
		out := map[v1.Hash]int64{}
		for _, pin := range l.Platforms["linux/"+runtime.GOARCH].Layers {
			out[pin.Digest] = pin.Size
		}
		return out, nil
	}
	before, err := pulled(*base)
	if err != nil {
		return err
	}
	t := harness.NewTable(os.Stdout, "new in the base", "l1", "l0")
	for _, u := range updates {
		dir := filepath.Join(tmp, "base")
		first, err := u.write(img, files, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		after, err := pulled(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		var sum int64
		for h, size := range after {
			if _, have := before[h]; !have {
				sum += size
			}
		}
		fmt.Fprintf(os.Stderr, "%s: %d bytes\n", u.name, sum)
		var below int64 // unchanged, since new layers are not compressed here
		for _, l := range files.Layers[first:] {
			below += l.Size
		}
		t.Row(u.name, fmt.Sprintf("%.1f", float64(sum)/1e6), fmt.Sprintf("%.1f", float64(below)/1e6))
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return t.End()
}

// write writes the base with the update to a layout, like a vendor's build with a cache: it rebuilds the first layer
// with a change and all layers above it, with new times. It returns that layer's position.
func (u update) write(img v1.Image, files *tree.Image, dir string) (first int, err error) {
	first = slices.IndexFunc(files.Layers, func(l tree.Layer) bool {
		return u.files == nil || slices.ContainsFunc(l.Entries, func(e tree.Entry) bool { return e.Type == image.TypeFile && u.files.MatchString(e.Path) })
	})
	if first < 0 {
		return 0, errors.New("no layer of the base has such files")
	}
	layers, err := img.Layers()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	for i := range layers {
		if i >= first {
			rebuilt := &archive{file: filepath.Join(dir, fmt.Sprintf("%d.tar", i))}
			if err := u.rebuild(layers[i], rebuilt); err != nil {
				return 0, err
			}
			layers[i] = rebuilt
		}
	}
	out, err := harness.WithLayers(img, layers...)
	if err != nil {
		return 0, err
	}
	return first, harness.WriteLayout(dir, out)
}

// rebuild writes a layer again with the update.
func (u update) rebuild(l v1.Layer, to *archive) (err error) {
	blob, err := l.Compressed()
	if err != nil {
		return err
	}
	defer blob.Close()
	raw, err := image.Inflate(blob)
	if err != nil {
		return err
	}
	defer raw.Close()
	f, err := os.Create(to.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	in, out := tar.NewReader(raw), tar.NewWriter(io.MultiWriter(f, sum))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		h.ModTime = h.ModTime.Add(rebuildTime)
		var content io.Reader = in
		p := image.Clean(h.Name)
		switch {
		case h.Typeflag != tar.TypeReg || h.Size == 0 || u.files == nil:
		case u.files.MatchString(p) && path.Ext(p) != ".pyc": // a few appended bytes change nothing else
			h.Size++
			content = io.MultiReader(in, strings.NewReader("\n"))
		case p == dpkgStatus:
			text, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			text = u.release.ReplaceAllFunc(text, func(b []byte) []byte { return append(bytes.Clone(b), "+new1"...) })
			h.Size, content = int64(len(text)), bytes.NewReader(text)
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, content); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	to.size = info.Size()
	to.digest, err = v1.NewHash(fmt.Sprintf("sha256:%x", sum.Sum(nil)))
	return err
}

// archive is an uncompressed layer.
type archive struct {
	file   string
	digest v1.Hash
	size   int64
}

func (a *archive) Digest() (v1.Hash, error)             { return a.digest, nil }
func (a *archive) DiffID() (v1.Hash, error)             { return a.digest, nil }
func (a *archive) Size() (int64, error)                 { return a.size, nil }
func (a *archive) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }
func (a *archive) Compressed() (io.ReadCloser, error)   { return os.Open(a.file) }
func (a *archive) Uncompressed() (io.ReadCloser, error) { return os.Open(a.file) }
