// Package live makes stand-ins of the base image that boot: a real Debian 12 root file system with the stand-in's files
// above. internal/standin/README.md lists what is real in them and what is a stub.
package live

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/standin"
)

// Platform is this machine's platform, the default for live stand-ins.
const Platform = "linux/" + runtime.GOARCH

// Cached returns the directory below cacheRoot with an OCI layout of the live stand-in of line ("A", "B" or "C"). The
// first call makes the root file system that all lines share. That requires root, mmdebstrap and a Debian 12 machine's
// apt sources, and takes about two minutes. It may be called concurrently, also by several processes. When ctx ends, no
// process, mount or incomplete directory is left.
func Cached(ctx context.Context, cacheRoot, line string) (layoutDir string, err error) {
	rootfs, err := rootfs(ctx, cacheRoot, Platform)
	if err != nil {
		return "", err
	}
	return standin.CachedOn(ctx, cacheRoot, line, Platform, rootfs)
}

// Write is standin.Write with the root file system that Cached keeps below cacheRoot. If o names no platform, it is
// Platform. Programs of another platform must run here, by qemu and binfmt_misc.
func Write(ctx context.Context, cacheRoot, dir string, o standin.Options) (v1.Hash, error) {
	if len(o.Platforms) == 0 {
		o.Platforms = []string{Platform}
	}
	if err := o.Check(); err != nil {
		return v1.Hash{}, err
	}
	if len(o.Platforms) > 1 {
		return v1.Hash{}, fmt.Errorf("a live stand-in is for one platform, not for %s", strings.Join(o.Platforms, " and "))
	}
	rootfs, err := rootfs(ctx, cacheRoot, o.Platforms[0])
	if err != nil {
		return v1.Hash{}, err
	}
	o.Rootfs = rootfs
	return standin.Write(ctx, dir, o)
}

func rootfs(ctx context.Context, cacheRoot, platform string) (*standin.Rootfs, error) {
	dir, b, err := debian(ctx, cacheRoot, strings.TrimPrefix(platform, "linux/"))
	if err != nil {
		return nil, fmt.Errorf("root file system of the live stand-in: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer{b, b.file(dir)})
	if err != nil {
		return nil, err
	}
	files, err := tree.Cache{Dir: cacheRoot}.Open(ctx, img, tree.Options{})
	if err != nil {
		return nil, fmt.Errorf("%w; remove %s to make it anew", err, dir)
	}
	return &standin.Rootfs{File: b.file(dir), Layer: b.Layer, DiffID: b.DiffID, Tree: files.Tree}, nil
}

// layer is the root file system as a v1.Layer.
type layer struct {
	blob
	path string
}

func (l layer) Digest() (v1.Hash, error)            { return l.Layer.Digest, nil }
func (l layer) DiffID() (v1.Hash, error)            { return l.blob.DiffID, nil }
func (l layer) Size() (int64, error)                { return l.Layer.Size, nil }
func (l layer) MediaType() (types.MediaType, error) { return l.Layer.MediaType, nil }
func (l layer) Compressed() (io.ReadCloser, error)  { return os.Open(l.path) }
func (l layer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	return gzip.NewReader(f)
}
