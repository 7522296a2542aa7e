// Package embedded is the engine without a daemon: it makes the image itself, on go-containerregistry, of the bytes that
// BuildKit would write, so that both engines give one digest. It never reads a base layer.
package embedded

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// Assemble makes the image of the recipes, in memory but for the base's layers: an index when there are several. What it
// returns are the very bytes that output.Publish writes: manifests, configs and layers.
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
		about, err := attach(r.Ledger(), images[i])
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
