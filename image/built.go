package image

import (
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// Built is a finished image. Exactly one of Index and Image is set.
type Built struct {
	Index v1.ImageIndex // several platforms
	Image v1.Image      // one platform
	// Referrers are artifacts about the image. The subject of each is the manifest of one platform.
	Referrers []v1.Image
}

// Digest returns the digest of the index or of the one image's manifest.
func (b Built) Digest() (v1.Hash, error) {
	if b.Index != nil {
		return b.Index.Digest()
	}
	return b.Image.Digest()
}

// Descriptor returns the media type, digest and size of the index or of the one image's manifest.
func (b Built) Descriptor() (v1.Descriptor, error) {
	var of partial.Describable = b.Image
	if b.Index != nil {
		of = b.Index
	}
	t, err := of.MediaType()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := of.Size()
	if err != nil {
		return v1.Descriptor{}, err
	}
	digest, err := of.Digest()
	return v1.Descriptor{MediaType: t, Digest: digest, Size: size}, err
}

// OCILayerType returns the OCI equivalent of Docker's layer media types, as BuildKit does with oci-mediatypes=true.
func OCILayerType(t ocitypes.MediaType) string {
	switch t {
	case ocitypes.DockerLayer:
		return string(ocitypes.OCILayer)
	case ocitypes.DockerUncompressedLayer:
		return string(ocitypes.OCIUncompressedLayer)
	}
	return string(t)
}

// KeptAnnotations returns the annotations of a base's layer that a build keeps: those for lazy pulling. BuildKit keeps
// the same ones (cache/refs.go, additionalAnnotations).
func KeptAnnotations(have map[string]string) map[string]string {
	var kept map[string]string
	for k, v := range have {
		if k == "containerd.io/snapshot/stargz/toc.digest" || k == "io.containers.estargz.uncompressed-size" ||
			strings.HasPrefix(k, "containerd.io/snapshot/overlaybd") {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[k] = v
		}
	}
	return kept
}
