// Package tree knows what layers hold: the index of each layer, kept for ever by the layer's digest, and the merged tree
// that a container sees.
package tree

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// Digest is the SHA-256 of a file's content; the zero Digest is that of what has no content.
type Digest [32]byte

// UnmarshalText reads what MarshalText writes.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Digest{}
		return nil
	}
	h, err := v1.NewHash(string(text))
	if err != nil {
		return err
	}
	_, err = hex.Decode(d[:], []byte(h.Hex))
	return err
}

// String is the digest as OCI writes it, "sha256:…"; empty for the zero Digest.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return "sha256:" + hex.EncodeToString(d[:])
}

// MarshalText writes what String gives.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Entry is what an image says of one path.
type Entry struct {
	image.Entry
	// Digest is that of a regular file's content; a hard link has that of the file it leads to.
	Digest Digest `json:"digest,omitzero"`
	// Layer is the position of the layer that brought the entry: 0 is the lowest. -1 is the root that no layer names.
	Layer int `json:"layer"`
}

// Layer is one layer of an image.
type Layer struct {
	// Digest is the blob's, DiffID that of its content.
	Digest, DiffID v1.Hash
	MediaType      string
	// Size is the blob's, in bytes: what a puller transfers. Unpacked is the sum of the file sizes in it.
	Size, Unpacked int64
	// CreatedBy is what the image's history says of it; may be empty.
	CreatedBy string
	// Entries are what the layer says, sorted by path as a walk has them, with whiteouts (TypeWhiteout, TypeOpaque).
	// They are shared with the cache of other images: read only.
	Entries []Entry
	// Unread is true for a layer that Options.Skip left out: Entries is empty, and the tree lacks it.
	Unread bool
}

// Image is an image opened for questions about its files.
type Image struct {
	*Tree
	Layers []Layer
	Config *v1.ConfigFile

	blobs []v1.Layer
	cache Cache
}

// Options say how Cache.Open goes about it. The zero value works.
type Options struct {
	// Progress is told of layers that have to be read; may be nil.
	Progress image.Progress
	// Skip leaves a layer unread that the cache doesn't hold; nil reads every one.
	Skip func(digest v1.Hash) bool
}

// Cache remembers the index of each layer by the layer's digest, for ever. The zero value remembers nothing.
type Cache struct {
	// Dir is the directory of the cache; it is made when needed.
	Dir string
}

// Open gives the layers and the merged tree of img. Each layer that the cache doesn't hold is streamed once, several at a
// time, and checked against its digest and its diffID.
func (c Cache) Open(ctx context.Context, img v1.Image, o Options) (*Image, error) {
	blobs, err := img.Layers()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(blobs) {
		return nil, fmt.Errorf("the image config names %d layers, its manifest %d", len(config.RootFS.DiffIDs), len(blobs))
	}
	if o.Progress == nil {
		o.Progress = image.NoProgress
	}
	im := &Image{Tree: New(), Layers: make([]Layer, len(blobs)), Config: config, blobs: blobs, cache: c}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i, blob := range blobs {
		g.Go(func() (err error) {
			l := &im.Layers[i]
			l.DiffID = config.RootFS.DiffIDs[i]
			if l.Digest, err = blob.Digest(); err != nil {
				return err
			}
			if l.Size, err = blob.Size(); err != nil {
				return err
			}
			mt, err := blob.MediaType()
			if err != nil {
				return err
			}
			l.MediaType = string(mt)
			l.Entries, err = c.layer(gctx, blob, l.DiffID, o.Progress)
			for _, e := range l.Entries {
				l.Unpacked += e.Size
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	n := 0
	for _, h := range config.History {
		if !h.EmptyLayer && n < len(blobs) {
			im.Layers[n].CreatedBy = h.CreatedBy
			n++
		}
	}
	for i, l := range im.Layers {
		if err := im.Apply(l.Entries); err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, l.DiffID, err)
		}
	}
	return im, nil
}

// MaxRead is the largest file that ReadFile gives.
const MaxRead = 16 << 20

// ReadFile gives the content of the file at p, symlinks followed inside the image. What isn't there is fs.ErrNotExist;
// what is no regular file, or larger than MaxRead, is an error.
func (im *Image) ReadFile(ctx context.Context, p string) ([]byte, error) {
	files, err := im.ReadFiles(ctx, p)
	if err != nil {
		return nil, err
	}
	return files[p], nil
}

// ReadFiles is ReadFile for several paths, with each layer read once at most.
func (im *Image) ReadFiles(ctx context.Context, paths ...string) (map[string][]byte, error) {
	wanted := make([]map[string]bool, len(im.blobs)) // by layer, the entry's path
	at := map[string]Entry{}
	for _, p := range paths {
		e, err := im.file(p)
		if err != nil {
			return nil, err
		}
		at[p] = e
		if wanted[e.Layer] == nil {
			wanted[e.Layer] = map[string]bool{}
		}
		wanted[e.Layer][e.Path] = true
	}
	content := map[string][]byte{}
	for i, w := range wanted {
		if len(w) == 0 {
			continue
		}
		if err := readContents(ctx, im.blobs[i], w, content); err != nil {
			return nil, fmt.Errorf("layer %s: %w", im.Layers[i].Digest, err)
		}
	}
	out := map[string][]byte{}
	for p, e := range at {
		out[p] = content[e.Path]
	}
	return out, nil
}

// file finds the regular file that p leads to.
func (im *Image) file(p string) (Entry, error) {
	e, ok := im.Stat(p)
	for range maxSymlinks {
		if !ok || e.Type != image.TypeLink {
			break
		}
		e, ok = im.Lookup(e.Link)
	}
	switch {
	case !ok:
		return Entry{}, &fs.PathError{Op: "read", Path: p, Err: fs.ErrNotExist}
	case e.Type != image.TypeFile:
		return Entry{}, &fs.PathError{Op: "read", Path: p, Err: fmt.Errorf("it is a %s", e.Type)}
	case e.Size > MaxRead:
		return Entry{}, &fs.PathError{Op: "read", Path: p, Err: fmt.Errorf("it has %d bytes, more than the %d that are read of a file", e.Size, MaxRead)}
	}
	return e, nil
}

func readContents(ctx context.Context, blob v1.Layer, wanted map[string]bool, into map[string][]byte) error {
	raw, err := blob.Uncompressed()
	if err != nil {
		return err
	}
	defer raw.Close()
	tr := tar.NewReader(raw)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if p := image.Clean(h.Name); wanted[p] && tarTypes[h.Typeflag] == image.TypeFile {
			if into[p], err = io.ReadAll(io.LimitReader(tr, MaxRead)); err != nil {
				return err
			}
		}
	}
}

// FromFiles makes an image of one layer out of files, for tests of what asks images questions. Config may be nil.
func FromFiles(ctx context.Context, config *v1.Config, files ...image.File) (*Image, error) {
	l, err := image.NewLayer(files)
	if err != nil {
		return nil, err
	}
	img, err := fromLayers(config, l)
	if err != nil {
		return nil, err
	}
	return Cache{}.Open(ctx, img, Options{})
}

func fromLayers(config *v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil || config == nil {
		return img, err
	}
	return mutate.Config(img, *config)
}
