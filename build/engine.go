package build

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// Engine builds and writes an image outside this process, such as on a BuildKit daemon. The embedded engine is not an
// Engine: embedded.Assemble returns the image, and output.Publish writes it.
type Engine interface {
	// Build builds the image, writes it to req.Target and returns its descriptor. An output appears whole or not at
	// all, and tags move last.
	Build(ctx context.Context, req Request) (v1.Descriptor, error)
}

// Request describes one image, with one recipe per platform.
type Request struct {
	Recipes []*Recipe
	// Source is the base that the recipes were resolved against.
	Source      *image.Source
	Annotations Annotations
	// Digest is the digest that the image must have, or zero for any. If the image has another one, Build fails and no
	// output or tag appears.
	Digest v1.Hash
	// Target is where the image goes.
	Target output.Target
}

// Annotations holds the annotations of the image index (of an image with several platforms) and of each manifest.
type Annotations struct {
	Index, Manifest map[string]string
}

func digestOf(h v1.Hash) digest.Digest { return digest.Digest(h.String()) }
