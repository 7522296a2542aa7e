package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// DefaultIdleTimeout is the longest silence of a registry within one request.
const DefaultIdleTimeout = 60 * time.Second

// defaultJobs limits concurrent requests. Mounts are only round trips, so there are many.
const defaultJobs = 48

// Transport returns the transport below go-containerregistry's authentication and retries: that of s if it came from a
// registry, otherwise a new one. s may be nil. o must have its defaults (Options.WithDefaults).
func Transport(s *Source, o Options) http.RoundTripper {
	if s != nil && s.transport != nil {
		return s.transport
	}
	base := o.Transport
	if base == nil {
		base = DefaultTransport()
	}
	received := o.Received
	if received == nil {
		received = new(atomic.Int64)
	}
	idle := &idleTransport{inner: base, after: o.IdleTimeout, received: received}
	return &pingOnce{inner: idle}
}

// DefaultTransport returns a transport with one idle connection per job and host; net/http's default would close them.
var DefaultTransport = sync.OnceValue(func() *http.Transport {
	t, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		t, _ = http.DefaultTransport.(*http.Transport)
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = defaultJobs
	return t
})

// idleTransport ends a request whose connection transfers less than leastBytes within the timeout. The clock runs only
// while the transport works, so a reader or a writer on our side may be slow.
type idleTransport struct {
	inner    http.RoundTripper
	after    time.Duration
	received *atomic.Int64 // bytes of bodies
}

func (t *idleTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{after: t.after, cancel: cancel}
	w.idle = &idleError{host: req.URL.Host, step: req.Method + " " + req.URL.Path, after: t.after}
	w.timer = time.AfterFunc(t.after, func() { cancel(w.idle) })
	out := req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		out.Body = &sent{in: req.Body, watch: w}
		if req.GetBody != nil {
			out.GetBody = func() (io.ReadCloser, error) {
				b, err := req.GetBody()
				return &sent{in: b, watch: w}, err
			}
		}
	}
	resp, err := t.inner.RoundTrip(out)
	w.answered.Store(true)
	w.timer.Stop()
	if err != nil {
		err = w.cause(ctx, err)
		cancel(nil)
		return nil, err
	}
	resp.Body = &received{in: resp.Body, watch: w, ctx: ctx, count: t.received, left: t.after}
	return resp, nil
}

type watch struct {
	after  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
	idle   *idleError
	// answered is set when the response has arrived. A body that is still being sent no longer resets the clock.
	answered atomic.Bool
}

func (w *watch) cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), w.idle) {
		return w.idle
	}
	return err
}

// sent is a request body that stops the clock while our side produces bytes.
type sent struct {
	in io.ReadCloser
	*watch
}

func (s *sent) Read(p []byte) (int, error) {
	s.timer.Stop()
	n, err := s.in.Read(p)
	if !s.answered.Load() {
		s.timer.Reset(s.after)
	}
	return n, err
}

func (s *sent) Close() error { return s.in.Close() }

// leastBytes is the number of body bytes that reset the clock.
const leastBytes = 16 << 10

type received struct {
	in io.ReadCloser
	*watch
	ctx   context.Context
	count *atomic.Int64
	left  time.Duration // left on the clock
	got   int64         // bytes since the clock was reset
}

func (r *received) Read(p []byte) (int, error) {
	r.timer.Reset(r.left)
	began := time.Now()
	n, err := r.in.Read(p)
	r.timer.Stop()
	r.count.Add(int64(n))
	r.got += int64(n)
	if r.left -= time.Since(began); r.got >= leastBytes {
		r.left, r.got = r.after, 0
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.cause(r.ctx, err)
	}
	return n, err
}

func (r *received) Close() error {
	r.timer.Stop()
	r.cancel(nil) // first, so that a Read in another goroutine ends
	return r.in.Close()
}

// pingOnce sends the "GET /v2/" of go-containerregistry once per host and repeats the answer for other repositories. It
// depends on the host only: the scheme and the challenge.
type pingOnce struct {
	inner http.RoundTripper
	mu    sync.Mutex
	known map[string]http.Response
}

func (t *pingOnce) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet || req.URL.Path != "/v2/" || req.URL.RawQuery != "" {
		return t.inner.RoundTrip(req)
	}
	key := req.URL.Scheme + "://" + req.URL.Host
	t.mu.Lock()
	resp, ok := t.known[key]
	t.mu.Unlock()
	if !ok {
		got, err := t.inner.RoundTrip(req)
		if err != nil || (got.StatusCode != http.StatusOK && got.StatusCode != http.StatusUnauthorized) {
			return got, err
		}
		io.Copy(io.Discard, io.LimitReader(got.Body, 1<<16)) //nolint:errcheck // the body isn't needed
		got.Body.Close()
		resp = *got
		t.mu.Lock()
		if t.known == nil {
			t.known = map[string]http.Response{}
		}
		t.known[key] = resp
		t.mu.Unlock()
	}
	resp.Header = resp.Header.Clone()
	resp.Request = req
	resp.Body = io.NopCloser(bytes.NewReader(nil))
	return &resp, nil
}

// Login authenticates for scopes in a repository with the credentials of o. It returns a transport that
// go-containerregistry takes as it is, over t.
func Login(ctx context.Context, repo name.Repository, o Options, t http.RoundTripper, scopes ...string) (http.RoundTripper, error) {
	auth, err := authn.Resolve(ctx, o.Keychain, repo)
	if err != nil {
		return nil, err
	}
	return transport.NewWithContext(ctx, repo.Registry, auth, transport.NewUserAgent(leash{t, repo.Registry, o.Insecure}, userAgent), scopes)
}

// boundedManifests checks the size and nesting of manifests and indexes before go-containerregistry decodes them.
type boundedManifests struct{ inner http.RoundTripper }

func (t boundedManifests) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.inner.RoundTrip(req)
	if err == nil && req.Method == http.MethodGet && resp.StatusCode == http.StatusOK && asksManifest(req) {
		resp.Body = &boundedBody{ReadCloser: resp.Body}
	}
	return resp, err
}

// asksManifest reports whether the request, before redirects, was for a manifest.
func asksManifest(req *http.Request) bool {
	for !strings.Contains(req.URL.Path, "/manifests/") && !strings.Contains(req.URL.Path, "/referrers/") {
		if req.Response == nil || req.Response.Request == nil {
			return false
		}
		req = req.Response.Request
	}
	return true
}

// boundedBody returns a document after reading it whole and checking it.
type boundedBody struct {
	io.ReadCloser
	content *bytes.Reader
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.content == nil {
		raw, err := io.ReadAll(io.LimitReader(b.ReadCloser, maxDocument+1))
		if err == nil && len(raw) > maxDocument {
			err = fmt.Errorf("the manifest has more than %d bytes", maxDocument)
		} else if err == nil {
			err = checkBounds(raw)
		}
		if err != nil {
			return 0, err
		}
		b.content = bytes.NewReader(raw)
	}
	return b.content.Read(p)
}
