// Package embedded is the engine without a daemon: it builds the image itself, on go-containerregistry, and writes the
// bytes that BuildKit would write, so that both engines give one digest. It never reads a base layer.
package embedded

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// Engine is the embedded engine.
type Engine struct {
	Options image.Options
}

var _ build.Engine = Engine{}

// Build assembles the image, has it verified, and writes it to every output, files first, the registry last. What is verified
// are the very bytes that are written: manifests, configs and layers.
func (e Engine) Build(ctx context.Context, req build.Request) (build.Result, error) {
	built, err := Assemble(ctx, req.Recipes, req.Annotations)
	if err != nil {
		return build.Result{}, err
	}
	var result build.Result
	if result.Digest, err = built.Digest(); err != nil {
		return build.Result{}, err
	}
	if result.MediaType, result.Size, err = describe(built); err != nil {
		return build.Result{}, err
	}
	if req.Digest != (v1.Hash{}) && req.Digest != result.Digest {
		return build.Result{}, fmt.Errorf("the image came to %s, not to %s", result.Digest, req.Digest)
	}
	if req.Verify != nil {
		if err := req.Verify(ctx, built); err != nil {
			return build.Result{}, err
		}
	}
	for _, out := range req.Outputs {
		if err := out.Write(ctx, built, req.Tags, req.Source, e.Options); err != nil {
			return build.Result{}, fmt.Errorf("output %s: %w", out, err)
		}
	}
	if req.Push {
		refs := make([]name.Reference, len(req.Tags))
		for i, t := range req.Tags {
			refs[i] = t
		}
		if result.Ledger, err = output.Push(ctx, built, refs, req.Source, e.Options); err != nil {
			return build.Result{}, err
		}
	}
	return result, nil
}

// Assemble makes the image of the recipes, in memory but for the base's layers: an index when there are several.
func Assemble(ctx context.Context, recipes []*build.Recipe, a build.Annotations) (image.Built, error) {
	images := make([]*assembled, len(recipes))
	g, _ := errgroup.WithContext(ctx)
	for i, r := range recipes {
		g.Go(func() (err error) {
			if images[i], err = assemble(r, a.Manifest); err != nil {
				return fmt.Errorf("%s: %w", r.Platform, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return image.Built{}, err
	}
	if len(images) == 1 {
		return image.Built{Image: images[0]}, nil
	}
	idx, err := newIndex(images, a.Index)
	if err != nil {
		return image.Built{}, err
	}
	return image.Built{Index: idx}, nil
}
