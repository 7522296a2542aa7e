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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// Form is one way to say a recipe in LLB. All of them give the same merged tree.
type Form string

const (
	// Merge is Merge(base, Diff(stub, stub without the removed paths), overlays…): BuildKit never fetches a base layer.
	Merge Form = "merge"
	// Simple does file operations on the base itself, as a Dockerfile does: BuildKit pulls, unpacks and pushes all of
	// it. It's the oracle that the other forms are tested against.
	Simple Form = "simple"
	// Overlay is Merge(base, overlay image): the layers come ready-made from an OCI layout, so that the image's digest
	// is that of the embedded engine.
	Overlay Form = "overlay"
)

// LocalName is the name of the local directory that the Merge and Simple forms read: WriteContext makes it.
const LocalName = "slimctl"

// Options says how to render.
type Options struct {
	Form Form
	// Base is where BuildKit gets the base; nil takes the registry reference that the recipe names.
	Base *llb.State
	// Overlay is the overlay image of the Overlay form.
	Overlay llb.State
}

// Image is the base as a registry gives it: by digest, for one platform.
func Image(r *build.Recipe) llb.State {
	return llb.Image(image.Pin(r.Base.Reference, r.Base.Index), llb.Platform(Platform(r.Platform)), named(r, "base %s", r.Base.Reference))
}

// BaseStore is the name of the OCI layout that LocalBase reads from the client.
const BaseStore = "slimctl-base"

// LocalBase is the base as an OCI layout on the client gives it.
func LocalBase(r *build.Recipe) llb.State {
	return llb.OCILayout("slimctl/base@"+r.Base.Index.String(), llb.OCIStore("", BaseStore), llb.Platform(Platform(r.Platform)),
		named(r, "base %s", r.Base.Reference))
}

// Platform is p as LLB writes it.
func Platform(p v1.Platform) ocispec.Platform {
	return ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}

func named(r *build.Recipe, format string, args ...any) llb.ConstraintsOpt {
	return llb.WithCustomNamef("["+r.Platform.String()+"] "+format, args...)
}

// Marshal renders the recipe: one recipe gives one definition, byte for byte. It fails on a step that the form can't
// express.
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
	// BuildKit may share what it has of the local directory between builds with one such ID, which is random by default.
	content := llb.LocalUniqueID(digest.FromBytes(config).String())
	return state.Marshal(ctx, llb.Platform(Platform(r.Platform)), content)
}

func merge(r *build.Recipe, base llb.State) llb.State {
	inputs := []llb.State{base}
	if removals := r.Removals; len(removals) > 0 {
		stub := llb.Scratch().File(unpack(r, stubTar), named(r, "stub of what is removed, with the base's directories"))
		inputs = append(inputs, llb.Diff(stub, stub.File(rm(removals), named(r, "remove %d paths", len(removals))), named(r, "removals as whiteouts")))
	}
	for _, lay := range r.Overlays {
		inputs = append(inputs, llb.Scratch().File(unpack(r, layerTar(lay)), named(r, "%s", lay)))
	}
	return llb.Merge(inputs, named(r, "%s on %s", r.Profile, r.Base.Reference))
}

// stripBase copies what stays of the base into an empty tree, with the times that the layers of a build have, and lays the files
// that are edited and the overlays on it. The form Simple removes what goes before, and Merge leaves it out of the copy.
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
		base = base.File(rm(removals), named(r, "remove %d paths", len(removals)))
	} else {
		for _, p := range kept.Gone {
			if !utf8.ValidString(p) {
				return llb.State{}, fmt.Errorf("llb form %s can't leave out %q, which isn't UTF-8: use slimctl build", form, p)
			}
			info.ExcludePatterns = append(info.ExcludePatterns, literal(p))
		}
	}
	inputs := []llb.State{llb.Scratch().File(llb.Copy(base, "/", "/", info), named(r, "what stays of the base, without %d paths", len(kept.Gone)))}
	if len(kept.Edited) > 0 {
		inputs = append(inputs, llb.Scratch().File(unpack(r, editedTar), named(r, "%d files edited", len(kept.Edited))))
	}
	for _, lay := range r.Overlays {
		inputs = append(inputs, llb.Scratch().File(unpack(r, layerTar(lay)), named(r, "%s", lay)))
	}
	return llb.Merge(inputs, named(r, "%s of %s", r.Profile, r.Base.Reference)), nil
}

// literal is the pattern (moby/patternmatcher) that matches nothing but a path.
func literal(p string) string {
	var out strings.Builder
	for i, c := range strings.TrimPrefix(p, "/") {
		switch {
		case unicode.IsSpace(c): // at the ends it would be cut off
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
		base = base.File(rm(removals), named(r, "remove %d paths", len(removals)))
	}
	for _, lay := range r.Overlays {
		base = base.File(unpack(r, layerTar(lay)), named(r, "%s", lay))
	}
	return base
}

// rm removes what the recipe knows to be there. BuildKit looks through a symlink for that, and would call a dangling one
// missing (solver/llbsolver/file/backend.go, rmPath): hence AllowNotFound.
func rm(removals []build.Remove) *llb.FileAction {
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

// unpack takes a tree out of the context as a tar, since that is how owners, the sticky bit and xattrs get through
// whatever file system the context lies on.
func unpack(r *build.Recipe, name string) *llb.FileAction {
	dir := platformDir(r.Platform)
	local := llb.Local(LocalName, llb.IncludePatterns([]string{dir}), llb.SharedKeyHint(LocalName+"-"+dir), named(r, "context"))
	return llb.Copy(local, path.Join("/", dir, name), "/", &llb.CopyInfo{AttemptUnpack: true})
}

const (
	stubTar   = "stub.tar"
	editedTar = "edited.tar"
)

// layerTar holds an overlay with its parent directories.
func layerTar(l build.Lay) string { return l.Name + ".layer.tar" }

func platformDir(p v1.Platform) string { return strings.ReplaceAll(p.String(), "/", "-") }

// WriteContext writes, into dir, the local directory that a definition reads, for every recipe, each platform's image config as
// config.json, and as output what buildctl's --output needs besides a type. annotations are the manifest's. dir must not
// exist or be empty; it appears whole or not at all.
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

// writeOutput writes attributes of BuildKit's exporters, quoted as buildctl's --output wants them (encoding/csv): the image
// config, which a definition has no place for, the base's, by which the exporter tells the base's layers from ours, the time
// and the annotations.
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
	if r.Cache.Zstd {
		record = append(record, "compression=zstd")
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

// stub is the smallest tree that the removed paths can be removed from.
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
