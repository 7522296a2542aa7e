// Package embedded is the engine without a daemon. It makes images with go-containerregistry, byte for byte as BuildKit
// would, so that both engines give the same digest. It never reads a base layer.
package embedded

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// Assemble returns the image of the recipes, or an index of several images. Everything but the base's layers is in
// memory. output.Publish writes exactly the bytes of these manifests, configs and layers.
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
	built := image.Built{}
	for i, r := range recipes {
		if r.Ledger() == nil {
			continue
		}
		about, err := newArtifact(r.Ledger(), images[i])
		if err != nil {
			return image.Built{}, fmt.Errorf("%s: ledger: %w", r.Platform, err)
		}
		built.Referrers = append(built.Referrers, about)
	}
	if len(images) == 1 {
		built.Image = images[0]
		return built, nil
	}
	idx, err := newIndex(images, a.Index)
	if err != nil {
		return image.Built{}, err
	}
	built.Index = idx
	return built, nil
}
