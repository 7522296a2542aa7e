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
	"github.com/slimctl/slimctl/build/keep"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Input is what Resolve works on.
type Input struct {
	Profile *profile.Profile
	// Reference is the base as the user named it; Source is it, opened.
	Reference string
	Source    *image.Source
	Platforms []v1.Platform
	// Overlays are those that no profile writes, such as the payload, by the platform's name: linux/amd64.
	Overlays map[string][]build.Lay
	// Assets holds what a profile's `source: asset:NAME` names.
	Assets fs.FS
	// Lock answers for the base when it isn't nil; it must match (Lock.Matches).
	Lock *lock.File
	// Before is an earlier lock; what it took away is no news. It may be nil.
	Before *lock.File
	// Cache keeps the base index of each layer that has to be read, and the layers that the recipes add.
	Cache    tree.Cache
	Progress image.Progress
	// Epoch is the time of everything added; zero takes the newest base image's.
	Epoch time.Time
}

// Resolve gives one recipe a platform, in the order asked for, and the lock that says what they rest on. Everything
// that is wrong with a platform is told at once.
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
	if err := ownLayers(img); err != nil {
		return nil, nil, fmt.Errorf("base %s: %w", in.Reference, err)
	}
	if config.OS != p.OS || config.Architecture != p.Architecture {
		return nil, nil, fmt.Errorf("base %s: the image that its index gives for this platform says that it is %s/%s", in.Reference, config.OS, config.Architecture)
	}
	locked := &lock.Platform{Manifest: manifest, Footprint: lock.NewFootprint()}
	var files *tree.Image
	var stash *tree.Stash
	if in.Profile.Keep != nil && in.Lock == nil {
		if stash, err = tree.NewStash(in.Cache.Dir, keep.IsLikely); err != nil {
			return nil, nil, err
		}
		defer stash.Close()
	}
	if in.Lock != nil {
		l := in.Lock.Platforms[p.String()]
		if l == nil {
			return nil, nil, fmt.Errorf("the lock has no such platform")
		}
		if l.Manifest != manifest {
			return nil, nil, fmt.Errorf("the lock names manifest %s, the base has %s", l.Manifest, manifest)
		}
		locked = l
	} else if files, err = in.openBase(ctx, img, stash); err != nil {
		return nil, nil, err
	}
	base := lock.NewView(ctx, files, &locked.Footprint)
	line, err := detectLine(base)
	if err != nil && !(in.Profile.Base.AcceptUnknownLine && errors.Is(err, errUnknownLine)) {
		return nil, nil, fmt.Errorf("base %s: %w", in.Reference, err)
	}
	w := &work{in: in, base: base, line: line, platform: p, recipe: &build.Recipe{
		Profile: in.Profile.Name, Platform: p, Epoch: in.Epoch, Cache: image.LayerCache{Dir: in.Cache.Dir, Zstd: in.Profile.Compression == profile.Zstd}, Dirs: map[string]image.Entry{},
		Base: build.Base{Reference: in.Reference, Index: in.Source.Digest(), Manifest: manifest, Line: string(line), Image: img},
	}}
	if err := w.run(); err != nil {
		return nil, nil, err
	}
	if in.Lock == nil {
		w.recipe.New = w.drift(in.Before)
	}
	if in.Profile.Keep != nil {
		w.recipe.Cache.Level = smallLevel
		step, err := w.stripBase(ctx, img, files, stash, locked)
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
		return nil, nil, errors.New("the lock contradicts itself: its footprint gives another line, or other removals, than it names; run `slimctl lock` again")
	}
	if in.Lock == nil {
		locked.Line = string(line)
		locked.Removals, locked.Env = removals, w.recipe.Change.UnsetEnv
		locked.Footprint.Sort()
	}
	return w.recipe, locked, nil
}

// openBase opens the base's files, and reads the layers that the cache doesn't know. The stash may be nil.
func (in Input) openBase(ctx context.Context, img v1.Image, stash *tree.Stash) (*tree.Image, error) {
	files, err := in.Cache.Open(ctx, img, tree.Options{Progress: in.Progress, Stash: stash})
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", in.Reference, err)
	}
	return files, nil
}

// smallLevel is the gzip level of the overlays of an image that is pulled whole: 9 % less than the level of those that lie on a
// base.
const smallLevel = 7

// NeedsError lists what the image needs and the base doesn't have.
type NeedsError struct {
	Missing []string
}

func (e *NeedsError) Error() string { return strings.Join(e.Missing, "\n") }

// ownLayers refuses a base with layers that its registry doesn't hold: they can't be published with the image, and who
// wrote the manifest could send us anywhere for them.
func ownLayers(img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		if !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return fmt.Errorf("layer %s is foreign (%s, %d urls)", l.Digest, l.MediaType, len(l.URLs))
		}
	}
	return nil
}
