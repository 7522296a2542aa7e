package image

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// Names returns the names that a local source gives its image where it is loaded or imported, sorted. No digest covers
// them.
func (s *Source) Names() []string { return slices.Compact(slices.Sorted(slices.Values(s.names))) }

// addNames notes the names in index.json of the image, and what is wrong with them. d is its entry, or nil if it is all
// entries together.
func (s *Source) addNames(entries []v1.Descriptor, d *v1.Descriptor) {
	for _, e := range entries {
		short, full := e.Annotations[AnnotationRefName], e.Annotations[AnnotationImageName]
		switch r, err := name.ParseReference(full, name.WeakValidation); {
		case d != nil && !sameContent(*d, e) || full == "" && (short == "" || short == "latest"): // which stands for none
			continue
		case full == "":
			s.names = append(s.names, short)
			continue
		case err != nil:
			s.wrong = append(s.wrong, fmt.Sprintf("index.json gives the image the name %.200q, which it can't have in a registry", full))
		case short != "" && short != r.Identifier() && short != full:
			s.wrong = append(s.wrong, fmt.Sprintf("index.json gives the image the name %.200q, and %.200q for short", full, short))
		}
		s.names = append(s.names, canonical(full))
	}
	for _, e := range entries {
		n := cmp.Or(e.Annotations[AnnotationImageName], e.Annotations[AnnotationRefName])
		if d != nil && n != "" && !sameContent(*d, e) && slices.ContainsFunc(s.names, func(ours string) bool { return canonical(ours) == canonical(n) }) {
			s.wrong = append(s.wrong, fmt.Sprintf("index.json gives the name %.200q of the image to %s, too", n, e.Digest))
		}
	}
}

// addDockerNames notes the names in manifest.json of docker save.
func (s *Source) addDockerNames(names []string) {
	for _, n := range names {
		s.names = append(s.names, canonical(n))
	}
}

// Outside describes what a layout holds that the image's digest doesn't cover: files, and keys and annotations of
// index.json. Those that a builder writes, and the names, are none. An archive of docker save has files of Docker's own,
// so it is not examined.
func (s *Source) Outside() ([]string, error) {
	if s.top == nil || s.FromDocker() {
		return nil, nil
	}
	top, err := parseIndex(s.top, v1.Descriptor{})
	if err != nil {
		return nil, err
	}
	out := slices.Clone(s.wrong)
	if !s.inTop {
		index, err := Object(s.top)
		if err != nil {
			return nil, err
		}
		foreign := func(where string, keys map[string]any, known ...string) {
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				if !slices.Contains(known, key) && !strings.HasPrefix(key, "containerd.io/distribution.source.") {
					out = append(out, fmt.Sprintf("%s of index.json has the key %.200q", where, key))
				}
			}
		}
		foreign("the top", index, "schemaVersion", "mediaType", "manifests")
		list, _ := index["manifests"].([]any)
		for i, e := range list {
			entry, _ := e.(map[string]any)
			annotations, _ := entry["annotations"].(map[string]any)
			foreign(fmt.Sprintf("manifests[%d]", i), entry, "mediaType", "digest", "size", "platform", "artifactType", "annotations")
			foreign(fmt.Sprintf("manifests[%d].annotations", i), annotations, AnnotationRefName, AnnotationImageName, AnnotationReferrers, "org.opencontainers.image.created")
		}
	}
	entries := top.Manifests
	for _, d := range top.Manifests {
		if list, err := s.blobs.referrers(d.Annotations[AnnotationReferrers]); err == nil { // else Referrers fails
			entries = append(entries, list)
		}
	}
	reached := map[string]bool{"oci-layout": true, "index.json": true, dockerManifestName: true}
	if err := s.blobs.reach(entries, reached); err != nil {
		return nil, err
	}
	files, err := s.blobs.names()
	for _, f := range files {
		if !reached[f] {
			out = append(out, fmt.Sprintf("the file %.200q belongs to no image of index.json", f))
		}
	}
	return out, err
}

// reach adds the files of the blobs that entries describe, and of those below them.
func (b *blobs) reach(entries []v1.Descriptor, reached map[string]bool) error {
	for _, d := range entries {
		file := blobName(d.Digest)
		if reached[file] {
			continue
		}
		reached[file] = true
		if there, err := b.has(file); err != nil {
			return err
		} else if !there || !d.MediaType.IsIndex() && !d.MediaType.IsImage() {
			continue
		}
		raw, err := b.readBlob(d)
		if err != nil {
			return err
		}
		var below []v1.Descriptor // none, if it isn't what its entry says
		if !d.MediaType.IsIndex() {
			if m, err := parseManifest(raw, d); err == nil {
				below = append(m.Layers, m.Config)
			}
		} else if m, err := parseIndex(raw, d); err == nil {
			below = m.Manifests
		}
		if err := b.reach(below, reached); err != nil {
			return err
		}
	}
	return nil
}

// names returns the files of the layout, sorted.
func (b *blobs) names() (files []string, err error) {
	if b.files != nil {
		return slices.Sorted(maps.Keys(b.files)), nil
	}
	root, err := filepath.EvalSymlinks(b.root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		p, err = filepath.Rel(root, p)
		files = append(files, filepath.ToSlash(p))
		return err
	})
	return files, err
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// referrers returns the descriptor of the index that an AnnotationReferrers names.
func (b *blobs) referrers(annotation string) (v1.Descriptor, error) {
	h, err := v1.NewHash(annotation)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%s: annotation %s: %w", b.root, AnnotationReferrers, err)
	}
	at, err := b.find(blobName(h))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%s: annotation %s: %w", b.root, AnnotationReferrers, err)
	}
	return v1.Descriptor{MediaType: ocitypes.OCIImageIndex, Digest: h, Size: at.size}, nil
}
