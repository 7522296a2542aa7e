package rootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// Cache keeps layers unpacked, by the digest of their content:
//
//	DIR/sha256/DIFFID/         whole; it is never changed
//	  fs/                      the layer, as overlayfs takes it
//	  layer.json               an unpacked
//	DIR/sha256/DIFFID.tmp/     being made, by who holds DIFFID.lock
//
// DIR must be open to this user alone: layers hold setuid files and devices.
type Cache struct{ Dir string }

// Layer is one layer of the cache.
type Layer struct {
	unpacked
	dir string // its fs/
}

// Layers unpacks missing layers, several at once, and returns the image's layers, lowest first.
func (c Cache) Layers(ctx context.Context, img v1.Image, p image.Progress) ([]Layer, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	blobs, err := img.Layers()
	if err != nil {
		return nil, err
	}
	if len(blobs) != len(config.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the image's config names %d layers, its manifest %d", len(config.RootFS.DiffIDs), len(blobs))
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "sha256"), 0o700); err != nil {
		return nil, err
	}
	out := make([]Layer, len(blobs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i, blob := range blobs {
		g.Go(func() error {
			diffID := config.RootFS.DiffIDs[i]
			l, err := c.layer(ctx, blob, diffID, p)
			if err != nil {
				return fmt.Errorf("layer %d (%s): %w", i, diffID, err)
			}
			out[i] = *l
			return nil
		})
	}
	return out, g.Wait()
}

func (c Cache) layer(ctx context.Context, blob v1.Layer, diffID v1.Hash, p image.Progress) (*Layer, error) {
	if diffID.Algorithm != "sha256" || len(diffID.Hex) != 64 { // it becomes part of a path
		return nil, errors.New("the digest is not a sha256")
	}
	dir := filepath.Join(c.Dir, "sha256", diffID.Hex)
	if l, err := readLayer(dir); !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	lock := flock.New(dir + ".lock")
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }() // closing releases it, too
	if l, err := readLayer(dir); !errors.Is(err, fs.ErrNotExist) {
		return l, err // another process was faster
	}
	tmp := dir + ".tmp"
	defer os.RemoveAll(tmp)
	if err := c.make(ctx, blob, diffID, tmp, p); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, err
	}
	return readLayer(dir)
}

func readLayer(dir string) (*Layer, error) {
	text, err := os.ReadFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return nil, err
	}
	l := &Layer{dir: filepath.Join(dir, "fs")}
	if err := json.Unmarshal(text, &l.unpacked); err != nil {
		return nil, fmt.Errorf("%s is damaged, remove it: %w", dir, err)
	}
	return l, nil
}

func (c Cache) make(ctx context.Context, blob v1.Layer, diffID v1.Hash, tmp string, p image.Progress) (err error) {
	if err := os.RemoveAll(tmp); err != nil { // left by a killed process
		return err
	}
	content := filepath.Join(tmp, "fs")
	if err := os.MkdirAll(content, 0o755); err != nil {
		return err
	}
	task := p.Task("unpack "+diffID.Hex[:12], 0)
	defer func() { task.Done(err) }()
	r, err := blob.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	u, err := unpack(ctx, &counted{r, task}, diffID, content)
	if err != nil {
		return err
	}
	return image.WriteFile(filepath.Join(tmp, "layer.json"), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(u) })
}

type counted struct {
	io.Reader
	task image.Task
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.task.Add(int64(n))
	return n, err
}

// Sweep removes incomplete layers of killed processes.
func (c Cache) Sweep() error {
	left, err := filepath.Glob(filepath.Join(c.Dir, "sha256", "*.tmp"))
	for _, tmp := range left {
		lock := flock.New(strings.TrimSuffix(tmp, ".tmp") + ".lock")
		if held, lerr := lock.TryLock(); lerr != nil || !held {
			continue // its process is alive
		}
		err = errors.Join(err, os.RemoveAll(tmp), lock.Unlock())
	}
	return err
}
