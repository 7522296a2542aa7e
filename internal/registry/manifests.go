package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxManifest is the largest manifest, in bytes: the least that the specification wants registries to take.
const maxManifest = 4 << 20

type storedManifest struct {
	mediaType string
	data      []byte
}

// manifest is what the registry reads of an image manifest or an index.
type manifest struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
}

// parseManifest checks a manifest's form; mediaType is the request's and may be empty if the manifest has its own.
func parseManifest(mediaType string, data []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, errManifest("not a manifest: %v", err)
	}
	if mediaType != "" && m.MediaType != "" && string(m.MediaType) != mediaType {
		return nil, errManifest("Content-Type is %s, mediaType is %s", mediaType, m.MediaType)
	}
	if m.MediaType == "" {
		m.MediaType = types.MediaType(mediaType)
	}
	switch {
	case m.SchemaVersion != 2:
		return nil, errManifest("schemaVersion is %d, not 2", m.SchemaVersion)
	case m.MediaType.IsImage() && (m.Config == nil || m.Manifests != nil):
		return nil, errManifest("an image manifest has config and no manifests")
	case m.MediaType.IsIndex() && (m.Config != nil || m.Layers != nil):
		return nil, errManifest("an index has no config and no layers")
	case !m.MediaType.IsImage() && !m.MediaType.IsIndex():
		return nil, errManifest("media type %q is neither an image manifest nor an index", m.MediaType)
	}
	return &m, nil
}

// blobs are the blobs that have to be in the repository. Layers that live elsewhere are none of them.
func (m *manifest) blobs() []v1.Descriptor {
	var out []v1.Descriptor
	if m.Config != nil {
		out = append(out, *m.Config)
	}
	for _, l := range m.Layers {
		if l.MediaType.IsDistributable() || len(l.URLs) == 0 {
			out = append(out, l)
		}
	}
	return out
}

// checkReferences wants everything that m names to be in the repository, in the size it names. The caller holds r.mu.
func (r *Registry) checkReferences(name string, m *manifest) error {
	for _, d := range m.blobs() {
		c, ok := r.lookup(name, d.Digest)
		if err := checkReference(d, c.size, ok); err != nil {
			return err
		}
	}
	for _, d := range m.Manifests {
		c, ok := r.repository(name).manifests[d.Digest]
		if err := checkReference(d, int64(len(c.data)), ok); err != nil {
			return err
		}
	}
	return nil
}

func checkReference(d v1.Descriptor, size int64, ok bool) error {
	if !ok {
		return &apiError{
			http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", fmt.Sprintf("%s is not in the repository", d.Digest),
			map[string]string{"digest": d.Digest.String()},
		}
	}
	if d.Size != size {
		return errManifest("%s has %d bytes, its descriptor says %d", d.Digest, size, d.Size)
	}
	return nil
}

func (r *Registry) putManifest(x *exchange, name, ref string) error {
	data, err := io.ReadAll(io.LimitReader(x.req.Body, maxManifest+1))
	if err != nil {
		return errManifest("body broke off: %v", err)
	}
	if len(data) > maxManifest {
		return &apiError{http.StatusRequestEntityTooLarge, "SIZE_INVALID", fmt.Sprintf("manifest is larger than %d bytes", maxManifest), nil}
	}
	h, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return err
	}
	tag, err := tagOf(ref, h)
	if err != nil {
		return err
	}
	mediaType, _, _ := mime.ParseMediaType(x.req.Header.Get("Content-Type")) // what is no media type is caught as unknown
	m, err := parseManifest(mediaType, data)
	if err != nil {
		return err
	}
	if err := r.storeManifest(name, tag, h, m, data); err != nil {
		return err
	}
	x.Header().Set("Location", "/v2/"+name+"/manifests/"+h.String())
	x.Header().Set("Docker-Content-Digest", h.String())
	x.WriteHeader(http.StatusCreated)
	return nil
}

// tagOf returns the tag that ref is, or "" when ref is the digest h.
func tagOf(ref string, h v1.Hash) (string, error) {
	if !strings.Contains(ref, ":") {
		if !tagRE.MatchString(ref) {
			return "", &apiError{http.StatusBadRequest, "TAG_INVALID", fmt.Sprintf("invalid tag %q", ref), nil}
		}
		return ref, nil
	}
	want, err := parseDigest(ref)
	if err != nil {
		return "", err
	}
	if want != h {
		return "", errDigest("the manifest has digest %s, not %s", h, want)
	}
	return "", nil
}

// storeManifest checks what the manifest names and puts it into the repository, tagged if tag is not empty.
func (r *Registry) storeManifest(name, tag string, h v1.Hash, m *manifest, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkReferences(name, m); err != nil {
		return err
	}
	p := r.repository(name)
	p.manifests[h] = storedManifest{string(m.MediaType), data}
	if tag != "" {
		p.tags[tag] = h
	}
	return nil
}

func (r *Registry) getManifest(x *exchange, name, ref string) error {
	h, m, err := r.findManifest(name, ref)
	if err != nil {
		return err
	}
	x.Header().Set("Docker-Content-Digest", h.String())
	x.Header().Set("Etag", `"`+h.String()+`"`)
	writeBody(x, http.StatusOK, m.mediaType, m.data)
	return nil
}

func (r *Registry) findManifest(name, ref string) (v1.Hash, storedManifest, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.repos[name]
	if p == nil {
		return v1.Hash{}, storedManifest{}, errNameUnknown(name)
	}
	h, ok := p.tags[ref]
	if strings.Contains(ref, ":") {
		var err error
		if h, err = parseDigest(ref); err != nil {
			return v1.Hash{}, storedManifest{}, err
		}
		_, ok = p.manifests[h]
	}
	if !ok {
		return v1.Hash{}, storedManifest{}, &apiError{http.StatusNotFound, "MANIFEST_UNKNOWN", fmt.Sprintf("no manifest %q in %s", ref, name), nil}
	}
	return h, p.manifests[h], nil
}
