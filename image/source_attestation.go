package image

import (
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Ignored is an entry of an index, or of a layout's index.json, that is neither an image nor an attestation of an
// image.
type Ignored struct {
	v1.Descriptor
	// Why is the reason.
	Why string
}

const notAnImage = "neither the image of a platform nor an attestation"

// The annotations by which BuildKit attaches an index entry to an image of the index (util/attestation/types.go).
const (
	referenceType   = "vnd.docker.reference.type"
	referenceDigest = "vnd.docker.reference.digest"
)

const emptyJSON = "application/vnd.oci.empty.v1+json"

// Ignored returns the entries of the index that are neither images nor, with attested, attestations of them. For a
// layout it also returns such entries of index.json, except images with another name. An attestation is what its entry
// calls one; it isn't read.
func (s *Source) Ignored(attested bool) []Ignored {
	out := slices.Clone(s.ignored)
	for _, d := range s.artifacts {
		p := d.Platform
		switch {
		case d.Annotations[referenceType] != "attestation-manifest" || !s.hasImage(d.Annotations[referenceDigest]) || !isUnnamed(d) ||
			p.Variant != "" || p.OSVersion != "" || len(p.OSFeatures)+len(p.Features) > 0:
			out = append(out, Ignored{d, notAnImage})
		case !attested:
			out = append(out, Ignored{d, "an attestation, which no build writes; verify --same tree accepts it"})
		}
	}
	return out
}

// hasImage reports whether s has an image with the digest.
func (s *Source) hasImage(digest string) bool {
	if s.index == nil {
		return digest == s.digest.String()
	}
	return slices.ContainsFunc(s.children, func(c *child) bool { return c.digest.String() == digest })
}
