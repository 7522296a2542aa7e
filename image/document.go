package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// maxDocument bounds manifests, indexes and configs, which are read into memory, in bytes: 4 MiB, what registries take of a
// manifest (OCI distribution specification, "Pushing Manifests").
const maxDocument = 4 << 20

// What a document may hold, so that decoding it takes little more memory than it has bytes: an empty object of two bytes
// becomes a descriptor of hundreds.
const (
	maxTokens    = 200_000 // keys, values, brackets
	maxManifests = 1000
	maxLayers    = 500 // what overlayfs mounts
	maxHistory   = 5000
)

// deepestDocument is how many levels of a document are read; those of the specification are five.
const deepestDocument = 16

// The keys of manifests and indexes, of the descriptors in them, and of these' platforms (OCI image specification,
// manifest.md, image-index.md, descriptor.md); fsLayers is schema 1.
var (
	documentKeys   = []string{"schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject", "annotations", "fsLayers"}
	descriptorKeys = []string{"mediaType", "size", "digest", "urls", "annotations", "data", "platform", "artifactType"}
	platformKeys   = []string{"architecture", "os", "os.version", "os.features", "variant", "features"}
	dockerKeys     = []string{"Config", "RepoTags", "Layers", "LayerSources", "Parent"}
)

// Object reads a JSON document that is one object; numbers are json.Number. Programs decode documents by Go's encoding/json,
// by that of others, and by hand: a key that is there twice, anything behind the end, more than 16 levels, and what would take
// much memory are errors. See SameKeys for keys that differ in case only.
func Object(raw []byte) (map[string]any, error) {
	v, err := strictValue(raw)
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is no JSON object")
	}
	return o, nil
}

// strictValue reads a document.
func strictValue(raw []byte) (any, error) {
	if err := bounded(raw); err != nil {
		return nil, err
	}
	r := &strictReader{json.NewDecoder(bytes.NewReader(raw))}
	r.UseNumber()
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, more := r.Token(); !errors.Is(more, io.EOF) {
		return nil, errors.New("there is more after its end")
	}
	return v, nil
}

// SameKeys refuses keys that differ in case only: Go's decoder takes both for the same.
func SameKeys(o map[string]any) error {
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if other, ok := seen[fold(key)]; ok {
			return fmt.Errorf("the keys %.300q and %.300q differ in case only", other, key)
		}
		seen[fold(key)] = key
	}
	return nil
}

// fold is what keys have in common that encoding/json takes for the same (its foldName).
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, key)
}

type strictReader struct{ *json.Decoder }

// value reads one value; an object that has a key twice is an error.
func (r *strictReader) value(depth int) (any, error) {
	if depth > deepestDocument {
		return nil, fmt.Errorf("it has more than %d levels", deepestDocument)
	}
	t, err := r.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		out := map[string]any{}
		for r.More() {
			key, err := r.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string) // the decoder takes nothing else there
			if _, twice := out[name]; twice {
				return nil, fmt.Errorf("the key %.300q is there twice", name)
			}
			if out[name], err = r.value(depth + 1); err != nil {
				return nil, err
			}
		}
		_, err = r.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for r.More() {
			v, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err = r.Token()
		return out, err
	}
	return t, nil
}

// bounded refuses a document that would take much memory to decode. What is no JSON passes: the decoder says so, and decodes
// nothing before.
func bounded(raw []byte) error {
	if len(raw) > maxDocument {
		return fmt.Errorf("it has %d bytes, more than %d", len(raw), maxDocument)
	}
	lists := []struct {
		key  string
		most int
		what string
	}{{"manifests", maxManifests, "manifests"}, {"layers", maxLayers, "layers"}, {"history", maxHistory, "history entries"}}
	r := json.NewDecoder(bytes.NewReader(raw))
	r.UseNumber()
	var depth, count int // levels that are open, entries of the list
	list := -1           // of lists, the one that is open
	top := ""            // the last string of the first level: a list's key, if a list comes next
	for range maxTokens {
		t, err := r.Token()
		if err != nil {
			return nil
		}
		ends := t == json.Delim(']') || t == json.Delim('}')
		if depth == 2 && list >= 0 && !ends {
			if count++; count > lists[list].most { //nolint:gosec // list is a position in lists
				return fmt.Errorf("it has more than %d %s", lists[list].most, lists[list].what) //nolint:gosec // as above
			}
		}
		switch t {
		case json.Delim('['), json.Delim('{'):
			if depth == 1 {
				count, list = 0, -1
				for i := range lists {
					if strings.EqualFold(top, lists[i].key) {
						list = i
					}
				}
			}
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		default:
			if s, ok := t.(string); ok && depth == 1 {
				top = s
			}
		}
		if depth == 0 {
			return nil
		}
	}
	return fmt.Errorf("it has more than %d JSON tokens", maxTokens)
}

// parseIndex reads an index. d describes it; a layout's index.json has no descriptor.
func parseIndex(raw []byte, d v1.Descriptor) (*v1.IndexManifest, error) {
	if err := checkDocument(raw, d, true); err != nil {
		return nil, err
	}
	m, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, documentError(d, true, err)
	}
	return m, nil
}

// parseManifest reads an image manifest that d describes.
func parseManifest(raw []byte, d v1.Descriptor) (*v1.Manifest, error) {
	if err := checkDocument(raw, d, false); err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, documentError(d, false, err)
	}
	return m, nil
}

func documentError(d v1.Descriptor, index bool, err error) error {
	switch {
	case d.Digest == v1.Hash{}:
		return fmt.Errorf("index.json: %w", err)
	case index:
		return fmt.Errorf("index %s: %w", d.Digest, err)
	}
	return fmt.Errorf("manifest %s: %w", d.Digest, err)
}

// checkDocument refuses a manifest or an index that programs read in more ways than one: keys that are there twice or in
// another case than the specification's, what may be taken for the other kind of document (CVE-2021-41190), a media type that is
// not the descriptor's, and a size below zero, which for go-containerregistry is any.
func checkDocument(raw []byte, d v1.Descriptor, index bool) error {
	err := func() error {
		top, err := Object(raw)
		if err != nil {
			return err
		}
		if err := exactKeys(top, documentKeys); err != nil {
			return err
		}
		for _, key := range []string{"config", "subject", "layers", "manifests"} {
			list, ok := top[key].([]any)
			if !ok {
				list = []any{top[key]}
			}
			for _, v := range list {
				entry, _ := v.(map[string]any)
				if err := exactKeys(entry, descriptorKeys); err != nil {
					return err
				}
				if size, _ := entry["size"].(json.Number); strings.HasPrefix(size.String(), "-") {
					return fmt.Errorf("a size of %.20s", size)
				}
				p, _ := entry["platform"].(map[string]any)
				if err := exactKeys(p, platformKeys); err != nil {
					return err
				}
			}
		}
		kind, foreign := "image manifest", []string{"manifests", "fsLayers"}
		if index {
			kind, foreign = "index", []string{"config", "layers", "fsLayers"}
		}
		for _, key := range foreign {
			if top[key] != nil {
				return fmt.Errorf("it has %q, so that programs may take it for something other than an %s", key, kind)
			}
		}
		mt, _ := top["mediaType"].(string)
		switch {
		case mt == "":
		case d.MediaType != "" && mt != string(d.MediaType):
			return fmt.Errorf("it states the media type %.200q and is said to be %.200q", mt, d.MediaType)
		case d.MediaType == "" && index && mt != string(ocitypes.OCIImageIndex):
			return fmt.Errorf("it states the media type %.200q", mt)
		}
		return nil
	}()
	if err != nil {
		return documentError(d, index, err)
	}
	return nil
}

// exactKeys refuses keys that Go's decoder takes for one of those known, and others don't.
func exactKeys(o map[string]any, known []string) error {
	for key := range o {
		for _, k := range known {
			if key != k && strings.EqualFold(key, k) {
				return fmt.Errorf("the key %.300q differs from %q in case only", key, k)
			}
		}
	}
	return nil
}
