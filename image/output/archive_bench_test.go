package output

import (
	"bufio"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/static"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// BenchmarkArchive writes an archive of 1 GB, ten layers, from a registry in a process of its own and from a layout.
// The floors do the same with no tool in between: GETs into one file, with and without hashing, and a copy of the
// layout's files: go test -run - -bench Archive -benchtime 5x ./image/output
func BenchmarkArchive(b *testing.B) {
	dir := bigLayout(b, 10, 100<<20)
	host := registryProcess(b, "b:1="+dir)
	o := testOptions()
	o.CacheDir = b.TempDir()
	ctx := context.Background()
	remote, local := open(b, host+"/b:1", o), open(b, "oci:"+dir, o)
	built := derive(b, remote, 10, 70)
	fromLayout := derive(b, local, 10, 70)
	c, err := contentsOf(built)
	if err != nil {
		b.Fatal(err)
	}
	write := func(built image.Built, src *image.Source) func(string) error {
		return func(out string) error { return Spec{OCIArchive, out}.Write(ctx, built, nil, src, o) }
	}
	if err := write(fromLayout, local)(filepath.Join(b.TempDir(), "first")); err != nil {
		b.Fatal(err) // now the layout's blobs are known to be good
	}
	for _, bb := range []struct {
		name string
		do   func(out string) error
	}{
		{"registry/floor", func(out string) error { return fetchInto(host, c, out, false) }},
		{"registry/floor-hashed", func(out string) error { return fetchInto(host, c, out, true) }},
		{"registry/archive", write(built, remote)},
		{"layout/floor", func(out string) error { return exec.CommandContext(ctx, "cp", "-r", dir, out).Run() }},
		{"layout/archive", write(fromLayout, local)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			out := filepath.Join(b.TempDir(), "out")
			fastest := time.Hour // the machine may be busy with other things: the least is the truest
			for b.Loop() {
				begin := time.Now()
				if err := bb.do(out); err != nil {
					b.Fatal(err)
				}
				fastest = min(fastest, time.Since(begin))
				discard(b, out)
			}
			b.ReportMetric(float64(fastest.Milliseconds()), "ms-least")
		})
	}
}

// bigLayout is an image of incompressible layers, written one by one.
func bigLayout(b *testing.B, layers, size int) string {
	b.Helper()
	dir := b.TempDir()
	p, err := layout.Write(dir, testIndex(b, nil, nil))
	if err != nil {
		b.Fatal(err)
	}
	var ls []v1.Layer
	for n := range layers {
		data := make([]byte, size)
		r := rand.NewChaCha8([32]byte{byte(n)})
		r.Read(data) //nolint:errcheck // never fails
		ls = append(ls, static.NewLayer(data, ocitypes.OCILayer))
	}
	idx := testIndex(b, []v1.Platform{amd64}, []v1.Image{testImage(b, amd64, ls...)})
	if err := p.AppendIndex(idx, layout.WithAnnotations(map[string]string{image.AnnotationRefName: "1"})); err != nil {
		b.Fatal(err)
	}
	return dir
}

// registryProcess serves a layout from another process and gives its host:port.
func registryProcess(b *testing.B, load string) string {
	b.Helper()
	bin := filepath.Join(b.TempDir(), "testregistry")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", bin, "../../internal/registry/testregistry").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, "-dir", b.TempDir(), "-load", load)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	host, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(host)
}

// fetchInto is the floor: each blob by a plain GET to a place of its own in one file.
func fetchInto(host string, c *contents, file string, hash bool) error {
	f, err := os.Create(file) //nolint:gosec // a benchmark's own directory
	if err != nil {
		return err
	}
	defer f.Close()
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = copyJobs
	var g errgroup.Group
	g.SetLimit(copyJobs)
	var off int64
	for _, it := range c.blobs {
		if it.desc.Size < 1<<20 {
			continue
		}
		var w io.Writer = io.NewOffsetWriter(f, off)
		off += it.desc.Size
		if hash {
			w = io.MultiWriter(w, sha256.New())
		}
		g.Go(func() error {
			resp, err := http.Get("http://" + host + "/v2/b/blobs/" + it.desc.Digest.String()) //nolint:gosec,noctx // its own
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{w}, resp.Body, make([]byte, 512<<10))
			return err
		})
	}
	return g.Wait()
}
