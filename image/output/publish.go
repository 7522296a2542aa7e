package output

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
)

// Target is the set of destinations and names of an image.
type Target struct {
	// Files are the archives and layouts to write.
	Files []Spec
	// Tags are the names of the image in Files, in Docker and in registries.
	Tags []name.Tag
	// Load loads the image, of one platform, into Docker.
	Load bool
	// Push pushes the image to every tag.
	Push bool
}

// Publish writes b to every file of the target, loads it into Docker and pushes it, in this order, so that registry
// tags move last. Each file appears whole or not at all. src is the base of b, or nil.
func Publish(ctx context.Context, b image.Built, t Target, src *image.Source, opt image.Options) (Transfer, error) {
	for _, f := range t.Files {
		if err := f.Write(ctx, b, t.Tags, src, opt); err != nil {
			return Transfer{}, fmt.Errorf("output %s: %w", f, err)
		}
	}
	if t.Load {
		if err := Load(ctx, b, v1.Platform{}, t.Tags, opt); err != nil {
			return Transfer{}, err
		}
	}
	if !t.Push {
		return Transfer{}, nil
	}
	refs := make([]name.Reference, len(t.Tags))
	for i, tag := range t.Tags {
		refs[i] = tag
	}
	return Push(ctx, b, refs, src, opt)
}
