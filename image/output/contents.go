package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
)

// maxLayer limits the size of a layer in a manifest, in bytes, so that sums don't overflow.
const maxLayer = 16 << 40

// item is one blob of an image: a document in memory, or a layer.
type item struct {
	desc  v1.Descriptor
	raw   []byte
	layer v1.Layer
	// artifact is set for a manifest with a subject.
	artifact v1.Image
}

// contents holds all blobs of an image, each once, in the order of its manifests.
type contents struct {
	root      item   // the index, or the manifest of a single image
	manifests []item // of an index
	blobs     []item // configs and layers
	images    []v1.Image
	referrers []item // manifests of artifacts about the images
	list      item   // the index of referrers, for layouts
	seen      map[v1.Hash]bool
}

// all returns the items in the order of archives: documents first, so that a reader of a stream knows what follows.
func (c *contents) all() []item {
	out := append([]item{c.root}, c.manifests...)
	if len(c.referrers) > 0 {
		out = append(append(out, c.list), c.referrers...)
	}
	return append(out, c.blobs...)
}

func contentsOf(b image.Built) (*contents, error) {
	c := &contents{seen: map[v1.Hash]bool{}}
	if (b.Index == nil) == (b.Image == nil) {
		return nil, errors.New("image: it has neither an index nor an image, or both")
	}
	if b.Image != nil {
		root, err := c.addImage(b.Image)
		if c.root = root; err != nil {
			return nil, err
		}
		return c, c.addReferrers(b.Referrers)
	}
	raw, err := b.Index.RawManifest()
	if err != nil {
		return nil, err
	}
	mt, err := b.Index.MediaType()
	if err != nil {
		return nil, err
	}
	if c.root, err = document(raw, v1.Descriptor{MediaType: mt}); err != nil {
		return nil, err
	}
	m, err := b.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if !d.MediaType.IsImage() {
			return nil, fmt.Errorf("index %s: %s is not an image but %s", c.root.desc.Digest, d.Digest, d.MediaType)
		}
		img, err := b.Index.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		it, err := c.addImage(img)
		if err != nil {
			return nil, err
		}
		if it.desc.Digest != d.Digest || it.desc.Size != d.Size {
			return nil, fmt.Errorf("index %s names %s but holds %s", c.root.desc.Digest, d.Digest, it.desc.Digest)
		}
		if !c.seen[d.Digest] {
			c.seen[d.Digest] = true
			c.manifests = append(c.manifests, it)
		}
	}
	return c, c.addReferrers(b.Referrers)
}

// addReferrers adds artifacts about the images, and the index of them that a registry would return.
func (c *contents) addReferrers(artifacts []v1.Image) error {
	images := c.images
	list := v1.IndexManifest{SchemaVersion: 2, MediaType: ocitypes.OCIImageIndex, Manifests: []v1.Descriptor{}}
	for _, a := range artifacts {
		it, err := c.addImage(a)
		if err != nil {
			return err
		}
		m, err := a.Manifest()
		if err != nil {
			return err
		}
		it.artifact = a
		c.referrers = append(c.referrers, it)
		d := it.desc
		d.ArtifactType = m.ArtifactType
		list.Manifests = append(list.Manifests, d)
	}
	c.images = images // those that can be started
	raw, err := json.Marshal(list)
	if err == nil {
		c.list, err = document(raw, v1.Descriptor{MediaType: ocitypes.OCIImageIndex})
	}
	return err
}

// addImage adds the blobs of one image and returns its manifest.
func (c *contents) addImage(img v1.Image) (item, error) {
	raw, err := img.RawManifest()
	if err != nil {
		return item{}, err
	}
	mt, err := img.MediaType()
	if err != nil {
		return item{}, err
	}
	m, err := img.Manifest()
	if err != nil {
		return item{}, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return item{}, err
	}
	conf, err := document(config, m.Config)
	if err != nil {
		return item{}, fmt.Errorf("config: %w", err)
	}
	c.addBlob(conf)
	layers, err := img.Layers()
	if err != nil {
		return item{}, err
	}
	if len(layers) != len(m.Layers) {
		return item{}, fmt.Errorf("the manifest names %d layers, but the image has %d", len(m.Layers), len(layers))
	}
	for i, l := range layers {
		h, err := l.Digest()
		if err != nil {
			return item{}, err
		}
		if h != m.Layers[i].Digest {
			return item{}, fmt.Errorf("layer %d is %s, but the manifest says %s", i, h, m.Layers[i].Digest)
		}
		if s := m.Layers[i].Size; s < 0 || s > maxLayer {
			return item{}, fmt.Errorf("layer %s: the manifest says that it has %d bytes", h, s)
		}
		c.addBlob(item{desc: m.Layers[i], layer: l})
	}
	c.images = append(c.images, img)
	return document(raw, v1.Descriptor{MediaType: mt})
}

func (c *contents) addBlob(it item) {
	if !c.seen[it.desc.Digest] {
		c.seen[it.desc.Digest] = true
		c.blobs = append(c.blobs, it)
	}
}

// document returns an item of bytes in memory. If want has a digest, it must be theirs.
func document(raw []byte, want v1.Descriptor) (item, error) {
	h, size, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return item{}, err
	}
	if want.Digest.Hex != "" && want.Digest != h {
		return item{}, &image.DigestError{Want: want.Digest, Got: h, Where: "image"}
	}
	want.Digest, want.Size = h, size
	return item{desc: want, raw: raw}, nil
}
