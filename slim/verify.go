package slim

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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

// FindingsError is an image that was built and, since it doesn't hold what its profile promises, not written.
type FindingsError struct{ Report *verify.Report }

func (e *FindingsError) Error() string {
	var text strings.Builder
	if err := e.Report.Write(&text, verify.Text); err != nil {
		return err.Error()
	}
	return Verdict(e.Report) + "; nothing was written (--verify=false leaves this out)\n" + strings.TrimSpace(text.String())
}

// VerifyOptions says which image is verified against which profile.
type VerifyOptions struct {
	// ResolveOptions names the profile and, by Base or Lock, the base. Without either the image's lowest layers are taken as
	// they are. Platforms are those that the image must have.
	ResolveOptions
	// Image is the image, as slimctl help images names it.
	Image string
	// Annotations are those that the build was told to set.
	Annotations build.Annotations
}

// Verified is an image with what verifying it gave.
type Verified struct {
	Inspected
	Profile *profile.Profile
	Report  *verify.Report

	access Access
	expect map[string]*expect.Expect // by platform
}

// Verify checks an image, on every platform that it has, against what the profile expects. Every layer on this machine is read
// again, also one that the cache knows. Findings are in the report, and no error.
func Verify(ctx context.Context, o VerifyOptions) (*Verified, error) {
	var err error
	if o.ResolveOptions, err = o.ResolveOptions.withDefaults(); err != nil {
		return nil, err
	}
	p, err := LoadProfile(o.Profile, o.Set)
	if err != nil {
		return nil, err
	}
	img, err := inspectImage(ctx, InspectOptions{Access: o.Access, Image: o.Image, Platforms: o.Platforms}, true)
	if err != nil {
		return nil, err
	}
	in := verify.Input{Images: img.Images, Annotations: img.Source.Annotations(), Index: img.Source.Index()}
	if in.Ignored, err = ignored(img.Source); err != nil {
		return nil, err
	}
	alone, missing := onlyPlatform(p, img)
	if len(o.Platforms) == 0 && alone != "" {
		o.Platforms = []string{alone}
	} else {
		missing = nil
	}
	var unchecked []string
	if o.Base != "" || o.Lock != "" {
		in.Expect, err = expectOnBase(ctx, o.ResolveOptions)
	} else {
		in.Expect, unchecked, err = expectAlone(ctx, o.ResolveOptions, p, img)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range missing {
		unchecked = append(unchecked, fmt.Sprintf("%s: profile %s publishes it, too, and this image is for %s alone", m, p.Name, alone))
	}
	setAnnotations(in.Expect, o.Annotations)
	report, err := verify.Check(ctx, in)
	if err != nil {
		return nil, err
	}
	report.Reference, report.Digest, report.Profile = o.Image, img.Source.Digest().String(), p.Name
	report.Unchecked = append(report.Unchecked, unchecked...)
	return &Verified{Inspected: *img, Profile: p, Report: report, access: o.Access, expect: in.Expect}, nil
}

// onlyPlatform is the platform of an image that has one, as build --platform makes it, and those that the profile has besides.
// It is empty for several, and for one that the profile doesn't have.
func onlyPlatform(p *profile.Profile, img *Inspected) (platform string, missing []string) {
	if len(img.Images) != 1 {
		return "", nil
	}
	have := profilePlatform(img.Images[0].Platform)
	for _, s := range p.Platforms {
		if string(s) == have.String() {
			platform = string(s)
		} else {
			missing = append(missing, string(s))
		}
	}
	return platform, missing
}

// setAnnotations has the images expected with the annotations that the build was told.
func setAnnotations(want map[string]*expect.Expect, annotations build.Annotations) {
	for _, e := range want {
		e.Annotations, e.IndexAnnotations = annotations.Manifest, annotations.Index
	}
}

// expectOnBase is what the images have to hold by the profile resolved against its base.
func expectOnBase(ctx context.Context, o ResolveOptions) (map[string]*expect.Expect, error) {
	o.NoLock = o.Lock == ""
	r, err := Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	return r.expect(r.Annotations(build.Annotations{}).Manifest)
}

// expect is what the images of the recipes have to hold, by platform.
func (r *Resolved) expect(annotations map[string]string) (map[string]*expect.Expect, error) {
	all := make([]*expect.Expect, len(r.Recipes))
	var g errgroup.Group
	for i, recipe := range r.Recipes {
		g.Go(func() (err error) {
			if all[i], err = expectRecipe(r.Profile, recipe, annotations); err != nil {
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
func expectAlone(ctx context.Context, o ResolveOptions, p *profile.Profile, img *Inspected) (_ map[string]*expect.Expect, unchecked []string, err error) {
	platforms, err := profilePlatforms(o.Platforms, p)
	if err != nil {
		return nil, nil, err
	}
	out := map[string]*expect.Expect{}
	for _, platform := range platforms {
		out[platform.String()] = expectProfile(p, "", platform)
	}
	var here []v1.Platform
	for _, i := range img.Images {
		if platform := profilePlatform(i.Platform); out[platform.String()] != nil { // another one is a finding
			here = append(here, platform)
		}
	}
	own, err := makeOverlays(ctx, o, p, here)
	if err != nil {
		return nil, nil, fmt.Errorf("what profile %s lays: %w", p.Name, err)
	}
	for _, i := range img.Images {
		platform := profilePlatform(i.Platform).String()
		if out[platform] == nil {
			continue
		}
		e, unsure, err := expectImage(p, i, own[platform])
		if err != nil {
			return nil, nil, fmt.Errorf("what profile %s lays on %s: %w", p.Name, platform, err)
		}
		out[platform], unchecked = e, append(unchecked, unsure...)
	}
	return out, unchecked, nil
}

// RunOptions says how a verified image is booted.
type RunOptions struct {
	// Runtime is sandbox.Docker, sandbox.Runc or, when empty, sandbox.Auto.
	Runtime string
	// Artifacts is a directory for the containers' evidence and logs; empty keeps none.
	Artifacts string
}

// Run boots the image of this machine's platform, has its tool open a page, and adds what that gives to the report.
func (v *Verified) Run(ctx context.Context, o RunOptions) error {
	here := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	e := v.expect[here.String()]
	if e == nil {
		return usage(fmt.Errorf("--run: this machine runs %s, which is not among the platforms verified (%v)", here, v.Report.Platforms))
	}
	if err := CheckBoots(v.Report.Reference, v.Source); err != nil {
		return err
	}
	box, err := sandbox.From(v.Source)
	if err != nil {
		return err
	}
	var toolPolicy []byte
	for _, i := range v.Images {
		if profilePlatform(i.Platform).String() == here.String() {
			toolPolicy, _ = i.Files.ReadFile(ctx, policy.DefaultPath) // without one no page is opened, and the report says so
		}
	}
	if o.Runtime == "" {
		o.Runtime = sandbox.Auto
	}
	run, err := acceptance.Run(ctx, acceptance.Options{
		Image: box, Expect: e, Policy: toolPolicy, Artifacts: o.Artifacts, Log: v.access.Log,
		Runner: sandbox.Runner{Runtime: o.Runtime, CacheDir: v.access.CacheDir, Progress: v.access.Progress},
	})
	if err != nil {
		return err
	}
	v.Report.Rules = append(v.Report.Rules, run.Rules...)
	v.Report.Unchecked = append(v.Report.Unchecked, run.Unchecked...)
	for _, p := range v.Report.Platforms {
		if p != e.Platform {
			v.Report.Unchecked = append(v.Report.Unchecked, fmt.Sprintf("%s was not run: this machine runs %s", p, e.Platform))
		}
	}
	v.Report.Add(run.Findings...)
	return nil
}

// verify checks an image that was built against its profile, before it gets a name anywhere. Base layers that the cache
// doesn't hold stay unread, so that a build with a lock reads none.
func (r *Resolved) verify(ctx context.Context, a Access, annotations build.Annotations, built image.Built) (*verify.Report, error) {
	images, err := imagesOf(built)
	if err != nil {
		return nil, err
	}
	base := map[v1.Hash]bool{}
	for _, recipe := range r.Recipes {
		m, err := recipe.Base.Image.Manifest()
		if err != nil {
			return nil, err
		}
		for _, l := range m.Layers {
			base[l.Digest] = true
		}
	}
	in := verify.Input{Images: make([]*inspect.Image, len(images))}
	if built.Index != nil {
		in.Annotations = annotations.Index
		if in.Index, err = built.Index.RawManifest(); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for i, img := range images {
		g.Go(func() error {
			files, err := tree.Cache{Dir: a.CacheDir}.Open(gctx, img, tree.Options{Skip: func(h v1.Hash) bool { return base[h] }})
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
		setAnnotations(in.Expect, annotations)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	report, err := verify.Check(ctx, in)
	if err != nil {
		return nil, err
	}
	report.Profile = r.Profile.Name
	if unread := unreadLayers(in.Images); unread > 0 {
		a.Log("verify: %d layers of the base were never read, so what they hold is not checked; slimctl verify reads them", unread)
	}
	if !report.Passed {
		return nil, &FindingsError{report}
	}
	return report, nil
}

func imagesOf(b image.Built) ([]v1.Image, error) {
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

// Verdict says in a sentence that an image doesn't hold what its profile promises.
func Verdict(r *verify.Report) string {
	return fmt.Sprintf("%s does not hold what profile %s promises: %s, %s", r.Reference, r.Profile,
		plural(Count(r, verify.Error), "error"), plural(Count(r, verify.Warning), "warning"))
}

// Count counts the findings of a severity, those of several platforms once.
func Count(r *verify.Report, severity string) int {
	seen := map[[3]string]bool{}
	for _, f := range r.Findings {
		if f.Severity == severity {
			seen[[3]string{f.Rule, f.Subject, f.Message}] = true
		}
	}
	return len(seen)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
