package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestRedirectsEnd: a registry that leads us on and on is asked ten times more at most, whatever it was asked for.
func TestRedirectsEnd(t *testing.T) {
	dir := writeBase(t, testIndex(t, []v1.Platform{amd64}, []v1.Image{testImage(t, amd64, testLayer(t, 1, 10))}), "a")
	good := manifestServer(t, dir)
	for name, loops := range map[string]func(path string) bool{
		"the first question": func(p string) bool { return p == "/v2/" },
		"tags":               func(p string) bool { return p == "/v2/x/manifests/a" },
		"manifests":          func(p string) bool { return strings.Contains(p, "/manifests/sha256:") },
		"blobs":              func(p string) bool { return strings.Contains(p, "/blobs/") },
		"tokens":             func(p string) bool { return p == "/token" },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case loops(r.URL.Path):
					if asked.Add(1) > 1000 {
						w.WriteHeader(http.StatusTeapot)
						return
					}
					http.Redirect(w, r, r.URL.String()+"?", http.StatusTemporaryRedirect)
				case r.URL.Path == "/token":
					_, _ = w.Write([]byte(`{"token":"x"}`))
				case r.Header.Get("Authorization") == "":
					w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path != "/v2/":
					http.Redirect(w, r, "http://"+good+r.URL.Path, http.StatusTemporaryRedirect)
				}
			}))
			defer s.Close()
			src, err := Open(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/x:a", testOptions())
			if err == nil {
				var img v1.Image
				if img, err = src.Image(amd64); err == nil {
					_, err = readAll(t, mustLayers(t, img)[0])
				}
			}
			if err == nil || name != "the first question" && !strings.Contains(err.Error(), "10 redirects") || asked.Load() > 50 {
				t.Errorf("%d requests, and %v", asked.Load(), err)
			}
		})
	}
}

func mustLayers(t *testing.T, img v1.Image) []v1.Layer {
	t.Helper()
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

// TestRedirectsStayOutside: a registry must not lead us to another one inside our network, nor off TLS, where the key would be
// read by everybody on the way.
func TestRedirectsStayOutside(t *testing.T) {
	var plain atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { plain.Add(1) }))
	defer inside.Close()
	var to string
	outside := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		}
	}))
	defer outside.Close()
	for name, c := range map[string]struct{ to, want string }{
		"plain HTTP":         {inside.URL, "to plain HTTP"},
		"a name for itself":  {strings.Replace(outside.URL, "127.0.0.1", "localhost", 1), "refused"},
		"another of its own": {strings.Replace(outside.URL, "127.0.0.1", "127.0.0.2", 1), "private"},
		"another scheme":     {"ftp://127.0.0.1/x", "ftp"},
		"a file":             {"file:///etc/passwd", "file"},
	} {
		t.Run(name, func(t *testing.T) {
			to = c.to
			o := testOptions()
			o.Transport = outside.Client().Transport
			_, err := Open(t.Context(), strings.TrimPrefix(outside.URL, "https://")+"/x:a", o)
			if err == nil || !strings.Contains(err.Error(), c.want) || plain.Load() > 0 {
				t.Errorf("%v, and %d requests in the open", err, plain.Load())
			}
		})
	}
}

// inner are places inside our network that a registry has no business with, as it may write them.
var inner = []string{
	"10.0.0.1", "127.0.0.1:2375", "0.0.0.0", "169.254.169.254", "100.100.100.200", "100.64.1.1:80", "168.63.129.16", "192.0.0.192", "198.18.0.1",
	"[::1]:80", "[::1%25lo]", "[::ffff:10.1.1.1]", "[64:ff9b::a00:1]", "[64:ff9b:1::a00:1]", "[2002:a00:1::]", "[fd00:ec2::254]", "[fe80::1%25eth0]", "[::10.0.0.1]",
	"localhost", "LOCALHOST:80", "localhost.", "db.localhost", "metadata.google.internal", "METADATA.google.internal.", "2130706433", "0x7f.1", "127.1",
}

// hook is a network without wires: it answers for hosts, and counts what was asked of others.
type hook struct {
	answer func(*http.Request) *http.Response // nil: nobody is there

	mu    sync.Mutex
	asked []string
}

func (h *hook) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := h.answer(req)
	if resp == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asked = append(h.asked, req.URL.Host)
		return nil, errors.New("nobody is there")
	}
	resp.Request = req
	return resp, nil
}

// respond makes an answer. Each header is NAME: VALUE.
func respond(status int, body string, header ...string) *http.Response {
	resp := &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
	for _, h := range header {
		k, v, _ := strings.Cut(h, ": ")
		resp.Header.Set(k, v)
	}
	return resp
}

// TestTokensStayOutside: a registry must not have us ask for a token, or for anything else, inside our network.
func TestTokensStayOutside(t *testing.T) {
	img := testImage(t, amd64, testLayer(t, 1, 10))
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	media := string(imageMediaType(t, img))
	for _, to := range inner {
		for what, answer := range map[string]func(path string) *http.Response{
			"realm": func(string) *http.Response {
				return respond(401, "", `WWW-Authenticate: Bearer realm="https://`+to+`/token",service="x"`)
			},
			"redirect": func(path string) *http.Response {
				if path == "/v2/" {
					return respond(200, "")
				}
				return respond(307, "", "Location: https://"+to+path)
			},
			"a layer's address": func(path string) *http.Response {
				switch {
				case path == "/v2/":
					return respond(200, "")
				case strings.Contains(path, "/manifests/"):
					return respond(200, elsewhere(t, manifest, "https://"+to+"/layer"), "Content-Type: "+media)
				case strings.HasSuffix(path, digestOf(config).Hex):
					return respond(200, string(config))
				}
				return respond(404, "")
			},
		} {
			t.Run(what+" "+to, func(t *testing.T) {
				h := &hook{answer: func(r *http.Request) *http.Response {
					if r.URL.Host == "registry.example" {
						return answer(r.URL.Path)
					}
					return nil
				}}
				o := testOptions()
				o.Transport = h
				err := readFirst(t, "registry.example/x:a", o)
				if err == nil || len(h.asked) > 0 {
					t.Errorf("it asked %q: %v", h.asked, err)
				}
			})
		}
	}
}

// readFirst opens an image and reads its first layer.
func readFirst(t *testing.T, ref string, o Options) error {
	t.Helper()
	src, err := Open(t.Context(), ref, o)
	if err != nil {
		return err
	}
	img, err := src.Image(amd64)
	if err != nil {
		return err
	}
	_, err = readAll(t, mustLayers(t, img)[0])
	return err
}

// elsewhere returns a manifest whose layers have an address of their own.
func elsewhere(t *testing.T, manifest []byte, address string) string {
	t.Helper()
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Layers {
		m.Layers[i].MediaType, m.Layers[i].URLs = types.DockerForeignLayer, []string{address}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func imageMediaType(t *testing.T, img v1.Image) types.MediaType {
	t.Helper()
	m, err := img.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCredentialsStay: a password is for the registry and the place that gives its tokens, a token for the registry. Whom these
// lead to gets neither, and nothing that is for TLS goes in the open.
func TestCredentialsStay(t *testing.T) {
	img := testImage(t, amd64, testLayer(t, 1, 10))
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	media := string(imageMediaType(t, img))
	for _, bearer := range []bool{false, true} {
		var mu sync.Mutex
		got := map[string]string{} // host: what it was told
		h := &hook{answer: func(r *http.Request) *http.Response {
			place := r.URL.Scheme + "://" + r.URL.Host
			mu.Lock()
			got[place] = max(got[place], r.Header.Get("Authorization"))
			mu.Unlock()
			challenge := `WWW-Authenticate: Basic realm="x"`
			if bearer {
				challenge = `WWW-Authenticate: Bearer realm="https://tokens.example/token",service="x"`
			}
			switch {
			case place == "https://tokens.example" && r.URL.Path == "/token":
				return respond(307, "", "Location: https://elsewhere.example/token")
			case place == "https://elsewhere.example":
				return respond(200, `{"token":"T"}`)
			case place != "https://registry.example":
				return respond(401, "", `WWW-Authenticate: Basic realm="give it to me"`)
			case r.Header.Get("Authorization") == "":
				return respond(401, "", challenge)
			case r.URL.Path == "/v2/":
				return respond(200, "")
			case strings.Contains(r.URL.Path, "/manifests/"):
				return respond(200, string(manifest), "Content-Type: "+media)
			}
			return respond(307, "", "Location: https://store.example"+r.URL.Path)
		}}
		o := testOptions()
		o.Transport = h
		o.Keychain = keyFor("registry.example")
		if err := readFirst(t, "registry.example/x:a", o); err == nil {
			t.Error("a store that wants a password has got one")
		}
		const password, token = "Basic bWU6c2VjcmV0", "Bearer T"
		want := map[string]string{"https://registry.example": password, "https://store.example": ""}
		if bearer {
			want["https://registry.example"], want["https://tokens.example"], want["https://elsewhere.example"] = token, password, ""
		}
		if !maps.Equal(got, want) || len(h.asked) > 0 {
			t.Errorf("bearer %v: %q, want %q; asked %q", bearer, got, want, h.asked)
		}
	}
}

// keyFor has a password for one registry.
type keyFor string

func (k keyFor) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if r.RegistryStr() != string(k) {
		return authn.Anonymous, nil
	}
	return &authn.Basic{Username: "me", Password: "secret"}, nil
}

// TestTrickle: a registry that sends a byte now and then is as one that sends nothing.
func TestTrickle(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	}))
	defer s.Close()
	o := testOptions()
	o.IdleTimeout = 500 * time.Millisecond
	if _, err := Open(context.Background(), strings.TrimPrefix(s.URL, "http://")+"/x:a", o); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
}
