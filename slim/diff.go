package slim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// DiffOptions selects the images to compare, and what to compare.
type DiffOptions struct {
	Access
	// Base and Slim are image references, as described by slimctl help images.
	Base, Slim string
	// Platforms are the platforms to compare, as os/arch; none means all platforms of both images.
	Platforms []string
	// Compare selects what counts as a difference.
	Compare diff.Options
}

// Diff compares the files, config, surface and sizes of two images, platform by platform. At most two platforms are
// open at a time. Layers that both images share are not compared. A path of Compare that matches nothing is an error.
func Diff(ctx context.Context, o DiffOptions) (out []*diff.Diff, err error) {
	a, err := o.Access.withDefaults()
	if err != nil {
		return nil, err
	}
	references, sources := [2]string{o.Base, o.Slim}, [2]*image.Source{}
	var g errgroup.Group // without a context, because the sources are read after Wait
	for i, reference := range references {
		g.Go(func() (err error) {
			sources[i], err = a.open(ctx, reference, nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	platforms, err := platformPairs(sources[0], sources[1], o.Platforms)
	if err != nil {
		return nil, err
	}
	for _, p := range platforms {
		if p.missing != "" {
			a.Log("%s isn't compared: %s lacks it", p, map[string]string{diff.InBase: o.Base, diff.InSlim: o.Slim}[p.missing])
			out = append(out, &diff.Diff{
				Platform: p.String(), Missing: p.missing, Layers: []diff.Layer{}, Files: []diff.Change{},
				Base: diff.Side{Reference: o.Base}, Slim: diff.Side{Reference: o.Slim},
			})
			continue
		}
		images, err := a.readPair(ctx, references, sources, p)
		if err != nil {
			return nil, err
		}
		d, err := diff.Of(ctx, images[0], images[1], o.Compare)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if err := a.addLedger(ctx, d, sources[1], p.of[1], images); err != nil {
			a.Log("%s, %s: no ledger is used: %v", o.Slim, p, err)
		}
		out = append(out, d)
	}
	return out, checkMatched(out)
}

// addLedger adds the sizes of the components in the slim image's ledger, if it has one.
func (a Access) addLedger(ctx context.Context, d *diff.Diff, src *image.Source, p v1.Platform, images [2]*inspect.Image) error {
	img, err := src.Image(p)
	if err != nil {
		return err
	}
	l := a.onlyLedger(ctx, src, img)
	if l == nil {
		return nil
	}
	inBase, inSlim := map[string]string{}, map[string]string{}
	names := map[string]string{} // interned
	add := func(r ledger.Row) bool {
		if names[r.Component] == "" {
			names[r.Component] = strings.Clone(r.Component)
		}
		path, name := strings.Clone(r.Path), names[r.Component]
		if inBase[path] = name; r.Stays != "" {
			inSlim[path] = name
		}
		return len(inBase) <= maxPaths
	}
	book, err := readLedger(l)
	if err != nil {
		return err
	}
	if _, err := ledger.Read(book(), add); err != nil {
		return err
	}
	d.AddLedger(images[0].Files.Tree, images[1].Files.Tree,
		func(p string) string { return inBase[p] }, func(p string) string { return cmp.Or(inSlim[p], ledger.Ours) })
	return nil
}

// maxPaths limits the rows of a ledger in memory.
const maxPaths = 2_000_000

// checkMatched refuses a path that matches nothing on any platform. It is probably a mistake, and would hide all
// differences.
func checkMatched(diffs []*diff.Diff) error {
	compared := slices.DeleteFunc(slices.Clone(diffs), func(d *diff.Diff) bool { return d.Missing != "" })
	for _, p := range compared[0].Unmatched {
		if !slices.ContainsFunc(compared, func(d *diff.Diff) bool { return !slices.Contains(d.Unmatched, p) }) {
			return fmt.Errorf("%s matches nothing in %s and %s; correct the path", p, compared[0].Base.Reference, compared[0].Slim.Reference)
		}
	}
	return nil
}

// readPair reads one platform of both images. It reads the files one after the other, so that a shared layer is read
// once.
func (a Access) readPair(ctx context.Context, references [2]string, sources [2]*image.Source, p platformPair) (out [2]*inspect.Image, err error) {
	g, gctx := errgroup.WithContext(ctx)
	var before *tree.Image
	for i, src := range sources {
		img, err := src.Image(p.of[i])
		if err != nil {
			return out, errors.Join(err, g.Wait())
		}
		files, err := tree.Cache{Dir: a.CacheDir}.Open(ctx, img, tree.Options{Progress: a.Progress, Open: before})
		if err != nil {
			return out, errors.Join(fmt.Errorf("%s, %s: %w", references[i], p, err), g.Wait())
		}
		before = files
		g.Go(func() (err error) {
			out[i], err = inspect.Read(gctx, references[i], img, files)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", references[i], p, err)
			}
			out[i].Platform = p.Platform
			return nil
		})
	}
	return out, g.Wait()
}

// platformPair is a platform to compare.
type platformPair struct {
	v1.Platform
	of      [2]v1.Platform // as base and slim name it
	missing string         // diff.InBase or diff.InSlim, if that one lacks it
}

// platformPairs pairs the platforms of two images: the wanted ones, or all. An image without a platform in its config,
// as in some archives, is paired with the other's.
func platformPairs(base, slim *image.Source, wanted []string) ([]platformPair, error) {
	olds, news := base.Platforms(), slim.Platforms()
	var out []platformPair
	if len(wanted) > 0 {
		chosen, err := parsePlatforms(wanted)
		if err != nil {
			return nil, err
		}
		for i, p := range chosen {
			if hasPlatform(chosen[:i], p) {
				continue
			}
			out = append(out, platformPair{Platform: p, of: [2]v1.Platform{orUnnamed(olds, p), orUnnamed(news, p)}})
		}
		return out, nil
	}
	if isUnnamed(olds) && len(news) == 1 {
		return []platformPair{{Platform: news[0], of: [2]v1.Platform{olds[0], news[0]}}}, nil
	}
	if isUnnamed(news) && len(olds) == 1 {
		return []platformPair{{Platform: olds[0], of: [2]v1.Platform{olds[0], news[0]}}}, nil
	}
	if isUnnamed(olds) || isUnnamed(news) {
		return nil, usage(errors.New("one of the images names no platform; choose the other one's with --platform"))
	}
	common := false
	for _, p := range olds {
		pair := platformPair{Platform: p, of: [2]v1.Platform{p, p}}
		if !hasPlatform(news, p) {
			pair.missing = diff.InSlim
		}
		common = common || pair.missing == ""
		out = append(out, pair)
	}
	for _, p := range news {
		if !hasPlatform(olds, p) {
			out = append(out, platformPair{Platform: p, missing: diff.InBase})
		}
	}
	if !common {
		return nil, fmt.Errorf("the images have no platform in common: %s is for %v, %s for %v: %w", base.Reference(), olds, slim.Reference(), news, image.ErrNotFound)
	}
	return out, nil
}

// isUnnamed reports whether ps belongs to a single image that names no platform.
func isUnnamed(ps []v1.Platform) bool {
	return len(ps) == 1 && (ps[0].OS == "" || ps[0].Architecture == "")
}

func orUnnamed(ps []v1.Platform, p v1.Platform) v1.Platform {
	if isUnnamed(ps) {
		return ps[0]
	}
	return p
}

// hasPlatform reports whether ps contains p, with "arm64" equal to "arm64/v8".
func hasPlatform(ps []v1.Platform, p v1.Platform) bool {
	return slices.ContainsFunc(ps, func(have v1.Platform) bool { return image.SamePlatform(have, p) })
}
