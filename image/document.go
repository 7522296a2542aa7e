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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
)

// maxDocument limits manifests, indexes and configs, in bytes, because they are read into memory. Registries accept
// manifests of up to 4 MiB (OCI distribution specification, "Pushing Manifests").
const maxDocument = 4 << 20

// maxValues limits the values of a document. Without it an empty object of two bytes becomes a descriptor of hundreds.
const maxValues = 50_000

// deepestDocument limits the nesting of a document. The specification's documents have five levels.
const deepestDocument = 16

// Object decodes a JSON document that is one object; numbers are json.Number. It refuses a key that occurs twice, text
// after the end, and more than 16 levels. SameKeys checks for keys that differ in case only.
func Object(raw []byte) (map[string]any, error) {
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
	o, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return o, nil
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
func foldKey(key string) string { return strings.ToLower(strings.ToUpper(key)) }

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

// checkBounds refuses a document that would take much memory to decode.
func checkBounds(raw []byte) error {
	if len(raw) > maxDocument {
		return fmt.Errorf("it has %d bytes, more than %d", len(raw), maxDocument)
	}
	if bytes.Count(raw, []byte{','}) > maxValues {
		return fmt.Errorf("it has more than %d JSON values", maxValues)
	}
	return nil
}

// parseIndex decodes an index. d is its descriptor, or empty for a layout's index.json.
func parseIndex(raw []byte, d v1.Descriptor) (*v1.IndexManifest, error) {
	err := checkBounds(raw)
	var m *v1.IndexManifest
	if err == nil {
		m, err = v1.ParseIndexManifest(bytes.NewReader(raw))
	}
	if err == nil {
		err = checkDocument(m.MediaType, d, m.Manifests...)
	}
	switch {
	case err == nil:
		return m, nil
	case d.Digest == v1.Hash{}:
		return nil, fmt.Errorf("index.json: %w", err)
	}
	return nil, fmt.Errorf("index %s: %w", d.Digest, err)
}

// parseManifest decodes the image manifest that d describes.
func parseManifest(raw []byte, d v1.Descriptor) (*v1.Manifest, error) {
	err := checkBounds(raw)
	var m *v1.Manifest
	if err == nil {
		m, err = v1.ParseManifest(bytes.NewReader(raw))
	}
	if err == nil {
		err = checkDocument(m.MediaType, d, append(m.Layers, m.Config)...)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	return m, nil
}

// checkDocument refuses a media type other than the descriptor's, and a negative size, which go-containerregistry
// accepts for any.
func checkDocument(mediaType ocitypes.MediaType, d v1.Descriptor, entries ...v1.Descriptor) error {
	if d.MediaType == "" { // of index.json
		d.MediaType = ocitypes.OCIImageIndex
	}
	if mediaType != "" && mediaType != d.MediaType {
		return fmt.Errorf("its media type is %.200q, but its descriptor says %.200q", mediaType, d.MediaType)
	}
	for _, e := range entries {
		if e.Size < 0 {
			return fmt.Errorf("a size of %d", e.Size)
		}
	}
	return nil
}
