package output

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/slimctl/slimctl/internal/registry"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// BenchmarkOutputs writes a base of two platforms, 12 layers of 32 MB each, from a registry on this machine and from a
// layout. "fetch" is the measure: the same blobs by plain GETs into files, nothing checked. It moves 0.8 GB a round:
// go test -bench Outputs -benchtime 3x ./image/output
func BenchmarkOutputs(b *testing.B) {
	const size, each = 32 << 20, 12
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(data) //nolint:errcheck // never fails
	ps := []v1.Platform{amd64, arm64}
	var imgs []v1.Image
	for i := range ps {
		var ls []v1.Layer
		for n := range each {
			own := append([]byte(nil), data...)
			binary.LittleEndian.PutUint64(own, uint64(i*each+n))
			ls = append(ls, static.NewLayer(own, ocitypes.OCILayer))
		}
		imgs = append(imgs, testImage(b, ps[i], ls...))
	}
	dir := writeBase(b, testIndex(b, ps, imgs), "1")
	imgs = nil
	reg := serveRegistry(b, registry.Options{Dir: filepath.Join(b.TempDir(), "registry")})
	if err := reg.LoadLayout("b", "1", dir); err != nil {
		b.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	o := testOptions()
	o.CacheDir = b.TempDir()
	srcs := map[string]*image.Source{"registry": open(b, reg.Host+"/b:1", o), "layout": open(b, "oci:"+dir, o)}

	b.Run("registry/fetch", func(b *testing.B) {
		c, err := contentsOf(derive(b, srcs["registry"], 10, 70))
		if err != nil {
			b.Fatal(err)
		}
		for i := range b.N {
			out := filepath.Join(b.TempDir(), fmt.Sprint(i))
			if err := os.Mkdir(out, 0o700); err != nil {
				b.Fatal(err)
			}
			var g errgroup.Group
			g.SetLimit(copyJobs)
			for _, it := range c.blobs {
				if it.desc.Size == size {
					g.Go(func() error {
						return fetch("http://"+reg.Host+"/v2/b/blobs/"+it.desc.Digest.String(), filepath.Join(out, it.desc.Digest.Hex))
					})
				}
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			discard(b, out)
		}
	})
	for _, from := range []string{"registry", "layout"} {
		for _, kind := range []string{OCI, OCIArchive} {
			b.Run(from+"/"+kind, func(b *testing.B) {
				src := srcs[from]
				built := derive(b, src, 10, 70)
				for i := range b.N {
					out := filepath.Join(b.TempDir(), fmt.Sprint(i))
					if err := (Spec{kind, out}).Write(context.Background(), built, nil, src, o); err != nil {
						b.Fatal(err)
					}
					discard(b, out)
				}
			})
		}
	}
}

// discard removes a result outside of the time that is measured.
func discard(b *testing.B, path string) {
	b.StopTimer()
	defer b.StartTimer()
	if err := os.RemoveAll(path); err != nil {
		b.Fatal(err)
	}
}

func fetch(url, file string) error {
	resp, err := http.Get(url) //nolint:gosec,noctx // a benchmark's own registry
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(file) //nolint:gosec // a benchmark's own directory
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, resp.Body); err != nil {
		return err
	}
	return f.Close()
}
