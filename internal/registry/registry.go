// Package registry is an OCI registry for tests and benchmarks. It extends go-containerregistry's (pkg/registry). Each
// repository has its own blobs, so that HEAD requests miss and mounts have an effect. It refuses manifests whose blobs
// are missing, asks for passwords, counts bytes, requests and round trips, and can add latency and faults.
//
// It has no referrers endpoint, so clients fall back to tags, and no uploads in a single POST, like the distribution
// registry. A blob sent by PATCH is held in memory until its PUT; one sent with the PUT isn't.
package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Options configures a Registry. The zero value is an open registry in memory.
type Options struct {
	// Dir is the directory of the blobs, at blobs/sha256/<hex>; it is created if missing. Empty means memory. The
	// content of repositories is always in memory: a new Registry is empty even if Dir is not.
	Dir string
	// Latency is added once to each request.
	Latency time.Duration
	// NoMount refuses each mount with 202, like Artifactory.
	NoMount bool
	// User and Password protect everything if User is not empty: by Basic, or by Bearer with scopes.
	User, Password string
	// Bearer requires tokens from /token (GET with Basic, or the OAuth2 password form by POST). A token is valid for
	// the requested scopes. A mount also needs pull on the source repository.
	Bearer bool
	// Log receives each finished request, in one goroutine at a time.
	Log func(Record)
}

// Registry is an http.Handler. It is safe for concurrent use.
type Registry struct {
	o       Options
	inner   http.Handler
	blobs   *blobs
	patched sync.Map // ids of uploads of which the inner registry has a part
	auth    auth
	stats   recorder
	logMu   sync.Mutex
	config  struct {
		sync.Mutex
		latency time.Duration
		fault   func(*http.Request) *Fault
	}
}

// New returns an empty registry. It fails if Options.Dir can't be created.
func New(o Options) (*Registry, error) {
	b, err := newBlobs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("registry directory: %w", err)
	}
	r := &Registry{o: o, blobs: b, auth: auth{o: o, tokens: map[string]map[string]bool{}}}
	r.inner = registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(b))
	r.config.latency = o.Latency
	return r, nil
}

// SetLatency changes Options.Latency for requests that start afterwards.
func (r *Registry) SetLatency(d time.Duration) {
	r.config.Lock()
	defer r.config.Unlock()
	r.config.latency = d
}

var (
	routeRE = regexp.MustCompile(`(?s)^/v2/(.+)/(blobs/uploads|blobs|manifests)/?([^/]*)$`)
	nouns   = map[string]string{"blobs/uploads": "upload", "blobs": "blob", "manifests": "manifest"}
	// nameRE is the specification's grammar of repository names ("Pulling manifests").
	nameRE = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
)

// ServeHTTP answers a request.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	x := r.begin(w, req)
	defer r.finish(x)
	x.wait()
	if x.playFault() {
		return
	}
	if err := r.dispatch(x); err != nil {
		writeJSON(x, err.status, map[string]any{"errors": []any{map[string]string{"code": err.code, "message": err.message}}})
	}
}

func (r *Registry) dispatch(x *exchange) *apiError {
	m := routeRE.FindStringSubmatch(x.req.URL.Path)
	switch {
	case m != nil:
		x.setKind(x.req.Method + " " + nouns[m[2]])
	case x.req.URL.Path == "/token":
		x.setKind(x.req.Method + " token")
		return r.token(x)
	default: // other requests concern no repository
		m = make([]string, 4)
		if x.req.URL.Path == "/v2" || x.req.URL.Path == "/v2/" {
			x.setKind(x.req.Method + " ping")
		}
	}
	if m[1] != "" && !nameRE.MatchString(m[1]) {
		return &apiError{http.StatusBadRequest, "NAME_INVALID", fmt.Sprintf("invalid repository name %q", m[1])}
	}
	if err := r.authorize(x, m[1]); err != nil {
		return err
	}
	switch x.req.Method + " " + nouns[m[2]] {
	case "GET blob", "HEAD blob":
		if r.serveBlob(x, m[1], m[3]) {
			return nil
		}
	case "POST upload":
		if r.mount(x, m[1]) {
			return nil
		}
	case "PATCH upload":
		r.patched.Store(m[3], true)
	case "PUT upload":
		r.streamUpload(x, m[1], m[3])
	case "PUT manifest":
		if err := r.checkManifest(x, m[1], m[3]); err != nil {
			return err
		}
	}
	r.inner.ServeHTTP(x, x.req)
	return nil
}

// serveBlob answers with a blob that exists. The inner registry doesn't support open-ended ranges.
func (r *Registry) serveBlob(x *exchange, repo, digest string) bool {
	h, err := v1.NewHash(digest)
	if err != nil {
		return false
	}
	f, err := r.blobs.open(repo, h)
	if err != nil {
		return false
	}
	defer f.Close()
	x.Header().Set("Content-Type", "application/octet-stream")
	x.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(x, x.req, "", time.Time{}, f)
	return true
}

// mount links a blob of another repository. If it can't, it turns the request into the start of an upload.
func (r *Registry) mount(x *exchange, repo string) bool {
	q := x.req.URL.Query()
	x.startUpload(repo, nil)
	if !q.Has("mount") {
		return false
	}
	h, err := v1.NewHash(q.Get("mount"))
	if err != nil || r.o.NoMount || !r.blobs.link(repo, q.Get("from"), h) {
		x.setKind("mount refused")
		return false
	}
	x.setKind("mount")
	x.Header().Set("Location", "/v2/"+repo+"/blobs/"+h.String())
	x.Header().Set("Docker-Content-Digest", h.String())
	x.WriteHeader(http.StatusCreated)
	return true
}

// streamUpload turns a PUT with the whole blob into an upload in one POST, because the inner registry serializes PUTs.
func (r *Registry) streamUpload(x *exchange, repo, id string) {
	_, patched := r.patched.LoadAndDelete(id)
	if digest := x.req.URL.Query().Get("digest"); digest != "" && !patched {
		x.startUpload(repo, url.Values{"digest": {digest}})
	}
}

// startUpload turns the request into one that begins an upload.
func (x *exchange) startUpload(repo string, query url.Values) {
	x.req.Method, x.req.URL = http.MethodPost, &url.URL{Path: "/v2/" + repo + "/blobs/uploads/", RawQuery: query.Encode()}
}

// maxManifest is the largest manifest, in bytes: the minimum that the specification requires.
const maxManifest = 4 << 20

// checkManifest refuses a manifest with another digest or type than the request names, or whose blobs are not in the
// repository with the sizes that it names.
func (r *Registry) checkManifest(x *exchange, repo, ref string) *apiError {
	data, err := io.ReadAll(io.LimitReader(x.req.Body, maxManifest+1))
	if err != nil {
		return &apiError{http.StatusBadRequest, "MANIFEST_INVALID", fmt.Sprintf("body broke off: %v", err)}
	}
	if len(data) > maxManifest {
		return &apiError{http.StatusRequestEntityTooLarge, "SIZE_INVALID", fmt.Sprintf("manifest is larger than %d bytes", maxManifest)}
	}
	x.req.Body = io.NopCloser(bytes.NewReader(data))
	if got := hashOf(data); strings.Contains(ref, ":") && ref != got.String() {
		return &apiError{http.StatusBadRequest, "DIGEST_INVALID", fmt.Sprintf("the manifest has digest %s, not %s", got, ref)}
	}
	m, err := parseManifest(data)
	if err != nil {
		return &apiError{http.StatusBadRequest, "MANIFEST_INVALID", err.Error()}
	}
	if given := x.req.Header.Get("Content-Type"); m.MediaType != "" && m.MediaType != given {
		return &apiError{http.StatusBadRequest, "MANIFEST_INVALID", fmt.Sprintf("Content-Type is %q, mediaType is %q", given, m.MediaType)}
	}
	for _, d := range m.blobs() {
		size, err := r.blobs.Stat(x.req.Context(), repo, d.Digest)
		if err != nil {
			return &apiError{http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", fmt.Sprintf("%s is not in the repository", d.Digest)}
		}
		if size != d.Size {
			return &apiError{http.StatusBadRequest, "MANIFEST_INVALID", fmt.Sprintf("%s has %d bytes, its descriptor says %d", d.Digest, size, d.Size)}
		}
	}
	return nil
}

// manifest holds the fields of an image manifest or an index that the registry reads.
type manifest struct {
	MediaType string
	Config    *v1.Descriptor
	Layers    []v1.Descriptor
	Manifests []v1.Descriptor
}

func parseManifest(data []byte) (m manifest, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("not a manifest: %w", err)
	}
	return m, nil
}

// blobs returns the blobs that the repository must have. Layers with URLs are not among them.
func (m manifest) blobs() []v1.Descriptor {
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

func hashOf(data []byte) v1.Hash {
	h, _, _ := v1.SHA256(bytes.NewReader(data)) // memory reads
	return h
}

// apiError is an error of the specification ("Error Codes"), with the statuses of the distribution registry.
type apiError struct {
	status        int
	code, message string
}

func writeJSON(x *exchange, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(`{}`)
	}
	writeBody(x, status, b)
}

// writeBody answers with b, or for HEAD with its length only.
func writeBody(x *exchange, status int, b []byte) {
	x.Header().Set("Content-Type", "application/json")
	x.Header().Set("Content-Length", strconv.Itoa(len(b)))
	x.WriteHeader(status)
	if x.req.Method != http.MethodHead {
		_, _ = x.Write(b) // the client has gone
	}
}
