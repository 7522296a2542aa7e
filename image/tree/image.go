// Package tree reads the content of layers: the index of each layer, cached by the layer's digest, and the merged tree
// that a container sees.
package tree

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
)

// Digest is the SHA-256 of a file's content. It is zero for entries without content.
type Digest [32]byte

// UnmarshalText decodes the result of MarshalText.
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

// String returns the digest in OCI's form, "sha256:…", or "" for the zero Digest.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return "sha256:" + hex.EncodeToString(d[:])
}

// MarshalText returns String's result.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Device is the number of a character or block device.
type Device struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// Entry describes one path of an image.
type Entry struct {
	image.Entry
	// Digest is the digest of a regular file's content. A hard link has the Digest and the Size of its file, and Link
	// is that file's path.
	Digest Digest `json:"digest,omitzero"`
	// Device is zero for anything but a device.
	Device Device `json:"device,omitzero"`
	// Layer is the position of the entry's layer: 0 is the lowest. It is -1 for a root that no layer has.
	Layer int `json:"layer"`
}

// Layer is one layer of an image.
type Layer struct {
	// Digest is the digest of the blob, and DiffID of its uncompressed content.
	Digest, DiffID v1.Hash
	MediaType      string
	// Annotations and URLs are from the manifest.
	Annotations map[string]string
	URLs        []string
	// Size is the size of the blob, in bytes. Unpacked is the sum of the sizes of its files.
	Size, Unpacked int64
	// CreatedBy is the text in the image's history, or empty.
	CreatedBy string
	// Entries is the result of unpacking the layer to an empty directory as containerd does, in the order of a walk. Whiteouts
	// (TypeWhiteout, TypeOpaque) precede an entry with the same path. Of several entries with one path the last one
	// counts. Symlinks in parents are followed. A hard link to a file of a lower layer has no Digest. Read only.
	Entries []Entry
	// Unread reports that Options.Skip skipped the layer: Entries is empty, and the tree lacks them.
	Unread bool
}

// Image is an open image that answers questions about its files.
type Image struct {
	*Tree
	Layers []Layer
	Config *v1.ConfigFile

	cache   Cache
	blobs   []v1.Layer
	indexes []*index // of Layers
	elfs    func() (map[Digest]*elf.File, error)
}

// Options configures Cache.Open. The zero value works.
type Options struct {
	// Progress reports on the layers to read; may be nil.
	Progress image.Progress
	// Open is an image that is already open, such as the base of this one; may be nil. Layers that both have, and the
	// tree of the lowest common layers, are taken from it.
	Open *Image
	// Skip reports whether to skip a layer that is not in the cache; nil skips none.
	Skip func(digest v1.Hash) bool
}

// Cache stores the index of each layer by the layer's digest, without expiry. The zero value stores nothing.
type Cache struct {
	// Dir is the cache's directory. It is created when needed.
	Dir string
}

// Open returns the layers and the merged tree of img. It reads each layer that is not in the cache once, the largest
// first, one per core at a time, and verifies its digest and diffID.
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
		return nil, fmt.Errorf("the image config names %d layers, but its manifest names %d", len(config.RootFS.DiffIDs), len(manifest.Layers))
	}
	if o.Progress == nil {
		o.Progress = image.NoProgress
	}
	im := &Image{Layers: make([]Layer, len(blobs)), Config: config, cache: c, blobs: blobs, indexes: make([]*index, len(blobs))}
	im.elfs = sync.OnceValues(im.readELFs)
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
	im.Tree, err = lower.mergeOnto(limits, im.Layers, n)
	return im, err
}

// load reads the indexes of the layers.
func (c Cache) load(ctx context.Context, im *Image, layers []v1.Descriptor, l *limits, o Options) error {
	// An image may contain a layer twice.
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
				layer.Entries, layer.Unpacked, layer.Unread = x.entries, unpacked, x.unread
			}
			return nil
		})
	}
	return g.Wait()
}

// at returns the index of a layer at position i. With own it may change and return x itself, because nobody else uses
// it.
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

// known returns the index of a layer that im has read, too, or nil.
func (im *Image) known(layer *Layer) *index {
	if im == nil {
		return nil
	}
	for i := range im.Layers {
		if l := &im.Layers[i]; l.Digest == layer.Digest && l.DiffID == layer.DiffID && !l.Unread {
			return im.indexes[i]
		}
	}
	return nil
}

// layer returns the index of one layer.
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
			return x, nil // a cache that can't be written only costs time
		}
		return readIndex(file, digest, diffID, nil) // it is smaller than x, and is what others read later
	}
	x, err := scan(ctx, blob, layer.DiffID, l, o)
	if err != nil {
		return nil, err
	}
	return keep(file, x)
}

// FromFiles returns an image with one layer of files, for tests. config may be nil.
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
