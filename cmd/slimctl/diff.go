package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/version"
)

// Exit codes of diff --exit-code, as diff(1) has them.
const (
	exitDifferent = 1
	exitTrouble   = 2
)

type diffFlags struct {
	openOptions
	report           reportFlags
	text, profile    string
	options          diff.Options
	noText, exitCode bool
}

func (a *app) diff() *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:   "diff BASE SLIM [-- PATH...]",
		Short: "Compare two images: files, config, surface, sizes",
		Long: `Diff compares two images platform by platform: the files of the merged trees, the config, the
surface (what inspect prints) and the sizes. For their forms see slimctl help
images. Nothing is unpacked; a layer that both have is the same and is not
compared, and any other layer is read once and remembered by its digest.

Paths name files and directories with all that is below, and may be globs with * ? [a-z] {a,b}
and **; a path that matches nothing in either image is an error.

Marks of files:
  +  only in SLIM      -  only in BASE
  M  other content or link target      T  another type
  U  only other mode, owner, extended attributes (--times: modification time)

Exit status with --exit-code, as of diff(1): 0 when the images are the same, 1 when they differ
or one lacks a platform, 2 when there is trouble. With paths only their files count. How files
are cut into layers does not count, nor do names, digests and times.`,
		Example: `  slimctl diff standin:B oci:out
  slimctl diff --profile l0 --format html -o diff.html standin:B oci:out
  slimctl diff --exit-code oci:one oci:other -- /opt/gem '**/*.conf'
  slimctl diff --format json standin:B oci:out | jq '.platforms[].surface'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				f.options.Paths, args = args[dash:], args[:dash]
			}
			if len(args) != 2 {
				return usage(fmt.Errorf("%s takes two arguments, the base and the slim image, and got %d; paths come after --", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			different, err := a.diffImages(cmd.Context(), args[0], args[1], f)
			switch {
			case !f.exitCode || cmd.Context().Err() != nil:
				return err
			case err != nil:
				reportError(a.stderr, err)
				return statusError{code: exitTrouble}
			case different:
				return statusError{code: exitDifferent}
			}
			return nil
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Lookup("platform").Usage = "platforms, as os/arch (default: all that both images have)"
	f.report.add(cmd)
	flags.BoolVar(&f.report.options.All, "all", false, "fold nothing of the text: every name, and every file")
	flags.IntVar(&f.report.options.Depth, "depth", 0, "levels of the file tree in the text; 0 for what fits on a screen")
	flags.BoolVar(&f.options.Layers, "layers", false, "list the changes of each layer that is not in both, too")
	flags.StringVar(&f.text, "text", "64k", "show changed lines of files up to `SIZE`, in bytes or with k or m")
	flags.StringVar(&f.profile, "profile", "", "verify SLIM by this profile; html and markdown have the verdict")
	flags.BoolVar(&f.noText, "no-text", false, "show no changed lines, as --text 0")
	flags.BoolVar(&f.options.Times, "times", false, "have modification times count")
	flags.BoolVar(&f.exitCode, "exit-code", false, "exit with 1 when the images differ, 2 when there is trouble")
	return cmd
}

// parse reads what the flags have as text.
func (f *diffFlags) parse() (err error) {
	if f.profile != "" && f.report.format != report.HTML && f.report.format != report.Markdown {
		return fmt.Errorf("--profile %s: --format %s has no verdict; pass --format html or markdown", f.profile, f.report.format)
	}
	f.report.options.Layers, f.report.options.Lines = f.options.Layers, len(f.options.Paths) > 0
	if f.report.options.Depth < 0 {
		return fmt.Errorf("--depth %d: want 0 or more", f.report.options.Depth)
	}
	if f.options.Text, err = parseBytes(f.text); err != nil {
		return fmt.Errorf("--text %q: %w", f.text, err)
	}
	if f.options.Text > diff.MaxText {
		return fmt.Errorf("--text %s: want at most %dk", f.text, diff.MaxText>>10)
	}
	if f.noText {
		f.options.Text = 0
	}
	return diff.CheckPaths(f.options.Paths)
}

// diffImages writes what differs, and reports whether anything does.
func (a *app) diffImages(ctx context.Context, base, slim string, f *diffFlags) (different bool, err error) {
	if err := f.parse(); err != nil {
		return false, usage(err)
	}
	if err := f.report.parse(a.console); err != nil {
		return false, err
	}
	diffs, err := a.diffs(ctx, base, slim, f)
	if err != nil {
		return false, err
	}
	if err := checkMatched(diffs); err != nil {
		return false, err
	}
	f.report.options.Version = version.Read("").String()
	if f.profile != "" {
		if err := a.addVerdict(ctx, base, slim, f); err != nil {
			return false, err
		}
	}
	err = a.writeReport(f.report.file, func(w io.Writer) error { return report.Diffs(w, f.report.format, diffs, f.report.options) })
	return slices.ContainsFunc(diffs, func(d *diff.Diff) bool { return !d.Same }), err
}

// addVerdict has the report say what verify says of the slim image, and what the profile says of each path.
func (a *app) addVerdict(ctx context.Context, base, slim string, f *diffFlags) error {
	p, err := load(f.profile, nil)
	if err != nil {
		return err
	}
	v := &verifyFlags{openOptions: f.openOptions, profile: f.profile, base: base}
	v.whole = true
	_, _, got, err := a.checkImage(ctx, slim, v)
	if err != nil {
		return err
	}
	words := []string{plural(len(got.Rules), "rule"), plural(count(got, verify.Error), "error"), plural(count(got, verify.Warning), "warning")}
	verdict := &report.Verdict{Profile: p.Name, Passed: got.Passed, Words: strings.Join(words, ", ")}
	for _, finding := range got.Findings {
		verdict.Findings = append(verdict.Findings, finding.Rule+": "+finding.Message)
	}
	f.report.options.Verdict = verdict
	f.report.options.Why = func(path, kind string) string {
		for _, l := range linesAbout(p, path) {
			if (l.Does == "removes" || l.Does == "strips") == (kind == diff.Removed) {
				return fmt.Sprintf("%s %s %s: %s", l.Source, l.Does, l.What, l.Why)
			}
		}
		return ""
	}
	return nil
}

// checkMatched refuses a path that matches nothing on any platform: it is most likely a mistake, and nothing would differ.
func checkMatched(diffs []*diff.Diff) error {
	compared := slices.DeleteFunc(slices.Clone(diffs), func(d *diff.Diff) bool { return d.Missing != "" })
	for _, p := range compared[0].Unmatched {
		if !slices.ContainsFunc(compared, func(d *diff.Diff) bool { return !slices.Contains(d.Unmatched, p) }) {
			return fmt.Errorf("%s matches nothing in %s, nor in %s", p, compared[0].Base.Reference, compared[0].Slim.Reference)
		}
	}
	return nil
}

// diffs compares platform by platform, so that no more than two images are open at a time.
func (a *app) diffs(ctx context.Context, base, slim string, f *diffFlags) (out []*diff.Diff, err error) {
	bars, err := a.showProgress(f.progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bars.Close()) }()
	registry, err := a.registryOptions(f.registry, bars)
	if err != nil {
		return nil, err
	}
	references, sources := [2]string{base, slim}, [2]*image.Source{}
	var g errgroup.Group // no context of its own: the sources are read later
	for i, reference := range references {
		g.Go(func() (err error) {
			sources[i], err = a.open(ctx, reference, nil, registry)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	platforms, err := platformPairs(sources[0], sources[1], f.platforms)
	if err != nil {
		return nil, err
	}
	for _, p := range platforms {
		if p.missing != "" {
			bars.Printf("%s isn't compared: %s lacks it", p, map[string]string{diff.InBase: base, diff.InSlim: slim}[p.missing])
			out = append(out, &diff.Diff{
				Platform: p.String(), Missing: p.missing, Layers: []diff.Layer{}, Files: []diff.Change{},
				Base: diff.Side{Reference: base}, Slim: diff.Side{Reference: slim},
			})
			continue
		}
		images, err := a.readPair(ctx, references, sources, p, bars)
		if err != nil {
			return nil, err
		}
		d, err := diff.Of(ctx, images[0], images[1], f.options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// readPair reads one platform of both images: the files one after the other, so that a layer that both have and the cache
// hasn't is read once.
func (a *app) readPair(ctx context.Context, references [2]string, sources [2]*image.Source, p platformPair, bars image.Progress) (out [2]*inspect.Image, err error) {
	g, gctx := errgroup.WithContext(ctx)
	var before *tree.Image
	for i, src := range sources {
		img, err := src.Image(p.of[i])
		if err != nil {
			return out, errors.Join(err, g.Wait())
		}
		files, err := tree.Cache{Dir: a.cacheDir}.Open(ctx, img, tree.Options{Progress: bars, Open: before})
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
	of      [2]v1.Platform // as the base and the slim image name it
	missing string         // diff.InBase or diff.InSlim: the one that lacks it
}

// platformPairs pairs the platforms of two images: those that are wanted, or else all. An image that doesn't say its
// platform, as an archive may, is taken to be of the other one's.
func platformPairs(base, slim *image.Source, wanted []string) ([]platformPair, error) {
	olds, news := base.Platforms(), slim.Platforms()
	var out []platformPair
	if len(wanted) > 0 {
		chosen, err := choosePlatforms(wanted)
		if err != nil {
			return nil, err
		}
		for i, p := range chosen {
			if slices.ContainsFunc(chosen[:i], samePlatform(p)) {
				continue
			}
			out = append(out, platformPair{Platform: p, of: [2]v1.Platform{orUnnamed(olds, p), orUnnamed(news, p)}})
		}
		return out, nil
	}
	if unnamed(olds) && len(news) == 1 {
		return []platformPair{{Platform: news[0], of: [2]v1.Platform{olds[0], news[0]}}}, nil
	}
	if unnamed(news) && len(olds) == 1 {
		return []platformPair{{Platform: olds[0], of: [2]v1.Platform{olds[0], news[0]}}}, nil
	}
	if unnamed(olds) || unnamed(news) {
		return nil, usage(errors.New("one of the images doesn't say its platform: --platform says which one of the other is to be compared with it"))
	}
	common := false
	for _, p := range olds {
		pair := platformPair{Platform: p, of: [2]v1.Platform{p, p}}
		if !slices.ContainsFunc(news, samePlatform(p)) {
			pair.missing = diff.InSlim
		}
		common = common || pair.missing == ""
		out = append(out, pair)
	}
	for _, p := range news {
		if !slices.ContainsFunc(olds, samePlatform(p)) {
			out = append(out, platformPair{Platform: p, missing: diff.InBase})
		}
	}
	if !common {
		return nil, &image.PlatformError{Ref: slim.Reference(), Want: olds[0], Have: news}
	}
	return out, nil
}

// unnamed reports whether ps are the one image that doesn't say its platform.
func unnamed(ps []v1.Platform) bool {
	return len(ps) == 1 && (ps[0].OS == "" || ps[0].Architecture == "")
}

func orUnnamed(ps []v1.Platform, p v1.Platform) v1.Platform {
	if unnamed(ps) {
		return ps[0]
	}
	return p
}

// samePlatform compares as image.Source.Image does: "arm64" is "arm64/v8".
func samePlatform(p v1.Platform) func(v1.Platform) bool {
	usual := map[string]string{"amd64": "v1", "arm": "v7", "arm64": "v8"}
	normal := func(p v1.Platform) v1.Platform {
		if p.Variant == "" {
			p.Variant = usual[p.Architecture]
		}
		return v1.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, OSVersion: p.OSVersion}
	}
	return func(o v1.Platform) bool { return normal(o).Equals(normal(p)) }
}
