package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// DefaultIdleTimeout is how long a registry may stay silent.
const DefaultIdleTimeout = 60 * time.Second

// defaultJobs bounds requests in flight: mounting is round trips only, so there are many.
const defaultJobs = 48

// Transport is the stack below go-containerregistry's authentication and retries: the one that s was opened with, where
// it came from a registry, or a new one. s may be nil; o has its defaults (Options.WithDefaults).
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
	return &pingOnce{inner: checkedRedirects{inner: idle, plain: o.Insecure}}
}

// mostRedirects is how many are followed from one request on.
const mostRedirects = 10

// redirectError is a redirect that isn't followed.
type redirectError struct{ error }

// checkedRedirects checks the redirects of every client above it, go-containerregistry's too, which have no limit.
type checkedRedirects struct {
	inner http.RoundTripper
	plain bool // plain HTTP may follow TLS
}

func (t checkedRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	first, n := req, 0
	for ; first.Response != nil && first.Response.Request != nil; n++ {
		first = first.Response.Request
	}
	err := error(nil)
	switch {
	case n == 0:
	case n > mostRedirects:
		err = fmt.Errorf("registry %s: more than %d redirects", first.URL.Host, mostRedirects)
	case req.URL.Scheme == "http" && first.URL.Scheme == "https" && !t.plain:
		err = fmt.Errorf("registry %s leads from TLS to plain HTTP at %s: refused; --insecure allows it", first.URL.Host, req.URL.Host)
	default:
		err = CheckHost(first.URL, req.URL)
	}
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, redirectError{err}
	}
	return t.inner.RoundTrip(req)
}

// DefaultTransport keeps as many connections to one host as there are jobs: net/http would close and dial again.
var DefaultTransport = sync.OnceValue(func() *http.Transport {
	t, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		t, _ = http.DefaultTransport.(*http.Transport)
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = defaultJobs
	return t
})

// idleTransport ends a request whose connection says nothing for a while, or next to nothing: leastBytes is what it wants in
// that time. The clock runs only while the transport is at work: a reader or a writer on our side may take its time.
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
	// answered says that the response is there; a body still being sent no longer sets the clock.
	answered atomic.Bool
}

func (w *watch) cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), w.idle) {
		return w.idle
	}
	return err
}

// sent stops the clock while our side makes the next bytes.
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

// leastBytes is what a body has to bring while the clock runs once.
const leastBytes = 16 << 10

type received struct {
	in io.ReadCloser
	*watch
	ctx   context.Context
	count *atomic.Int64
	left  time.Duration // of the clock
	got   int64         // bytes since it was set
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
	r.cancel(nil) // first, so that a Read that waits on another goroutine ends
	return r.in.Close()
}

// pingOnce answers the "GET /v2/" that go-containerregistry sends before each new repository from memory after the
// first time: what it learns (the scheme, the challenge) is a matter of the host alone.
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
		io.Copy(io.Discard, io.LimitReader(got.Body, 1<<16)) //nolint:errcheck // the body is of no use
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

// Client authenticates to a repository by the credentials of o, for the scopes given, and gives what speaks to it by way
// of t.
func Client(ctx context.Context, repo name.Repository, o Options, t http.RoundTripper, scopes ...string) (*http.Client, error) {
	auth, err := authn.Resolve(ctx, o.Keychain, repo)
	if err != nil {
		return nil, err
	}
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth, transport.NewUserAgent(t, userAgent), scopes)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return nil }}, nil // checkedRedirects does
}

// CheckHost refuses a registry that sends us, with data or credentials in hand, to an address inside our own network:
// only the host that we were told to speak to may be there.
func CheckHost(from, to *url.URL) error {
	if to.Hostname() == from.Hostname() {
		return nil
	}
	ip, err := netip.ParseAddr(to.Hostname())
	if err != nil {
		if h := strings.TrimSuffix(to.Hostname(), "."); h == "localhost" || strings.HasSuffix(h, ".localhost") {
			return fmt.Errorf("registry %s leads to %s: refused", from.Host, to.Host)
		}
		return nil
	}
	ip = ip.Unmap()
	if ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("registry %s leads to the private address %s: refused", from.Host, to.Host)
	}
	return nil
}

// boundedManifests holds manifests and indexes to their bounds before go-containerregistry decodes them.
type boundedManifests struct{ inner http.RoundTripper }

func (t boundedManifests) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.inner.RoundTrip(req)
	if err == nil && req.Method == http.MethodGet && resp.StatusCode == http.StatusOK && asksManifest(req) {
		resp.Body = &boundedBody{ReadCloser: resp.Body}
	}
	return resp, err
}

// asksManifest follows redirects back to what was asked for.
func asksManifest(req *http.Request) bool {
	for !strings.Contains(req.URL.Path, "/manifests/") && !strings.Contains(req.URL.Path, "/referrers/") {
		if req.Response == nil || req.Response.Request == nil {
			return false
		}
		req = req.Response.Request
	}
	return true
}

// boundedBody gives a document when it is whole and within its bounds.
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
			err = bounded(raw)
		}
		if err != nil {
			return 0, err
		}
		b.content = bytes.NewReader(raw)
	}
	return b.content.Read(p)
}
