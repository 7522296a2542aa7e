// Package slim derives a slim, closed image from a big all-in-one base and describes the result. It is the library
// behind slimctl's commands.
//
// Start with Build, which resolves a profile against a base, makes the image, verifies it and writes it. Resolve stops
// at the recipes. Verify checks a finished image against a profile, Diff compares two images, and Inspect reads what an
// image exposes. The package prints nothing; it reports to Access.Progress and Access.Log.
package slim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/internal/standin/live"
)

// Access configures access to images and reporting. It is part of every function's options. The zero value uses the
// credentials of the Docker config, and slimctl's directory in the user's cache directory.
type Access struct {
	// Options configures registries, the cache and progress.
	image.Options
	// Log writes one line for the user; nil discards it.
	Log func(format string, args ...any)
}

func (a Access) withDefaults() (Access, error) {
	if a.Log == nil {
		a.Log = func(string, ...any) {}
	}
	if a.CacheDir == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return a, fmt.Errorf("no cache directory: %w; name one in CacheDir", err)
		}
		a.CacheDir = filepath.Join(dir, "slimctl")
	}
	return a, nil
}

// UsageError is an error in the caller's options, not in an image.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

func usage(err error) error { return &UsageError{err} }

// Open opens an image, as described by slimctl help images. It makes standin:LINE and standin-live:LINE if they aren't
// in the cache.
func Open(ctx context.Context, a Access, reference string) (*image.Source, error) {
	a, err := a.withDefaults()
	if err != nil {
		return nil, err
	}
	return a.open(ctx, reference, nil)
}

// open opens an image, at the digest in pinned if it isn't nil.
func (a Access) open(ctx context.Context, reference string, pinned *lock.File) (*image.Source, error) {
	if dir, ok, err := a.standin(ctx, reference); err != nil {
		return nil, err
	} else if ok {
		return image.Open(ctx, "oci:"+dir, a.Options)
	}
	if pinned != nil && !strings.HasPrefix(reference, "oci:") && !strings.HasPrefix(reference, "docker-daemon:") && !strings.Contains(reference, "-archive:") {
		reference = image.Pin(reference, pinned.Base.Digest)
	}
	src, err := image.Open(ctx, reference, a.Options)
	if err != nil {
		return nil, err
	}
	if pinned != nil && src.Digest() != pinned.Base.Digest {
		return nil, fmt.Errorf("base %s is %s, but the lock was written for %s; run `slimctl lock` again", reference, src.Digest(), pinned.Base.Digest)
	}
	return src, nil
}

// standin returns the layout for standin:LINE and standin-live:LINE; ok is false for any other reference.
func (a Access) standin(ctx context.Context, reference string) (dir string, ok bool, err error) {
	kind, line, _ := strings.Cut(reference, ":")
	if kind != "standin" && kind != "standin-live" {
		return "", false, nil
	}
	if err := standin.CheckLine(line); err != nil {
		return "", true, usage(err)
	}
	if kind == "standin" {
		dir, err = standin.Cached(ctx, a.CacheDir, line)
		return dir, true, err
	}
	if !live.Ready(a.CacheDir, runtime.GOARCH) {
		a.Log("%s", live.FirstTime)
	}
	dir, err = live.Cached(ctx, a.CacheDir, line)
	return dir, true, err
}

// CheckBoots refuses an image made from a plain stand-in, in which no program runs.
func CheckBoots(reference string, src *image.Source) error {
	for _, p := range src.Platforms() {
		img, err := src.Image(p)
		if err != nil {
			return err
		}
		c, err := img.ConfigFile()
		if err != nil {
			return err
		}
		if standin.IsPlain(c) {
			return usage(fmt.Errorf("%s is made from a plain stand-in, in which no program runs; build it with --base standin-live:B", reference))
		}
	}
	return nil
}

// parsePlatforms parses platforms and removes duplicates.
func parsePlatforms(list []string) ([]v1.Platform, error) {
	var out []v1.Platform
	seen := map[string]bool{}
	for _, s := range list {
		p, err := v1.ParsePlatform(s)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return nil, usage(fmt.Errorf("--platform %q: write os/arch, such as linux/arm64", s))
		}
		if !seen[p.String()] {
			seen[p.String()] = true
			out = append(out, *p)
		}
	}
	return out, nil
}
