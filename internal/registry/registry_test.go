package registry

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
		{"no endpoint", "GET", "/v1/", nil, nil, 404, "NOT_FOUND"},
		{"no catalogue", "GET", "/v2/_catalog", nil, nil, 404, "NOT_FOUND"},
		{"no token without auth", "GET", "/token", nil, nil, 404, "NOT_FOUND"},
		{"wrong method", "DELETE", "/v2/a/b/manifests/v1", nil, nil, 405, "UNSUPPORTED"},

		{"blob", "GET", "/v2/a/b/blobs/" + sum(blob), nil, nil, 200, ""},
		{"unknown blob", "GET", "/v2/a/b/blobs/" + absent, nil, nil, 404, "BLOB_UNKNOWN"},
		{"blob of another repository", "GET", "/v2/a/c/blobs/" + sum(blob), nil, nil, 404, "BLOB_UNKNOWN"},
		{"bad digest", "GET", "/v2/a/b/blobs/sha256:zz", nil, nil, 400, "DIGEST_INVALID"},
		{"upper case digest", "GET", "/v2/a/b/blobs/" + strings.ToUpper(sum(blob)), nil, nil, 400, "DIGEST_INVALID"},
		{"sha512", "GET", "/v2/a/b/blobs/sha512:" + strings.Repeat("0", 128), nil, nil, 400, "DIGEST_INVALID"},
		{"digest that climbs", "GET", "/v2/a/b/blobs/sha256:..%2f..%2fetc", nil, nil, 404, "NOT_FOUND"},

		{"name that climbs", "GET", "/v2/../etc/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"encoded name that climbs", "GET", "/v2/a%2f..%2f..%2fb/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"dot", "GET", "/v2/a/./b/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"double slash", "GET", "/v2/a//b/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"upper case name", "GET", "/v2/A/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"newline in name", "GET", "/v2/a%0a/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"NUL in name", "GET", "/v2/a%00/blobs/" + sum(blob), nil, nil, 400, "NAME_INVALID"},
		{"leading dash", "GET", "/v2/-a/manifests/v1", nil, nil, 400, "NAME_INVALID"},
		{"three underscores", "GET", "/v2/a___b/manifests/v1", nil, nil, 400, "NAME_INVALID"},
		{"separators", "GET", "/v2/a__b.c---d/e/manifests/v1", nil, nil, 404, "NAME_UNKNOWN"},
		{"long name", "GET", "/v2/" + strings.Repeat("a", 256) + "/manifests/v1", nil, nil, 400, "NAME_INVALID"},

		{"monolithic with wrong digest", "POST", upload + "?digest=" + absent, blob, nil, 400, "DIGEST_INVALID"},
		{"monolithic with bad digest", "POST", upload + "?digest=x", blob, nil, 400, "DIGEST_INVALID"},
		{"unknown upload", "PATCH", upload + "nope", blob, nil, 404, "BLOB_UPLOAD_UNKNOWN"},
		{"unknown upload put", "PUT", upload + "nope?digest=" + sum(blob), nil, nil, 404, "BLOB_UPLOAD_UNKNOWN"},
		{"mount of bad digest", "POST", upload + "?mount=x&from=a/b", nil, nil, 400, "DIGEST_INVALID"},
		{"mount from bad name", "POST", upload + "?mount=" + sum(blob) + "&from=../a", nil, nil, 202, ""},

		{"manifest", "PUT", "/v2/a/b/manifests/v1", good, []string{"Content-Type", ociManifest}, 201, ""},
		{"manifest by digest", "PUT", "/v2/a/b/manifests/" + sum(good), good, []string{"Content-Type", ociManifest}, 201, ""},
		{"manifest without Content-Type", "PUT", "/v2/a/b/manifests/v1", good, nil, 201, ""},
		{"manifest by wrong digest", "PUT", "/v2/a/b/manifests/" + absent, good, []string{"Content-Type", ociManifest}, 400, "DIGEST_INVALID"},
		{"bad tag", "PUT", "/v2/a/b/manifests/-v1", good, []string{"Content-Type", ociManifest}, 400, "TAG_INVALID"},
		{"long tag", "PUT", "/v2/a/b/manifests/" + strings.Repeat("v", 129), good, []string{"Content-Type", ociManifest}, 400, "TAG_INVALID"},
		{"not JSON", "PUT", "/v2/a/b/manifests/v1", blob, []string{"Content-Type", ociManifest}, 400, "MANIFEST_INVALID"},
		{"other type than it says", "PUT", "/v2/a/b/manifests/v1", good, []string{"Content-Type", ociIndex}, 400, "MANIFEST_INVALID"},
		{"unknown type", "PUT", "/v2/a/b/manifests/v1", []byte(`{"schemaVersion":2}`), []string{"Content-Type", "text/plain"}, 400, "MANIFEST_INVALID"},
		{"schema 1", "PUT", "/v2/a/b/manifests/v1", []byte(`{"schemaVersion":1}`), []string{"Content-Type", ociManifest}, 400, "MANIFEST_INVALID"},
		{"both image and index", "PUT", "/v2/a/b/manifests/v1", bytes.Replace(good, []byte(`"layers"`), []byte(`"manifests":[],"layers"`), 1), nil, 400, "MANIFEST_INVALID"},
		{"unknown layer", "PUT", "/v2/a/b/manifests/v1", imageManifest(sum(blob), absent, 10, 10), nil, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"layer of another repository", "PUT", "/v2/a/c/manifests/v1", good, nil, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"wrong size", "PUT", "/v2/a/b/manifests/v1", imageManifest(sum(blob), sum(blob), 10, 11), nil, 400, "MANIFEST_INVALID"},
		{"index", "PUT", "/v2/a/b/manifests/v1", indexManifest(sum(good), len(good)), nil, 201, ""},
		{"unknown child", "PUT", "/v2/a/b/manifests/v1", indexManifest(absent, 1), nil, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"child that is a blob", "PUT", "/v2/a/b/manifests/v1", indexManifest(sum(blob), len(blob)), nil, 400, "MANIFEST_BLOB_UNKNOWN"},
		{"too large", "PUT", "/v2/a/b/manifests/v1", make([]byte, maxManifest+1), nil, 413, "SIZE_INVALID"},
		{"unknown tag", "GET", "/v2/a/b/manifests/nope", nil, nil, 404, "MANIFEST_UNKNOWN"},
		{"unknown manifest", "GET", "/v2/a/b/manifests/" + absent, nil, nil, 404, "MANIFEST_UNKNOWN"},
		{"blob is no manifest", "GET", "/v2/a/b/manifests/" + sum(blob), nil, nil, 404, "MANIFEST_UNKNOWN"},
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
		a := s.do(t, "POST", "/v2/a/blobs/uploads/", nil)
		loc := a.header.Get("Location")
		if a.status != 202 || loc == "" {
			t.Fatalf("start: %d %q", a.status, loc)
		}
		for i, part := range []string{"0-3", "0-6", "0-7"} {
			from := []int{0, 4, 7, 8}
			if a := s.do(t, "PATCH", loc, blob[from[i]:from[i+1]]); a.status != 202 || a.header.Get("Range") != part {
				t.Fatalf("part %d: %d, Range %q, want 202, %q", i, a.status, a.header.Get("Range"), part)
			}
		}
		other := strings.Replace(loc, "/v2/a/", "/v2/b/", 1)
		if a := s.do(t, "PUT", other+"?digest="+sum(blob), blob[8:]); a.status != 404 {
			t.Fatalf("upload reached through another repository: %d", a.status)
		}
		if a := s.do(t, "PUT", loc, blob[8:]); a.status != 400 || a.code(t) != "DIGEST_INVALID" {
			t.Fatalf("no digest: %d", a.status)
		}
		a = s.do(t, "PUT", loc+"?digest="+sum(blob), blob[8:])
		if a.status != 201 || a.header.Get("Docker-Content-Digest") != sum(blob) {
			t.Fatalf("end: %d %s", a.status, a.body)
		}
		if a := s.do(t, "GET", a.header.Get("Location"), nil); !bytes.Equal(a.body, blob) {
			t.Errorf("got %q back", a.body)
		}
		if a := s.do(t, "PATCH", loc, nil); a.status != 404 {
			t.Errorf("upload still there: %d", a.status)
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
	for pattern, want := range map[string]int{"uploads/*": 0, "blobs/sha256/*": blobs} {
		got, err := filepath.Glob(filepath.Join(o.Dir, pattern))
		if err != nil || len(got) != want {
			t.Errorf("%s: %v (%v), want %d", pattern, got, err, want)
		}
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

func TestNoMonolithic(t *testing.T) {
	s := serve(t, Options{NoMonolithic: true})
	blob := []byte("x")
	a := s.do(t, "POST", "/v2/a/blobs/uploads/?digest="+sum(blob), blob)
	if a.status != 202 {
		t.Fatalf("status %d", a.status)
	}
	if a := s.do(t, "PUT", a.header.Get("Location")+"?digest="+sum(blob), blob); a.status != 201 {
		t.Errorf("upload after refusal: %d %s", a.status, a.body)
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
	res, err := http.Post("http://"+s.Host+"/v2/a/blobs/uploads/?digest="+h.String(), "application/octet-stream", zeros())
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
