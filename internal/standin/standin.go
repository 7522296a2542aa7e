// Package standin writes stand-ins for the base image, the AIO Sandbox, of lines A, B and C. They are OCI layouts with
// the real paths, names, environment, start scripts and open holes, but stubs instead of the services. They serve
// tests, and trying slimctl without a registry. README.md lists guesses and limits.
package standin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/slimctl/slimctl/image"
)

// Options selects the stand-in to write.
type Options struct {
	// Line is "A", "B" or "C".
	Line string
	// Platforms are linux/amd64, linux/arm64 or both; empty means both.
	Platforms []string
	// Weight is the number of additional bytes in the blobs of a platform, within a tenth from 1 MB on, otherwise more.
	// They are gzip of about 2.5 times as many, in small and large files like a real image's, always the same, in 10
	// layers of their own. Their content is streamed, never held in memory.
	Weight int64
	// Extra is the content of one more, topmost layer on every platform.
	Extra []image.File
	// Env is added to the image's environment.
	Env []string
	// Rename, if not 0, is a seed for new names of everything that only the base's own programs refer to by name.
	Rename uint64
	// Rootfs, if not nil, is below the stand-in's files. It must be for the one platform in Platforms.
	Rootfs *Rootfs
}

var defaultPlatforms = []string{"linux/amd64", "linux/arm64"}

// Check returns the error that Write would return for invalid options.
func (o Options) Check() error {
	_, _, err := o.check()
	return err
}

func (o Options) check() (line, []string, error) {
	l, ok := lines[o.Line]
	if !ok {
		return line{}, nil, CheckLine(o.Line)
	}
	if o.Weight < 0 {
		return line{}, nil, fmt.Errorf("stand-in: a weight of %d bytes; it must be 0 or more", o.Weight)
	}
	platforms := o.Platforms
	if len(platforms) == 0 {
		platforms = defaultPlatforms
	}
	if o.Rootfs != nil && len(platforms) != 1 {
		return line{}, nil, fmt.Errorf("stand-in: %d platforms on a root file system, which is of one", len(platforms))
	}
	for i, p := range platforms {
		if !slices.Contains(defaultPlatforms, p) {
			return line{}, nil, fmt.Errorf("stand-in: no platform %q; there are %s", p, strings.Join(defaultPlatforms, " and "))
		}
		if slices.Contains(platforms[:i], p) {
			return line{}, nil, fmt.Errorf("stand-in: platform %s is named twice", p)
		}
	}
	return l, platforms, nil
}

// Write writes an OCI layout to dir atomically and returns the digest of its one image index. dir must be empty or not
// exist; otherwise the error wraps fs.ErrExist. Equal options give equal digests.
func Write(ctx context.Context, dir string, o Options) (v1.Hash, error) {
	l, platforms, err := o.check()
	if err != nil {
		return v1.Hash{}, err
	}
	var digest v1.Hash
	err = image.WriteDir(dir, func(tmp string) (err error) {
		digest, err = writeLayout(ctx, tmp, l, platforms, o)
		return err
	})
	if err != nil {
		return v1.Hash{}, fmt.Errorf("stand-in of line %s: %w", o.Line, err)
	}
	return digest, nil
}

// CheckLine refuses a line without a stand-in.
func CheckLine(line string) error {
	if line != "A" && line != "B" && line != "C" {
		return fmt.Errorf("stand-in: no line %q; there are A, B and C", line)
	}
	return nil
}

var generating singleflight.Group

// Cached returns the layout of line's stand-in (both platforms, no weight) below cacheRoot, and writes it if it doesn't
// exist. The directory's name depends on the content, so a changed stand-in gets a new one. It may be called
// concurrently, also by several processes.
func Cached(ctx context.Context, cacheRoot, line string) (dir string, err error) {
	key, err := cacheKey(line)
	if err != nil {
		return "", err
	}
	return writeOnce(ctx, filepath.Join(cacheRoot, "standin-"+strings.ToLower(line)+"-"+key[:16]), Options{Line: line})
}

// CachedOn is Cached for a stand-in on a real root file system.
func CachedOn(ctx context.Context, cacheRoot, line, platform string, rootfs *Rootfs) (dir string, err error) {
	o := Options{Line: line, Platforms: []string{platform}, Rootfs: rootfs}
	key, err := fingerprint(o)
	if err != nil {
		return "", err
	}
	return writeOnce(ctx, filepath.Join(cacheRoot, "standin-live-"+strings.ToLower(line)+"-"+key[:16]), o)
}

// writeOnce writes a stand-in to dir unless it exists.
func writeOnce(ctx context.Context, dir string, o Options) (string, error) {
	for {
		if _, err := os.Stat(filepath.Join(dir, "index.json")); err == nil {
			return dir, nil
		}
		done := generating.DoChan(dir, func() (any, error) { return Write(ctx, dir, o) })
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case r := <-done:
			switch {
			case r.Err == nil:
				return dir, nil
			case ctx.Err() != nil:
				return "", ctx.Err()
			case errors.Is(r.Err, context.Canceled), errors.Is(r.Err, context.DeadlineExceeded):
				// Another caller's context ended: try again with our own.
			case errors.Is(r.Err, fs.ErrExist):
				// Another process was faster.
				if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
					return "", r.Err
				}
			default:
				return "", r.Err
			}
		}
	}
}

var cacheKeys sync.Map // of line to string

// cacheKey returns the fingerprint of line's stand-in, computed once per process.
func cacheKey(line string) (string, error) {
	if key, ok := cacheKeys.Load(line); ok {
		return key.(string), nil
	}
	key, err := fingerprint(Options{Line: line})
	if err == nil {
		cacheKeys.Store(line, key)
	}
	return key, err
}

// fingerprint returns a digest of the content of o's stand-in, uncompressed, with only the beginning of heavy's files.
func fingerprint(o Options) (string, error) {
	l, platforms, err := o.check()
	if err != nil {
		return "", err
	}
	sums := make([][sha256.Size]byte, len(platforms))
	var g errgroup.Group
	for i, p := range platforms {
		g.Go(func() error {
			h := sha256.New()
			fmt.Fprintln(h, heavySize)
			layers, err := l.layers(p, o, heavySample)
			if err != nil {
				return err
			}
			if o.Rootfs != nil {
				h.Write([]byte(o.Rootfs.DiffID.String()))
			}
			for _, layer := range layers {
				if err := image.WriteTar(h, layer.files); err != nil {
					return err
				}
			}
			config := l.config(p)
			config.History = l.history(layers)
			if err := json.NewEncoder(h).Encode(config); err != nil {
				return err
			}
			copy(sums[i][:], h.Sum(nil))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	all := sha256.New()
	for _, s := range sums {
		all.Write(s[:])
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}
