package output

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/registry"

	"github.com/slimctl/slimctl/image"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Spec
		err  string
	}{
		{in: "type=oci,dest=out", want: Spec{OCI, "out"}},
		{in: "type=oci, dest=a b", want: Spec{OCI, "a b"}},
		{in: `type=oci-archive,"dest=a,b.tar"`, want: Spec{OCIArchive, "a,b.tar"}},
		{in: "type=oci,tar=true,dest=-", want: Spec{OCIArchive, "-"}},
		{in: "type=oci,tar=false,dest=x.tar", want: Spec{OCI, "x.tar"}},
		{in: "type=docker-archive,dest=-", want: Spec{DockerArchive, "-"}},
		{in: "", err: "type=oci,dest=DIR"},
		{in: "out", err: "type=oci,dest=out"},
		{in: "dest=out", err: "type is missing"},
		{in: "type=oci", err: "dest is missing"},
		{in: "type=oci,dest=", err: "dest is missing"},
		{in: "type=oci,dest=-", err: "use type=oci-archive"},
		{in: "type=oci,dest=x.tar", err: "use type=oci-archive"},
		{in: "type=docker,dest=x", err: `did you mean "docker-archive"`},
		{in: "type=registry,dest=x", err: "use --push"},
		{in: "type=oci,dst=x", err: `unknown attribute "dst": did you mean "dest"`},
		{in: "type=oci,name=x,dest=y", err: "use --tag"},
		{in: "type=oci,dest=a,dest=b", err: "dest is given twice"},
		{in: "type=oci,tar=maybe,dest=a", err: "neither true nor false"},
		{in: "type=docker-archive,tar=false,dest=a", err: "tar=false"},
		{in: `type=oci,"dest=a`, err: "quote"},
		{in: "type=oci,dest=a\ntype=oci,dest=b", err: "more than one line"},
	} {
		got, err := Parse(tt.in)
		if tt.err == "" && (err != nil || got != tt.want) {
			t.Errorf("%q: %+v, %v", tt.in, got, err)
		}
		if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: got %v, want %q", tt.in, err, tt.err)
		}
	}
}

// watcher is a Progress that counts tasks by the first word of their names, and can act when one begins.
type watcher struct {
	mu    sync.Mutex
	tasks map[string]int
	open  int
	begun func(kind string, n int)
}

func (w *watcher) Task(n string, _ int64) image.Task {
	kind, _, _ := strings.Cut(n, " ")
	w.mu.Lock()
	if w.tasks == nil {
		w.tasks = map[string]int{}
	}
	w.tasks[kind]++
	w.open++
	count := w.tasks[kind]
	w.mu.Unlock()
	if w.begun != nil {
		w.begun(kind, count)
	}
	return &watchedTask{w: w}
}

type watchedTask struct {
	w    *watcher
	once sync.Once
}

func (*watchedTask) Add(int64) {}
func (k *watchedTask) Done(error) {
	k.once.Do(func() { k.w.mu.Lock(); k.w.open--; k.w.mu.Unlock() })
}

// sources returns the same base as a layout and in a registry.
func bothSources(t *testing.T, size int) (map[string]*image.Source, *registry.Server) {
	t.Helper()
	dir := writeBase(t, testBase(t, size), "1")
	reg := serveRegistry(t, registry.Options{})
	if err := reg.LoadLayout("b", "1", dir); err != nil {
		t.Fatal(err)
	}
	return map[string]*image.Source{
		"layout":   open(t, "oci:"+dir, testOptions()),
		"registry": open(t, reg.Host+"/b:1", testOptions()),
	}, reg
}

func TestOutputs(t *testing.T) {
	srcs, _ := bothSources(t, 200_000)
	tags := []name.Tag{tagOf(t, "alpine:3"), tagOf(t, "ghcr.io/a/b:c")}
	archives := map[string][]byte{}
	for from, src := range srcs {
		t.Run(from, func(t *testing.T) {
			b := derive(t, src, 1000, 70)
			dir := t.TempDir()
			write := func(o Spec, b image.Built) {
				t.Helper()
				if err := o.Write(context.Background(), b, tags, src, testOptions()); err != nil {
					t.Fatal(err)
				}
			}
			write(Spec{OCI, filepath.Join(dir, "out")}, b)
			idx, err := layout.ImageIndexFromPath(filepath.Join(dir, "out"))
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(idx); err != nil {
				t.Error(err)
			}
			m, err := idx.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"docker.io/library/alpine:3", "ghcr.io/a/b:c"} {
				d := m.Manifests[i]
				if d.Digest != hexDigest(t, b) || d.Annotations[image.AnnotationImageName] != want ||
					!strings.HasSuffix(want, ":"+d.Annotations[image.AnnotationRefName]) {
					t.Errorf("index.json: %+v", d)
				}
			}
			if info, _ := os.Stat(filepath.Join(dir, "out")); info.Mode().Perm() != 0o755 {
				t.Errorf("mode %v", info.Mode())
			}

			tar1, tar2 := filepath.Join(dir, "1.tar"), filepath.Join(dir, "2.tar")
			write(Spec{OCIArchive, tar1}, b)
			write(Spec{OCIArchive, tar2}, b)
			one, two := read(t, tar1), read(t, tar2)
			if !bytes.Equal(one, two) {
				t.Error("two archives of one image differ")
			}
			archives[from] = one
			var out bytes.Buffer
			o := testOptions()
			o.Stdout = &out
			if err := (Spec{OCIArchive, "-"}).Write(context.Background(), b, tags, src, o); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), one) {
				t.Error("the streamed archive differs from the written one")
			}
			back := open(t, "oci-archive:"+tar1+":3", testOptions())
			if back.Digest() != hexDigest(t, b) {
				t.Errorf("read back: %s", back.Digest())
			}
			sameAsDir(t, one, filepath.Join(dir, "out"))

			img, err := b.Index.Image(childDigest(t, b, arm64))
			if err != nil {
				t.Fatal(err)
			}
			write(Spec{DockerArchive, filepath.Join(dir, "d.tar")}, image.Built{Image: img})
			for _, tag := range tags {
				got, err := tarball.ImageFromPath(filepath.Join(dir, "d.tar"), &tag)
				if err != nil {
					t.Fatal(err)
				}
				if err := validate.Image(got); err != nil {
					t.Error(err)
				}
				want, _ := img.ConfigName()
				if c, _ := got.ConfigName(); c != want {
					t.Errorf("config %s, want %s", c, want)
				}
			}
			if got := files(t, dir); strings.Join(got, " ") != "1.tar 2.tar d.tar out" {
				t.Errorf("left behind: %v", got)
			}
		})
	}
	if !bytes.Equal(archives["layout"], archives["registry"]) {
		t.Error("the archive depends on where the base came from")
	}
}

func childDigest(t testing.TB, b image.Built, p v1.Platform) v1.Hash {
	t.Helper()
	img, err := platformImage(b, p)
	if err != nil {
		t.Fatal(err)
	}
	return hexDigest(t, img)
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sameAsDir compares an archive, read by archive/tar, with a layout directory.
func sameAsDir(t *testing.T, archive []byte, dir string) {
	t.Helper()
	seen := 0
	tr := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s: %v %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		seen++
		data, err := io.ReadAll(tr)
		if err != nil || !bytes.Equal(data, read(t, filepath.Join(dir, h.Name))) {
			t.Errorf("%s differs: %v", h.Name, err)
		}
	}
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil || n != seen {
		t.Errorf("%d files in the archive, %d in the directory, %v", seen, n, err)
	}
}

// TestLinkOnce hashes the blobs of a layout once and links them from then on, until one changes.
func TestLinkOnce(t *testing.T) {
	dir := writeBase(t, testBase(t, 100_000), "1")
	time.Sleep(150 * time.Millisecond) // a file changed a moment ago is not trusted to stay
	o := testOptions()
	o.CacheDir = t.TempDir()
	out := t.TempDir()
	build := func(n string) (*watcher, error) {
		w := &watcher{}
		o.Progress = w
		src := open(t, "oci:"+dir, o)
		err := (Spec{OCI, filepath.Join(out, n)}).Write(context.Background(), derive(t, src, 10, 70), nil, src, o)
		return w, err
	}
	for i, n := range []string{"first", "second", "third"} {
		w, err := build(n)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int{baseLayers, 0, 0}[i]; w.tasks["verify"] != want {
			t.Errorf("%s: %d blobs hashed, want %d", n, w.tasks["verify"], want)
		}
		if w.tasks["layer"] != 2 {
			t.Errorf("%s: %d layers copied, want the 2 new ones", n, w.tasks["layer"])
		}
	}
	src := open(t, "oci:"+dir, o)
	d := baseLayer(t, src, 1)
	flip(t, filepath.Join(dir, "blobs", "sha256", d.Digest.Hex), 5000)
	_, err := build("fourth")
	mustBeDigestError(t, err, d.Digest)
	if got := files(t, out); strings.Join(got, " ") != "first second third" {
		t.Errorf("left behind: %v", got)
	}
}

// TestCorruptAtFirstUse has a flipped bit in a blob that was never read before, for each output.
func TestCorruptAtFirstUse(t *testing.T) {
	for _, kind := range types {
		dir := writeBase(t, testBase(t, 100_000), "1")
		src := open(t, "oci:"+dir, testOptions())
		b := derive(t, src, 10, 70)
		if kind == DockerArchive {
			img, err := platformImage(b, amd64)
			if err != nil {
				t.Fatal(err)
			}
			b = image.Built{Image: img}
		}
		d := baseLayer(t, src, 1)
		flip(t, filepath.Join(dir, "blobs", "sha256", d.Digest.Hex), 77)
		out := t.TempDir()
		err := (Spec{kind, filepath.Join(out, "x")}).Write(context.Background(), b, nil, src, testOptions())
		mustBeDigestError(t, err, d.Digest)
		if got := files(t, out); len(got) != 0 {
			t.Errorf("%s: left behind: %v", kind, got)
		}
	}
}

// TestRegistryTroubleWhileWriting spoils downloads: nothing may stay, and a connection cut once is forgiven.
func TestRegistryTroubleWhileWriting(t *testing.T) {
	srcs, reg := bothSources(t, 300_000)
	src := srcs["registry"]
	b := derive(t, src, 10, 70)
	d := baseLayer(t, src, 3)
	for _, kind := range []string{OCI, OCIArchive} {
		for _, tt := range []struct {
			name  string
			fault registry.Fault
			kind  error
		}{
			{"corrupt", registry.Fault{Corrupt: true}, nil},
			{"404", registry.Fault{Status: 404}, image.ErrNotFound},
			{"cut each time", registry.Fault{CutAfter: 1000}, image.ErrUnreachable},
		} {
			reg.Fault(func(r *http.Request) *registry.Fault {
				if strings.HasSuffix(r.URL.Path, d.Digest.String()) {
					return &tt.fault
				}
				return nil
			})
			out := t.TempDir()
			err := (Spec{kind, filepath.Join(out, "x")}).Write(context.Background(), b, nil, src, testOptions())
			if tt.kind == nil {
				mustBeDigestError(t, err, d.Digest)
			} else if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), d.Digest.String()) {
				t.Errorf("%s, %s: %v", kind, tt.name, err)
			}
			if got := files(t, out); len(got) != 0 {
				t.Errorf("%s, %s: left behind: %v", kind, tt.name, got)
			}
		}
		var once sync.Once
		reg.Fault(func(r *http.Request) (f *registry.Fault) {
			if strings.HasSuffix(r.URL.Path, d.Digest.String()) {
				once.Do(func() { f = &registry.Fault{CutAfter: 1000} })
			}
			return f
		})
		out := t.TempDir()
		dest := filepath.Join(out, "x")
		if err := (Spec{kind, dest}).Write(context.Background(), b, nil, src, testOptions()); err != nil {
			t.Errorf("%s: a cut connection was not tried again: %v", kind, err)
		}
		reg.Fault(nil)
		prefix := map[string]string{OCI: "oci:", OCIArchive: "oci-archive:"}[kind]
		img, err := open(t, prefix+dest, testOptions()).Image(amd64)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(img); err != nil {
			t.Error(err)
		}
	}
}

// TestFailureDoesNotWait has one blob that is missing and one that hangs: the error must not wait for the idle timeout.
func TestFailureDoesNotWait(t *testing.T) {
	srcs, reg := bothSources(t, 50_000)
	src := srcs["registry"]
	b := derive(t, src, 10, 70)
	missing, hangs := baseLayer(t, src, 2).Digest.String(), baseLayer(t, src, 1).Digest.String()
	reg.Fault(func(r *http.Request) *registry.Fault {
		switch {
		case strings.HasSuffix(r.URL.Path, missing):
			return &registry.Fault{Status: 404}
		case strings.HasSuffix(r.URL.Path, hangs):
			return &registry.Fault{Hang: true}
		}
		return nil
	})
	start := time.Now()
	err := (Spec{OCI, filepath.Join(t.TempDir(), "x")}).Write(context.Background(), b, nil, src, testOptions())
	if !errors.Is(err, image.ErrNotFound) || time.Since(start) > image.DefaultIdleTimeout/2 {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
}

// TestInterruptedWrite cancels at several moments.
func TestInterruptedWrite(t *testing.T) {
	srcs, _ := bothSources(t, 200_000)
	for from, src := range srcs {
		b := derive(t, src, 10, 70)
		for _, kind := range []string{OCI, OCIArchive} {
			for _, at := range []int{0, 1, 4, 8} {
				ctx, cancel := context.WithCancel(context.Background())
				o := testOptions()
				n := 0
				var mu sync.Mutex
				w := &watcher{begun: func(string, int) {
					mu.Lock()
					defer mu.Unlock()
					if n++; n == at {
						cancel()
					}
				}}
				o.Progress = w
				if at == 0 {
					cancel()
				}
				out := t.TempDir()
				err := (Spec{kind, filepath.Join(out, "x")}).Write(ctx, b, nil, src, o)
				cancel()
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s, %s, at %d: %v", from, kind, at, err)
				}
				if got := files(t, out); len(got) != 0 {
					t.Errorf("%s, %s, at %d: left behind: %v", from, kind, at, got)
				}
				if w.open != 0 {
					t.Errorf("%s, %s, at %d: %d tasks never ended", from, kind, at, w.open)
				}
			}
		}
	}
}

func TestExistingDestination(t *testing.T) {
	src := open(t, "oci:"+writeBase(t, testBase(t, 100), "1"), testOptions())
	b := derive(t, src, 10, 70)
	for _, kind := range []string{OCI, OCIArchive} {
		dir := t.TempDir()
		file, full, empty := filepath.Join(dir, "file"), filepath.Join(dir, "full"), filepath.Join(dir, "empty")
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{full, empty} {
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
			t.Fatal(err)
		}
		bad := []string{file, full, filepath.Join(dir, "dangling")}
		if kind != OCI {
			bad = append(bad, empty)
		}
		for _, dest := range bad {
			o := Spec{kind, dest}
			if err := o.Check(); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), dest) {
				t.Errorf("%s %s: %v", kind, dest, err)
			}
			if err := o.Write(context.Background(), b, nil, src, testOptions()); !errors.Is(err, fs.ErrExist) {
				t.Errorf("%s %s: %v", kind, dest, err)
			}
		}
		if err := (Spec{kind, filepath.Join(dir, "no", "x")}).Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing parent: %v", err)
		}
		if string(read(t, file)) != "mine" || len(files(t, full)) != 1 || len(files(t, dir)) != 4 {
			t.Errorf("%s: touched: %v", kind, files(t, dir))
		}
		if kind == OCI {
			if err := (Spec{kind, empty}).Write(context.Background(), b, nil, src, testOptions()); err != nil {
				t.Error(err)
			}
			if info, _ := os.Stat(empty); info.Mode().Perm() != 0o700 || len(files(t, empty)) != 3 {
				t.Errorf("into an empty directory: %v %v", info.Mode(), files(t, empty))
			}
		}
	}
}

// TestDestinationAppears makes the destination while the image is being written.
func TestDestinationAppears(t *testing.T) {
	src := open(t, "oci:"+writeBase(t, testBase(t, 100), "1"), testOptions())
	b := derive(t, src, 10, 70)
	for _, kind := range []string{OCI, OCIArchive} {
		dir := t.TempDir()
		dest := filepath.Join(dir, "x")
		o := testOptions()
		o.Progress = &watcher{begun: func(_ string, n int) {
			if n == 1 {
				_ = os.Mkdir(dest, 0o700)
				_ = os.WriteFile(filepath.Join(dest, "mine"), nil, 0o600)
			}
		}}
		err := (Spec{kind, dest}).Write(context.Background(), b, nil, src, o)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", kind, err)
		}
		if len(files(t, dir)) != 1 || files(t, dest)[0] != "mine" {
			t.Errorf("%s: %v", kind, files(t, dir))
		}
	}
}

func TestDockerArchiveOfTwoPlatforms(t *testing.T) {
	src := open(t, "oci:"+writeBase(t, testBase(t, 100), "1"), testOptions())
	dir := t.TempDir()
	err := (Spec{DockerArchive, filepath.Join(dir, "x")}).Write(context.Background(), derive(t, src, 10, 70), nil, src, testOptions())
	if err == nil || !strings.Contains(err.Error(), "--platform") || !strings.Contains(err.Error(), "linux/amd64, linux/arm64") {
		t.Errorf("got %v", err)
	}
	if len(files(t, dir)) != 0 {
		t.Error(files(t, dir))
	}
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errFull
	}
	return len(b), nil
}

var errFull = errors.New("no space left")

func TestStreamFails(t *testing.T) {
	src := open(t, "oci:"+writeBase(t, testBase(t, 10_000), "1"), testOptions())
	b := derive(t, src, 10, 70)
	for _, left := range []int{0, 600, 3000, 50_000} {
		o := testOptions()
		o.Stdout = &full{left}
		if err := (Spec{OCIArchive, "-"}).Write(context.Background(), b, nil, src, o); !errors.Is(err, errFull) {
			t.Errorf("%d: %v", left, err)
		}
	}
}

// TestLoad uses a docker of our own that keeps what it is given.
func TestLoad(t *testing.T) {
	src := open(t, "oci:"+writeBase(t, testBase(t, 300_000), "1"), testOptions())
	b := derive(t, src, 1000, 70)
	bin := t.TempDir()
	out := filepath.Join(bin, "given.tar")
	docker := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	tags := []name.Tag{tagOf(t, "slim:l0")}
	load := func(ctx context.Context, p v1.Platform) error { return Load(ctx, b, p, tags, testOptions()) }

	docker(`[ "$*" = "load --quiet" ] && cat >` + out)
	if err := load(context.Background(), arm64); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, &tags[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	if c, _ := img.ConfigFile(); c.Architecture != "arm64" {
		t.Errorf("loaded %s", c.Architecture)
	}
	if err := load(context.Background(), v1.Platform{}); err == nil || !strings.Contains(err.Error(), "--platform") {
		t.Errorf("no platform chosen: %v", err)
	}
	docker(`echo "Cannot connect to the Docker daemon" >&2; exit 1`)
	if err := load(context.Background(), arm64); err == nil || !strings.Contains(err.Error(), "Cannot connect") {
		t.Errorf("got %v", err)
	}
	docker(`exec sleep 300`)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := load(ctx, arm64); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > need.Patience {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
	t.Setenv("PATH", t.TempDir())
	if err := load(context.Background(), arm64); err == nil || !strings.Contains(err.Error(), "docker-archive") {
		t.Errorf("without docker: %v", err)
	}
}
