package slim

import (
	"context"
	"fmt"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
)

// InspectOptions selects an image.
type InspectOptions struct {
	Access
	// Image is an image reference, as described by slimctl help images.
	Image string
	// Platforms are the platforms to read, as os/arch; none means all of the image's.
	Platforms []string
}

// Inspected is an image with the surface of each requested platform.
type Inspected struct {
	Source *image.Source
	Images []*inspect.Image
}

// Inspect opens an image and reads the surface of each platform. It reads a layer once, if its index isn't in the
// cache.
func Inspect(ctx context.Context, o InspectOptions) (*Inspected, error) {
	a, err := o.Access.withDefaults()
	if err != nil {
		return nil, err
	}
	src, platforms, err := a.openPlatforms(ctx, o)
	if err != nil {
		return nil, err
	}
	images, err := src.Images(platforms...)
	if err != nil {
		return nil, err
	}
	out := &Inspected{Source: src}
	out.Images, err = readSurfaces(ctx, o.Image, images, platforms, func(ctx context.Context, i int) (*tree.Image, error) {
		return tree.Cache{Dir: a.CacheDir}.Open(ctx, images[i], tree.Options{Progress: a.Progress})
	})
	if err == nil && src.Index() != nil {
		for _, img := range out.Images {
			img.Surface.IndexDigest = src.Digest().String()
		}
	}
	return out, err
}

// readSurfaces reads the surfaces of images concurrently; platforms are theirs. open returns the files of image i.
func readSurfaces(ctx context.Context, reference string, images []v1.Image, platforms []v1.Platform, open func(context.Context, int) (*tree.Image, error)) ([]*inspect.Image, error) {
	out := make([]*inspect.Image, len(images))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, img := range images {
		g.Go(func() error {
			files, err := open(ctx, i)
			if err == nil {
				out[i], err = inspect.Read(ctx, reference, img, files)
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", reference, platforms[i], err)
			}
			out[i].Platform = platforms[i]
			out[i].Surface.Platform = platforms[i].String()
			return nil
		})
	}
	return out, g.Wait()
}

// openPlatforms opens the image and returns the requested platforms.
func (a Access) openPlatforms(ctx context.Context, o InspectOptions) (*image.Source, []v1.Platform, error) {
	src, err := a.open(ctx, o.Image, nil)
	if err != nil {
		return nil, nil, err
	}
	if len(o.Platforms) == 0 {
		return src, src.Platforms(), nil
	}
	platforms, err := parsePlatforms(o.Platforms)
	return src, platforms, err
}
