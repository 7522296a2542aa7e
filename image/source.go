package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// Options configures registry access and the cache, for sources and outputs. The zero value works.
type Options struct {
	// Keychain returns credentials; nil is Docker's config with its credential helpers.
	Keychain authn.Keychain
	// Transport sends the requests to registries; nil is DefaultTransport.
	Transport http.RoundTripper
	// Progress displays the work; nil displays nothing.
	Progress Progress
	// CacheDir stores which local blobs were verified; empty stores nothing.
	CacheDir string
	// Insecure allows plain HTTP to any registry. Otherwise plain HTTP is tried only after TLS, for registries on this
	// machine or in a private network.
	Insecure bool
	// IdleTimeout is the longest silence of a registry within one request; 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Received counts the bytes of manifests and blobs from registries; may be nil.
	Received *atomic.Int64
	// Jobs limits concurrent registry requests; 0 is 48.
	Jobs int
	// Stdout receives an archive with the destination "-"; nil is os.Stdout.
	Stdout io.Writer

	// Backoff is the wait before the first retry; 0 is one second.
	Backoff time.Duration
}

// WithDefaults returns o with defaults for the fields that are not set.
func (o Options) WithDefaults() Options {
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Progress == nil {
		o.Progress = NoProgress
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = DefaultIdleTimeout
	}
	if o.Jobs <= 0 {
		o.Jobs = defaultJobs
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Backoff <= 0 {
		o.Backoff = time.Second
	}
	return o
}

// Source is an open base: an index of images or a single image. It is safe for concurrent use. The context of Open
// limits all reads from it.
type Source struct {
	ref         string
	name        name.Reference
	index       []byte            // the image index, or nil
	annotations map[string]string // of the index
	ignored     []Ignored
	artifacts   []v1.Descriptor // entries that claim to be attestations; Ignored checks them
	get         func(v1.Descriptor) (v1.Image, error)
	digest      v1.Hash
	children    []*child
	dir         string
	blobs       *blobs // of a local source
	transport   http.RoundTripper
	referrers   referrerLister // nil if the source has no list of referrers
	top         []byte         // index.json of a layout
	inTop       bool           // top is the image's own index
	names       []string       // see Names
	wrong       []string       // what is wrong with them
}

// child is one image of a source, read on first use.
type child struct {
	digest   v1.Hash // from its descriptor; zero if there is none
	platform v1.Platform
	load     func() (v1.Image, error)

	once   sync.Once
	img    v1.Image
	err    error
	loaded atomic.Bool
}

func (c *child) image() (v1.Image, error) {
	c.once.Do(func() {
		c.img, c.err = c.load()
		c.loaded.Store(c.err == nil)
	})
	return c.img, c.err
}

// Open opens a base. ref is one of
//
//	[docker://]HOST/REPO[:TAG][@DIGEST]   a registry; on localhost over plain HTTP
//	oci:DIR[:TAG]                         an OCI image layout
//	oci-archive:FILE[:TAG]                an uncompressed tar of such a layout, read in place
//	docker-archive:FILE[:REF]             the output of docker save
//	docker-daemon:REF                     an image in Docker's store
//
// Every layer checks its digest when read to the end (*DigestError). Failures of a registry are *RegistryError.
func Open(ctx context.Context, ref string, o Options) (*Source, error) {
	o = o.WithDefaults()
	ref = strings.TrimSpace(ref)
	kind, rest, _ := strings.Cut(ref, ":")
	switch kind {
	case "oci":
		return openLayout(rest, o)
	case "oci-archive":
		return openLayoutArchive(rest, o)
	case "docker-archive":
		return openDockerArchive(rest, o)
	case "docker-daemon":
		return openDockerDaemon(ctx, rest, o)
	}
	return openRegistry(ctx, ref, o)
}

// Reference returns the base's reference as given to Open, without white space and "docker://".
func (s *Source) Reference() string { return s.ref }

// Name returns the registry reference, or nil for a local base.
func (s *Source) Name() name.Reference { return s.name }

// Digest returns the digest of the index, or of the manifest of a single image.
func (s *Source) Digest() v1.Hash { return s.digest }

// Annotations returns the annotations of the index, or nil.
func (s *Source) Annotations() map[string]string { return s.annotations }

// Index returns the image index as stored, or nil.
func (s *Source) Index() []byte { return s.index }

// Platforms returns the base's platforms in its own order, without attestations.
func (s *Source) Platforms() []v1.Platform {
	out := make([]v1.Platform, 0, len(s.children))
	for _, c := range s.children {
		out = append(out, c.platform)
	}
	return out
}

// FromDocker reports whether the source comes from docker save.
func (s *Source) FromDocker() bool {
	return strings.HasPrefix(s.ref, dockerArchive) || strings.HasPrefix(s.ref, dockerDaemon)
}

// Layout returns the directory of a base of the form oci:DIR; ok is false for other forms.
func (s *Source) Layout() (dir string, ok bool) { return s.dir, s.dir != "" }

// Image returns the image for one platform with its exact manifest and its config, or a *PlatformError.
func (s *Source) Image(p v1.Platform) (v1.Image, error) {
	var found *child
	for _, c := range s.children {
		if !SamePlatform(c.platform, p) {
			continue
		}
		if found != nil && found.digest != c.digest {
			return nil, fmt.Errorf("%s: its index has two images for %s, %s and %s, and runtimes differ on which they take; remove one", s.ref, p, found.digest, c.digest)
		}
		found = c
	}
	if found != nil {
		return found.image()
	}
	return nil, &PlatformError{Ref: s.ref, Want: p, Have: s.Platforms()}
}

// Images returns the images for several platforms. It fetches them concurrently.
func (s *Source) Images(ps ...v1.Platform) ([]v1.Image, error) {
	out := make([]v1.Image, len(ps))
	var g errgroup.Group
	for i, p := range ps {
		g.Go(func() (err error) {
			out[i], err = s.Image(p)
			return err
		})
	}
	return out, g.Wait()
}

// Holds reports whether one of the images read from s has the layer.
func (s *Source) Holds(h v1.Hash) bool {
	for _, c := range s.children {
		if !c.loaded.Load() {
			continue
		}
		m, err := c.img.Manifest()
		if err != nil {
			continue
		}
		if slices.ContainsFunc(m.Layers, func(d v1.Descriptor) bool { return d.Digest == h }) {
			return true
		}
	}
	return false
}

// SamePlatform compares OS, architecture and variant like containerd (containerd/platforms, Normalize): "linux/x86_64"
// and "Linux/AMD64" are "linux/amd64", "arm64" is "arm64/v8", "arm" is "arm/v7", and an empty OS is Linux. An OS
// version counts only if want has one. OS features never count, so entries that differ only in them are two images for
// one platform.
//
// Variants are separate platforms: "amd64/v2" and "386" are not "amd64", though an amd64 host may run both. Runtimes
// prefer the exact platform unless a higher variant is requested. Verify therefore reports each platform of an index
// that the profile doesn't have, unless it checks a given platform only.
func SamePlatform(have, want v1.Platform) bool {
	a, b := normal(have), normal(want)
	return a.OS == b.OS && a.Architecture == b.Architecture && a.Variant == b.Variant &&
		(want.OSVersion == "" || want.OSVersion == have.OSVersion)
}

func normal(p v1.Platform) specs.Platform {
	if p.OS == "" {
		p.OS = "linux" // Normalize would set this machine's OS
	}
	return platforms.Normalize(specs.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
}

// IsImage reports whether an index entry is an image. Attestations and other artifacts have the platform that BuildKit
// gives them. Their annotation isn't checked, because containerd runs an entry that has it and a platform.
func IsImage(d v1.Descriptor) bool { return d.MediaType.IsImage() && !isArtifact(d) }

func isArtifact(d v1.Descriptor) bool {
	return d.MediaType.IsImage() && d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown"
}

// checkImage reads the manifest and config of an image, so that later uses can't fail. It refuses a config that doesn't
// fit its manifest, because go-containerregistry indexes one by the other.
func checkImage(ref string, img v1.Image) (v1.Image, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if m.Config.Size > maxDocument {
		return nil, fmt.Errorf("%s: config %s has %d bytes, more than %d", ref, m.Config.Digest, m.Config.Size, maxDocument)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	if err := checkBounds(raw); err != nil {
		return nil, fmt.Errorf("%s: config %s: %w", ref, m.Config.Digest, err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return nil, fmt.Errorf("%s: the manifest names %d layers, its config %s names %d", ref, len(m.Layers),
			m.Config.Digest, len(c.RootFS.DiffIDs))
	}
	return img, nil
}

// platformOf returns the platform in an image's config.
func platformOf(img v1.Image) (v1.Platform, error) {
	c, err := img.ConfigFile()
	if err != nil {
		return v1.Platform{}, err
	}
	if p := c.Platform(); p != nil {
		return *p, nil
	}
	return v1.Platform{}, nil
}

// openIndex creates the children of an index. get reads the child of a descriptor.
func (s *Source) openIndex(raw []byte, m *v1.IndexManifest, get func(v1.Descriptor) (v1.Image, error)) error {
	ref := s.ref
	s.index, s.annotations, s.get = raw, m.Annotations, get
	for _, d := range m.Manifests {
		switch {
		case isArtifact(d):
			s.artifacts = append(s.artifacts, d)
			continue
		case !IsImage(d):
			s.ignored = append(s.ignored, Ignored{d, notAnImage})
			continue
		}
		c := &child{digest: d.Digest, load: func() (v1.Image, error) {
			img, err := get(d)
			if err != nil {
				return nil, err
			}
			return checkImage(ref, img)
		}}
		if d.Platform != nil && d.Platform.Architecture != "" {
			c.platform = *d.Platform
		} else { // containerd reads the config
			img, err := c.image()
			if err != nil {
				return err
			}
			if c.platform, err = platformOf(img); err != nil {
				return err
			}
		}
		s.children = append(s.children, c)
	}
	if len(s.children) == 0 {
		return fmt.Errorf("%s: the index holds no image", ref)
	}
	return nil
}

// singleChild returns the one child of a base without an index.
func singleChild(ref string, img v1.Image) ([]*child, error) {
	img, err := checkImage(ref, img)
	if err != nil {
		return nil, err
	}
	p, err := platformOf(img)
	if err != nil {
		return nil, err
	}
	return []*child{{platform: p, load: func() (v1.Image, error) { return img, nil }}}, nil
}

// remoteOptions returns go-containerregistry's options for requests to a registry.
func remoteOptions(ctx context.Context, of name.Registry, o Options, t http.RoundTripper) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(o.Keychain), remote.WithTransport(boundedManifests{leash{t, of, o.Insecure}}),
		remote.WithJobs(o.Jobs), remote.WithUserAgent(userAgent),
		remote.WithRetryBackoff(remote.Backoff{Duration: o.Backoff, Factor: 3, Jitter: 0.1, Steps: 3}),
	}
}

const userAgent = "slimctl"

// Pin returns a registry reference with its tag and digest replaced by digest.
func Pin(reference string, digest v1.Hash) string {
	reference, _, _ = strings.Cut(reference, "@")
	if i := strings.LastIndexByte(reference, ':'); i > strings.LastIndexByte(reference, '/') {
		reference = reference[:i]
	}
	return reference + "@" + digest.String()
}
