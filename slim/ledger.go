package slim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
)

// Account is the answer of an image's ledger about a path. The ledger is its publisher's claim, which Verify checks.
type Account struct {
	Platform string `json:"platform"`
	// Ledger is the digest of the ledger, Base the digest of the base's manifest.
	Ledger string `json:"ledger"`
	Base   string `json:"base"`
	// Rows starts with the row of the path. Each further row is the origin of the one before.
	Rows []ledger.Row `json:"rows"`
	// Below is set for a directory, by Explain only.
	Below *Below `json:"below,omitempty"`
}

// Steps describes the rows in words, and how much of a directory stays.
func (a Account) Steps() []string {
	steps := make([]string, 0, len(a.Rows)+1)
	for _, row := range a.Rows {
		steps = append(steps, row.String())
	}
	if b := a.Below; b != nil && b.Stay > 0 {
		count := fmt.Sprintf("%s: %s of the %s %s in it stay", a.Rows[0].Path, humanize.Comma(int64(b.Stay)), humanize.Comma(int64(b.All)),
			english.PluralWord(b.All, "file or link", "files and links"))
		steps = slices.Insert(steps, 1, count)
	}
	return steps
}

// Below counts the files and links below a directory of the base, and those that stay.
type Below struct {
	Stay int `json:"stay"`
	All  int `json:"all"`
}

// AskLedger returns the answers of the ledgers of an image's platforms about a path. It reads nothing else of the
// image. There is no Account for a platform without a ledger, with several different ones, or with one that doesn't
// have the path.
func AskLedger(ctx context.Context, o InspectOptions, path string) ([]Account, error) {
	a, err := o.Access.withDefaults()
	if err != nil {
		return nil, err
	}
	src, platforms, err := a.openPlatforms(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []Account
	for _, p := range platforms {
		img, err := src.Image(p)
		if err != nil {
			return nil, err
		}
		l := a.onlyLedger(ctx, src, img)
		if l == nil {
			continue
		}
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		var h ledger.Header
		var rows []ledger.Row
		book, err := readLedger(l)
		if err == nil {
			h, rows, err = ledger.Find(book(), path)
		}
		if err != nil {
			a.Log("%s, %s: no ledger is used: %v", o.Image, p, err)
			continue
		}
		if len(rows) > 0 {
			out = append(out, Account{Platform: p.String(), Ledger: digest.String(), Base: h.Base, Rows: rows})
		}
	}
	return out, nil
}

// Explain returns what becomes of a path or package of the base in the image of each recipe, by the ledger that a build
// writes. The profile must have keep.
func (r *Resolved) Explain(what string) ([]Account, error) {
	var out []Account
	for _, recipe := range r.Recipes {
		a, err := explain(recipe.Strip.Ledger, what)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", recipe.Platform, err)
		}
		a.Platform = recipe.Platform.String()
		out = append(out, a)
	}
	return out, nil
}

// explain looks a path or package of the base up in a ledger.
func explain(l v1.Layer, what string) (a Account, err error) {
	digest, err := l.Digest()
	if err != nil {
		return a, err
	}
	a.Ledger = digest.String()
	book, err := readLedger(l)
	if err != nil {
		return a, err
	}
	asked, guess := what, ""
	if image.Clean(what) == "/" { // no ledger has a row for it
		a.Rows = []ledger.Row{{Path: "/", Stays: ledger.Directory, Type: image.TypeDir}}
	}
	for i := 0; i < maxLinks && len(a.Rows) == 0; i++ {
		var h ledger.Header
		if h, a.Rows, err = ledger.Find(book(), what); err != nil {
			return a, err
		}
		if a.Base = h.Base; len(a.Rows) > 0 {
			break
		}
		var leads string
		if leads, guess, err = ledger.Near(book(), what); err != nil {
			return a, err
		}
		if leads == "" {
			break
		}
		what = leads
	}
	switch {
	case len(a.Rows) == 0 && guess != "":
		return a, fmt.Errorf("%w: %s is neither a path nor a package of the base; did you mean %s?", image.ErrNotFound, asked, guess)
	case len(a.Rows) == 0:
		return a, fmt.Errorf("%w: %s is neither a path nor a package of the base", image.ErrNotFound, asked)
	case a.Rows[0].Type == image.TypeDir:
		a.Below = &Below{}
		a.Below.Stay, a.Below.All, err = ledger.Below(book(), a.Rows[0].Path)
	}
	return a, err
}

// logIdleKeeps logs what the user's own profile keeps and the base doesn't have, such as a misspelt package. It ignores
// built-in profiles, which keep paths that only some bases have.
func (r *Resolved) logIdleKeeps(a Access) error {
	if r.Profile.Keep == nil {
		return nil
	}
	own := map[string][]string{"package": r.Profile.Keep.Packages, "path": r.Profile.Keep.Paths}
	for _, file := range r.Profile.Chain {
		if name, ok := strings.CutPrefix(file, "embedded:"); ok {
			builtin, err := LoadProfile(strings.TrimSuffix(name, ".yaml"), nil)
			if err != nil {
				return err
			}
			if builtin.Keep != nil {
				own["package"] = without(own["package"], builtin.Keep.Packages)
				own["path"] = without(own["path"], builtin.Keep.Paths)
			}
			break // it holds what it extends
		}
	}
	for _, recipe := range r.Recipes {
		idle := map[string][]string{"package": slices.Clone(own["package"]), "path": slices.Clone(own["path"])}
		book, err := readLedger(recipe.Strip.Ledger)
		if err != nil {
			return err
		}
		if _, err := ledger.Read(book(), func(row ledger.Row) bool {
			if row.Stays == ledger.Added {
				return true
			}
			kind, name := "path", row.Path
			if row.Path == "" {
				kind, name = "package", row.Package
			}
			idle[kind] = slices.DeleteFunc(idle[kind], func(glob string) bool { return doublestar.MatchUnvalidated(glob, name) })
			return len(idle["package"])+len(idle["path"]) > 0
		}); err != nil {
			return err
		}
		for _, kind := range []string{"package", "path"} {
			for _, glob := range idle[kind] {
				a.Log("keep.%ss: the base has no %s %s for %s", kind, kind, glob, recipe.Platform)
			}
		}
	}
	return nil
}

// without returns the words of list that other doesn't have.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// maxLinks limits the links on the way of a path (path_resolution(7)).
const maxLinks = 40

// onlyLedger returns the ledger of an image, or nil if there is none or more than one.
func (a Access) onlyLedger(ctx context.Context, src *image.Source, img v1.Image) v1.Layer {
	found, err := findLedgers(ctx, src, img)
	if err == nil && len(found) > 1 {
		err = fmt.Errorf("%d ledgers refer to it; run `slimctl verify` to find the false one", len(found))
	}
	for _, l := range found {
		if err == nil && l == nil {
			err = errNoLedger
		}
		if err == nil {
			return l
		}
	}
	if err != nil {
		a.Log("%s: no ledger is used: %v", src.Reference(), err)
	}
	return nil
}

var errNoLedger = fmt.Errorf("the artifact is not one layer of the type %s", ledger.MediaType)

// readLedger returns a function that reads the ledger in layer l from its beginning. It fails if the digest is wrong.
func readLedger(l v1.Layer) (book func() io.Reader, err error) {
	in, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(in) // at most ledger.MaxSize
	return func() io.Reader { return bytes.NewReader(data) }, err
}

// findLedgers returns the layers of an image's ledgers by digest. An artifact that isn't a ledger has a nil layer under
// its own digest. After an error the map may be incomplete.
func findLedgers(ctx context.Context, src *image.Source, img v1.Image) (map[v1.Hash]v1.Layer, error) {
	subject, err := img.Digest()
	if err != nil {
		return nil, err
	}
	artifacts, err := src.Referrers(ctx, subject, ledger.ArtifactType)
	out := map[v1.Hash]v1.Layer{}
	for _, a := range artifacts {
		l, lerr := image.OnlyLayer(a, ledger.MediaType, ledger.MaxSize)
		name := a.Digest
		if lerr == nil {
			name = l.Digest
		}
		h, herr := name()
		if herr != nil {
			return nil, herr
		}
		out[h] = l
	}
	return out, err
}

// ledgers returns the digests of the images' ledgers, by platform. unchecked lists those that can't be read.
func (f *found) ledgers(ctx context.Context) (out map[string][]string, unchecked []string) {
	out = map[string][]string{}
	for i, img := range f.manifests {
		platform := profilePlatform(f.platforms[i]).String()
		found, err := findLedgers(ctx, f.source, img)
		if err != nil {
			unchecked = append(unchecked, fmt.Sprintf("%s: the ledger: %v", platform, err))
		}
		for h := range found {
			out[platform] = append(out[platform], h.String())
		}
		slices.Sort(out[platform])
	}
	return out, unchecked
}
