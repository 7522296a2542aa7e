package image

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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
