package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/acceptance"
	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/server/policy"
)

// gateError tells that an image doesn't hold what its profile promises.
type gateError struct{ words string }

func (e *gateError) Error() string { return e.words }

// unprovenError tells that nothing was found in an image that nobody compared with its base.
type unprovenError struct{ words string }

func (e *unprovenError) Error() string { return e.words }

type verifyFlags struct {
	openOptions
	profile, base, lock    string
	payload                string
	set, annotations       []string
	format, file, severity string
	rules, run             bool
	runtime, artifacts     string
}

var verifyFormats = []string{verify.Text, verify.JSON, verify.JUnit, verify.SARIF}

func (a *app) verify() *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Check an image against a profile",
		Long: `Verify compares an image, on every platform that it has, with what the profile expects. Each
difference is a finding: the rule, the evidence and what to do. What the profile doesn't name is
a finding, and so is what verify can't understand. --platform names platforms that the image
must have. Verify with the slimctl version that built: the files that a build lays must be the
same to the byte. For the forms of IMAGE see slimctl help images.

Every layer on this machine is read again, also one that the cache knows. With --base or --lock
the lowest layers must be the base's, and above them only what the profile lays and removes.

With --run the image is also booted, with Docker or runc, and its tool opens a page that slimctl
serves.

The exit status is 3 when there is a finding of severity error, and 4 when there is none and
neither --base nor --lock says what the base is: its layers were taken as they are, then.`,
		Example: `  slimctl verify --lock slim.lock oci:out
  slimctl verify --base ghcr.io/agent-infra/sandbox:latest \
    --format sarif -o slim.sarif oci:out
  slimctl verify --lock slim.lock --run --artifacts artifacts \
    --platform linux/amd64 oci:out
  slimctl verify --rules`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.rules {
				return noArgs(cmd, args)
			}
			return oneArg("the image")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return usage(err)
			}
			if f.rules {
				return a.writeReport(f.file, func(w io.Writer) error { return verify.WriteRules(w, f.format) })
			}
			return a.runVerify(cmd.Context(), args[0], f)
		},
	}
	f.add(cmd)
	f.whole = true
	flags := cmd.Flags()
	flags.StringVar(&f.profile, "profile", "l0", "profile: a built-in name, or a file")
	flags.StringVar(&f.base, "base", "", "the base that the image has to be made from, as build's --base")
	flags.StringVar(&f.lock, "lock", "", "lock `FILE` that pins the base")
	addSetFlags(flags, &f.set)
	flags.StringArrayVar(&f.annotations, "annotation", nil, "accept an annotation that build's --annotation set (repeatable)")
	flags.StringVar(&f.payload, "payload", "", "`DIR` that slimctl payload fetch wrote (default: fetched by npm)")
	flags.StringVar(&f.format, "format", verify.Text, "text, json, junit or sarif")
	flags.StringVarP(&f.file, "output", "o", "", "write the report to this `FILE` instead of standard output")
	flags.StringVar(&f.severity, "severity", verify.Error, "fail at findings of at least this severity: error or warning")
	flags.BoolVar(&f.rules, "rules", false, "print every rule, with why and fix, and look at no image")
	flags.BoolVar(&f.run, "run", false, "boot the image, too; takes this machine's platform")
	flags.StringVar(&f.runtime, "runtime", sandbox.Auto, "with --run: docker, runc or auto")
	flags.StringVar(&f.artifacts, "artifacts", "", "with --run: `DIR` for the containers' evidence and logs")
	return cmd
}

func (f *verifyFlags) check() error {
	switch {
	case !slices.Contains(verifyFormats, f.format):
		return fmt.Errorf("--format %q: want one of %v", f.format, verifyFormats)
	case f.rules && f.format != verify.Text && f.format != verify.JSON:
		return fmt.Errorf("--rules are printed as text or json, not %s", f.format)
	case f.severity != verify.Error && f.severity != verify.Warning:
		return fmt.Errorf("--severity %q: want error or warning", f.severity)
	case !slices.Contains([]string{sandbox.Auto, sandbox.Docker, sandbox.Runc}, f.runtime):
		return fmt.Errorf("--runtime %q: want docker, runc or auto", f.runtime)
	case f.artifacts != "" && !f.run:
		return errors.New("--artifacts is for what --run leaves")
	}
	return nil
}

func (a *app) runVerify(ctx context.Context, reference string, f *verifyFlags) error {
	img, want, report, err := a.checkImage(ctx, reference, f)
	if err != nil {
		return err
	}
	if f.run {
		if err := a.accept(ctx, f, img, want, report); err != nil {
			return err
		}
	}
	return a.gate(f, report)
}

// checkImage checks an image by the static rules, and returns it with what was expected of each platform.
func (a *app) checkImage(ctx context.Context, reference string, f *verifyFlags) (
	img opened, want map[string]*expect.Expect, report *verify.Report, err error,
) {
	annotations, err := parseAnnotations(f.annotations)
	if err != nil {
		return img, nil, nil, usage(err)
	}
	p, err := load(f.profile, f.set)
	if err != nil {
		return img, nil, nil, err
	}
	img, err = a.openImage(ctx, f.openOptions, reference)
	if err != nil {
		return img, nil, nil, err
	}
	recipe := &recipeFlags{profile: f.profile, base: f.base, lock: f.lock, set: f.set, payload: f.payload, progress: f.progress, registry: f.registry, platforms: f.platforms}
	in := verify.Input{Images: img.images, Annotations: img.source.Annotations(), Index: img.source.Index()}
	if in.Ignored, err = ignored(img.source); err != nil {
		return img, nil, nil, err
	}
	alone, missing := onlyPlatform(p, img)
	if len(f.platforms) == 0 && alone != "" {
		recipe.platforms = []string{alone}
	} else {
		missing = nil
	}
	var unchecked []string
	if f.base != "" || f.lock != "" {
		in.Expect, err = a.expectOnBase(ctx, recipe)
	} else {
		in.Expect, unchecked, err = a.expectAlone(ctx, recipe, img)
	}
	if err != nil {
		return img, nil, nil, err
	}
	for _, m := range missing {
		unchecked = append(unchecked, fmt.Sprintf("%s: profile %s publishes it, too, and this image is for %s alone", m, p.Name, alone))
	}
	told(in.Expect, annotations)
	report, err = verify.Check(ctx, in)
	if err != nil {
		return img, nil, nil, err
	}
	report.Reference, report.Digest, report.Profile = reference, img.source.Digest().String(), p.Name
	report.Unchecked = append(report.Unchecked, unchecked...)
	return img, in.Expect, report, nil
}

// onlyPlatform is the platform of an image that has one, as build --platform makes it, and those that the profile has besides.
// It is empty for several, and for one that the profile doesn't have.
func onlyPlatform(p *profile.Profile, img opened) (platform string, missing []string) {
	if len(img.images) != 1 {
		return "", nil
	}
	have := profilePlatform(img.images[0].Platform)
	for _, s := range p.Platforms {
		if string(s) == have.String() {
			platform = string(s)
		} else {
			missing = append(missing, string(s))
		}
	}
	return platform, missing
}

// told has the images expected with the annotations that the build was told.
func told(want map[string]*expect.Expect, annotations build.Annotations) {
	for _, e := range want {
		e.Annotations, e.IndexAnnotations = annotations.Manifest, annotations.Index
	}
}

// gate writes the report, and fails when it has a finding that is too grave, or the base wasn't known.
func (a *app) gate(f *verifyFlags, report *verify.Report) error {
	if f.severity == verify.Warning && count(report, verify.Warning) > 0 {
		report.Passed = false
	}
	if err := a.writeReport(f.file, func(w io.Writer) error { return report.Write(w, f.format) }); err != nil {
		return err
	}
	switch {
	case report.Passed:
		return nil
	case count(report, verify.Error) == 0 && f.severity == verify.Error:
		return &unprovenError{fmt.Sprintf("nothing was found in %s, but its base is not known: name it with --base IMAGE or --lock FILE", report.Reference)}
	}
	return &gateError{verdict(report)}
}

// count counts findings, those of several platforms once.
func count(report *verify.Report, severity string) int {
	seen := map[[3]string]bool{}
	for _, f := range report.Findings {
		if f.Severity == severity {
			seen[[3]string{f.Rule, f.Subject, f.Message}] = true
		}
	}
	return len(seen)
}

func verdict(r *verify.Report) string {
	return fmt.Sprintf("%s does not hold what profile %s promises: %s, %s", r.Reference, r.Profile,
		plural(count(r, verify.Error), "error"), plural(count(r, verify.Warning), "warning"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// expectOnBase is what the images have to hold by the profile resolved against its base.
func (a *app) expectOnBase(ctx context.Context, f *recipeFlags) (_ map[string]*expect.Expect, err error) {
	r, err := a.resolve(ctx, f, f.lock != "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.progress.Close()) }()
	return r.expect(r.annotations(build.Annotations{Index: map[string]string{}, Manifest: map[string]string{}}).Manifest)
}

// expect is what the images of the recipes have to hold, by platform.
func (r *resolved) expect(annotations map[string]string) (map[string]*expect.Expect, error) {
	all := make([]*expect.Expect, len(r.recipes))
	var g errgroup.Group
	for i, recipe := range r.recipes {
		g.Go(func() (err error) {
			if all[i], err = expectRecipe(r.profile, recipe, annotations); err != nil {
				return fmt.Errorf("%s: %w", recipe.Platform, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := map[string]*expect.Expect{}
	for _, e := range all {
		out[e.Platform] = e
	}
	return out, nil
}

// expectAlone is what the images have to hold by the profile alone. A platform of the profile that the image lacks is there
// without more, so that it is missed.
func (a *app) expectAlone(ctx context.Context, f *recipeFlags, img opened) (_ map[string]*expect.Expect, unchecked []string, err error) {
	p, err := load(f.profile, f.set)
	if err != nil {
		return nil, nil, err
	}
	platforms, err := parsePlatforms(f.platforms, p)
	if err != nil {
		return nil, nil, err
	}
	say, err := a.showProgress(f.progress)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, say.Close()) }()
	own := a.overlays(f, p, say)
	out := map[string]*expect.Expect{}
	for _, platform := range platforms {
		out[platform.String()] = expectProfile(p, "", platform)
	}
	for _, img := range img.images {
		platform := profilePlatform(img.Platform)
		if out[platform.String()] == nil {
			continue // not the profile's, which is a finding
		}
		e, unsure, err := a.expectImage(ctx, p, img, own)
		if err != nil {
			return nil, nil, fmt.Errorf("what the profile lays on %s: %w", platform, err)
		}
		out[platform.String()], unchecked = e, append(unchecked, unsure...)
	}
	return out, unchecked, nil
}

// accept boots the image of this machine's platform.
func (a *app) accept(ctx context.Context, f *verifyFlags, img opened, want map[string]*expect.Expect, report *verify.Report) error {
	here := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	e := want[here.String()]
	if e == nil {
		return usage(fmt.Errorf("--run: this machine runs %s, which is not among the platforms verified (%v)", here, report.Platforms))
	}
	if err := checkBoots(report.Reference, img.source); err != nil {
		return err
	}
	box, err := sandbox.From(img.source)
	if err != nil {
		return err
	}
	say, err := a.showProgress(f.progress)
	if err != nil {
		return err
	}
	var toolPolicy []byte
	for _, i := range img.images {
		if profilePlatform(i.Platform).String() == here.String() {
			toolPolicy, _ = i.Files.ReadFile(ctx, policy.DefaultPath) // without one no page is opened, and the report says so
		}
	}
	run, err := acceptance.Run(ctx, acceptance.Options{
		Image: box, Expect: e, Policy: toolPolicy, Artifacts: f.artifacts, Log: say.Printf,
		Runner: sandbox.Runner{Runtime: f.runtime, CacheDir: a.cacheDir, Progress: say},
	})
	if err := errors.Join(err, say.Close()); err != nil {
		return err
	}
	report.Rules = append(report.Rules, run.Rules...)
	report.Unchecked = append(report.Unchecked, run.Unchecked...)
	for _, p := range report.Platforms {
		if p != e.Platform {
			report.Unchecked = append(report.Unchecked, fmt.Sprintf("%s was not run: this machine runs %s", p, e.Platform))
		}
	}
	report.Add(run.Findings...)
	return nil
}

// verifyBuilt holds an image that was built against its profile, before it gets a name anywhere. Base layers that the cache
// doesn't hold stay unread, so that a build with a lock reads none.
func (a *app) verifyBuilt(ctx context.Context, r *resolved, annotations build.Annotations, built image.Built) error {
	images, err := imagesOfBuilt(built)
	if err != nil {
		return err
	}
	base := map[v1.Hash]bool{}
	for _, recipe := range r.recipes {
		m, err := recipe.Base.Image.Manifest()
		if err != nil {
			return err
		}
		for _, l := range m.Layers {
			base[l.Digest] = true
		}
	}
	in := verify.Input{Images: make([]*inspect.Image, len(images))}
	if built.Index != nil {
		in.Annotations = annotations.Index
		if in.Index, err = built.Index.RawManifest(); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for i, img := range images {
		g.Go(func() error {
			files, err := tree.Cache{Dir: a.cacheDir}.Open(gctx, img, tree.Options{Skip: func(h v1.Hash) bool { return base[h] }})
			if err == nil {
				in.Images[i], err = inspect.Read(gctx, "the image", img, files)
			}
			if err != nil {
				return fmt.Errorf("verify: %w", err)
			}
			return nil
		})
	}
	g.Go(func() (err error) {
		in.Expect, err = r.expect(annotations.Manifest)
		told(in.Expect, annotations)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	report, err := verify.Check(ctx, in)
	if err != nil {
		return err
	}
	report.Profile = r.profile.Name
	if unread := unreadLayers(in.Images); unread > 0 {
		r.progress.Printf("verify: %d layers of the base were never read, so what they hold is not checked; slimctl verify reads them", unread)
	}
	r.verified = plural(len(report.Rules), "rule") + ", 0 findings"
	if n := count(report, verify.Warning); n > 0 {
		r.verified = fmt.Sprintf("%s, %s (slimctl verify shows them)", plural(len(report.Rules), "rule"), plural(n, "warning"))
	}
	if report.Passed {
		return nil
	}
	var text strings.Builder
	if err := report.Write(&text, verify.Text); err != nil {
		return err
	}
	return &gateError{verdict(report) + "; nothing was written (--verify=false leaves this out)\n" + strings.TrimSpace(text.String())}
}

func imagesOfBuilt(b image.Built) ([]v1.Image, error) {
	if b.Image != nil {
		return []v1.Image{b.Image}, nil
	}
	m, err := b.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	out := make([]v1.Image, len(m.Manifests))
	for i, d := range m.Manifests {
		if out[i], err = b.Index.Image(d.Digest); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unreadLayers counts layers that were left out, each once.
func unreadLayers(images []*inspect.Image) int {
	unread := map[v1.Hash]bool{}
	for _, img := range images {
		for _, l := range img.Files.Layers {
			if l.Unread {
				unread[l.Digest] = true
			}
		}
	}
	return len(unread)
}

// ignored words the entries of an index that are neither images nor attestations.
func ignored(src *image.Source) ([]string, error) {
	all, err := src.Ignored()
	var out []string
	for _, d := range all {
		words := fmt.Sprintf("%s (%q", d.Digest, d.MediaType)
		if d.Platform != nil {
			words += ", " + d.Platform.String()
		}
		out = append(out, words+"): "+d.Why)
	}
	return out, err
}
