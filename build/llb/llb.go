// Package llb renders a recipe as BuildKit LLB.
package llb

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize/english"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// Form is a way to express a recipe in LLB. All forms give the same merged tree.
type Form string

const (
	// Merge is Merge(base, Diff(stub, stub without the removed paths), overlays…): BuildKit never fetches a base layer.
	Merge Form = "merge"
	// Simple applies file operations to the base itself, like a Dockerfile: BuildKit pulls, unpacks and pushes the
	// whole base. Tests compare the other forms with it.
	Simple Form = "simple"
	// Overlay is Merge(base, overlay image). The layers come ready-made from an OCI layout, so the image has the
	// embedded engine's digest.
	Overlay Form = "overlay"
)

// LocalName is the name of the local directory, written by WriteContext, that the Merge and Simple forms read.
const LocalName = "slimctl"

// Options selects the form and the inputs of a definition.
type Options struct {
	Form Form
	// Base is the base's state; nil is the registry reference in the recipe.
	Base *llb.State
	// Overlay is the overlay image, for the form Overlay.
	Overlay llb.State
}

// Image returns the base from its registry, by digest, for the recipe's platform.
func Image(r *build.Recipe) llb.State {
	return llb.Image(image.Pin(r.Base.Reference, r.Base.Index), llb.Platform(Platform(r.Platform)), named(r, "base %s", r.Base.Reference))
}

// BaseStore is the name of the OCI layout that LocalBase reads from the client.
const BaseStore = "slimctl-base"

// LocalBase returns the base from an OCI layout on the client.
func LocalBase(r *build.Recipe) llb.State {
	return llb.OCILayout("slimctl/base@"+r.Base.Index.String(), llb.OCIStore("", BaseStore), llb.Platform(Platform(r.Platform)),
		named(r, "base %s", r.Base.Reference))
}

// Platform returns p as LLB's type.
func Platform(p v1.Platform) ocispec.Platform {
	return ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}

func named(r *build.Recipe, format string, args ...any) llb.ConstraintsOpt {
	return llb.WithCustomNamef("["+r.Platform.String()+"] "+format, args...)
}

// Marshal renders the recipe. One recipe always gives the same bytes. It fails if the form can't express a step.
func Marshal(ctx context.Context, r *build.Recipe, o Options) (*llb.Definition, error) {
	base := o.Base
	if base == nil {
		b := Image(r)
		base = &b
	}
	var state llb.State
	var err error
	switch stripped := r.Stripped() != nil; {
	case stripped && o.Form == Overlay:
		state = o.Overlay
	case stripped && (o.Form == Merge || o.Form == Simple || o.Form == ""):
		state, err = stripBase(r, *base, o.Form)
	case o.Form == Merge, o.Form == "":
		state = merge(r, *base)
	case o.Form == Simple:
		state = simple(r, *base)
	case o.Form == Overlay:
		state = llb.Merge([]llb.State{*base, o.Overlay}, named(r, "%s on %s", r.Profile, r.Base.Reference))
	default:
		return nil, fmt.Errorf("unknown llb form %q; there are %s, %s and %s", o.Form, Merge, Simple, Overlay)
	}
	if err != nil {
		return nil, err
	}
	_, config, err := r.Render()
	if err != nil {
		return nil, err
	}
	// By default the ID is random; with this one BuildKit may share the local directory's content between equal builds.
	content := llb.LocalUniqueID(digest.FromBytes(config).String())
	return state.Marshal(ctx, llb.Platform(Platform(r.Platform)), content)
}

func merge(r *build.Recipe, base llb.State) llb.State {
	inputs := []llb.State{base}
	if removals := r.Removals; len(removals) > 0 {
		stub := llb.Scratch().File(unpack(r, stubTar), named(r, "stub of what is removed, with the base's directories"))
		inputs = append(inputs, llb.Diff(stub, stub.File(removePaths(removals), named(r, "remove %s", english.Plural(len(removals), "path", ""))), named(r, "removals as whiteouts")))
	}
	for _, lay := range r.Overlays {
		inputs = append(inputs, llb.Scratch().File(unpack(r, layerTar(lay)), named(r, "%s", lay)))
	}
	return llb.Merge(inputs, named(r, "%s on %s", r.Profile, r.Base.Reference))
}

// stripBase copies what stays of the base into an empty tree, with the layers' file times, and adds the edited files
// and the overlays. The form Simple first removes the rest; Merge excludes it from the copy.
func stripBase(r *build.Recipe, base llb.State, form Form) (llb.State, error) {
	kept, err := r.Kept()
	if err != nil {
		return llb.State{}, err
	}
	info := &llb.CopyInfo{CopyDirContentsOnly: true}
	if t := r.Strip.Time; !t.IsZero() {
		info.CreatedTime = &t
	}
	if form == Simple {
		removals := make([]build.Remove, len(kept.Gone))
		for i, p := range kept.Gone {
			removals[i] = build.Remove{Path: p}
		}
		base = base.File(removePaths(removals), named(r, "remove %s", english.Plural(len(removals), "path", "")))
	} else {
		for _, p := range kept.Gone {
			if !utf8.ValidString(p) {
				return llb.State{}, fmt.Errorf("llb form %s can't leave out %q, which isn't UTF-8: use slimctl build", form, p)
			}
			info.ExcludePatterns = append(info.ExcludePatterns, literalPattern(p))
		}
	}
	inputs := []llb.State{llb.Scratch().File(llb.Copy(base, "/", "/", info), named(r, "what stays of the base, without %s", english.Plural(len(kept.Gone), "path", "")))}
	if len(kept.Edited) > 0 {
		inputs = append(inputs, llb.Scratch().File(unpack(r, editedTar), named(r, "%d files edited", len(kept.Edited))))
	}
	for _, lay := range r.Overlays {
		inputs = append(inputs, llb.Scratch().File(unpack(r, layerTar(lay)), named(r, "%s", lay)))
	}
	return llb.Merge(inputs, named(r, "%s of %s", r.Profile, r.Base.Reference)), nil
}

// literalPattern returns the pattern (moby/patternmatcher) that matches only the path p.
func literalPattern(p string) string {
	var out strings.Builder
	for i, c := range strings.TrimPrefix(p, "/") {
		switch {
		case unicode.IsSpace(c): // patternmatcher trims spaces at the ends
			out.WriteString("[" + string(c) + "]")
			continue
		case strings.ContainsRune(`*?[]\`, c), c == '!' && i == 0:
			out.WriteByte('\\')
		}
		out.WriteRune(c)
	}
	return out.String()
}

func simple(r *build.Recipe, base llb.State) llb.State {
	if removals := r.Removals; len(removals) > 0 {
		base = base.File(removePaths(removals), named(r, "remove %s", english.Plural(len(removals), "path", "")))
	}
	for _, lay := range r.Overlays {
		base = base.File(unpack(r, layerTar(lay)), named(r, "%s", lay))
	}
	return base
}

// removePaths removes the paths that the recipe removes. AllowNotFound is needed for dangling symlinks, because
// BuildKit follows them to check for existence (solver/llbsolver/file/backend.go, rmPath).
func removePaths(removals []build.Remove) *llb.FileAction {
	var a *llb.FileAction
	for _, s := range removals {
		if a == nil {
			a = llb.Rm(s.Path, llb.WithAllowNotFound(true))
		} else {
			a = a.Rm(s.Path, llb.WithAllowNotFound(true))
		}
	}
	return a
}

// unpack copies a tree out of the context. It lies there as a tar archive, which preserves owners, the sticky bit and
// xattrs on any file system.
func unpack(r *build.Recipe, name string) *llb.FileAction {
	dir := platformDir(r.Platform)
	local := llb.Local(LocalName, llb.IncludePatterns([]string{dir}), llb.SharedKeyHint(LocalName+"-"+dir), named(r, "context"))
	return llb.Copy(local, path.Join("/", dir, name), "/", &llb.CopyInfo{AttemptUnpack: true})
}

const (
	stubTar   = "stub.tar"
	editedTar = "edited.tar"
)

// layerTar returns the name of the archive of an overlay with its parent directories.
func layerTar(l build.Lay) string { return l.Name + ".layer.tar" }

func platformDir(p v1.Platform) string { return strings.ReplaceAll(p.String(), "/", "-") }

// WriteContext writes to dir the local directory that the definitions of all recipes read. Beside it, for each
// platform, are the image config (config.json) and the attributes for buildctl's --output, without a type (output).
// annotations go to the manifests. dir must be empty or not exist; it appears atomically.
func WriteContext(dir string, recipes []*build.Recipe, annotations map[string]string) error {
	return image.WriteDir(dir, func(tmp string) error {
		for _, r := range recipes {
			if err := writeOutput(filepath.Join(tmp, platformDir(r.Platform), "output"), r, annotations); err != nil {
				return fmt.Errorf("%s: %w", r.Platform, err)
			}
			if err := writeContext(filepath.Join(tmp, platformDir(r.Platform)), r); err != nil {
				return fmt.Errorf("%s: %w", r.Platform, err)
			}
		}
		return nil
	})
}

// writeOutput writes the attributes for BuildKit's exporters, quoted as buildctl's --output expects (encoding/csv): the
// image config, which has no place in a definition, the base's config, which lets the exporter tell the base's layers
// from ours, the time and the annotations.
func writeOutput(file string, r *build.Recipe, annotations map[string]string) error {
	_, config, err := r.Render()
	if err != nil {
		return err
	}
	base, err := r.Base.Image.RawConfigFile()
	if err != nil {
		return err
	}
	record := []string{
		exptypes.ExporterImageConfigKey + "=" + string(config),
		"source-date-epoch=" + strconv.FormatInt(r.Epoch.Unix(), 10), "rewrite-timestamp=true", "oci-mediatypes=true",
	}
	if r.Stripped() == nil {
		record = append(record, exptypes.ExporterImageBaseConfigKey+"="+string(base))
	}
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		record = append(record, "annotation."+k+"="+annotations[k])
	}
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		out := csv.NewWriter(w)
		return errors.Join(out.Write(record), flush(out))
	})
}

func flush(w *csv.Writer) error {
	w.Flush()
	return w.Error()
}

func writeContext(dir string, r *build.Recipe) error {
	_, config, err := r.Render()
	if err != nil {
		return err
	}
	if err := image.WriteBytes(filepath.Join(dir, "config.json"), 0o644, config); err != nil {
		return err
	}
	if r.Stripped() != nil {
		kept, err := r.Kept()
		if err != nil {
			return err
		}
		if len(kept.Edited) > 0 {
			if err := writeTar(filepath.Join(dir, editedTar), kept.Edited); err != nil {
				return err
			}
		}
	}
	for _, l := range r.Layers() {
		name, files := l.Name+".layer.tar", l.Files
		if l.Name == build.RemoveLayer {
			name, files = stubTar, stub(r, l)
		}
		if err := writeTar(filepath.Join(dir, name), files); err != nil {
			return err
		}
	}
	return nil
}

// stub returns the smallest tree from which the recipe's paths can be removed.
func stub(r *build.Recipe, removals build.Layer) []image.File {
	var files []image.File
	for _, f := range removals.Files {
		if removals.Parents[f.Path] {
			files = append(files, f)
		}
	}
	for _, s := range r.Removals {
		f := image.Bytes(s.Path, 0o644, nil)
		f.ModTime = r.Epoch
		files = append(files, f)
	}
	return files
}

func writeTar(file string, files []image.File) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return image.WriteFile(file, 0o644, func(w io.Writer) error { return image.WriteTar(w, files) })
}
