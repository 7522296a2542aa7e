//go:build linux

package harness

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// OpenLayout returns an OCI layout's image for this machine.
func OpenLayout(ctx context.Context, dir string) (v1.Image, error) {
	src, err := image.Open(ctx, "oci:"+dir, image.Options{})
	if err != nil {
		return nil, err
	}
	return src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
}

// WithLayers returns an image with img's config and other layers.
func WithLayers(img v1.Image, layers ...v1.Layer) (v1.Image, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs, config.History = nil, nil
	out, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(out, layers...)
}

// WriteLayout writes an image to an OCI layout.
func WriteLayout(dir string, img v1.Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return out.AppendImage(img, layout.WithPlatform(v1.Platform{OS: config.OS, Architecture: config.Architecture}))
}

// InflateAll inflates the blobs of OCI layouts, the largest first, on all cores, each to a writer of its own from to.
// No program that reads the images once can be faster.
func InflateAll(to func() io.Writer, layouts ...string) error {
	var blobs []string
	for _, dir := range layouts {
		files, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
		if err != nil {
			return err
		}
		blobs = append(blobs, files...)
	}
	SortBySize(blobs)
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, blob := range blobs {
		g.Go(func() error { return Inflate(blob, to()) })
	}
	return g.Wait()
}

// Inflate writes the uncompressed content of a blob to w.
func Inflate(blob string, w io.Writer) error {
	f, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := image.Inflate(f)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, raw)
	return errors.Join(err, raw.Close())
}

// SortBySize sorts files, the largest first.
func SortBySize(files []string) {
	sizes := map[string]int64{}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			sizes[file] = info.Size()
		}
	}
	slices.SortStableFunc(files, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
}
