// Package resolve turns profile × base × lock × platform into a recipe: it detects the base's line, expands globs and
// conditions, follows the base's symlinks, and stops at anything that the profile doesn't name.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Input is what Resolve works on.
type Input struct {
	Profile *profile.Profile
	// Reference is the base as the user named it; Source is the same base, opened.
	Reference string
	Source    *image.Source
	Platforms []v1.Platform
	// Overlays holds, by platform name (linux/amd64), the overlays that no profile writes, such as the payload.
	Overlays map[string][]build.Lay
	// Assets holds the files that `source: asset:NAME` refers to.
	Assets fs.FS
	// Lock, if not nil, replaces the base's index. It must match (lock.File.Matches).
	Lock *lock.File
	// Before is an earlier lock, or nil. Whatever it already removed is not reported as new.
	Before *lock.File
	// Cache holds the index of each base layer that was read, and the layers that the recipes add.
	Cache    tree.Cache
	Progress image.Progress
	// Epoch is the modification time of everything added. Zero takes the creation time of the newest base image.
	Epoch time.Time
}

// Resolve returns one recipe per platform, in the order of in.Platforms, and the lock that pins them. The error joins
// all that is wrong with the first platform that fails.
func Resolve(ctx context.Context, in Input) ([]*build.Recipe, *lock.File, error) {
	pinned := &lock.File{
		Version:   lock.Version,
		Profile:   lock.Profile{Name: in.Profile.Name, Digest: in.Profile.Digest()},
		Base:      lock.Base{Reference: in.Reference, Digest: in.Source.Digest()},
		Payload:   lock.Payload{Version: in.Profile.Payload.AgentBrowser.Version, Integrity: in.Profile.Payload.AgentBrowser.Integrity},
		Platforms: map[string]*lock.Platform{},
	}
	images, err := in.Source.Images(in.Platforms...)
	if err != nil {
		return nil, nil, err
	}
	if in.Epoch.IsZero() {
		if in.Epoch, err = build.EpochOf(images...); err != nil {
			return nil, nil, err
		}
	}
	var recipes []*build.Recipe
	for i, p := range in.Platforms {
		r, locked, err := in.platform(ctx, p, images[i])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p, err)
		}
		recipes = append(recipes, r)
		pinned.Platforms[p.String()] = locked
	}
	return recipes, pinned, nil
}

func (in Input) platform(ctx context.Context, p v1.Platform, img v1.Image) (*build.Recipe, *lock.Platform, error) {
	manifest, err := img.Digest()
	if err != nil {
		return nil, nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	if err := checkDistributable(img); err != nil {
		return nil, nil, fmt.Errorf("base %s: %w", in.Reference, err)
	}
	if config.OS != p.OS || config.Architecture != p.Architecture {
		return nil, nil, fmt.Errorf("base %s: the index lists this image for %s, but its config says %q; choose another base or digest", in.Reference, p, config.OS+"/"+config.Architecture)
	}
	locked := &lock.Platform{Manifest: manifest, Footprint: lock.NewFootprint()}
	var files *tree.Image
	if in.Lock != nil {
		l := in.Lock.Platforms[p.String()]
		if l == nil {
			return nil, nil, fmt.Errorf("the lock has no such platform; run `slimctl lock` again")
		}
		if l.Manifest != manifest {
			return nil, nil, fmt.Errorf("the lock names manifest %s, but the base has %s; run `slimctl lock` again", l.Manifest, manifest)
		}
		locked = l
	} else if files, err = in.openBase(ctx, img); err != nil {
		return nil, nil, err
	}
	base := lock.NewView(ctx, files, &locked.Footprint)
	line := detectLine(base)
	if base.Err != nil {
		return nil, nil, fmt.Errorf("base %s: %w", in.Reference, base.Err)
	}
	w := &work{in: in, base: base, line: line, platform: p, recipe: &build.Recipe{
		Profile: in.Profile.Name, Platform: p, Epoch: in.Epoch, Cache: image.LayerCache{Dir: in.Cache.Dir}, Dirs: map[string]image.Entry{},
		Base: build.Base{Reference: in.Reference, Index: in.Source.Digest(), Manifest: manifest, Line: string(line), Image: img},
	}}
	if err := w.run(); err != nil {
		return nil, nil, err
	}
	if in.Lock == nil {
		w.recipe.New = w.findDrift(in.Before)
	}
	if in.Profile.Keep != nil {
		w.recipe.Cache.Level = smallLevel
		step, err := w.stripBase(ctx, img, files, locked)
		if err != nil {
			return nil, nil, err
		}
		w.recipe.Strip = &step
	}
	removals := []string{}
	for _, s := range w.recipe.Removals {
		removals = append(removals, s.Path)
	}
	if in.Lock != nil && (locked.Line != string(line) || !slices.Equal(locked.Removals, removals)) {
		return nil, nil, errors.New("the lock contradicts itself: its footprint leads to another line or other removals than it lists; run `slimctl lock` again")
	}
	if in.Lock == nil {
		locked.Line = string(line)
		locked.Removals, locked.Env = removals, w.recipe.Change.UnsetEnv
		for _, f := range w.recipe.Found {
			if locked.Found == nil {
				locked.Found = map[string]string{}
			}
			locked.Found[f.Path] = f.Target
		}
		locked.Footprint.Sort()
	}
	return w.recipe, locked, nil
}

// openBase opens the base's files and reads the layers that the cache doesn't have.
func (in Input) openBase(ctx context.Context, img v1.Image) (*tree.Image, error) {
	files, err := in.Cache.Open(ctx, img, tree.Options{Progress: in.Progress})
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", in.Reference, err)
	}
	return files, nil
}

// smallLevel is the gzip level of the overlays where the whole image is pulled. They are 9 % smaller than at the level
// for overlays on a base.
const smallLevel = 7

// NeedsError lists what the image needs and wouldn't have.
type NeedsError struct {
	Missing []string
}

func (e *NeedsError) Error() string { return strings.Join(e.Missing, "\n") }

// checkDistributable refuses a base with foreign layers: its registry doesn't hold them, so they can't be published
// with the image, and their URLs could point anywhere.
func checkDistributable(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		if !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return fmt.Errorf("layer %s is foreign (%s, %d URLs): its registry doesn't hold it; choose a base without foreign layers", l.Digest, l.MediaType, len(l.URLs))
		}
	}
	return nil
}
