package image

import (
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// Ignored is an entry of an index, or of a layout's index.json, that is neither an image nor an attestation of an
// image.
type Ignored struct {
	v1.Descriptor
	// Why is the reason why it isn't an attestation.
	Why string
}

const notAnImage = "neither the image of a platform nor an attestation"

// The annotations by which BuildKit attaches an index entry to an image of the index (util/attestation/types.go).
const (
	referenceType        = "vnd.docker.reference.type"
	referenceDigest      = "vnd.docker.reference.digest"
	referenceDescription = "vnd.docker.reference.description"
)

const (
	inToto              = "application/vnd.in-toto+json"
	emptyJSON           = "application/vnd.oci.empty.v1+json"
	attestationArtifact = "application/vnd.docker.attestation.manifest.v1+json"
)

// Ignored returns the entries of the index that are neither images nor attestations of them. For a layout it also
// returns such entries of index.json, except images with another name. Runtimes differ on these entries, so published
// images should have none. It reads every entry that claims to be an attestation.
func (s *Source) Ignored() ([]Ignored, error) {
	out := slices.Clone(s.ignored)
	for _, d := range s.artifacts {
		img, err := s.get(d)
		if err != nil {
			return nil, err
		}
		if err := s.checkAttestation(d, img); err != nil {
			out = append(out, Ignored{d, "no attestation: " + err.Error()})
		}
	}
	return out, nil
}

// checkAttestation returns an error unless an entry with the platform unknown/unknown is an attestation as BuildKit
// writes it (exporter/containerimage/writer.go, commitAttestationsManifest): statements about an image of the index,
// with nothing to unpack or start.
func (s *Source) checkAttestation(d v1.Descriptor, img v1.Image) error {
	switch p := d.Platform; {
	case p.Variant != "" || p.OSVersion != "" || len(p.OSFeatures)+len(p.Features) > 0:
		return errors.New("its platform says more than unknown/unknown")
	case len(d.URLs)+len(d.Data) > 0:
		return errors.New("its entry has data or URLs")
	case d.ArtifactType != "" && d.ArtifactType != attestationArtifact:
		return fmt.Errorf("its entry is of the artifact type %.200q", d.ArtifactType)
	case d.Annotations[referenceType] != "attestation-manifest":
		return fmt.Errorf("it lacks the annotation %s=attestation-manifest", referenceType)
	case !s.hasImage(d.Annotations[referenceDigest]):
		return fmt.Errorf("its annotation %s=%.200q names no image of the index", referenceDigest, d.Annotations[referenceDigest])
	}
	for key := range d.Annotations {
		if !slices.Contains([]string{referenceType, referenceDigest, referenceDescription}, key) {
			return fmt.Errorf("it has the annotation %.200q", key)
		}
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		if l.MediaType != inToto || len(l.URLs) > 0 {
			return fmt.Errorf("it has a layer of the media type %.200q, and not only in-toto statements", l.MediaType)
		}
	}
	switch {
	case len(m.Layers) == 0:
		return errors.New("it has no statement")
	case m.Config.Size > maxDocument:
		return fmt.Errorf("its config has %d bytes, more than %d", m.Config.Size, maxDocument)
	case m.Config.MediaType == emptyJSON && m.Config.Size == 2: // "{}"
		return nil
	case m.Config.MediaType != ocitypes.OCIConfigJSON && m.Config.MediaType != ocitypes.DockerConfigJSON:
		return fmt.Errorf("its config is of the media type %.200q", m.Config.MediaType)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	config, err := Object(raw)
	if err == nil {
		err = SameKeys(config)
	}
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for key, v := range config {
		inner, isObject := v.(map[string]any)
		switch {
		case key == "os" || key == "architecture":
			if v != "unknown" {
				return fmt.Errorf("its config has %s=%.200q", key, v)
			}
		case key == "rootfs" || key == "config" && isObject && len(inner) == 0:
		default:
			return fmt.Errorf("its config has %.200q: it could be started", key)
		}
	}
	if config["os"] == nil || config["architecture"] == nil {
		return errors.New("its config says no platform")
	}
	return nil
}

// hasImage reports whether s has an image with the digest.
func (s *Source) hasImage(digest string) bool {
	if s.index == nil {
		return digest == s.digest.String()
	}
	return slices.ContainsFunc(s.children, func(c *child) bool { return c.digest.String() == digest })
}
