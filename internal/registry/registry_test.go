package registry

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociIndex    = "application/vnd.oci.image.index.v1+json"
)

func imageManifest(config, layer string, configSize, layerSize int) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}]}`, ociManifest, config, configSize, layer, layerSize)
}

func indexManifest(child string, size int) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, ociIndex, ociManifest, child, size)
}

// TestRawRequests is what a registry has to answer to single requests, most of them bad ones.
func TestRawRequests(t *testing.T) {
	blob, absent := []byte("0123456789"), sum([]byte("absent"))
	good := imageManifest(sum(blob), sum(blob), len(blob), len(blob))
	upload := "/v2/a/b/blobs/uploads/"
	for _, tt := range []struct {
		name, method, path string
		body               []byte
		header             []string
		status             int
		code               string // of the error; empty for a good answer
	}{
		{"ping", "GET", "/v2/", nil, nil, 200, ""},
		{"ping without slash", "GET", "/v2", nil, nil, 200, ""},
		{"no endpoint", "GET", "/v1/", nil, nil, 404, "METHOD_UNKNOWN"},
		{"no referrers", "GET", "/v2/a/b/referrers/" + absent, nil, nil, 404, "METHOD_UNKNOWN"},
		{"no token without auth", "GET", "/token", nil, nil, 404, "NOT_FOUND"},

		{"blob", "GET", "/v2/a/b/blobs/" + sum(blob), nil, nil, 200, ""},
		{"unknown blob", "GET", "/v2/a/b/blobs/" + absent, nil, nil, 404, "BLOB_UNKNOWN"},
		{"blob of another repository", "GET", "/v2/a/c/blobs/" + sum(blob), nil, nil, 404, "BLOB_UNKNOWN"},
		{"bad digest", "GET", "/v2/a/b/blobs/sha256:zz", nil, nil, 400, "NAME_INVALID"},
		{"digest that climbs", "GET", "/v2/a/b/blobs/sha256:..%2f..%2fetc", nil, nil, 404, "METHOD_UNKNOWN"},
		{"name that climbs", "GET", "/v2/../etc/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"encoded name that climbs", "GET", "/v2/a%2f..%2f..%2fb/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},

		{"upload with wrong digest", "PUT", upload + "1?digest=" + absent, blob, nil, 400, "DIGEST_INVALID"},
		{"upload with bad digest", "PUT", upload + "1?digest=x", blob, nil, 400, "NAME_INVALID"},
		{"upload without digest", "PUT", upload + "1", blob, nil, 400, "DIGEST_INVALID"},
		{"upload in one POST", "POST", upload + "?digest=" + absent, blob, nil, 202, ""},
		{"mount of bad digest", "POST", upload + "?mount=x&from=a/b", nil, nil, 202, ""},
		{"mount from bad name", "POST", upload + "?mount=" + sum(blob) + "&from=../a", nil, nil, 202, ""},

		{"manifest", "PUT", "/v2/a/b/manifests/v1", good, []string{"Content-Type", ociManifest}, 201, ""},
		{"manifest by digest", "PUT", "/v2/a/b/manifests/" + sum(good), good, []string{"Content-Type", ociManifest}, 201, ""},
		{"manifest by wrong digest", "PUT", "/v2/a/b/manifests/" + absent, good, []string{"Content-Type", ociManifest}, 400, "DIGEST_INVALID"},
		{"not JSON", "PUT", "/v2/a/b/manifests/v1", blob, []string{"Content-Type", ociManifest}, 400, "MANIFEST_INVALID"},
		{"other type than it says", "PUT", "/v2/a/b/manifests/v1", good, []string{"Content-Type", ociIndex}, 400, "MANIFEST_INVALID"},
		{"unknown layer", "PUT", "/v2/a/b/manifests/v1", imageManifest(sum(blob), absent, 10, 10), []string{"Content-Type", ociManifest}, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"layer of another repository", "PUT", "/v2/a/c/manifests/v1", good, []string{"Content-Type", ociManifest}, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"wrong size", "PUT", "/v2/a/b/manifests/v1", imageManifest(sum(blob), sum(blob), 10, 11), []string{"Content-Type", ociManifest}, 400, "MANIFEST_INVALID"},
		{"index", "PUT", "/v2/a/b/manifests/v1", indexManifest(sum(good), len(good)), []string{"Content-Type", ociIndex}, 201, ""},
		{"unknown child", "PUT", "/v2/a/b/manifests/v1", indexManifest(absent, 1), []string{"Content-Type", ociIndex}, 404, "MANIFEST_UNKNOWN"},
		{"child of another repository", "PUT", "/v2/a/c/manifests/v1", indexManifest(sum(good), len(good)), []string{"Content-Type", ociIndex}, 404, "MANIFEST_UNKNOWN"},
		{"too large", "PUT", "/v2/a/b/manifests/v1", make([]byte, maxManifest+1), nil, 413, "SIZE_INVALID"},
		{"unknown tag", "GET", "/v2/a/b/manifests/nope", nil, nil, 404, "MANIFEST_UNKNOWN"},
		{"unknown repository", "GET", "/v2/nope/manifests/v1", nil, nil, 404, "NAME_UNKNOWN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, Options{})
			s.push(t, "a/b", blob)
			if a := s.do(t, "PUT", "/v2/a/b/manifests/"+sum(good), good, "Content-Type", ociManifest); a.status != 201 {
				t.Fatalf("set-up: %d %s", a.status, a.body)
			}
			a := s.do(t, tt.method, tt.path, tt.body, tt.header...)
			if a.status != tt.status {
				t.Fatalf("status %d, want %d: %s", a.status, tt.status, a.body)
			}
			if tt.code != "" && a.code(t) != tt.code {
				t.Errorf("code %s, want %s", a.code(t), tt.code)
			}
		})
	}
}

func TestBlobAndRange(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		blob := []byte("0123456789")
		path := "/v2/a/blobs/" + s.push(t, "a", blob)
		for _, tt := range []struct {
			name, method, rng, body string
			status                  int
		}{
			{"whole", "GET", "", "0123456789", 200},
			{"head", "HEAD", "", "", 200},
			{"middle", "GET", "bytes=2-4", "234", 206},
			{"tail", "GET", "bytes=8-", "89", 206},
			{"suffix", "GET", "bytes=-3", "789", 206},
			{"one past the end", "GET", "bytes=9-100", "9", 206},
		} {
			t.Run(tt.name, func(t *testing.T) {
				a := s.do(t, tt.method, path, nil, "Range", tt.rng)
				if a.status != tt.status || string(a.body) != tt.body {
					t.Errorf("got %d %q, want %d %q", a.status, a.body, tt.status, tt.body)
				}
				if got := a.header.Get("Docker-Content-Digest"); got != sum(blob) {
					t.Errorf("Docker-Content-Digest %q", got)
				}
			})
		}
		if a := s.do(t, "HEAD", path, nil); a.header.Get("Content-Length") != "10" {
			t.Errorf("HEAD: Content-Length %q", a.header.Get("Content-Length"))
		}
		if a := s.do(t, "GET", path, nil, "Range", "bytes=10-"); a.status != 416 {
			t.Errorf("range behind the end: %d", a.status)
		}
	})
}

func TestChunkedUpload(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		blob := []byte("0123456789")
		loc := s.do(t, "POST", "/v2/a/blobs/uploads/", nil).header.Get("Location")
		if a := s.do(t, "PATCH", loc, blob[:8]); a.status != 202 {
			t.Fatalf("part: %d %s", a.status, a.body)
		}
		if a := s.do(t, "PUT", loc+"?digest="+sum(blob), blob[8:]); a.status != 201 || a.header.Get("Docker-Content-Digest") != sum(blob) {
			t.Fatalf("end: %d %s", a.status, a.body)
		}
		if a := s.do(t, "GET", "/v2/a/blobs/"+sum(blob), nil); !bytes.Equal(a.body, blob) {
			t.Errorf("got %d %q back", a.status, a.body)
		}
		leftovers(t, o, 1)
	})
}

func TestBadDigestLeavesNothing(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		claimed := sum([]byte("claimed"))
		loc := s.do(t, "POST", "/v2/a/blobs/uploads/", nil).header.Get("Location")
		if a := s.do(t, "PUT", loc+"?digest="+claimed, []byte("other")); a.status != 400 || a.code(t) != "DIGEST_INVALID" {
			t.Errorf("put: %d", a.status)
		}
		if a := s.do(t, "HEAD", "/v2/a/blobs/"+claimed, nil); a.status != 404 {
			t.Errorf("blob is there: %d", a.status)
		}
		leftovers(t, o, 0)
	})
}

// leftovers checks what is on disk: that many blobs and no upload.
func leftovers(t *testing.T, o Options, blobs int) {
	t.Helper()
	if o.Dir == "" {
		return
	}
	if got, err := filepath.Glob(filepath.Join(o.Dir, "blobs", "sha256", "*")); err != nil || len(got) != blobs {
		t.Errorf("%v (%v), want %d", got, err, blobs)
	}
}

func TestMount(t *testing.T) {
	blob := []byte("layer")
	mount := "/v2/b/blobs/uploads/?mount=" + sum(blob) + "&from="
	for _, tt := range []struct {
		name   string
		o      Options
		from   string
		status int
		mounts int
	}{
		{"from where it is", Options{}, "a", 201, 1},
		{"from where it is not", Options{}, "c", 202, 0},
		{"without from", Options{}, "", 202, 0},
		{"refused", Options{NoMount: true}, "a", 202, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.o)
			s.push(t, "a", blob)
			a := s.do(t, "POST", mount+tt.from, nil)
			if a.status != tt.status || a.header.Get("Location") == "" {
				t.Fatalf("%d, Location %q", a.status, a.header.Get("Location"))
			}
			if got := s.Stats().Mounts; got != tt.mounts {
				t.Errorf("%d mounts counted", got)
			}
			want := map[bool]int{true: 200, false: 404}[tt.status == 201]
			if a := s.do(t, "HEAD", "/v2/b/blobs/"+sum(blob), nil); a.status != want {
				t.Errorf("HEAD in the target: %d, want %d", a.status, want)
			}
			if tt.status == 202 { // the refusal is the start of an upload
				if a := s.do(t, "PUT", a.header.Get("Location")+"?digest="+sum(blob), blob); a.status != 201 {
					t.Errorf("upload after refusal: %d %s", a.status, a.body)
				}
			}
		})
	}
}

func TestHeadOfManifest(t *testing.T) {
	s := serve(t, Options{})
	blob := []byte("{}")
	s.push(t, "a", blob)
	m := imageManifest(sum(blob), sum(blob), 2, 2)
	if a := s.do(t, "PUT", "/v2/a/manifests/d", m, "Content-Type", ociManifest); a.status != 201 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a := s.do(t, "HEAD", "/v2/a/manifests/d", nil)
	if a.status != http.StatusOK || a.header.Get("Docker-Content-Digest") != sum(m) || a.header.Get("Content-Length") != fmt.Sprint(len(m)) || a.header.Get("Content-Type") != ociManifest {
		t.Errorf("HEAD manifest: %d %v", a.status, a.header)
	}
}

func TestNewOnBadDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: file}); err == nil {
		t.Error("no error for a directory that is a file")
	}
}

// TestLargeBlobsAreStreamed: a push and a pull of 256 MB to disk allocate next to nothing.
func TestLargeBlobsAreStreamed(t *testing.T) {
	const size = 256 << 20
	s := serve(t, Options{Dir: t.TempDir()})
	zeros := func() io.Reader { return io.LimitReader(zeroReader{}, size) }
	h, _, err := v1.SHA256(zeros())
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	req, err := http.NewRequest(http.MethodPut, "http://"+s.Host+"/v2/a/blobs/uploads/1?digest="+h.String(), zeros())
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 201 {
		t.Fatalf("push: %s", res.Status)
	}
	if res, err = http.Get("http://" + s.Host + "/v2/a/blobs/" + h.String()); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
		t.Fatalf("pulled %d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
