package resolve

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/keep"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/version"
)

// keptTime is the time of all files that stay of a base. A rebuilt base with the same files therefore gives the same
// layers. The value is the first DOS time, which every archive format can express.
var keptTime = time.Unix(315532800, 0).UTC()

// stripBase returns the step that replaces the base's layers. The layers and their ledger come from the lock, from the
// cache, or are made. files is the base img, opened; nil with a lock.
func (w *work) stripBase(ctx context.Context, img v1.Image, files *tree.Image, locked *lock.Platform) (step build.Strip, err error) {
	spec, err := w.keepSpec()
	if err != nil {
		return step, err
	}
	make := func() (layers []strip.Layer, err error) {
		if files == nil {
			if files, err = w.in.openBase(ctx, img); err != nil {
				return nil, err
			}
		}
		set, err := w.resolveKeep(ctx, files, spec)
		if err != nil {
			return nil, err
		}
		in := w.stripInput(files, img, set)
		if layers, err = strip.Layers(ctx, in); err != nil {
			return nil, err
		}
		book, err := w.writeLedger(files, set, in.Component, layers)
		return append(layers, book), err
	}
	var layers []strip.Layer // the last is the ledger
	if w.in.Lock == nil {
		if layers, locked.Layers, err = strip.Remembered(w.in.Cache.Dir, w.stripKey(spec), make); err != nil {
			return step, err
		}
		last := len(layers) - 1
		locked.Layers, locked.Ledger = locked.Layers[:last:last], &locked.Layers[last]
	} else {
		step.Locked = true
		if locked.Ledger == nil {
			return step, errors.New("the lock has no ledger of the layers: an older slimctl wrote it; run `slimctl lock` again")
		}
		if layers, err = strip.Pinned(w.in.Cache.Dir, append(slices.Clone(locked.Layers), *locked.Ledger), make); err != nil {
			return step, err
		}
	}
	last := len(layers) - 1
	step.Removals, step.Ledger, step.Time = w.listRemovals(), layers[last].Layer, keptTime
	for _, l := range layers[:last] {
		step.Layers = append(step.Layers, build.Component{Layer: l.Layer, Name: l.Component, Files: l.Files, Unpacked: l.Unpacked})
	}
	return step, nil
}

// stripKey returns a digest of everything that the layers and their ledger depend on.
func (w *work) stripKey(spec profile.Keep) string {
	p, key := w.in.Profile, sha256.New()
	fmt.Fprintf(key, "%q %q %q %q %q %q\n", version.Program(), p.Name, w.platform, w.line, w.recipe.Base.Manifest, w.imagePath)
	_ = json.NewEncoder(key).Encode(spec) // writing to a hash never fails
	for _, path := range slices.Sorted(maps.Keys(w.removed)) {
		fmt.Fprintf(key, "%q %q\n", path, w.removed[path].Why)
	}
	for _, path := range slices.Sorted(maps.Keys(w.laid)) {
		fmt.Fprintf(key, "%q %q %t\n", path, w.laid[path].overlay, w.laid[path].dir)
	}
	return fmt.Sprintf("%x", key.Sum(nil))
}

// keepSpec returns the keep rules with the roots that this base and platform have. It always asks the same questions of
// the base, so that a lock has all answers.
func (w *work) keepSpec() (profile.Keep, error) {
	spec := *w.in.Profile.Keep
	spec.Roots = nil
	roots := slices.Clone(w.met)
	for _, p := range slices.Sorted(maps.Keys(w.laid)) { // nothing that is laid leads to what goes
		if l := w.laid[p]; l.link != "" {
			roots = append(roots, profile.Root{Path: p, Why: "overlay " + l.overlay + " links to it"})
		}
	}
	for _, r := range roots {
		var err error
		for i, followed := 0, true; followed && err == nil && i < 40; i++ { // Linux's limit (path_resolution(7))
			r.Path, followed, err = w.followLaid(r.Path)
		}
		if err != nil {
			return spec, err
		}
		real, err := w.resolveParents(r.Path)
		if err != nil {
			return spec, err
		}
		e, ok := w.base.Lookup(real)
		_, laid := w.laid[real]
		_, owned := w.owned[real]
		switch {
		case laid || owned || !ok || w.isRemoved(real):
		case e.IsDir():
			spec.Paths = append(slices.Clone(spec.Paths), globEscape.Replace(real))
		default:
			spec.Roots = append(spec.Roots, r)
		}
	}
	for _, r := range w.in.Profile.Keep.Roots {
		ok, err := w.holds(r.When)
		if err != nil {
			return spec, err
		}
		if ok {
			spec.Roots = append(spec.Roots, r)
		}
	}
	return spec, w.base.Err
}

// resolveKeep returns the files of the base that stay.
func (w *work) resolveKeep(ctx context.Context, files *tree.Image, spec profile.Keep) (*keep.Set, error) {
	set, err := keep.Resolve(ctx, files, spec, strings.Join(searched, ":"), w.imagePath)
	if broken := new(keep.BrokenError); errors.As(err, &broken) {
		err = &NeedsError{Missing: broken.Findings}
	}
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", w.in.Profile.Name, err)
	}
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(set.Paths)) {
		r := set.Paths[p]
		needed := r.Rule != keep.ByPackage && r.Rule != keep.ByPath && r.Rule != keep.ByCompiled
		if _, laid := w.laid[p]; needed && !laid && w.isRemoved(p) {
			errs = append(errs, fmt.Errorf("the profile removes %s, but the image needs it: %s", p, set.Explain(p)[0]))
		}
	}
	return set, errors.Join(errs...)
}

func (w *work) stripInput(files *tree.Image, img v1.Image, set *keep.Set) strip.Input {
	in := strip.Input{
		Base: files, Image: img, CacheDir: w.in.Cache.Dir, Progress: w.in.Progress, Edits: map[string]strip.Edit{},
		Time: keptTime,
	}
	for _, c := range w.in.Profile.Keep.Components {
		in.Order = append(in.Order, c.Name)
	}
	has := func(p string) bool {
		_, laid := w.laid[p]
		return laid || set.Has(p) && !w.isRemoved(p)
	}
	key := sha256.New()
	fmt.Fprintln(key, set.Digest())
	for e := range files.Walk("/") {
		if has(e.Path) != set.Has(e.Path) {
			fmt.Fprintf(key, "%q\n", e.Path)
		}
	}
	for p, change := range set.Edits(files, has) {
		in.Edits[p] = strip.Edit{Key: fmt.Sprintf("%x", key.Sum(nil)), Change: change}
	}
	in.Component = func(p string) string {
		if laid, ok := w.laid[p]; !set.Has(p) || w.isRemoved(p) || ok && !laid.dir {
			return ""
		}
		e, _ := files.Lookup(p)
		return w.component(e, set.Owner(p))
	}
	return in
}

// component returns the name of the layer that e goes to: the first component that names its path, else the first that
// names its package, else the one that names nothing.
func (w *work) component(e tree.Entry, owner string) string {
	p, all := e.Path, w.in.Profile.Keep.Components
	for _, c := range all {
		if matchesAny(c.Paths, p) {
			return c.Name
		}
	}
	for _, c := range all {
		if owner != "" && matchesAny(c.Packages, owner) {
			return c.Name
		}
	}
	for _, c := range all {
		if len(c.Paths)+len(c.Packages) == 0 {
			return c.Name
		}
	}
	return ""
}
