package slim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/embedded"
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

// What Verify compares by, and its way out.
const (
	// SameDigest takes the image that the profile gives, and no other.
	SameDigest = "digest"
	// SameTree takes other layers, too, as a Dockerfile gives, if the merged tree and the image config are the same.
	SameTree = "tree"
)

// VerifyOptions says which image is verified against which profile.
type VerifyOptions struct {
	// ResolveOptions names the profile and, by Base or Lock, the base. Without either the base is the one that the image's
	// annotations name, if that is one of the profile's own repository and can be read. Platforms are those that the image must
	// have.
	ResolveOptions
	// Image is the image, as slimctl help images names it.
	Image string
	// Annotations are those that the build was told to set.
	Annotations build.Annotations
	// Same is SameDigest or SameTree; empty is SameDigest.
	Same string
	// SurfaceOnly compares the image with nothing.
	SurfaceOnly bool
}

// Verified is an image with what verifying it gave.
type Verified struct {
	Inspected
	Profile *profile.Profile
	Report  *verify.Report
	// Opened has the image's files that were opened in Run, with the program that opened each first: with runc alone.
	Opened map[string]string

	access Access
	made   *Resolved                 // what the image was compared with; nil without a base
	expect map[string]*expect.Expect // by platform
}

// Verify reproduces the image: it resolves the profile against the base, makes the image that a build makes, and compares. One
// of the same digest is proven, and no layer is read for it; of another, what differs is found. Rules on the surface run in
// both cases. Findings are in the report, and no error; a report that is neither proven nor has an Error is of an image that
// was compared with nothing, and Report.Unchecked says why.
func Verify(ctx context.Context, o VerifyOptions) (*Verified, error) {
	var err error
	if o.ResolveOptions, err = o.ResolveOptions.withDefaults(); err != nil {
		return nil, err
	}
	p, err := LoadProfile(o.Profile, o.Set)
	if err != nil {
		return nil, err
	}
	f, err := openFound(ctx, o)
	if err != nil {
		return nil, err
	}
	in := verify.Input{Index: f.source.Index(), FromDocker: f.source.FromDocker(), SurfaceOnly: o.SurfaceOnly}
	if in.Ignored, err = ignored(f.source); err != nil {
		return nil, err
	}
	chosen := len(o.Platforms) > 0
	alone, missing := onlyPlatform(p, f)
	if !chosen && alone != "" {
		o.Platforms = []string{alone}
	} else {
		missing = nil
	}
	var unchecked []string
	r, why, err := resolveFound(ctx, o, p, f)
	if err != nil {
		return nil, err
	}
	if r != nil {
		in.Expect, err = r.reproduce(ctx, o, f, &in, chosen)
		in.Ledgers, unchecked = f.ledgers(ctx)
	} else if err = f.read(ctx, o, nil, nil); err == nil {
		in.Expect, unchecked, err = expectAlone(ctx, o.ResolveOptions, p, f.images)
		ledgers, _ := f.ledgers(ctx) // one that can't be read isn't checked either
		for _, platform := range slices.Sorted(maps.Keys(ledgers)) {
			unchecked = append(unchecked, platform+": the ledger that refers to it: that needs the base; name it with --base")
		}
	}
	if err != nil {
		return nil, err
	}
	if why != "" {
		unchecked = append(unchecked, why)
	}
	for _, m := range missing {
		unchecked = append(unchecked, fmt.Sprintf("%s: profile %s publishes it, too, and this image is for %s alone", m, p.Name, alone))
	}
	in.Images = f.images
	report, err := verify.Check(ctx, in)
	if err != nil {
		return nil, err
	}
	report.Reference, report.Digest, report.Profile = o.Image, f.source.Digest().String(), p.Name
	if r != nil {
		report.Base = r.Recipes[0].Base.Reference
		if digest := r.Source.Digest().String(); !strings.Contains(report.Base, digest) {
			report.Base += "@" + digest
		}
		report.OtherBase, err = f.otherBase(r.Source.Digest())
	}
	report.Unchecked = append(report.Unchecked, unchecked...)
	return &Verified{Inspected: Inspected{f.source, f.images}, Profile: p, Report: report, access: o.Access, made: r, expect: in.Expect}, err
}

// found is the image to verify.
type found struct {
	source    *image.Source
	platforms []v1.Platform
	manifests []v1.Image // of platforms
	images    []*inspect.Image
}

// otherBase returns the digest of the base that the image's annotations name, or "" when they name base or none.
func (f *found) otherBase(base v1.Hash) (string, error) {
	for _, img := range f.manifests {
		m, err := img.Manifest()
		if err != nil {
			return "", err
		}
		if named, err := v1.NewHash(m.Annotations[image.AnnotationBaseDigest]); err == nil && named != base {
			return named.String(), nil
		}
	}
	return "", nil
}

// openFound opens the image, and reads no layer.
func openFound(ctx context.Context, o VerifyOptions) (f *found, err error) {
	f = &found{}
	if f.source, f.platforms, err = o.openPlatforms(ctx, InspectOptions{Image: o.Image, Platforms: o.Platforms}); err != nil {
		return nil, err
	}
	f.manifests, err = f.source.Images(f.platforms...)
	return f, err
}

// read reads the surface of the images. For one that made has, by its digest, the files are taken from there; of another, layers
// that made has are. Layers that lie on this machine are compared with their digests.
func (f *found) read(ctx context.Context, o VerifyOptions, made map[string]*inspect.Image, skip func(v1.Hash) bool) (err error) {
	f.images, err = readSurfaces(ctx, o.Image, f.manifests, f.platforms, func(ctx context.Context, i int) (*tree.Image, error) {
		img, options := f.manifests[i], tree.Options{Progress: o.Progress, Skip: skip}
		if err := f.source.CheckLayers(ctx, img, o.Progress); err != nil {
			return nil, err
		}
		if want := made[profilePlatform(f.platforms[i]).String()]; want != nil {
			if digest, err := img.Digest(); err != nil || digest == want.Digest {
				return want.Files, err
			}
			options.Open = want.Files
		}
		return tree.Cache{Dir: o.CacheDir}.Open(ctx, img, options)
	})
	return err
}

// resolveFound resolves the profile against the base of the image. It is nil where nobody says which that is, or where it can't
// be read; why says so.
func resolveFound(ctx context.Context, o VerifyOptions, p *profile.Profile, f *found) (r *Resolved, why string, err error) {
	named := o.Base != "" || o.Lock != ""
	o.NoLock = o.Lock == ""
	switch {
	case o.SurfaceOnly:
		return nil, "", nil
	case !named:
		if o.Base, why, err = annotatedBase(p, f); o.Base == "" || err != nil {
			return nil, why, err
		}
		o.Log("base %s is the one that the image names, of the repository that profile %s names", o.Base, p.Name)
	}
	r, err = Resolve(ctx, o.ResolveOptions)
	if unreachable := new(image.RegistryError); !named && errors.As(err, &unreachable) && ctx.Err() == nil {
		return nil, fmt.Sprintf("the base that the image names can't be read: %v", err), nil
	}
	if err == nil && !named {
		for _, recipe := range r.Recipes {
			recipe.Base.Reference = p.Base.Reference // by which a build names it
		}
	}
	return r, "", err
}

// annotatedBase is the base that the image says it is made from. The profile says which repository is believed, the image
// only which digest of it.
func annotatedBase(p *profile.Profile, f *found) (reference, why string, err error) {
	for i, img := range f.manifests {
		m, err := img.Manifest()
		if err != nil {
			return "", "", err
		}
		at, why := believedBase(p.Base.Reference, m.Annotations)
		switch {
		case why != "":
			return "", fmt.Sprintf("%s: the base: %s", f.platforms[i], why), nil
		case reference != "" && at != reference:
			return "", "the base: the images of the platforms name several", nil
		}
		reference = at
	}
	return reference, "", nil
}

// believedBase is the profile's reference at the digest that annotations name.
func believedBase(reference string, annotations map[string]string) (at, why string) {
	digest, err := v1.NewHash(annotations[image.AnnotationBaseDigest])
	if err != nil || digest.Algorithm != "sha256" {
		return "", "no annotation names it by a digest"
	}
	want, err := image.ParseReference(reference, false)
	if err != nil {
		return "", "the profile's is in no registry"
	}
	if annotations[image.AnnotationBaseName] == "" {
		return "", "no annotation names it"
	}
	if have, err := image.ParseReference(annotations[image.AnnotationBaseName], false); err != nil || have.Name() != want.Name() {
		return "", fmt.Sprintf("its annotation names %.300q, and the profile %s", annotations[image.AnnotationBaseName], want.Name())
	}
	if pinned, ok := want.(name.Digest); ok && pinned.DigestStr() != digest.String() {
		return "", fmt.Sprintf("its annotation names %s, and the profile %s", digest, pinned.DigestStr())
	}
	return want.Context().Name() + "@" + digest.String(), ""
}

// reproduce makes the image that a build of the recipes makes, and reads the one found as far as it is another.
func (r *Resolved) reproduce(ctx context.Context, o VerifyOptions, f *found, in *verify.Input, chosen bool) (map[string]*expect.Expect, error) {
	annotations := r.Annotations(o.Annotations)
	made, err := embedded.Assemble(ctx, r.Recipes, annotations)
	if err != nil {
		return nil, err
	}
	want := &verify.Want{Annotations: annotations.Index, Images: map[string]*inspect.Image{}, SameTree: o.Same == SameTree}
	if made.Index != nil && !chosen {
		if want.Index, err = made.Index.RawManifest(); err != nil {
			return nil, err
		}
	}
	images, err := imagesOf(made)
	if err != nil {
		return nil, err
	}
	same, err := f.same(images)
	if err != nil {
		return nil, err
	}
	base, err := r.baseLayers()
	if err != nil {
		return nil, err
	}
	skip := func(h v1.Hash) bool { return base[h] && (same || !want.SameTree) }
	want.Ledgers = map[string]string{}
	for i, img := range images {
		if l := r.Recipes[i].Ledger(); l != nil {
			digest, err := l.Digest()
			if err != nil {
				return nil, err
			}
			want.Ledgers[r.Recipes[i].Platform.String()] = digest.String()
		}
		opened, err := openMade(ctx, o, r.Recipes[i].Platform, img, skip)
		if err != nil {
			return nil, err
		}
		want.Images[r.Recipes[i].Platform.String()] = opened
	}
	in.Want = want
	if err := f.read(ctx, o, want.Images, skip); err != nil {
		return nil, err
	}
	return r.expect()
}

// same reports whether the images found are all among those.
func (f *found) same(images []v1.Image) (bool, error) {
	digests := map[v1.Hash]bool{}
	for _, img := range images {
		h, err := img.Digest()
		if err != nil {
			return false, err
		}
		digests[h] = true
	}
	for _, img := range f.manifests {
		if h, err := img.Digest(); err != nil || !digests[h] {
			return false, err
		}
	}
	return true, nil
}

// openMade opens an image that was made. Layers of the base that are skipped and that the cache doesn't hold stay unread.
func openMade(ctx context.Context, o VerifyOptions, platform v1.Platform, img v1.Image, skip func(v1.Hash) bool) (out *inspect.Image, err error) {
	out = &inspect.Image{Reference: "the image that the profile gives", Platform: platform}
	if out.Files, err = (tree.Cache{Dir: o.CacheDir}).Open(ctx, img, tree.Options{Progress: o.Progress, Skip: skip}); err != nil {
		return nil, err
	}
	if out.Digest, err = img.Digest(); err != nil {
		return nil, err
	}
	if out.RawManifest, err = img.RawManifest(); err != nil {
		return nil, err
	}
	out.RawConfig, err = img.RawConfigFile()
	return out, err
}

// baseLayers are the digests of all layers of the recipes' bases, and of those that a lock names in their place.
func (r *Resolved) baseLayers() (map[v1.Hash]bool, error) {
	out := map[v1.Hash]bool{}
	for _, recipe := range r.Recipes {
		m, err := recipe.Base.Image.Manifest()
		if err != nil {
			return nil, err
		}
		for _, l := range m.Layers {
			out[l.Digest] = true
		}
		strip := recipe.Strip
		if strip == nil || strip.Explain != nil {
			continue
		}
		for _, l := range strip.Layers {
			h, err := l.Digest()
			if err != nil {
				return nil, err
			}
			out[h] = true
		}
	}
	return out, nil
}

// onlyPlatform is the platform of an image without an index, as build --platform makes it, and those that the profile has
// besides. It is empty for an index, and for a platform that the profile doesn't have.
func onlyPlatform(p *profile.Profile, f *found) (platform string, missing []string) {
	if f.source.Index() != nil || len(f.platforms) != 1 {
		return "", nil
	}
	have := profilePlatform(f.platforms[0])
	for _, s := range p.Platforms {
		if string(s) == have.String() {
			platform = string(s)
		} else {
			missing = append(missing, string(s))
		}
	}
	return platform, missing
}

// expect is what the surfaces of the recipes' images may have, by platform.
func (r *Resolved) expect() (map[string]*expect.Expect, error) {
	out := map[string]*expect.Expect{}
	for _, recipe := range r.Recipes {
		e, err := expectRecipe(r.Profile, recipe)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", recipe.Platform, err)
		}
		out[e.Platform] = e
	}
	return out, nil
}

// expectAlone is what the images have to hold by the profile alone. A platform of the profile that the image lacks is there
// without more, so that it is missed.
func expectAlone(ctx context.Context, o ResolveOptions, p *profile.Profile, images []*inspect.Image) (_ map[string]*expect.Expect, unchecked []string, err error) {
	platforms, err := profilePlatforms(o.Platforms, p)
	if err != nil {
		return nil, nil, err
	}
	out := map[string]*expect.Expect{}
	for _, platform := range platforms {
		out[platform.String()] = expectProfile(p, platform)
	}
	var here []v1.Platform
	for _, i := range images {
		if platform := profilePlatform(i.Platform); out[platform.String()] != nil { // another one is a finding
			here = append(here, platform)
		}
	}
	own, err := makeOverlays(ctx, o, p, here)
	if err != nil {
		return nil, nil, fmt.Errorf("what profile %s lays: %w", p.Name, err)
	}
	for _, i := range images {
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
	// Runtime is sandbox.Docker, sandbox.Runc or, when empty, sandbox.Auto. With Reach it is sandbox.Runc, which alone observes.
	Runtime string
	// Artifacts is a directory for the containers' evidence and logs; empty keeps none.
	Artifacts string
	// Reach boots the image with all of the base, too, and finds what is opened there and missing in the image.
	Reach bool
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
	switch {
	case o.Reach:
		o.Runtime = sandbox.Runc
	case o.Runtime == "":
		o.Runtime = sandbox.Auto
	}
	options := acceptance.Options{
		Image: box, Expect: e, Policy: toolPolicy, Artifacts: o.Artifacts, Log: v.access.Log,
		Runner: sandbox.Runner{Runtime: o.Runtime, CacheDir: v.access.CacheDir, Progress: v.access.Progress},
	}
	if o.Reach {
		if err := v.reach(ctx, here, options); err != nil {
			return err
		}
	}
	run, err := acceptance.Run(ctx, options)
	if err != nil {
		return err
	}
	v.Opened = run.Opened
	v.noteUse(here, run)
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

// verify checks the surface of an image that was built against its profile, before it gets a name anywhere. Base layers that the cache
// doesn't hold stay unread, so that a build with a lock reads none.
func (r *Resolved) verify(ctx context.Context, a Access, built image.Built) (*verify.Report, error) {
	images, err := imagesOf(built)
	if err != nil {
		return nil, err
	}
	base, err := r.baseLayers()
	if err != nil {
		return nil, err
	}
	in := verify.Input{SurfaceOnly: true}
	if in.Expect, err = r.expect(); err != nil {
		return nil, err
	}
	platforms := make([]v1.Platform, len(images))
	for i, recipe := range r.Recipes {
		platforms[i] = recipe.Platform
	}
	in.Images, err = readSurfaces(ctx, "the image", images, platforms, func(ctx context.Context, i int) (*tree.Image, error) {
		return tree.Cache{Dir: a.CacheDir}.Open(ctx, images[i], tree.Options{Skip: func(h v1.Hash) bool { return base[h] }})
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
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
		english.Plural(r.Count(verify.Error), "error", ""), english.Plural(r.Count(verify.Warning), "warning", ""))
}
