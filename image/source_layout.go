package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// The annotations about an image's origin (OCI image specification, annotations.md).
const (
	AnnotationBaseName   = "org.opencontainers.image.base.name"
	AnnotationBaseDigest = "org.opencontainers.image.base.digest"
)

// AnnotationReferrers, on an entry of index.json, is the digest of an index of the artifacts that refer to the image.
const AnnotationReferrers = "slimctl.referrers"

// The annotations with which containerd and BuildKit name the images of a layout.
const (
	AnnotationRefName   = "org.opencontainers.image.ref.name"
	AnnotationImageName = "io.containerd.image.name"
)

func openLayout(spec string, o Options) (*Source, error) {
	dir, tag, err := splitPath(spec)
	if err != nil {
		return nil, fmt.Errorf("oci:%s: %w", spec, err)
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("oci:%s: %w", spec, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("oci:%s: %s is a file, not a layout directory: write oci-archive:%s", spec, dir, spec)
	}
	s, err := openBlobs("oci:"+spec, tag, dirBlobs(dir, newVerified(o.CacheDir)))
	if err != nil {
		return nil, err
	}
	s.dir = dir
	return s, nil
}

func openLayoutArchive(spec string, o Options) (*Source, error) {
	file, tag, err := splitPath(spec)
	if err != nil {
		return nil, fmt.Errorf("oci-archive:%s: %w", spec, err)
	}
	b, err := tarBlobs(file, newVerified(o.CacheDir))
	if err != nil {
		return nil, fmt.Errorf("oci-archive:%s: %w", spec, err)
	}
	return openBlobs("oci-archive:"+spec, tag, b)
}

// splitPath splits PATH[:TAG] at the first colon after an existing path. Both parts may contain colons.
func splitPath(spec string) (file, tag string, err error) {
	if spec == "" {
		return "", "", errors.New("no path given; write oci:DIR or oci-archive:FILE")
	}
	if _, err := os.Stat(spec); err == nil {
		return filepath.Clean(spec), "", nil
	}
	for i := range len(spec) {
		if spec[i] != ':' || i == 0 {
			continue
		}
		if _, err := os.Stat(spec[:i]); err == nil {
			return filepath.Clean(spec[:i]), spec[i+1:], nil
		}
	}
	file, _, _ = strings.Cut(spec, ":")
	return "", "", fmt.Errorf("%w: there is no %s", ErrNotFound, file)
}

// openBlobs opens the image called tag, or the only one, of a layout.
func openBlobs(ref, tag string, b *blobs) (*Source, error) {
	s := &Source{ref: ref, blobs: b}
	marker, err := b.document("oci-layout")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: not an OCI image layout: the file oci-layout is missing", ref)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	layout, err := Object(marker)
	if err != nil {
		return nil, fmt.Errorf("%s: oci-layout: %w", ref, err)
	}
	if version := layout["imageLayoutVersion"]; version != "1.0.0" || len(layout) > 1 {
		return nil, fmt.Errorf("%s: oci-layout has other keys, or another version than 1.0.0: %.200q", ref, fmt.Sprint(version))
	}
	raw, err := b.document("index.json")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	top, err := parseIndex(raw, v1.Descriptor{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	d, ignored, err := pick(top, tag)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	get := func(d v1.Descriptor) (v1.Image, error) { return b.image(d) }
	s.get, s.top, s.inTop = get, raw, d == nil
	s.addNames(top.Manifests, d)
	if d != nil {
		s.referrers = b.layoutReferrers(d.Annotations[AnnotationReferrers])
	}
	switch {
	case d == nil: // index.json itself is the index of one image for several platforms
		s.digest, _, err = v1.SHA256(bytes.NewReader(raw))
		if err == nil {
			err = s.openIndex(raw, top, get)
		}
	case d.MediaType.IsIndex():
		var m *v1.IndexManifest
		s.digest = d.Digest
		if raw, err = b.readBlob(*d); err == nil {
			if m, err = parseIndex(raw, *d); err == nil {
				err = s.openIndex(raw, m, get)
			}
		}
	default:
		s.digest = d.Digest
		var img v1.Image
		if img, err = b.image(*d); err == nil {
			s.children, err = singleChild(ref, img)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if d == nil {
		s.ignored, s.artifacts = nil, nil // they include what openIndex found
	}
	for _, d := range ignored {
		if isArtifact(d) && isUnnamed(d) {
			s.artifacts = append(s.artifacts, d)
			continue
		}
		s.ignored = append(s.ignored, Ignored{d, notAnImage})
	}
	if err := s.checkDockerFiles(tag); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return s, nil
}

// isUnnamed reports whether an entry of index.json has no name.
func isUnnamed(d v1.Descriptor) bool {
	return d.Annotations[AnnotationRefName] == "" && d.Annotations[AnnotationImageName] == ""
}

// pick returns the requested entry of index.json, or nil if all entries together are one image. An image with another
// name is left out. ignored are all other entries, because containerd imports every entry with a name, whatever its
// platform and media type, and docker load also those without.
func pick(top *v1.IndexManifest, tag string) (d *v1.Descriptor, ignored []v1.Descriptor, err error) {
	var names []string
	var found []v1.Descriptor
	platforms := map[string]bool{}
	for _, d := range top.Manifests {
		refName, full := d.Annotations[AnnotationRefName], d.Annotations[AnnotationImageName]
		if !d.MediaType.IsIndex() && !IsImage(d) {
			ignored = append(ignored, d)
			continue
		}
		for _, n := range []string{refName, full} {
			if n != "" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		if tag != "" && tag != refName && tag != full {
			if isUnnamed(d) {
				ignored = append(ignored, d)
			}
			continue
		}
		if !slices.ContainsFunc(found, func(o v1.Descriptor) bool { return sameContent(o, d) }) {
			found = append(found, d)
		}
		if d.MediaType.IsImage() && d.Platform != nil {
			platforms[d.Platform.String()] = true
		}
	}
	switch {
	case len(found) == 1:
		ignored = slices.DeleteFunc(ignored, func(o v1.Descriptor) bool { return sameContent(o, found[0]) })
		return &found[0], ignored, nil
	case len(found) == 0 && tag != "":
		return nil, nil, fmt.Errorf("%w: no image is called %q; it has %s", ErrNotFound, tag, orNone(names))
	case len(found) == 0:
		return nil, nil, errors.New("index.json holds no image")
	case tag == "" && len(platforms) == len(found):
		return nil, ignored, nil
	}
	return nil, nil, fmt.Errorf("it has %d images; add the name of one as :TAG: %s", len(found), orNone(names))
}

func sameContent(a, b v1.Descriptor) bool { return a.Digest == b.Digest && a.MediaType == b.MediaType }

// canonical returns the normalized name of an image.
func canonical(n string) string {
	if r, err := name.ParseReference(n, name.WeakValidation); err == nil {
		return DockerName(r.Name())
	}
	return n
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none with a name"
	}
	slices.Sort(names)
	return OneLine(strings.Join(names, ", "), 500)
}

// image returns the image that d describes, with its manifest read and checked.
func (b *blobs) image(d v1.Descriptor) (v1.Image, error) {
	raw, err := b.readBlob(d)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(raw, d)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&storedImage{blobs: b, desc: d, raw: raw, manifest: m})
}

// storedImage is an image in a layout on this machine.
type storedImage struct {
	blobs    *blobs
	desc     v1.Descriptor
	raw      []byte
	manifest *v1.Manifest

	once   sync.Once
	config []byte
	err    error
}

func (i *storedImage) MediaType() (ocitypes.MediaType, error) { return i.desc.MediaType, nil }
func (i *storedImage) RawManifest() ([]byte, error)           { return i.raw, nil }
func (i *storedImage) Manifest() (*v1.Manifest, error)        { return i.manifest, nil }
func (i *storedImage) ConfigFile() (*v1.ConfigFile, error)    { return partial.ConfigFile(i) }
func (i *storedImage) Descriptor() (*v1.Descriptor, error)    { return &i.desc, nil }

func (i *storedImage) RawConfigFile() ([]byte, error) {
	i.once.Do(func() { i.config, i.err = i.blobs.readBlob(i.manifest.Config) })
	return i.config, i.err
}

func (i *storedImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if h == i.manifest.Config.Digest {
		return &storedLayer{image: i, desc: i.manifest.Config}, nil
	}
	for _, d := range i.manifest.Layers {
		if d.Digest == h {
			return &storedLayer{image: i, desc: d}, nil
		}
	}
	return nil, fmt.Errorf("%s: image %s has no layer %s", i.blobs.root, i.desc.Digest, h)
}

type storedLayer struct {
	image *storedImage
	desc  v1.Descriptor
}

func (l *storedLayer) Digest() (v1.Hash, error)               { return l.desc.Digest, nil }
func (l *storedLayer) Size() (int64, error)                   { return l.desc.Size, nil }
func (l *storedLayer) MediaType() (ocitypes.MediaType, error) { return l.desc.MediaType, nil }
func (l *storedLayer) Descriptor() (*v1.Descriptor, error)    { return &l.desc, nil }
func (l *storedLayer) Compressed() (io.ReadCloser, error)     { return l.image.blobs.open(l.desc) }
func (l *storedLayer) DiffID() (v1.Hash, error)               { return partial.BlobToDiffID(l.image, l.desc.Digest) }
