package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slimctl/slimctl/internal/registry"
)

// tarOf writes a directory as a tar archive.
func tarOf(file, dir string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	return errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), f.Close())
}

// TestSources opens the same base in each form and reads all of it.
func TestSources(t *testing.T) {
	idx := testBase(t, 50_000)
	dir := writeBase(t, idx, "1.2")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("aio/base", "1.2", dir); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "base.tar")
	if err := tarOf(archive, dir); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(reg.Host, ":")
	for _, tt := range []struct {
		ref    string
		want   v1.Hash
		isDir  bool
		layers int
	}{
		{"oci:" + dir, hexDigest(t, idx), true, layersEach},
		{"oci:" + dir + ":1.2", hexDigest(t, idx), true, layersEach},
		{"oci-archive:" + archive, hexDigest(t, idx), false, layersEach},
		{reg.Host + "/aio/base:1.2", hexDigest(t, idx), false, layersEach},
		{"docker://" + reg.Host + "/aio/base:1.2", hexDigest(t, idx), false, layersEach},
		{"localhost:" + port + "/aio/base@" + hexDigest(t, idx).String(), hexDigest(t, idx), false, layersEach},
	} {
		t.Run(tt.ref, func(t *testing.T) {
			s := open(t, tt.ref, testOptions())
			if s.Digest() != tt.want {
				t.Errorf("digest %s, want %s", s.Digest(), tt.want)
			}
			if got := s.Reference(); got != strings.TrimPrefix(tt.ref, "docker://") {
				t.Errorf("reference %q", got)
			}
			if _, ok := s.Layout(); ok != tt.isDir {
				t.Errorf("layout: %v", ok)
			}
			if ps := s.Platforms(); len(ps) != 2 || ps[0].String() != "linux/amd64" || ps[1].String() != "linux/arm64" {
				t.Errorf("platforms %v", ps)
			}
			img, err := s.Image(v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"})
			if err != nil {
				t.Fatal(err)
			}
			ls, err := img.Layers()
			if err != nil || len(ls) != tt.layers {
				t.Fatalf("%d layers, %v", len(ls), err)
			}
			for _, l := range ls {
				if _, mountable := l.(*remote.MountableLayer); mountable != (s.Name() != nil) {
					t.Errorf("layer is %T", l)
				}
				data, err := readAll(t, l)
				if size, _ := l.Size(); err != nil || int64(len(data)) != size {
					t.Errorf("%d bytes, %v", len(data), err)
				}
			}
			_, err = s.Image(v1.Platform{OS: "linux", Architecture: "riscv64"})
			var pe *PlatformError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), "linux/amd64, linux/arm64") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestDockerArchiveSource(t *testing.T) {
	img := testImage(t, arm64, testLayer(t, 1, 5000), testLayer(t, 2, 5000))
	file := filepath.Join(t.TempDir(), "a:b.tar") // a colon in the path, too
	ref := tagOf(t, "example.com/x:1")
	if err := tarball.WriteToFile(file, ref, img); err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.CacheDir = t.TempDir()
	for _, spec := range []string{file, file + ":example.com/x:1"} {
		s := open(t, "docker-archive:"+spec, o)
		if ps := s.Platforms(); len(ps) != 1 || ps[0].String() != "linux/arm64" {
			t.Errorf("platforms %v", ps)
		}
		if _, err := s.Image(amd64); err == nil {
			t.Error("amd64 from an arm64 archive")
		}
	}
	if _, err := Open(context.Background(), "docker-archive:"+file+":example.com/x:2", o); err == nil {
		t.Error("another tag was found")
	}
}

func TestOpenBadInput(t *testing.T) {
	dir := writeBase(t, testBase(t, 100), "a")
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(file, []byte(strings.Repeat("no tar ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	noLayout := t.TempDir()
	badIndex := t.TempDir()
	for n, s := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": "{"} {
		if err := os.WriteFile(filepath.Join(badIndex, n), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ ref, want string }{
		{"", "empty image reference"},
		{dir, "write oci:" + dir},
		{"https://ghcr.io/a/b", "leave out the scheme"},
		{"oci:", "no path"},
		{"oci:/does/not/exist:tag", "/does/not/exist"},
		{"oci:" + dir + ":b", `no image is called "b"; it has a`},
		{"oci:" + noLayout, "oci-layout is missing"},
		{"oci:" + badIndex, "index.json"},
		{"oci:" + file, "write oci-archive:"},
		{"oci-archive:" + file, "not an uncompressed tar"},
		{"oci-archive:" + dir, "not a regular file"},
		{"docker-archive:" + file, file},
		{"UPPER/case", "UPPER/case"},
	} {
		_, err := Open(context.Background(), tt.ref, testOptions())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.ref, err, tt.want)
		}
	}
}

// TestPathTricks has a layout whose manifest names a blob outside of it.
func TestPathTricks(t *testing.T) {
	dir := t.TempDir()
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":3,` +
		`"digest":"sha256:../../../etc/passwd"}]}`
	for n, s := range map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": index} {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(context.Background(), "oci:"+dir, testOptions()); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v: the digest itself must be refused", err)
	}
}

// TestUnequalConfig has a config with fewer layers than the manifest: go-containerregistry would index past its end.
func TestUnequalConfig(t *testing.T) {
	img := testImage(t, amd64, testLayer(t, 1, 100))
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.RootFS.DiffIDs = nil
	if _, err := checkImage("x", lyingImage{img, c}); err == nil || !strings.Contains(err.Error(), "names 1 layers") {
		t.Errorf("got %v", err)
	}
}

type lyingImage struct {
	v1.Image
	config *v1.ConfigFile
}

func (l lyingImage) ConfigFile() (*v1.ConfigFile, error) { return l.config, nil }

func TestCorruptLayerIsNamed(t *testing.T) {
	idx := testBase(t, 300_000)
	dir := writeBase(t, idx, "a")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("b", "a", dir); err != nil {
		t.Fatal(err)
	}
	local := open(t, "oci:"+dir, testOptions())
	d := baseLayer(t, local, 2)
	img, err := local.Image(amd64)
	if err != nil {
		t.Fatal(err)
	}
	l, err := img.LayerByDigest(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", d.Digest.Hex)
	flip(t, blob, d.Size-1) // the last byte: nothing of the last piece may come through
	data, err := readAll(t, l)
	mustBeDigestError(t, err, d.Digest)
	if int64(len(data)) == d.Size {
		t.Error("all bytes of a corrupt blob were given")
	}
	if err := os.Truncate(blob, d.Size-1); err != nil {
		t.Fatal(err)
	}
	_, err = readAll(t, l)
	mustBeDigestError(t, err, d.Digest)

	spoil := func(h v1.Hash) {
		reg.Fault(func(r *http.Request) *registry.Fault {
			if strings.HasSuffix(r.URL.Path, h.String()) {
				return &registry.Fault{Corrupt: true}
			}
			return nil
		})
	}
	manifest := hexDigest(t, img)
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []v1.Hash{manifest, config} {
		spoil(h)
		_, err := open(t, reg.Host+"/b:a", testOptions()).Image(amd64)
		mustBeDigestError(t, err, h)
	}
	spoil(hexDigest(t, idx))
	_, err = Open(context.Background(), reg.Host+"/b@"+hexDigest(t, idx).String(), testOptions())
	mustBeDigestError(t, err, hexDigest(t, idx))

	spoil(baseLayer(t, local, 1).Digest)
	rs := open(t, reg.Host+"/b:a", testOptions())
	rimg, err := rs.Image(amd64)
	if err != nil {
		t.Fatal(err)
	}
	ls, err := rimg.Layers()
	if err != nil {
		t.Fatal(err)
	}
	_, err = readAll(t, ls[1])
	mustBeDigestError(t, err, baseLayer(t, local, 1).Digest)
}

func TestRegistryErrors(t *testing.T) {
	dir := writeBase(t, testBase(t, 100), "a")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("b", "a", dir); err != nil {
		t.Fatal(err)
	}
	body := func(code string) string { return `{"errors":[{"code":"` + code + `","message":"go\u001b[31m away"}]}` }
	for _, tt := range []struct {
		name  string
		fault registry.Fault
		kind  error
		words string
	}{
		{"401", registry.Fault{Status: 401, Body: body("UNAUTHORIZED")}, ErrAuth, "error response from registry: 401 Unauthorized: UNAUTHORIZED"},
		{"403", registry.Fault{Status: 403, Body: body("DENIED")}, ErrAuth, "DENIED"},
		{"404", registry.Fault{Status: 404, Body: body("MANIFEST_UNKNOWN")}, ErrNotFound, "MANIFEST_UNKNOWN"},
		{"429", registry.Fault{Status: 429, Body: body("TOOMANYREQUESTS")}, ErrRateLimited, "429"},
		{"500", registry.Fault{Status: 500, Body: "<html>"}, ErrRegistry, "500"},
		{"cut", registry.Fault{CutAfter: -1}, ErrUnreachable, "read manifest of"},
		{"hang", registry.Fault{Hang: true}, ErrTimeout, "sent nothing for 2s at GET /v2/b/manifests/a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg.Fault(func(r *http.Request) *registry.Fault {
				if strings.Contains(r.URL.Path, "/manifests/") {
					return &tt.fault
				}
				return nil
			})
			o := testOptions()
			if tt.fault.Hang {
				o.IdleTimeout = hangTime
			}
			start := time.Now()
			_, err := Open(context.Background(), reg.Host+"/b:a", o)
			var re *RegistryError
			if !errors.As(err, &re) || !errors.Is(err, tt.kind) {
				t.Fatalf("got %v (%T)", err, err)
			}
			if !strings.Contains(err.Error(), tt.words) || strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("words: %q", err)
			}
			if re.Host != reg.Host {
				t.Errorf("host %q", re.Host)
			}
			if time.Since(start) > DefaultIdleTimeout/2 {
				t.Error("too slow")
			}
		})
	}
	t.Run("hang at once", func(t *testing.T) {
		reg.Fault(func(*http.Request) *registry.Fault { return &registry.Fault{Hang: true} })
		o := testOptions()
		o.IdleTimeout = hangTime
		_, err := Open(context.Background(), reg.Host+"/b:a", o)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), reg.Host+" sent nothing for 2s at GET /v2/") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		_, err := Open(context.Background(), "127.0.0.1:1/b:a", testOptions())
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not trusted", func(t *testing.T) {
		s := httptest.NewUnstartedServer(reg)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		_, err := Open(context.Background(), strings.TrimPrefix(s.URL, "https://")+"/b:a", testOptions())
		if !errors.Is(err, ErrCertificate) || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		reg.Fault(func(*http.Request) *registry.Fault { return &registry.Fault{Hang: true} })
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := Open(ctx, reg.Host+"/b:a", testOptions())
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable) {
			t.Errorf("got %v", err)
		}
	})
}

// hangTime is how long a registry may say nothing in these tests. What does not hang has to answer within it on a busy
// machine too.
const hangTime = 2 * time.Second

// TestHangInTheMiddle has a registry that stops in the middle of a blob.
func TestHangInTheMiddle(t *testing.T) {
	dir := writeBase(t, testBase(t, 2_000_000), "a")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("b", "a", dir); err != nil {
		t.Fatal(err)
	}
	stall := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			reg.ServeHTTP(&stalling{ResponseWriter: w, left: 1_000_000, ctx: r.Context()}, r)
			return
		}
		reg.ServeHTTP(w, r)
	})
	s, err := reg.Listen(context.Background(), "", stall)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	o := testOptions()
	o.IdleTimeout = hangTime
	src := open(t, s.Host+"/b:a", o)
	img, err := src.Image(amd64)
	if err != nil {
		t.Fatal(err)
	}
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	_, err = readAll(t, ls[0])
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), s.Host) || !strings.Contains(err.Error(), "/blobs/sha256:") {
		t.Errorf("got %v", err)
	}
}

// stalling writes left bytes and then waits until the client goes away. Small answers pass.
type stalling struct {
	http.ResponseWriter
	left int
	ctx  context.Context
}

func (s *stalling) Write(b []byte) (int, error) {
	if len(b) > s.left {
		n, _ := s.ResponseWriter.Write(b[:s.left])
		s.ResponseWriter.(http.Flusher).Flush()
		s.left = 0
		<-s.ctx.Done()
		return n, s.ctx.Err()
	}
	s.left -= len(b)
	return s.ResponseWriter.Write(b)
}

// TestSlowReaderIsNoHang reads slower than the idle timeout: only the registry's silence counts.
func TestSlowReaderIsNoHang(t *testing.T) {
	dir := writeBase(t, testBase(t, 3_000_000), "a")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("b", "a", dir); err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.IdleTimeout = hangTime
	src := open(t, reg.Host+"/b:a", o)
	img, err := src.Image(amd64)
	if err != nil {
		t.Fatal(err)
	}
	ls, _ := img.Layers()
	rc, err := ls[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	buf := make([]byte, 1<<20)
	for {
		time.Sleep(hangTime + hangTime/4)
		_, err := io.ReadFull(rc, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
