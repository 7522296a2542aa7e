//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// images writes the test images once: old and new share no layer and most files; slim is old with three small layers
// above, like an L0 image; many has a million files.
func (b *bench) images(ctx context.Context) error {
	size, manySize := full, many
	if b.quick {
		size, manySize = quick, manyQuick
	}
	b.size, b.many = size, manySize
	dir := filepath.Join(b.dir, fmt.Sprintf("images-%d-%d", size.files, size.bytes))
	b.old, b.new, b.slim = filepath.Join(dir, "old"), filepath.Join(dir, "new"), filepath.Join(dir, "slim")
	b.manyImage = filepath.Join(b.dir, fmt.Sprintf("images-%d-%d", manySize.files, manySize.bytes), "many")
	for _, i := range []struct {
		dest string
		make func() ([]v1.Layer, error)
	}{
		{b.old, func() ([]v1.Layer, error) { return layers(size, 0) }},
		{b.new, func() ([]v1.Layer, error) { return layers(size, 1) }},
		{b.slim, func() ([]v1.Layer, error) {
			below, err := layers(size, 0)
			if err != nil {
				return nil, err
			}
			above, err := small(size)
			return append(below, above...), err
		}},
		{b.manyImage, func() ([]v1.Layer, error) { return layers(manySize, 0) }},
	} {
		if _, err := os.Stat(i.dest); err == nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "writing %s\n", filepath.Base(i.dest))
		if err := os.MkdirAll(filepath.Dir(i.dest), 0o755); err != nil {
			return err
		}
		ls, err := i.make()
		if err != nil {
			return err
		}
		img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		if img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}}); err != nil {
			return err
		}
		if img, err = mutate.AppendLayers(img, ls...); err != nil {
			return err
		}
		if err := (output.Spec{Type: output.OCI, Dest: i.dest}).Write(ctx, image.Built{Image: img}, nil, nil, image.Options{}); err != nil {
			return err
		}
	}
	// The peers read an archive with the same compressed blobs.
	for _, dir := range []string{b.old, b.new} {
		archive := dir + ".tar"
		if _, err := os.Stat(archive); err == nil {
			continue
		}
		src, err := image.Open(ctx, "oci:"+dir, image.Options{})
		if err != nil {
			return err
		}
		img, err := src.Image(v1.Platform{OS: "linux", Architecture: "amd64"})
		if err != nil {
			return err
		}
		tag, err := name.NewTag("bench/" + filepath.Base(dir) + ":1")
		if err != nil {
			return err
		}
		if err := (output.Spec{Type: output.DockerArchive, Dest: archive}).Write(ctx, image.Built{Image: img}, []name.Tag{tag}, src, image.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// layers returns an image's layers, made concurrently on all cores. generation changes the time of every file, so that
// no layer is equal, and the content of one in ten.
func layers(s sizes, generation uint64) ([]v1.Layer, error) {
	out := make([]v1.Layer, s.layers)
	var g errgroup.Group
	g.SetLimit(2)
	for i := range out {
		g.Go(func() (err error) {
			out[i], err = image.NewLayer(files(s, i, generation))
			return err
		})
	}
	return out, g.Wait()
}

// files returns the files of a layer. Their sizes are distributed as in an installed system (many small, few large).
// Half of their content is text, the other half is incompressible.
func files(s sizes, layer int, generation uint64) []image.File {
	r := rand.New(rand.NewPCG(uint64(layer), 7)) //nolint:gosec // a fixture
	n := s.files / s.layers
	mean := s.bytes / int64(s.files)
	at := time.Unix(1_700_000_000+int64(generation), 0)
	var out []image.File
	seen := map[string]bool{}
	for i := range n {
		dir := fmt.Sprintf("/usr/lib/part%02d/package%03d/module%d", layer, i/60, i/12%5)
		for _, p := range append(image.Parents(dir), dir) {
			if !seen[p] {
				seen[p] = true
				d := image.Dir(p, 0o755)
				d.ModTime = at
				out = append(out, d)
			}
		}
		length := mean / 4
		if i%20 == 0 {
			length = mean*15 + r.Int64N(mean)
		}
		seed := uint64(layer)<<32 | uint64(i)
		if i%10 == 3 {
			seed |= generation << 60
		}
		out = append(out, image.File{
			Entry: image.Entry{Path: fmt.Sprintf("%s/file%d.js", dir, i%12), Type: image.TypeFile, Mode: 0o644, Size: length, ModTime: at},
			Open: func() (io.ReadCloser, error) {
				return io.NopCloser(io.LimitReader(&content{rand.NewPCG(seed, 3), nil}, length)), nil
			},
		})
	}
	return out
}

// content is an endless stream of alternating blocks of words and noise.
type content struct {
	pcg  *rand.PCG
	rest []byte
}

var words = []byte(" function return const export import default require module exports async await class extends this null undefined " +
	"promise resolve reject object string number boolean array index length value \n")

func (c *content) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		block := make([]byte, 0, 4096+4096)
		for len(block) < 4096 {
			at := int(c.pcg.Uint64() % uint64(len(words)-16))
			block = append(block, words[at:at+16]...)
		}
		for range 512 {
			v := c.pcg.Uint64()
			block = append(block, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
		}
		c.rest = block
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// small returns the layers of an L0 image above its base: removals, and a few hundred files.
func small(s sizes) ([]v1.Layer, error) {
	var gone []image.File
	for i := range 200 {
		gone = append(gone, image.Whiteout(fmt.Sprintf("/usr/lib/part%02d/package%03d/module0/file1.js", i%s.layers, i%(s.files/s.layers/60))))
	}
	seen := map[string]bool{}
	var once []image.File
	for _, f := range gone {
		if !seen[f.Path] {
			seen[f.Path] = true
			once = append(once, f)
		}
	}
	var laid []image.File
	for i := range 400 {
		laid = append(laid, image.Bytes(fmt.Sprintf("/opt/payload/f%d", i), 0o644, []byte(fmt.Sprint("laid ", i))))
	}
	var out []v1.Layer
	for _, files := range [][]image.File{once, laid, {image.Bytes("/etc/slim.conf", 0o644, []byte("closed\n"))}} {
		l, err := image.NewLayer(files)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}
