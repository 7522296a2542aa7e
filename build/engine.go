package build

import (
	"context"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// Engine turns recipes, one a platform, into an image and writes it. An output appears whole or not at all, and tags
// move last.
type Engine interface {
	Build(ctx context.Context, req Request) (Result, error)
}

// Request is one build.
type Request struct {
	Recipes []*Recipe
	// Source is the base that the recipes were resolved against.
	Source      *image.Source
	Annotations Annotations
	// Tags are the names the image gets, in outputs and on a push.
	Tags    []name.Tag
	Push    bool
	Outputs []output.Spec

	// Verify is shown the image before it gets a name anywhere; its error ends the build, and all is as it was. An engine that
	// doesn't have the image in hand is told Digest instead. nil verifies nothing.
	Verify func(ctx context.Context, built image.Built) error
	// Digest is what the image must come to; another one is an error, and no output or tag appears. Zero takes any.
	Digest v1.Hash
}

// Annotations go to the image index (when there are several platforms) and to each manifest.
type Annotations struct {
	Index, Manifest map[string]string
}

// Result is what was built.
type Result struct {
	// Digest is that of the image index, or of the manifest when there is one platform.
	Digest    v1.Hash
	Size      int64
	MediaType string
	// Ledger counts what a push moved; zero for an engine that can't tell.
	Ledger output.Ledger
}

func digestOf(h v1.Hash) digest.Digest { return digest.Digest(h.String()) }
