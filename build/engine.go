package build

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// Engine makes the image of recipes where this process doesn't have it in hand, such as on a BuildKit daemon, and has it
// written from there. The embedded engine is none: embedded.Assemble returns the image, and output.Publish writes it.
type Engine interface {
	// Build makes the image, writes it to the request's target and returns its descriptor. An output appears whole or not at
	// all, and tags move last.
	Build(ctx context.Context, req Request) (v1.Descriptor, error)
}

// Request is what an Engine is to make: one image of one or more recipes, one a platform.
type Request struct {
	Recipes []*Recipe
	// Source is the base that the recipes were resolved against.
	Source      *image.Source
	Annotations Annotations
	// Digest is what the image must come to; another one is an error, and no output or tag appears. Zero takes any.
	Digest v1.Hash
	// Target is where the image goes.
	Target output.Target
}

// Annotations go to the image index (when there are several platforms) and to each manifest.
type Annotations struct {
	Index, Manifest map[string]string
}

func digestOf(h v1.Hash) digest.Digest { return digest.Digest(h.String()) }
