// Package registry is an OCI registry for tests and benchmarks.
//
// It follows the OCI distribution specification v1.1 for pulling, pushing and mounting. Unlike the test registry of
// go-containerregistry it keeps the blobs of each repository apart, so that a HEAD misses and a cross-repository mount
// means something; and it counts bytes, requests and round trips, adds latency and plays faults.
//
// It leaves out: deleting manifests, tags, blobs and uploads, asking where an upload stands, lists of tags, the referrers endpoint,
// the catalogue, digests other than sha256.
package registry

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Options says how a Registry behaves. The zero value is an open registry in memory.
type Options struct {
	// Dir is where blobs are kept, as blobs/sha256/<hex> below it; it is made when missing. Empty: in memory.
	// What repositories hold is always in memory: a new Registry starts empty whatever is in Dir.
	Dir string
	// Latency is added once to each request, after its body was read and before the answer.
	Latency time.Duration
	// NoMount refuses each mount with 202, as Artifactory does.
	NoMount bool
	// NoMonolithic answers POST ?digest= with 202 and ignores its body, as the distribution registry does.
	NoMonolithic bool
	// User and Password protect everything when User is not empty: Basic, or Bearer with scopes if Bearer is set.
	User, Password string
	// Bearer asks for a token from /token (GET with Basic, or the OAuth2 password form by POST). A token is good for
	// the scopes it was asked for; a mount also needs pull on the repository that it mounts from.
	Bearer bool
	// Log gets each request when it has ended; it is called by one goroutine at a time.
	Log func(Record)
}

// Registry is an http.Handler. Its methods may be called at any time from any goroutine.
type Registry struct {
	o      Options
	auth   auth
	stats  recorder
	logMu  sync.Mutex
	config struct {
		sync.Mutex
		latency time.Duration
		fault   func(*http.Request) *Fault
	}

	mu      sync.Mutex // guards what follows
	content map[v1.Hash]content
	repos   map[string]*repo
	uploads map[string]*upload
}

// repo is what one repository links to.
type repo struct {
	blobs     map[v1.Hash]bool
	manifests map[v1.Hash]storedManifest
	tags      map[string]v1.Hash
}

// New makes an empty registry. It fails when Options.Dir cannot be made.
func New(o Options) (*Registry, error) {
	r := &Registry{
		o:       o,
		auth:    auth{o: o, tokens: map[string]map[string]bool{}},
		content: map[v1.Hash]content{},
		repos:   map[string]*repo{},
		uploads: map[string]*upload{},
	}
	r.config.latency = o.Latency
	if o.Dir == "" {
		return r, nil
	}
	for _, d := range []string{filepath.Join("blobs", "sha256"), "uploads"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("registry directory: %w", err)
		}
	}
	return r, nil
}

// SetLatency changes Options.Latency for requests that start from now on.
func (r *Registry) SetLatency(d time.Duration) {
	r.config.Lock()
	defer r.config.Unlock()
	r.config.latency = d
}

// repository returns the named repository, made when missing. The caller holds r.mu.
func (r *Registry) repository(name string) *repo {
	p := r.repos[name]
	if p == nil {
		p = &repo{blobs: map[v1.Hash]bool{}, manifests: map[v1.Hash]storedManifest{}, tags: map[string]v1.Hash{}}
		r.repos[name] = p
	}
	return p
}

type handler func(r *Registry, x *exchange, name, ref string) error

// routes are tried in order; the first group of a pattern is the repository's name, the second the reference.
var routes = []struct {
	noun    string
	pattern *regexp.Regexp
	methods map[string]handler
}{
	{"token", regexp.MustCompile(`^/token$`), map[string]handler{"GET": (*Registry).token, "POST": (*Registry).token}},
	{"ping", regexp.MustCompile(`^/v2/?$`), map[string]handler{"GET": (*Registry).ping, "HEAD": (*Registry).ping}},
	{"upload", regexp.MustCompile(`(?s)^/v2/(.+)/blobs/uploads/?$`), map[string]handler{"POST": (*Registry).startUpload}},
	{"upload", regexp.MustCompile(`(?s)^/v2/(.+)/blobs/uploads/([^/]+)$`), map[string]handler{
		"PATCH": (*Registry).patchUpload, "PUT": (*Registry).putUpload,
	}},
	{"blob", regexp.MustCompile(`(?s)^/v2/(.+)/blobs/([^/]+)$`), map[string]handler{
		"GET": (*Registry).getBlob, "HEAD": (*Registry).getBlob,
	}},
	{"manifest", regexp.MustCompile(`(?s)^/v2/(.+)/manifests/([^/]+)$`), map[string]handler{
		"GET": (*Registry).getManifest, "HEAD": (*Registry).getManifest, "PUT": (*Registry).putManifest,
	}},
}

var (
	// The grammar of names and tags is the specification's, "Pulling manifests".
	nameRE = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagRE  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

func validName(s string) bool { return len(s) <= 255 && nameRE.MatchString(s) }

// ServeHTTP answers one request.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	x := r.begin(w, req)
	defer r.finish(x)
	if x.playFault() {
		return
	}
	if err := r.dispatch(x); err != nil {
		writeError(x, err)
	}
}

func (r *Registry) dispatch(x *exchange) error {
	x.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	for _, rt := range routes {
		m := rt.pattern.FindStringSubmatch(x.req.URL.Path)
		if m == nil {
			continue
		}
		m = append(m, "", "")
		name, ref := m[1], m[2]
		x.setKind(x.req.Method + " " + rt.noun)
		h := rt.methods[x.req.Method]
		if h == nil {
			return errUnsupported(x.req.Method)
		}
		if len(rt.pattern.SubexpNames()) > 1 && !validName(name) {
			return errName(name)
		}
		if rt.noun != "token" {
			if err := r.authorize(x, name); err != nil {
				return err
			}
		}
		return h(r, x, name, ref)
	}
	x.setKind("other")
	return &apiError{http.StatusNotFound, "NOT_FOUND", fmt.Sprintf("no such endpoint: %q", x.req.URL.Path), nil}
}

func (r *Registry) ping(x *exchange, _, _ string) error {
	writeJSON(x, http.StatusOK, struct{}{})
	return nil
}
