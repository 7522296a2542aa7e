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

// Options are what sources and outputs need of the world. The zero value works.
type Options struct {
	// Keychain finds credentials; nil is the Docker config with its credential helpers.
	Keychain authn.Keychain
	// Transport speaks to registries; nil is go-containerregistry's default.
	Transport http.RoundTripper
	// Progress may be nil.
	Progress Progress
	// CacheDir keeps what was once verified about blobs on this machine; empty for no such memory.
	CacheDir string
	// Insecure allows plain HTTP to any registry. Without it only registries on this machine or in a private
	// network are tried over plain HTTP, after TLS.
	Insecure bool
	// IdleTimeout is how long a registry may stay silent within one request; 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Received counts what registries send of manifests and blobs, in bytes; may be nil.
	Received *atomic.Int64
	// Jobs bounds registry requests in flight; 0 is 48.
	Jobs int
	// Stdout takes an archive whose destination is "-"; nil is os.Stdout.
	Stdout io.Writer

	// Backoff is how long to wait before the first retry; 0 is a second.
	Backoff time.Duration
}

// WithDefaults fills in what isn't set.
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

// Source is a base opened for reading: an index of images or a single one. It is safe for concurrent use. The context
// it was opened with bounds every read from it.
type Source struct {
	ref         string
	name        name.Reference
	index       []byte            // the image index; nil when there is none
	annotations map[string]string // of the index
	ignored     []Ignored
	artifacts   []v1.Descriptor // entries that call themselves attestations; Ignored reads them
	get         func(v1.Descriptor) (v1.Image, error)
	digest      v1.Hash
	children    []*child
	dir         string
	blobs       *blobs // of a local source
	transport   http.RoundTripper
	// part gives size bytes of a blob from off on, unchecked; nil where there is no such way.
	part      func(ctx context.Context, d v1.Descriptor, off, size int64) ([]byte, error)
	referrers referrerLister // nil where there is no such list
}

// child is one image of a source, read when first asked for.
type child struct {
	digest   v1.Hash // of its descriptor; zero where there is none
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

// Open finds a base. ref is one of
//
//	[docker://]HOST/REPO[:TAG][@DIGEST]   a registry; on localhost over plain HTTP
//	oci:DIR[:TAG]                         an OCI image layout
//	oci-archive:FILE[:TAG]                an uncompressed tar of such a layout, read in place
//	docker-archive:FILE[:REF]             what docker save writes
//	docker-daemon:REF                     an image that Docker has
//
// Every layer that it gives checks its digest when read to the end (*DigestError). Trouble with a registry is a
// *RegistryError.
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
		return openDockerArchive(ctx, rest, o)
	case "docker-daemon":
		return openDockerDaemon(ctx, rest, o)
	}
	return openRegistry(ctx, ref, o)
}

// Reference is the base as it was given, without white space and "docker://".
func (s *Source) Reference() string { return s.ref }

// Name is the registry reference, nil for a local base.
func (s *Source) Name() name.Reference { return s.name }

// Digest is that of the index, or of the manifest when the base is a single image.
func (s *Source) Digest() v1.Hash { return s.digest }

// Annotations are those of the index; nil when there is none.
func (s *Source) Annotations() map[string]string { return s.annotations }

// Index is the image index as it is stored; nil when there is none.
func (s *Source) Index() []byte { return s.index }

// Platforms lists what the base has, in its own order, without attestations.
func (s *Source) Platforms() []v1.Platform {
	out := make([]v1.Platform, 0, len(s.children))
	for _, c := range s.children {
		out = append(out, c.platform)
	}
	return out
}

// FromDocker reports whether the source is what docker save writes.
func (s *Source) FromDocker() bool {
	return strings.HasPrefix(s.ref, dockerArchive) || strings.HasPrefix(s.ref, dockerDaemon)
}

// Layout is the directory of an OCI layout base; ok is false for every other form.
func (s *Source) Layout() (dir string, ok bool) { return s.dir, s.dir != "" }

// Image gives the image for one platform: its manifest exactly, its config read. *PlatformError when there is none.
func (s *Source) Image(p v1.Platform) (v1.Image, error) {
	var found *child
	for _, c := range s.children {
		if !SamePlatform(c.platform, p) {
			continue
		}
		if found != nil && found.digest != c.digest {
			return nil, fmt.Errorf("%s: its index has two images for %s, %s and %s: runtimes differ on which they take", s.ref, p, found.digest, c.digest)
		}
		found = c
	}
	if found != nil {
		return found.image()
	}
	return nil, &PlatformError{Ref: s.ref, Want: p, Have: s.Platforms()}
}

// Images gives the images for several platforms, fetched at the same time.
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

// Holds reports whether a layer belongs to one of the images that were read from s.
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

// SamePlatform compares OS, architecture and variant as containerd does (containerd/platforms, Normalize): "linux/x86_64" and
// "Linux/AMD64" are "linux/amd64", "arm64" is "arm64/v8", "arm" is "arm/v7". No OS is Linux. An OS version counts only when it
// is asked for; OS features never do, so that entries which differ in them only are two images for one platform.
//
// Variants are platforms of their own: "amd64/v2" is not "amd64", nor is "386", though a host of amd64 may run both. A runtime
// prefers the exact platform, but for one that asks for a higher variant. Verify tells of each platform of an index that the
// profile doesn't have, unless it is told which platform to look at.
func SamePlatform(have, want v1.Platform) bool {
	a, b := normal(have), normal(want)
	return a.OS == b.OS && a.Architecture == b.Architecture && a.Variant == b.Variant &&
		(want.OSVersion == "" || want.OSVersion == have.OSVersion)
}

func normal(p v1.Platform) specs.Platform {
	if p.OS == "" {
		p.OS = "linux" // Normalize takes that of this machine
	}
	return platforms.Normalize(specs.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
}

// IsImage tells an index entry that is an image from attestations and other artifacts, by the platform that BuildKit gives
// those. Their annotation doesn't count: containerd would run what has it and a platform.
func IsImage(d v1.Descriptor) bool { return d.MediaType.IsImage() && !isArtifact(d) }

func isArtifact(d v1.Descriptor) bool {
	return d.MediaType.IsImage() && d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown"
}

// checked reads an image's manifest and config, so that later uses can't fail for want of them, and refuses a config
// that does not go with its manifest: go-containerregistry indexes one by the other.
func checked(ref string, img v1.Image) (v1.Image, error) {
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
	if err := bounded(raw); err != nil {
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

// platformOf is the platform that an image's own config states.
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

// openIndex makes the children of an index. get reads one child by its descriptor.
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
			return checked(ref, img)
		}}
		if d.Platform != nil && d.Platform.Architecture != "" {
			c.platform = *d.Platform
		} else { // containerd asks the config
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

// single makes the one child of a base that is no index.
func single(ref string, img v1.Image) ([]*child, error) {
	img, err := checked(ref, img)
	if err != nil {
		return nil, err
	}
	p, err := platformOf(img)
	if err != nil {
		return nil, err
	}
	return []*child{{platform: p, load: func() (v1.Image, error) { return img, nil }}}, nil
}

// remoteOptions are go-containerregistry's options for reads from a registry.
func remoteOptions(ctx context.Context, o Options, t http.RoundTripper) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(o.Keychain), remote.WithTransport(boundedManifests{t}),
		remote.WithJobs(o.Jobs), remote.WithUserAgent(userAgent),
		remote.WithRetryBackoff(remote.Backoff{Duration: o.Backoff, Factor: 3, Jitter: 0.1, Steps: 3}),
	}
}

const userAgent = "slimctl"

// Pin puts digest in the place of a registry reference's tag and digest.
func Pin(reference string, digest v1.Hash) string {
	reference, _, _ = strings.Cut(reference, "@")
	if i := strings.LastIndexByte(reference, ':'); i > strings.LastIndexByte(reference, '/') {
		reference = reference[:i]
	}
	return reference + "@" + digest.String()
}
