package output

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/slimctl/slimctl/internal/registry"

	"github.com/slimctl/slimctl/image"
)

// pushBase serves a base as HOST/aio/base:1 and opens it.
func pushBase(t testing.TB, o registry.Options, size int) (*registry.Server, *image.Source) {
	t.Helper()
	dir := writeBase(t, testBase(t, size), "1")
	reg := serveRegistry(t, o)
	if err := reg.LoadLayout("aio/base", "1", dir); err != nil {
		t.Fatal(err)
	}
	src := open(t, reg.Host+"/aio/base:1", testOptions())
	return reg, src
}

// pullBack reads everything that a tag names and checks every digest.
func pullBack(t testing.TB, ref string, want v1.Hash) {
	t.Helper()
	n := refs(t, ref)[0]
	idx, err := remote.Index(n)
	if err != nil {
		t.Fatal(err)
	}
	if got := hexDigest(t, idx); got != want {
		t.Errorf("%s is %s, want %s", ref, got, want)
	}
	if err := validate.Index(idx); err != nil {
		t.Error(err)
	}
}

// hangTime is how long a registry may say nothing in these tests. What does not hang has to answer within it on a busy
// machine.
const hangTime = 2 * time.Second

const baseLayers = 2*layersEach - 1 // one is shared

func TestPushMounts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		o      registry.Options
		repo   string
		ledger Transfer // bytes are looked at otherwise
	}{
		{"another repository", registry.Options{}, "team/slim", Transfer{Mounted: baseLayers, Uploaded: 4}},
		{"the base's own repository", registry.Options{}, "aio/base", Transfer{Existing: baseLayers, Uploaded: 4}},
		{"mounts refused", registry.Options{NoMount: true}, "team/slim", Transfer{Uploaded: baseLayers + 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const size = 2_000_000
			reg, src := pushBase(t, tt.o, size)
			b := derive(t, src, 1_500_000, 70)
			reg.Reset()
			ref := reg.Host + "/" + tt.repo + ":l0"
			got, err := Push(context.Background(), b, refs(t, ref), src, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			st := reg.Stats()
			if got.Mounted != tt.ledger.Mounted || got.Uploaded != tt.ledger.Uploaded || got.Existing != tt.ledger.Existing {
				t.Errorf("ledger %+v, want %+v; registry %+v", got, tt.ledger, st)
			}
			if got.BytesUp != st.BytesIn {
				t.Errorf("bytes up: %d, the registry counts %d", got.BytesUp, st.BytesIn)
			}
			if got.BytesDown != st.BlobBytesOut {
				t.Errorf("bytes down: %d, the registry counts %d", got.BytesDown, st.BlobBytesOut)
			}
			if moved := st.BlobBytesIn > 4*size; moved != tt.o.NoMount {
				t.Errorf("%d bytes of blobs went up", st.BlobBytesIn)
			}
			pullBack(t, ref, hexDigest(t, b))

			reg.Reset()
			again, err := Push(context.Background(), b, refs(t, ref), src, testOptions())
			if err != nil || again != (Transfer{}) {
				t.Errorf("second push: %+v, %v", again, err)
			}
			if st := reg.Stats(); st.BytesIn != 0 || st.ByKind["PUT manifest"] != 0 {
				t.Errorf("second push: %+v", st)
			}

			reg.Reset() // another tag: all blobs are there
			more, err := Push(context.Background(), b, refs(t, ref, reg.Host+"/"+tt.repo+":other"), src, testOptions())
			if err != nil || more.Uploaded != 0 && !tt.o.NoMount {
				t.Errorf("another tag: %+v, %v", more, err)
			}
			if st := reg.Stats(); st.BlobBytesIn > 10_000 {
				t.Errorf("another tag: %d bytes of blobs", st.BlobBytesIn)
			}
		})
	}
}

// TestPushHiddenLayers has a wrapper that hides what kind of layer it holds: mounts must not turn into uploads.
func TestPushHiddenLayers(t *testing.T) {
	_, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 10, 70)
	p := &writer{src: src, repo: refs(t, src.Name().Context().RegistryStr()+"/x")[0].Context()}
	d := baseLayer(t, src, 0)
	img, _ := src.Image(amd64)
	l, err := img.LayerByDigest(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if from, ok := p.home(item{desc: d, layer: hidden{l}}); !ok || from.RepositoryStr() != "aio/base" {
		t.Errorf("from %v, %v", from, ok)
	}
	c, err := contentsOf(b)
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, it := range c.blobs {
		if _, ok := p.home(it); !ok {
			own++
		}
	}
	if own != 4 {
		t.Errorf("%d blobs are our own, want 2 layers and 2 configs", own)
	}
}

type hidden struct{ v1.Layer }

// TestPushRoundTrips counts what a whole build costs whose base index is at hand: open, read both images, push.
func TestPushRoundTrips(t *testing.T) {
	for _, bearer := range []bool{false, true} {
		o := registry.Options{}
		opt := testOptions()
		if bearer {
			o = registry.Options{User: "u", Password: "p", Bearer: true}
		}
		dir := writeBase(t, testBase(t, 100_000), "1")
		reg := serveRegistry(t, o)
		if err := reg.LoadLayout("aio/base", "1", dir); err != nil {
			t.Fatal(err)
		}
		if bearer {
			config := t.TempDir()
			t.Setenv("DOCKER_CONFIG", config)
			data := `{"auths":{"` + reg.Host + `":{"username":"u","password":"p"}}}`
			if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			opt.Keychain = nil
		}
		limit := 12
		if bearer {
			limit = 14
		}
		var st registry.Stats
		// Requests that are made at once follow one another on a machine that takes longer than the latency to make them.
		for i, latency := range []time.Duration{30 * time.Millisecond, 200 * time.Millisecond, time.Second, 5 * time.Second} {
			reg.SetLatency(latency)
			reg.Reset()
			src := open(t, reg.Host+"/aio/base:1", opt)
			b := derive(t, src, 1_500_000, uint64(70+i)) // other layers each time
			if _, err := Push(context.Background(), b, refs(t, fmt.Sprintf("%s/slim%d:1", reg.Host, i)), src, opt); err != nil {
				t.Fatal(err)
			}
			st = reg.Stats()
			t.Logf("bearer=%v, %s: %d round trips, %d requests: %v", bearer, latency, st.RoundTrips, st.Requests, st.ByKind)
			if st.RoundTrips <= limit {
				break
			}
		}
		if st.RoundTrips > limit {
			t.Errorf("bearer=%v: %d round trips, want at most %d", bearer, st.RoundTrips, limit)
		}
		if st.ByKind["GET blob"] != 2 { // two configs
			t.Errorf("%v", st.ByKind)
		}
	}
}

// TestPushToAnotherRegistry moves the base's bytes once.
func TestPushToAnotherRegistry(t *testing.T) {
	from, src := pushBase(t, registry.Options{}, 300_000)
	to := serveRegistry(t, registry.Options{})
	b := derive(t, src, 1000, 70)
	from.Reset()
	got, err := Push(context.Background(), b, refs(t, to.Host+"/slim:1"), src, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if got.Uploaded != baseLayers+4 || got.BytesDown != from.Stats().BlobBytesOut || got.BytesDown < baseLayers*300_000 {
		t.Errorf("%+v; %+v", got, from.Stats())
	}
	pullBack(t, to.Host+"/slim:1", hexDigest(t, b))
}

// TestPushFromLayout pushes a local base.
func TestPushFromLayout(t *testing.T) {
	dir := writeBase(t, testBase(t, 100_000), "1")
	src := open(t, "oci:"+dir, testOptions())
	to := serveRegistry(t, registry.Options{})
	b := derive(t, src, 1000, 70)
	if _, err := Push(context.Background(), b, refs(t, to.Host+"/slim:1"), src, testOptions()); err != nil {
		t.Fatal(err)
	}
	pullBack(t, to.Host+"/slim:1", hexDigest(t, b))

	d := baseLayer(t, src, 1)
	flip(t, filepath.Join(dir, "blobs", "sha256", d.Digest.Hex), 50_000)
	to.Reset()
	_, err := Push(context.Background(), b, refs(t, to.Host+"/other:1"), src, testOptions())
	mustBeDigestError(t, err, d.Digest)
	if to.Stats().ByKind["PUT manifest"] != 0 {
		t.Error("a manifest was pushed")
	}
}

// TestPushFaults spoils requests in every way: the tag must not move, whatever happens.
func TestPushFaults(t *testing.T) {
	isUpload := func(r *http.Request) bool {
		return (r.Method == "PATCH" || r.Method == "PUT") && strings.Contains(r.URL.Path, "/blobs/uploads/")
	}
	isMount := func(r *http.Request) bool { return r.URL.Query().Has("mount") }
	isManifest := func(r *http.Request) bool { return r.Method == "PUT" && strings.Contains(r.URL.Path, "/manifests/") }
	isChild := func(r *http.Request) bool { return isManifest(r) && strings.Contains(r.URL.Path, "sha256:") }
	isHead := func(r *http.Request) bool { return r.Method == "HEAD" && strings.Contains(r.URL.Path, "/manifests/") }
	for _, tt := range []struct {
		name  string
		which func(*http.Request) bool
		fault registry.Fault
		kind  error
	}{
		{"401 at the tag", isHead, registry.Fault{Status: 401}, image.ErrAuth},
		{"403 at upload", isUpload, registry.Fault{Status: 403, Body: `{"errors":[{"code":"DENIED"}]}`}, image.ErrAuth},
		{"404 at upload", isUpload, registry.Fault{Status: 404}, image.ErrNotFound},
		{"429 at upload", isUpload, registry.Fault{Status: 429}, image.ErrRateLimited},
		{"429 at mount", isMount, registry.Fault{Status: 429}, image.ErrRateLimited},
		{"500 at manifest", isChild, registry.Fault{Status: 500}, image.ErrRegistry},
		{"500 at tag", isManifest, registry.Fault{Status: 500}, image.ErrRegistry},
		{"hang at upload", isUpload, registry.Fault{Hang: true}, image.ErrTimeout},
		{"hang at mount", isMount, registry.Fault{Hang: true}, image.ErrTimeout},
		{"cut upload", isUpload, registry.Fault{CutAfter: 1000}, image.ErrUnreachable},
		{"no answer to a manifest", isChild, registry.Fault{CutAfter: -1}, image.ErrUnreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg, src := pushBase(t, registry.Options{}, 1000)
			old := derive(t, src, 10, 1)
			ref := reg.Host + "/slim:1"
			if _, err := Push(context.Background(), old, refs(t, ref), src, testOptions()); err != nil {
				t.Fatal(err)
			}
			reg.Fault(func(r *http.Request) *registry.Fault {
				if tt.which(r) {
					return &tt.fault
				}
				return nil
			})
			o := testOptions()
			if tt.fault.Hang {
				o.IdleTimeout = hangTime
			}
			src = open(t, src.Reference(), o)
			_, err := Push(context.Background(), derive(t, src, 100_000, 2), refs(t, ref), src, o)
			if !errors.Is(err, tt.kind) {
				t.Errorf("got %v", err)
			}
			var re *image.RegistryError
			if errors.As(err, &re) && !strings.Contains(err.Error(), reg.Host+"/slim") {
				t.Errorf("%v does not say where", err)
			}
			reg.Fault(nil)
			pullBack(t, ref, hexDigest(t, old))
		})
	}
}

// TestPushRetries fails each request once: the push must come through all the same.
func TestPushRetries(t *testing.T) {
	for _, fault := range []registry.Fault{{Status: 503}, {Status: 429}, {CutAfter: -1}} {
		reg, src := pushBase(t, registry.Options{}, 1000)
		b := derive(t, src, 50_000, 2)
		var met sync.Map
		reg.Fault(func(r *http.Request) *registry.Fault {
			key := r.Method + r.URL.Query().Get("mount") + r.URL.Query().Get("digest")
			if strings.Contains(r.URL.Path, "/manifests/") {
				key += r.URL.Path
			}
			if _, again := met.LoadOrStore(key, true); r.Method != "GET" && !again {
				return &fault
			}
			return nil
		})
		if _, err := Push(context.Background(), b, refs(t, reg.Host+"/slim:1"), src, testOptions()); err != nil {
			t.Errorf("%+v: %v", fault, err)
			continue
		}
		reg.Fault(nil)
		pullBack(t, reg.Host+"/slim:1", hexDigest(t, b))
	}
}

// TestPushMountError has a registry that answers mounts with an error, not with an upload.
func TestPushMountError(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	reg.Fault(func(r *http.Request) *registry.Fault {
		if r.URL.Query().Has("mount") {
			return &registry.Fault{Status: 405, Body: `{"errors":[{"code":"UNSUPPORTED"}]}`}
		}
		return nil
	})
	got, err := Push(context.Background(), b, refs(t, reg.Host+"/slim:1"), src, testOptions())
	if err != nil || got.Uploaded != baseLayers+4 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPushInterrupted(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	for _, at := range []string{"HEAD manifest", "POST", "PATCH upload", "PUT upload", "PUT manifest"} {
		ctx, cancel := context.WithCancel(context.Background())
		method, rest, _ := strings.Cut(at, " ")
		reg.Fault(func(r *http.Request) *registry.Fault {
			if r.Method == method && strings.Contains(r.URL.Path, strings.TrimSuffix(rest, " ")) {
				cancel()
			}
			return nil
		})
		_, err := Push(ctx, b, refs(t, reg.Host+"/slim:1"), src, testOptions())
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", at, err)
		}
		reg.Fault(nil)
		if at != "PUT manifest" { // the manifest that was on its way may have been the tag's
			if _, err := remote.Head(refs(t, reg.Host+"/slim:1")[0]); err == nil {
				t.Errorf("%s: the tag is there", at)
			}
		}
	}
}

// TestPushOwnFirst has one job only, so that the requests show the order.
func TestPushOwnFirst(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	reg.Reset()
	o := testOptions()
	o.Jobs = 1
	if _, err := Push(context.Background(), b, refs(t, reg.Host+"/slim:1"), src, o); err != nil {
		t.Fatal(err)
	}
	var puts, mounts int
	for _, r := range reg.Records() {
		switch {
		case r.Kind == "mount":
			mounts++
		case r.Kind == "PUT upload" && mounts > 0:
			t.Errorf("a blob of our own was sent after %d mounts", mounts)
		case r.Kind == "PUT upload":
			puts++
		}
	}
	if puts != 4 || mounts != baseLayers {
		t.Errorf("%d blobs sent and %d mounted, want 4 and %d", puts, mounts, baseLayers)
	}
}

// TestPushTagsLast pushes to two repositories; one fails, so no tag moves in the other either.
func TestPushTagsLast(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	reg.Fault(func(r *http.Request) *registry.Fault {
		if strings.HasPrefix(r.URL.Path, "/v2/two/") && r.Method == "PUT" {
			return &registry.Fault{Status: 403}
		}
		return nil
	})
	_, err := Push(context.Background(), b, refs(t, reg.Host+"/one:1", reg.Host+"/two:1"), src, testOptions())
	if !errors.Is(err, image.ErrAuth) {
		t.Errorf("got %v", err)
	}
	for _, r := range reg.Records() {
		if r.Method == "PUT" && strings.HasSuffix(r.Path, "/manifests/1") {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
}

// TestTag names what was pushed by digest; where one repository lacks it, no tag moves in the other either.
func TestTag(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	digest := hexDigest(t, b)
	if _, err := Push(context.Background(), b, refs(t, reg.Host+"/one@"+digest.String()), src, testOptions()); err != nil {
		t.Fatal(err)
	}
	var tags []name.Tag
	for _, s := range []string{"/one:1", "/one:2", "/two:1"} {
		tag, err := name.NewTag(reg.Host + s)
		if err != nil {
			t.Fatal(err)
		}
		tags = append(tags, tag)
	}
	if err := Tag(context.Background(), digest, tags, testOptions()); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	for _, tag := range tags {
		if _, err := remote.Head(tag); err == nil {
			t.Errorf("%s moved", tag)
		}
	}
	if err := Tag(context.Background(), digest, tags[:2], testOptions()); err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags[:2] {
		pullBack(t, tag.String(), digest)
	}
}

func TestPushDigestReference(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	b := derive(t, src, 1000, 2)
	other, _ := name.NewDigest(reg.Host + "/slim@" + src.Digest().String())
	if _, err := Push(context.Background(), b, []name.Reference{other}, src, testOptions()); err == nil {
		t.Error("pushed under another's digest")
	}
	own, _ := name.NewDigest(reg.Host + "/slim@" + hexDigest(t, b).String())
	if _, err := Push(context.Background(), b, []name.Reference{own}, src, testOptions()); err != nil {
		t.Error(err)
	}
}

// outsideOnly lets through to one host and counts what was asked of others.
type outsideOnly struct {
	host  string
	asked atomic.Int64
}

func (o *outsideOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == o.host {
		return image.DefaultTransport().RoundTrip(req)
	}
	o.asked.Add(1)
	if req.Body != nil {
		req.Body.Close()
	}
	return nil, errors.New("nobody is there")
}

// TestPushSSRF has a registry that sends the upload elsewhere: into our network, or off TLS.
func TestPushSSRF(t *testing.T) {
	reg, src := pushBase(t, registry.Options{}, 1000)
	for _, to := range []string{
		"http://169.254.169.254/latest", "http://10.0.0.1/x", "http://localhost/x", "http://[::1]/", "http://[::ffff:10.1.1.1]/", "http://100.100.100.200/",
		"http://100.64.0.1/", "http://[64:ff9b::a00:1]/", "http://[fe80::1%25eth0]/", "http://metadata.google.internal/", "http://2130706433/",
	} {
		for status, method := range map[int]string{http.StatusAccepted: http.MethodPost, http.StatusTemporaryRedirect: http.MethodPatch} {
			reg.Fault(func(r *http.Request) *registry.Fault {
				if r.Method == method && strings.Contains(r.URL.Path, "/blobs/") {
					return &registry.Fault{Status: status, Header: http.Header{"Location": {to}}}
				}
				return nil
			})
			o := testOptions()
			hook := &outsideOnly{host: reg.Host}
			o.Transport = hook
			_, err := Push(context.Background(), derive(t, src, 10, 3), refs(t, reg.Host+"/slim:1"), nil, o)
			stopped := err != nil && (strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "SSRF protection"))
			if !stopped || hook.asked.Load() > 0 {
				t.Errorf("%d to %s: %v, %d requests", status, to, err, hook.asked.Load())
			}
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestPushStaysOnTLS has a registry that wants the upload in the open.
func TestPushStaysOnTLS(t *testing.T) {
	var open atomic.Int64
	o := testOptions()
	o.Keychain = nil
	config := t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	data := `{"auths":{"registry.example":{"username":"me","password":"secret"}}}`
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Transport = roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			req.Body.Close()
		}
		resp := &http.Response{StatusCode: http.StatusNotFound, Request: req, Body: http.NoBody, Header: http.Header{}}
		switch {
		case req.URL.Scheme != "https":
			open.Add(1)
		case req.Header.Get("Authorization") == "":
			resp.StatusCode = http.StatusUnauthorized
			resp.Header.Set("WWW-Authenticate", `Basic realm="x"`)
		case req.URL.Path == "/v2/":
			resp.StatusCode = http.StatusOK
		case req.Method == http.MethodPost:
			resp.StatusCode = http.StatusAccepted
			resp.Header.Set("Location", "http://store.example/upload")
		}
		return resp, nil
	})
	_, src := pushBase(t, registry.Options{}, 1000)
	_, err := Push(context.Background(), derive(t, src, 10, 3), refs(t, "registry.example/slim:1"), nil, o)
	if err == nil || !strings.Contains(err.Error(), "plain HTTP") || open.Load() > 0 {
		t.Errorf("%v, and %d requests in the open", err, open.Load())
	}
}

func TestRegistryAuth(t *testing.T) {
	dir := writeBase(t, testBase(t, 100), "a")
	for _, bearer := range []bool{false, true} {
		reg := serveRegistry(t, registry.Options{User: "me", Password: "secret", Bearer: bearer})
		if err := reg.LoadLayout("b", "a", dir); err != nil {
			t.Fatal(err)
		}
		_, err := image.Open(context.Background(), reg.Host+"/b:a", testOptions())
		if !errors.Is(err, image.ErrAuth) {
			t.Errorf("bearer=%v: without a password: %v", bearer, err)
		}
		config := t.TempDir()
		t.Setenv("DOCKER_CONFIG", config)
		data := `{"auths":{"` + reg.Host + `":{"username":"me","password":"secret"}}}`
		if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		o := testOptions()
		o.Keychain = nil
		src := open(t, reg.Host+"/b:a", o)
		if _, err := Push(context.Background(), derive(t, src, 10, 70), refs(t, reg.Host+"/c:1"), src, o); err != nil {
			t.Errorf("bearer=%v: push: %v", bearer, err)
		}
	}
}
