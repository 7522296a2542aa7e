package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Limits on the artifacts to read: of one type and image, and of candidates.
const (
	maxReferrers  = 16
	maxCandidates = 100
)

// Referrers returns the artifacts of a type whose subject is an image of s, as listed by the registry or by a layout's
// AnnotationReferrers. Anyone who may push to the repository may add one. Therefore a bad one, or more than 16, causes
// an error beside the result.
func (s *Source) Referrers(ctx context.Context, subject v1.Hash, artifactType string) (out []v1.Image, err error) {
	if s.referrers == nil {
		return nil, nil
	}
	list, get, err := s.referrers(ctx, subject)
	if err != nil || list == nil {
		return nil, err
	}
	read := 0
	for _, d := range list.Manifests {
		// Some registries list the config's media type instead, which for artifacts is the empty one.
		if d.ArtifactType != artifactType && d.ArtifactType != emptyJSON || !d.MediaType.IsImage() {
			continue
		}
		if read++; len(out) == maxReferrers || read > maxCandidates {
			return out, errors.Join(err, fmt.Errorf("more than %d artifacts refer to %s", read-1, subject))
		}
		artifact, is, aerr := readReferrer(get, d, subject, artifactType)
		if err = errors.Join(err, aerr); is {
			out = append(out, artifact)
		}
	}
	return out, err
}

// readReferrer reads a listed artifact and reports whether it has the type and the subject.
func readReferrer(get func(v1.Descriptor) (v1.Image, error), d v1.Descriptor, subject v1.Hash, artifactType string) (artifact v1.Image, is bool, err error) {
	if artifact, err = get(d); err != nil {
		return nil, false, err
	}
	m, err := artifact.Manifest()
	if err != nil {
		return nil, false, err
	}
	kind, err := partial.ArtifactType(artifact)
	return artifact, err == nil && m.Subject != nil && m.Subject.Digest == subject && kind == artifactType, err // a list under a tag need not be right
}

// referrerLister lists the referrers of an image, and returns a function that reads them.
type referrerLister func(ctx context.Context, subject v1.Hash) (*v1.IndexManifest, func(v1.Descriptor) (v1.Image, error), error)

func registryReferrers(ref name.Reference, o Options, t http.RoundTripper) referrerLister {
	repo := ref.Context()
	return func(ctx context.Context, subject v1.Hash) (*v1.IndexManifest, func(v1.Descriptor) (v1.Image, error), error) {
		options := remoteOptions(ctx, repo.Registry, o, t)
		fail := func(err error) error {
			return RegistryFailure("read referrers of", ref.String(), repo.RegistryStr(), err)
		}
		index, err := remote.Referrers(repo.Digest(subject.String()), options...)
		if err != nil {
			return nil, nil, fail(err)
		}
		m, err := index.IndexManifest()
		return m, func(d v1.Descriptor) (v1.Image, error) {
			img, err := remote.Image(repo.Digest(d.Digest.String()), options...)
			return img, fail(err)
		}, fail(err)
	}
}

// layoutReferrers reads the index of referrers in an entry's annotation.
func (b *blobs) layoutReferrers(annotation string) referrerLister {
	return func(context.Context, v1.Hash) (*v1.IndexManifest, func(v1.Descriptor) (v1.Image, error), error) {
		if annotation == "" {
			return nil, nil, nil
		}
		d, err := b.referrers(annotation)
		if err != nil {
			return nil, nil, err
		}
		raw, err := b.readBlob(d)
		if err != nil {
			return nil, nil, err
		}
		m, err := parseIndex(raw, d)
		return m, b.image, err
	}
}

// OnlyLayer returns the one layer of an artifact, of at most `most` bytes, which verifies itself when read to the end.
func OnlyLayer(artifact v1.Image, mediaType string, most int64) (v1.Layer, error) {
	m, err := artifact.Manifest()
	if err != nil {
		return nil, err
	}
	if len(m.Layers) != 1 || string(m.Layers[0].MediaType) != mediaType || m.Layers[0].Size < 0 || m.Layers[0].Size > most {
		return nil, errors.New("not one layer of the type " + mediaType)
	}
	return artifact.LayerByDigest(m.Layers[0].Digest)
}
