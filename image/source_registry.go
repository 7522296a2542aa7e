package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// ParseReference parses a registry reference like Open. insecure allows plain HTTP to any host.
func ParseReference(ref string, insecure bool) (name.Reference, error) {
	ref = strings.TrimPrefix(ref, "docker://")
	switch {
	case ref == "":
		return nil, fmt.Errorf("empty image reference")
	case strings.Contains(ref, "://"):
		return nil, fmt.Errorf("image reference %q: leave out the scheme: HOST/REPO:TAG", ref)
	case strings.HasPrefix(ref, "/"), strings.HasPrefix(ref, "."), strings.HasPrefix(ref, "~"):
		return nil, fmt.Errorf("image reference %q looks like a path: write oci:%s, oci-archive:%s or docker-archive:%s",
			ref, ref, ref, ref)
	}
	opts := []name.Option{name.WeakValidation}
	if insecure {
		opts = append(opts, name.Insecure)
	}
	r, err := name.ParseReference(ref, opts...)
	if err != nil {
		return nil, fmt.Errorf("image reference %q: %w", ref, err)
	}
	return r, nil
}

func openRegistry(ctx context.Context, ref string, o Options) (*Source, error) {
	ref, explicit := strings.CutPrefix(ref, "docker://")
	if info, err := os.Stat(ref); err == nil && !explicit {
		if info.IsDir() {
			return nil, fmt.Errorf("image reference %q is a directory here: write oci:%s, or docker://%s for a registry's", ref, ref, ref)
		}
		return nil, fmt.Errorf("image reference %q is a file here: write oci-archive:%s or docker-archive:%s, or docker://%s for a registry's", ref, ref, ref, ref)
	}
	n, err := ParseReference(ref, o.Insecure)
	if err != nil {
		return nil, err
	}
	s := &Source{ref: ref, name: n, transport: Transport(nil, o)}
	host := n.Context().RegistryStr()
	s.referrers = registryReferrers(n, o, s.transport)
	manifestError := func(err error, h v1.Hash) error {
		if de := asDigestError(err, h, ref); de != nil {
			return de
		}
		return RegistryFailure("read manifest of", ref, host, err)
	}
	desc, err := remote.Get(n, remoteOptions(ctx, n.Context().Registry, o, s.transport)...)
	if err != nil {
		h, _ := v1.NewHash(n.Identifier()) // it is empty for a tag, which can't mismatch
		return nil, manifestError(err, h)
	}
	s.digest = desc.Digest
	wrap := func(img v1.Image, err error, d v1.Descriptor) (v1.Image, error) {
		if err != nil {
			return nil, manifestError(err, d.Digest)
		}
		raw, err := img.RawManifest()
		if err != nil {
			return nil, manifestError(err, d.Digest)
		}
		if _, err := parseManifest(raw, d); err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
		return &remoteImage{Image: img, ref: ref, host: host}, nil
	}
	if !desc.MediaType.IsIndex() {
		if desc.MediaType.IsSchema1() {
			return nil, fmt.Errorf("%s: its manifest has schema 1, which slimctl doesn't read; push the image again with a current tool", ref)
		}
		img, err := desc.Image()
		if img, err = wrap(img, err, desc.Descriptor); err != nil {
			return nil, err
		}
		s.children, err = singleChild(ref, img)
		return s, err
	}
	m, err := parseIndex(desc.Manifest, desc.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, RegistryFailure("read index", ref, host, err)
	}
	err = s.openIndex(desc.Manifest, m, func(d v1.Descriptor) (v1.Image, error) {
		img, err := index.Image(d.Digest)
		return wrap(img, err, d)
	})
	return s, err
}

// remoteImage is an image in a registry whose errors name it. Its layers stay *remote.MountableLayer: a pusher mounts
// this type and uploads any other.
type remoteImage struct {
	v1.Image
	ref, host string
}

func (i *remoteImage) Manifest() (*v1.Manifest, error) {
	m, err := i.Image.Manifest()
	return m, RegistryFailure("read manifest of", i.ref, i.host, err)
}

func (i *remoteImage) RawConfigFile() ([]byte, error) {
	b, err := i.Image.RawConfigFile()
	return b, i.configError(err)
}

func (i *remoteImage) ConfigFile() (*v1.ConfigFile, error) {
	c, err := i.Image.ConfigFile()
	return c, i.configError(err)
}

func (i *remoteImage) configError(err error) error {
	if err == nil {
		return nil
	}
	if m, merr := i.Image.Manifest(); merr == nil {
		if de := asDigestError(err, m.Config.Digest, i.ref); de != nil {
			return de
		}
	}
	return RegistryFailure("read config of", i.ref, i.host, err)
}

func (i *remoteImage) Layers() ([]v1.Layer, error) {
	ls, err := i.Image.Layers()
	if err != nil {
		return nil, RegistryFailure("read layers of", i.ref, i.host, err)
	}
	for n, l := range ls {
		ls[n] = i.wrap(l)
	}
	return ls, nil
}

func (i *remoteImage) LayerByDigest(h v1.Hash) (v1.Layer, error) {
	l, err := i.Image.LayerByDigest(h)
	if err != nil {
		return nil, err
	}
	return i.wrap(l), nil
}

func (i *remoteImage) LayerByDiffID(h v1.Hash) (v1.Layer, error) {
	l, err := i.Image.LayerByDiffID(h)
	if err != nil {
		return nil, err
	}
	return i.wrap(l), nil
}

// Descriptor returns the image's entry in the index; see partial.Descriptor.
func (i *remoteImage) Descriptor() (*v1.Descriptor, error) { return partial.Descriptor(i.Image) }

func (i *remoteImage) wrap(l v1.Layer) v1.Layer {
	if m, ok := l.(*remote.MountableLayer); ok {
		return &remote.MountableLayer{Layer: &remoteLayer{Layer: m.Layer, image: i}, Reference: m.Reference}
	}
	return &remoteLayer{Layer: l, image: i}
}

type remoteLayer struct {
	v1.Layer
	image *remoteImage
}

// Descriptor returns the layer's entry in the manifest, with its annotations; see partial.Descriptor.
func (l *remoteLayer) Descriptor() (*v1.Descriptor, error) { return partial.Descriptor(l.Layer) }

func (l *remoteLayer) Compressed() (io.ReadCloser, error) {
	rc, err := l.Layer.Compressed()
	if err != nil {
		return nil, l.error(err)
	}
	return &remoteBlob{ReadCloser: rc, layer: l}, nil
}

func (l *remoteLayer) Uncompressed() (io.ReadCloser, error) { return uncompress(l.Compressed()) }

func (l *remoteLayer) error(err error) error {
	h, _ := l.Digest() // from the manifest, which was read before
	if de := asDigestError(err, h, l.image.ref); de != nil {
		return de
	}
	return RegistryFailure("read blob "+h.String()+" of", l.image.ref, l.image.host, err)
}

type remoteBlob struct {
	io.ReadCloser
	layer *remoteLayer
}

func (b *remoteBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.layer.error(err)
	}
	return n, err
}

// uncompress returns the content of a compressed blob. Closing it closes the blob.
func uncompress(blob io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	raw, err := Inflate(blob)
	if err != nil {
		blob.Close()
		return nil, err
	}
	return &unzipped{Reader: raw, raw: raw, blob: blob}, nil
}

type unzipped struct {
	io.Reader
	raw, blob io.Closer
}

func (u *unzipped) Close() error {
	err := u.raw.Close()
	if cerr := u.blob.Close(); err == nil {
		err = cerr
	}
	return err
}

// Manifest reads a manifest or an index from a registry over t. Failures are *RegistryError.
func Manifest(ctx context.Context, ref name.Digest, o Options, t http.RoundTripper) (*remote.Descriptor, error) {
	d, err := remote.Get(ref, remoteOptions(ctx, ref.Registry, o, t)...)
	return d, RegistryFailure("read manifest", ref.String(), ref.RegistryStr(), err)
}
