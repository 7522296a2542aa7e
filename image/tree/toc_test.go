package tree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/registry"
)

// withTOC makes an image of one layer with a table of contents, in a layout, and tells how large the layer is.
func withTOC(t *testing.T, chunked bool, change func(map[string]string), items ...item) (dir string, size int) {
	t.Helper()
	raw := archive(items...)
	annotations := map[string]string{}
	options := []estargz.Option{estargz.WithChunkSize(64 << 10)}
	mediaType := types.OCILayer
	if chunked {
		mediaType = types.OCILayerZStd
		options = append(options, estargz.WithCompression(&struct {
			*zstdchunked.Compressor
			*zstdchunked.Decompressor
		}{&zstdchunked.Compressor{CompressionLevel: zstd.SpeedDefault, Metadata: annotations}, nil}))
	}
	built, err := estargz.Build(io.NewSectionReader(bytes.NewReader(raw), 0, int64(len(raw))), options...)
	must(err)
	blob, err := io.ReadAll(built)
	must(err)
	must(built.Close())
	annotations[estargz.TOCJSONDigestAnnotation] = built.TOCDigest().String()
	if change != nil {
		change(annotations)
	}
	digest, _, err := v1.SHA256(bytes.NewReader(blob))
	must(err)
	diffID, err := v1.NewHash(built.DiffID().String())
	must(err)
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: knownLayer{blob, digest, diffID}, Annotations: annotations, MediaType: mediaType,
	})
	must(err)
	img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	dir = t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	must(err)
	must(l.AppendImage(img))
	return dir, len(blob)
}

func tocItems() []item {
	link := func(i item) item { // the table counts in seconds
		i.ModTime = time.Unix(1700000000, 0)
		return i
	}
	xattr := pax("attributed", "SCHILY.xattr.user.x", "\x00\xff")
	return []item{
		link(directory("etc/")), link(regular("etc/a.conf", "a")), link(regular("empty", "")), link(regular("big", strings.Repeat("0123456789", 30_000))),
		link(linked(tar.TypeLink, "hard", "etc/a.conf")), link(linked(tar.TypeSymlink, "soft", "../x")), link(device("null", 1, 3)),
		link(regular(".wh.gone", "")), link(regular("etc/.wh..wh..opq", "")), link(xattr),
	}
}

// unreadableImage has layers that can't be read.
type unreadableImage struct{ v1.Image }

func (i unreadableImage) Layers() ([]v1.Layer, error) {
	ls, err := i.Image.Layers()
	for n := range ls {
		ls[n] = unreadable{ls[n]}
	}
	return ls, err
}

func TestTableOfContents(t *testing.T) {
	for name, chunked := range map[string]bool{"eStargz": false, "zstd:chunked": true} {
		t.Run(name, func(t *testing.T) {
			dir, size := withTOC(t, chunked, nil, tocItems()...)
			archived := filepath.Join(t.TempDir(), "layout.tar")
			if out, err := exec.CommandContext(t.Context(), need.Program(t, "tar"), "-C", dir, "-cf", archived, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			server, err := registry.Serve(t.Context(), "", registry.Options{User: "u", Password: "p", Bearer: true})
			must(err)
			defer server.Stop()
			must(server.LoadLayout("r", "t", dir))
			for _, ref := range []string{"oci:" + dir, "oci-archive:" + archived, server.Host + "/r:t"} {
				source, err := image.Open(t.Context(), ref, image.Options{Keychain: keychain{}})
				if err != nil {
					t.Fatal(err)
				}
				img, err := source.Image(source.Platforms()[0])
				must(err)
				want, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
				if err != nil {
					t.Fatal(err)
				}
				server.Reset()
				cache := tree.Cache{Dir: t.TempDir()}
				claimed, err := cache.Open(t.Context(), unreadableImage{img}, tree.Options{TOC: source.TOC})
				if err != nil {
					t.Fatalf("%s: %v", ref, err)
				}
				if !claimed.Layers[0].Claimed {
					t.Errorf("%s: not said to be a claim", ref)
				}
				if diff := cmp.Diff(want.Layers[0].Entries, claimed.Layers[0].Entries); diff != "" {
					t.Errorf("%s: (-layer +table of contents):\n%s", ref, diff)
				}
				if got := server.Stats().BlobBytesOut; got > int64(size) {
					t.Errorf("%s: %d bytes of a blob of %d were read", ref, got, size)
				}
				again, err := cache.Open(t.Context(), unreadableImage{img}, tree.Options{TOC: func(
					_ context.Context, _ v1.Descriptor, _ func(*tar.Header, v1.Hash) error,
				) error {
					return errors.New("read again")
				}})
				if err != nil || !again.Layers[0].Claimed {
					t.Errorf("%s: the claim is not remembered: %v", ref, err)
				}
				if _, err := cache.Open(t.Context(), unreadableImage{img}, tree.Options{}); err == nil {
					t.Errorf("%s: a claim is taken for the truth", ref)
				}
				real, err := cache.Open(t.Context(), img, tree.Options{})
				if err != nil || real.Layers[0].Claimed {
					t.Errorf("%s: %v", ref, err)
				}
			}
		})
	}
}

type keychain struct{}

func (keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "u", Password: "p"}, nil
}

// TestBadTablesOfContents: a table that is not what the annotations say is as good as none.
func TestBadTablesOfContents(t *testing.T) {
	set := func(key, value string) func(map[string]string) {
		return func(a map[string]string) {
			for k := range a {
				if strings.HasSuffix(k, key) {
					a[k] = value
				}
			}
		}
	}
	zero := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		chunked bool
		change  func(map[string]string)
	}{
		"another digest":          {false, set("toc.digest", zero)},
		"another chunked digest":  {true, set("manifest-checksum", zero)},
		"a place behind the end":  {true, set("manifest-position", "99999999:10:10:1")},
		"a place before it":       {true, set("manifest-position", "-1:10:10:1")},
		"a huge table":            {true, set("manifest-position", "0:9223372036854775807:10:1")},
		"no place":                {true, set("manifest-position", "somewhere")},
		"an annotation of no use": {false, func(a map[string]string) { clear(a) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := withTOC(t, c.chunked, c.change, tocItems()...)
			source, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
			must(err)
			img, err := source.Image(source.Platforms()[0])
			must(err)
			im, err := tree.Cache{Dir: t.TempDir()}.Open(t.Context(), img, tree.Options{TOC: source.TOC})
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := im.Lookup("/etc/a.conf"); im.Layers[0].Claimed || !ok || e.Size != 1 {
				t.Errorf("claimed %v, entry %v", im.Layers[0].Claimed, e)
			}
		})
	}
}

// TestFalseClaim: a file that is not what the table says of it is not given.
func TestFalseClaim(t *testing.T) {
	img := newImage(t, plainLayer(archive(regular("etc/a.conf", "the truth"))))
	im, err := tree.Cache{}.Open(t.Context(), img, tree.Options{TOC: func(_ context.Context, _ v1.Descriptor, each func(*tar.Header, v1.Hash) error) error {
		h := regular("etc/a.conf", "").Header
		h.Size = 9
		return each(&h, hashOf(bytes.Repeat([]byte{7}, 32)))
	}})
	if err != nil {
		t.Fatal(err)
	}
	if content, err := im.ReadFile(t.Context(), "/etc/a.conf"); err == nil {
		t.Errorf("got %q", content)
	}
}
