package image

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// Built is an image that was made: exactly one of the two is set.
type Built struct {
	Index v1.ImageIndex // several platforms
	Image v1.Image      // one platform
}

// Digest is that of the index or of the image's manifest.
func (b Built) Digest() (v1.Hash, error) {
	if b.Index != nil {
		return b.Index.Digest()
	}
	return b.Image.Digest()
}

// MediaType is that of the index or of the image's manifest.
func (b Built) MediaType() (ocitypes.MediaType, error) {
	if b.Index != nil {
		return b.Index.MediaType()
	}
	return b.Image.MediaType()
}
