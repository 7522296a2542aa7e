// Package tree knows what layers hold: the index of each layer, kept for ever by the layer's digest, and the merged tree
// that a container sees.
package tree

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"

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
	*d, err = digestOf(h)
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

// Device is the number of a character or block device.
type Device struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// Entry is what an image says of one path.
type Entry struct {
	image.Entry
	// Digest is that of a regular file's content. A hard link has the Digest and the Size of the file it leads to, and
	// Link is the path of that file.
	Digest Digest `json:"digest,omitzero"`
	// Device is zero for what is no device.
	Device Device `json:"device,omitzero"`
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
	// Entries are what the layer makes of an empty directory, in the order of a walk, with whiteouts (TypeWhiteout,
	// TypeOpaque) before what has the same path: of several entries with one path the last one counts, symlinks among the
	// parents are followed, and a hard link to a file of a lower layer has no Digest. Entry.Layer is not set. They are
	// shared with other images that have the layer: read only.
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
	packs []pack
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

// Open gives the layers and the merged tree of img. Each layer that the cache doesn't hold is streamed once, the biggest
// first and one per core at a time, and checked against its digest and its diffID.
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
	im := &Image{Layers: make([]Layer, len(blobs)), Config: config, blobs: blobs, packs: make([]pack, len(blobs))}
	for i, blob := range blobs {
		l := &im.Layers[i]
		l.DiffID = config.RootFS.DiffIDs[i]
		if l.Digest, err = blob.Digest(); err != nil {
			return nil, err
		}
		if l.Size, err = blob.Size(); err != nil {
			return nil, err
		}
		mt, err := blob.MediaType()
		if err != nil {
			return nil, err
		}
		l.MediaType = string(mt)
	}
	n := 0
	for _, h := range config.History {
		if !h.EmptyLayer && n < len(blobs) {
			im.Layers[n].CreatedBy = h.CreatedBy
			n++
		}
	}
	limits := newLimits()
	if err := c.load(ctx, im, limits, o); err != nil {
		return nil, err
	}
	im.Tree, err = merged(limits, im.Layers...)
	return im, err
}

// load fills in the indexes of the layers.
func (c Cache) load(ctx context.Context, im *Image, l *limits, o Options) error {
	// An image may have a layer twice.
	positions := map[[2]v1.Hash][]int{}
	for i := range im.Layers {
		key := [2]v1.Hash{im.Layers[i].Digest, im.Layers[i].DiffID}
		positions[key] = append(positions[key], i)
	}
	var work [][]int
	for _, at := range positions {
		work = append(work, at)
	}
	slices.SortFunc(work, func(a, b []int) int {
		return cmp.Or(cmp.Compare(im.Layers[b[0]].Size, im.Layers[a[0]].Size), cmp.Compare(a[0], b[0]))
	})
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, at := range work {
		g.Go(func() error {
			first := &im.Layers[at[0]]
			x, err := c.layer(ctx, im.blobs[at[0]], first, l, o)
			if err != nil {
				return fmt.Errorf("layer %s: %w", first.Digest, err)
			}
			var unpacked int64
			for i := range x.entries {
				if x.entries[i].Type == image.TypeFile {
					unpacked += x.entries[i].Size
				}
			}
			for n, i := range at {
				if n > 0 {
					if err := l.take(int64(len(x.entries)), 0); err != nil {
						return err
					}
				}
				im.Layers[i].Entries, im.Layers[i].Unpacked, im.Layers[i].Unread = x.entries, unpacked, x.unread
				im.packs[i] = x.pack
			}
			return nil
		})
	}
	return g.Wait()
}

// layer gives the index of one layer.
func (c Cache) layer(ctx context.Context, blob v1.Layer, layer *Layer, l *limits, o Options) (*index, error) {
	digest, err := digestOf(layer.Digest)
	if err != nil {
		return nil, err
	}
	diffID, err := digestOf(layer.DiffID)
	if err != nil {
		return nil, err
	}
	file := c.indexFile(layer.Digest)
	if c.Dir != "" {
		if x, err := readIndex(file, digest, diffID, l); err == nil {
			return x, nil
		}
	}
	if o.Skip != nil && o.Skip(layer.Digest) {
		return &index{unread: true}, nil
	}
	x, err := scan(ctx, blob, layer.DiffID, l, o.Progress)
	if err != nil || c.Dir == "" {
		return x, err
	}
	if err := x.write(file, digest, diffID); err != nil {
		return nil, fmt.Errorf("keep its index: %w", err)
	}
	return readIndex(file, digest, diffID, newLimits()) // smaller than x, and what everyone sees later
}

// FromFiles makes an image of one layer out of files, for tests of what asks images questions. Config may be nil.
func FromFiles(ctx context.Context, config *v1.Config, files ...image.File) (*Image, error) {
	l, err := image.NewLayer(files)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err == nil && config != nil {
		img, err = mutate.Config(img, *config)
	}
	if err != nil {
		return nil, err
	}
	return Cache{}.Open(ctx, img, Options{})
}
