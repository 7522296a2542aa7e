package embedded

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
)

// assembled is an image with its manifest and config as raw bytes, so that they keep their digests.
type assembled struct {
	platform         ocispec.Platform
	manifest, config []byte
	layers           []v1.Layer
}

func assemble(r *build.Recipe, annotations map[string]string) (*assembled, error) {
	base, err := r.Base.Image.Layers()
	if err != nil {
		return nil, err
	}
	own, config, err := r.Render()
	if err != nil {
		return nil, err
	}
	below, err := descriptors(r)
	if err != nil {
		return nil, err
	}
	if stripped := r.Stripped(); stripped != nil {
		base = nil
		for _, c := range stripped {
			base = append(base, c.Layer)
		}
	}
	m := ocispec.Manifest{
		Versioned:   specs.Versioned{SchemaVersion: 2},
		MediaType:   ocispec.MediaTypeImageManifest,
		Config:      ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Annotations: annotations,
	}
	m.Layers = below
	for _, l := range own {
		d, err := descriptor(l)
		if err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, d)
	}
	a := &assembled{
		platform: platforms.Normalize(ocispec.Platform{OS: r.Platform.OS, Architecture: r.Platform.Architecture, Variant: r.Platform.Variant}),
		config:   config,
		layers:   append(base[:len(base):len(base)], own...),
	}
	a.manifest, err = json.MarshalIndent(m, "", "  ")
	return a, err
}

// newArtifact returns the artifact that attaches a ledger to an image.
func newArtifact(layer v1.Layer, subject *assembled) (v1.Image, error) {
	d, err := descriptor(layer)
	if err != nil {
		return nil, err
	}
	d.MediaType = ledger.MediaType
	d.Annotations = map[string]string{ocispec.AnnotationTitle: ledger.FileName}
	config := ocispec.DescriptorEmptyJSON
	config.Data = nil
	of := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(subject.manifest), Size: int64(len(subject.manifest)),
	}
	a := &assembled{config: []byte("{}"), layers: []v1.Layer{layer}}
	a.manifest, err = json.MarshalIndent(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ledger.ArtifactType,
		Config: config, Layers: []ocispec.Descriptor{d}, Subject: &of,
	}, "", "  ")
	return a, err
}

// descriptors returns the descriptors of the base's layers, or of those that replace them.
func descriptors(r *build.Recipe) (out []ocispec.Descriptor, err error) {
	if stripped := r.Stripped(); stripped != nil {
		for _, c := range stripped {
			d, err := descriptor(c.Layer)
			if err != nil {
				return nil, err
			}
			out = append(out, d)
		}
		return out, nil
	}
	manifest, err := r.Base.Image.Manifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Layers {
		out = append(out, ocispec.Descriptor{
			MediaType: image.OCILayerType(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size, Annotations: image.KeptAnnotations(d.Annotations),
		})
	}
	return out, nil
}

// descriptor returns the descriptor of a layer.
func descriptor(l v1.Layer) (ocispec.Descriptor, error) {
	d, err := partial.Descriptor(l)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size, Annotations: d.Annotations}, nil
}

func (a *assembled) Layers() ([]v1.Layer, error)         { return a.layers, nil }
func (a *assembled) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a *assembled) Size() (int64, error)                { return int64(len(a.manifest)), nil }
func (a *assembled) ConfigName() (v1.Hash, error)        { return partial.ConfigName(a) }
func (a *assembled) ConfigFile() (*v1.ConfigFile, error) { return partial.ConfigFile(a) }
func (a *assembled) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a *assembled) Digest() (v1.Hash, error)            { return partial.Digest(a) }
func (a *assembled) Manifest() (*v1.Manifest, error)     { return partial.Manifest(a) }
func (a *assembled) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a *assembled) LayerByDiffID(h v1.Hash) (v1.Layer, error) {
	return a.findLayer(h, v1.Layer.DiffID)
}

func (a *assembled) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	if name, err := a.ConfigName(); err != nil {
		return nil, err
	} else if name == h {
		return partial.ConfigLayer(a)
	}
	return a.findLayer(h, v1.Layer.Digest)
}

func (a *assembled) findLayer(h v1.Hash, of func(v1.Layer) (v1.Hash, error)) (v1.Layer, error) {
	for _, l := range a.layers {
		if got, err := of(l); err != nil {
			return nil, err
		} else if got == h {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no layer %s", h)
}

// index is an image index as raw bytes, so that it keeps its digest.
type index struct {
	raw    []byte
	images []*assembled
}

func newIndex(images []*assembled, annotations map[string]string) (*index, error) {
	idx := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Annotations: annotations}
	for _, a := range images {
		idx.Manifests = append(idx.Manifests, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(a.manifest), Size: int64(len(a.manifest)), Platform: &a.platform,
		})
	}
	raw, err := json.MarshalIndent(idx, "", "  ")
	return &index{raw: raw, images: images}, err
}

func (x *index) MediaType() (types.MediaType, error) { return types.OCIImageIndex, nil }
func (x *index) Digest() (v1.Hash, error)            { return partial.Digest(x) }
func (x *index) Size() (int64, error)                { return int64(len(x.raw)), nil }
func (x *index) IndexManifest() (*v1.IndexManifest, error) {
	return v1.ParseIndexManifest(bytes.NewReader(x.raw))
}
func (x *index) RawManifest() ([]byte, error) { return x.raw, nil }
func (x *index) ImageIndex(h v1.Hash) (v1.ImageIndex, error) {
	return nil, fmt.Errorf("no image index %s", h)
}

func (x *index) Image(h v1.Hash) (v1.Image, error) {
	for _, a := range x.images {
		if d, err := a.Digest(); err != nil {
			return nil, err
		} else if d == h {
			return a, nil
		}
	}
	return nil, fmt.Errorf("no image %s", h)
}
