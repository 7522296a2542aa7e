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

// maxDocument limits manifests, indexes and configs, in bytes, because they are read into memory. Registries accept
// manifests of up to 4 MiB (OCI distribution specification, "Pushing Manifests").
const maxDocument = 4 << 20

// These limits keep the memory for decoding a document near its size. Without them an empty object of two bytes becomes
// a descriptor of hundreds.
const (
	maxTokens    = 200_000 // keys, values, brackets
	maxManifests = 1000
	maxLayers    = 500 // the most that overlayfs mounts
	maxHistory   = 5000
)

// deepestDocument limits the nesting of a document. The specification's documents have five levels.
const deepestDocument = 16

// The keys of manifests and indexes, of their descriptors, and of the descriptors' platforms (OCI image specification,
// manifest.md, image-index.md, descriptor.md). fsLayers is from schema 1.
var (
	documentKeys   = []string{"schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject", "annotations", "fsLayers"}
	descriptorKeys = []string{"mediaType", "size", "digest", "urls", "annotations", "data", "platform", "artifactType"}
	platformKeys   = []string{"architecture", "os", "os.version", "os.features", "variant", "features"}
	dockerKeys     = []string{"Config", "RepoTags", "Layers", "LayerSources", "Parent"}
)

// Object decodes a JSON document that is one object; numbers are json.Number. It refuses everything that programs
// decode in different ways: a key that occurs twice, text after the end, more than 16 levels. It also refuses what
// would take much memory. SameKeys checks for keys that differ in case only.
func Object(raw []byte) (map[string]any, error) {
	v, err := strictValue(raw)
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return o, nil
}

// strictValue decodes a document.
func strictValue(raw []byte) (any, error) {
	if err := checkBounds(raw); err != nil {
		return nil, err
	}
	r := &strictReader{json.NewDecoder(bytes.NewReader(raw))}
	r.UseNumber()
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, more := r.Token(); !errors.Is(more, io.EOF) {
		return nil, errors.New("text after its end")
	}
	return v, nil
}

// SameKeys refuses keys that differ in case only, because Go's decoder takes them for the same.
func SameKeys(o map[string]any) error {
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if other, ok := seen[foldKey(key)]; ok {
			return fmt.Errorf("the keys %.300q and %.300q differ in case only", other, key)
		}
		seen[foldKey(key)] = key
	}
	return nil
}

// foldKey returns the form in which encoding/json compares keys (its foldName).
func foldKey(key string) string {
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

// value decodes one value. It refuses an object that has a key twice.
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
			name, _ := key.(string) // the decoder returns only strings here
			if _, twice := out[name]; twice {
				return nil, fmt.Errorf("the key %.300q occurs twice", name)
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

// checkBounds refuses a document that would take much memory to decode. It accepts invalid JSON, which the decoder
// refuses before it allocates anything.
func checkBounds(raw []byte) error {
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
	var depth, count int // open levels, entries of the current list
	list := -1           // index in lists of the current list, or -1
	top := ""            // the last string on the first level: the key of a list, if one follows
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

// parseIndex decodes an index. d is its descriptor, or empty for a layout's index.json.
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

// parseManifest decodes the image manifest that d describes.
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

// checkDocument refuses a manifest or an index that programs read in different ways: with keys that occur twice or in
// another case than the specification's, with keys of the other kind of document (CVE-2021-41190), with a media type
// other than the descriptor's, or with a negative size, which go-containerregistry accepts for any.
func checkDocument(raw []byte, d v1.Descriptor, index bool) error {
	err := func() error {
		top, err := Object(raw)
		if err != nil {
			return err
		}
		if err := checkKeyCase(top, documentKeys); err != nil {
			return err
		}
		for _, key := range []string{"config", "subject", "layers", "manifests"} {
			list, ok := top[key].([]any)
			if !ok {
				list = []any{top[key]}
			}
			for _, v := range list {
				entry, _ := v.(map[string]any)
				if err := checkKeyCase(entry, descriptorKeys); err != nil {
					return err
				}
				if size, _ := entry["size"].(json.Number); strings.HasPrefix(size.String(), "-") {
					return fmt.Errorf("a size of %.20s", size)
				}
				p, _ := entry["platform"].(map[string]any)
				if err := checkKeyCase(p, platformKeys); err != nil {
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
				return fmt.Errorf("it has %q, so programs may not take it for an %s", key, kind)
			}
		}
		mt, _ := top["mediaType"].(string)
		switch {
		case mt == "":
		case d.MediaType != "" && mt != string(d.MediaType):
			return fmt.Errorf("its media type is %.200q, but its descriptor says %.200q", mt, d.MediaType)
		case d.MediaType == "" && index && mt != string(ocitypes.OCIImageIndex):
			return fmt.Errorf("its media type is %.200q", mt)
		}
		return nil
	}()
	if err != nil {
		return documentError(d, index, err)
	}
	return nil
}

// checkKeyCase refuses keys that Go's decoder, unlike others, takes for a known key.
func checkKeyCase(o map[string]any, known []string) error {
	for key := range o {
		for _, k := range known {
			if key != k && strings.EqualFold(key, k) {
				return fmt.Errorf("the key %.300q differs from %q in case only", key, k)
			}
		}
	}
	return nil
}
