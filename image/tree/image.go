// Package tree knows what layers hold: the index of each layer, kept for ever by the layer's digest, and the merged tree
// that a container sees.
package tree

import (
	"archive/tar"
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
	// Annotations and URLs are what the manifest says of the layer besides.
	Annotations map[string]string
	URLs        []string
	// Size is the blob's, in bytes: what a puller transfers. Unpacked is the sum of the file sizes in it.
	Size, Unpacked int64
	// CreatedBy is what the image's history says of it; may be empty.
	CreatedBy string
	// Entries are what the layer makes of an empty directory, in the order of a walk, with whiteouts (TypeWhiteout,
	// TypeOpaque) before what has the same path: of several entries with one path the last one counts, symlinks among the
	// parents are followed, and a hard link to a file of a lower layer has no Digest. Read only.
	Entries []Entry
	// Odd are what programs that unpack the layer may read otherwise than Entries tells, some dozens at most. Names of AUFS's
	// own records are among it, ".wh..wh.NAME"; the opaque marker ".wh..wh..opq" is none.
	Odd []Odd
	// Compression is what the blob is compressed with, by its first bytes: "gzip", "zstd" or "none"; empty when the blob was
	// not read.
	Compression string
	// Foreign is where the blob first differs from what slimctl and BuildKit write of the same entries, by archive/tar and, where it is gzip, by that;
	// empty when it doesn't.
	Foreign string
	// Unread is true for a layer that Options.Skip left out: Entries is empty, and the tree lacks it.
	Unread bool
	// Claimed is true for a layer whose Entries are of its table of contents: what its maker says of it, and nobody has
	// looked. A file that is read of it is checked all the same.
	Claimed bool
}

// Image is an image opened for questions about its files.
type Image struct {
	*Tree
	Layers []Layer
	Config *v1.ConfigFile

	cache   Cache
	blobs   []v1.Layer
	indexes []*index // of Layers
}

// Options say how Cache.Open goes about it. The zero value works.
type Options struct {
	// Progress is told of layers that have to be read; may be nil.
	Progress image.Progress
	// Open is an image that is open already, such as the base of this one; may be nil. Layers that both have are taken from
	// it, and where both begin with the same layers so is the tree of these.
	Open *Image
	// Skip leaves a layer unread that the cache doesn't hold; nil reads every one.
	Skip func(digest v1.Hash) bool
	// Stash gets likely files of the layers that are read; may be nil.
	Stash *Stash
	// TOC reads a layer's table of contents, where it has one, instead of the layer: (*image.Source).TOC of the image's
	// source. nil believes no such table.
	TOC func(ctx context.Context, layer v1.Descriptor, each func(h *tar.Header, digest v1.Hash) error) error
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
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(blobs) || len(manifest.Layers) != len(blobs) {
		return nil, fmt.Errorf("the image config names %d layers, its manifest %d", len(config.RootFS.DiffIDs), len(manifest.Layers))
	}
	if o.Progress == nil {
		o.Progress = image.NoProgress
	}
	im := &Image{Layers: make([]Layer, len(blobs)), Config: config, cache: c, blobs: blobs, indexes: make([]*index, len(blobs))}
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
		l.Annotations, l.URLs = manifest.Layers[i].Annotations, manifest.Layers[i].URLs
	}
	n := 0
	for _, h := range config.History {
		if !h.EmptyLayer && n < len(blobs) {
			im.Layers[n].CreatedBy = h.CreatedBy
			n++
		}
	}
	limits := newLimits()
	if err := c.load(ctx, im, manifest.Layers, limits, o); err != nil {
		return nil, err
	}
	lower, n := New(), 0
	if o.Open != nil && len(o.Open.indexes) <= len(im.indexes) && slices.Equal(o.Open.indexes, im.indexes[:len(o.Open.indexes)]) {
		lower, n = o.Open.Tree, len(o.Open.indexes)
	}
	im.Tree, err = lower.with(limits, im.Layers, n)
	return im, err
}

// load fills in the indexes of the layers.
func (c Cache) load(ctx context.Context, im *Image, layers []v1.Descriptor, l *limits, o Options) error {
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
			x, err := o.Open.known(first), error(nil)
			shared := x != nil
			if !shared {
				x, err = c.layer(ctx, im.blobs[at[0]], layers[at[0]], first, l, o)
			} else {
				err = l.take(int64(len(x.entries)), 0)
			}
			if err != nil {
				return fmt.Errorf("layer %s: %w", first.Digest, err)
			}
			var unpacked int64
			for i := range x.entries {
				if x.entries[i].Type == image.TypeFile {
					unpacked += x.entries[i].Size
				}
			}
			if err := l.take(int64(len(x.entries)*(len(at)-1)), 0); err != nil {
				return err
			}
			for n, i := range at {
				x := x.at(i, n == 0 && !shared)
				im.indexes[i] = x
				layer := &im.Layers[i]
				layer.Entries, layer.Odd, layer.Unpacked, layer.Unread, layer.Claimed = x.entries, x.odd, unpacked, x.unread, x.claimed
				layer.Compression, layer.Foreign = x.compression, x.foreign
			}
			return nil
		})
	}
	return g.Wait()
}

// at gives the index of a layer at position i: x itself when it is there, or own says that nobody else has it.
func (x *index) at(i int, own bool) *index {
	if len(x.entries) == 0 || x.entries[0].Layer == i {
		return x
	}
	if !own {
		copied := *x
		copied.entries, x = slices.Clone(x.entries), &copied
	}
	for j := range x.entries {
		x.entries[j].Layer = i
	}
	return x
}

// known gives the index of a layer that im has read too; nil when it has not.
func (im *Image) known(layer *Layer) *index {
	if im == nil {
		return nil
	}
	for i := range im.Layers {
		if l := &im.Layers[i]; l.Digest == layer.Digest && l.DiffID == layer.DiffID && !l.Unread && !l.Claimed {
			return im.indexes[i]
		}
	}
	return nil
}

// layer gives the index of one layer.
func (c Cache) layer(ctx context.Context, blob v1.Layer, d v1.Descriptor, layer *Layer, l *limits, o Options) (*index, error) {
	digest, err := digestOf(layer.Digest)
	if err != nil {
		return nil, err
	}
	diffID, err := digestOf(layer.DiffID)
	if err != nil {
		return nil, err
	}
	file := c.indexFile("index", layer.Digest)
	if x, err := readIndex(file, digest, diffID, l); err == nil {
		return x, nil
	}
	if o.Skip != nil && o.Skip(layer.Digest) {
		return &index{unread: true}, nil
	}
	keep := func(file string, x *index) (*index, error) {
		if file == "" {
			return x, nil
		}
		if err := x.write(file, digest, diffID); err != nil {
			return x, nil // a cache that can't be written costs time, nothing else
		}
		return readIndex(file, digest, diffID, nil) // smaller than x, and what everyone sees later
	}
	if o.TOC != nil {
		file := c.indexFile("claimed-index", layer.Digest)
		x, err := readIndex(file, digest, diffID, l)
		if err != nil {
			if x, err = claimed(ctx, d, l, o); err == nil {
				x, err = keep(file, x)
			}
		}
		if err == nil {
			x.claimed = true
			return x, nil
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		} // else the layer itself tells
	}
	x, err := scan(ctx, blob, layer.DiffID, l, o)
	if err != nil {
		return nil, err
	}
	return keep(file, x)
}

// claimed is the index that a layer's table of contents gives.
func claimed(ctx context.Context, d v1.Descriptor, l *limits, o Options) (*index, error) {
	mine := newLimits() // what comes of a bad table is not counted
	u := newUnpacker(mine)
	err := o.TOC(ctx, d, func(h *tar.Header, digest v1.Hash) error {
		e, ok, err := entryOf(h)
		if err == nil && e.Type == image.TypeFile {
			e.Digest, err = digestOf(digest)
		}
		if err != nil || !ok {
			return err
		}
		return u.add(e)
	})
	if err != nil {
		return nil, err
	}
	entries, err := u.finish()
	if err != nil {
		return nil, err
	}
	return &index{entries: entries, odd: u.odd}, l.take(maxEntries-mine.entries.Load(), maxNames-mine.names.Load())
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
