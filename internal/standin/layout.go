package standin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// refName is the annotation with an image's name in an OCI layout (OCI image specification, annotations.md).
const refName = "org.opencontainers.image.ref.name"

// writeLayout writes the layout to dir and returns the image index's digest.
func writeLayout(ctx context.Context, dir string, l line, platforms []string, o Options) (v1.Hash, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return v1.Hash{}, err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, p := range platforms {
		d, err := writeImage(ctx, dir, l, p, o)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", p, err)
		}
		system, arch, _ := strings.Cut(p, "/")
		d.Platform = &v1.Platform{OS: system, Architecture: arch}
		index.Manifests = append(index.Manifests, d)
	}
	top, err := writeJSON(dir, types.OCIImageIndex, index)
	if err != nil {
		return v1.Hash{}, err
	}
	top.Annotations = map[string]string{refName: l.tag}
	raw, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top},
	})
	if err != nil {
		return v1.Hash{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return v1.Hash{}, err
	}
	return top.Digest, os.WriteFile(filepath.Join(dir, "index.json"), raw, 0o644)
}

// writeImage writes one platform's layers, config and manifest.
func writeImage(ctx context.Context, dir string, l line, platform string, o Options) (v1.Descriptor, error) {
	layers, err := l.layers(platform, o, heavySize)
	if err != nil {
		return v1.Descriptor{}, err
	}
	config := l.config(platform)
	config.Config.Env = append(config.Config.Env, o.Env...)
	config.History = l.history(layers)
	for _, top := range append(weightLayers(platform, o.Weight), extraLayer(layers, o.Extra, o.Rootfs)...) {
		layers = append(layers, top)
		config.History = append(config.History, v1.History{Created: config.Created, CreatedBy: top.by})
	}

	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: make([]v1.Descriptor, len(layers))}
	config.RootFS = v1.RootFS{Type: "layers", DiffIDs: make([]v1.Hash, len(layers))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, layer := range layers {
		g.Go(func() (err error) {
			m.Layers[i], config.RootFS.DiffIDs[i], err = writeLayer(ctx, dir, layer)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return v1.Descriptor{}, err
	}
	if o.Rootfs != nil {
		if err := o.Rootfs.putBelow(dir, &m, config); err != nil {
			return v1.Descriptor{}, err
		}
	}
	if m.Config, err = writeJSON(dir, types.OCIConfigJSON, config); err != nil {
		return v1.Descriptor{}, err
	}
	return writeJSON(dir, types.OCIManifestSchema1, m)
}

// writeLayer streams a layer to its blob, and names it after its digest.
func writeLayer(ctx context.Context, dir string, l layer) (v1.Descriptor, v1.Hash, error) {
	f, err := os.CreateTemp(dir, "layer-")
	if err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	raw, blob := sha256.New(), sha256.New()
	files, level := l.files, gzip.DefaultCompression
	if l.weight != nil {
		files, level = l.weight(), gzip.BestSpeed
	}
	zw, err := gzip.NewWriterLevel(io.MultiWriter(f, blob), level)
	if err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	zw.OS = 255 // unknown, so that the header is independent of the machine
	if err := image.WriteTar(io.MultiWriter(stopper{ctx}, zw, raw), files); err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	if err := zw.Close(); err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	if err := f.Chmod(0o644); err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	if err := f.Close(); err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	digest := hash(blob.Sum(nil))
	if err := os.Rename(f.Name(), blobPath(dir, digest)); err != nil {
		return v1.Descriptor{}, v1.Hash{}, err
	}
	return v1.Descriptor{MediaType: types.OCILayer, Size: size, Digest: digest}, hash(raw.Sum(nil)), nil
}

func writeJSON(dir string, mediaType types.MediaType, v any) (v1.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	sum := sha256.Sum256(raw)
	digest := hash(sum[:])
	if err := os.WriteFile(blobPath(dir, digest), raw, 0o644); err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: mediaType, Size: int64(len(raw)), Digest: digest}, nil
}

func blobPath(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }

func hash(sum []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum)} }

// stopper is a writer that fails when its context ends.
type stopper struct{ ctx context.Context }

func (s stopper) Write(p []byte) (int, error) { return len(p), s.ctx.Err() }
