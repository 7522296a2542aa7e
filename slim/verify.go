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
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/server/policy"
)

// FindingsError reports an image that was built but not written, because verifying it found errors.
type FindingsError struct{ Report *verify.Report }

func (e *FindingsError) Error() string {
	var text strings.Builder
	if err := report.Findings(&text, report.Text, e.Report); err != nil {
		return err.Error()
	}
	return Verdict(e.Report) + "; nothing was written (--verify=false leaves this out)\n" + strings.TrimSpace(text.String())
}

// The comparisons of Verify, from the strictest.
const (
	// SameDigest accepts only the image that the profile gives.
	SameDigest = "digest"
	// SameTree also accepts other layers, as from a Dockerfile, if the merged tree and the image config are the same.
	SameTree = "tree"
)

// VerifyOptions selects the image and the profile to verify it against.
type VerifyOptions struct {
	// ResolveOptions selects the profile and, by Base or Lock, the base. Without these it takes the base in the image's
	// annotations, if that is from the repository of the profile's base and can be read. Platforms are the platforms
	// that the image must have.
	ResolveOptions
	// Image is an image reference, as described by slimctl help images.
	Image string
	// Annotations are those that were set in the build.
	Annotations build.Annotations
	// Same is SameDigest or SameTree; empty means SameDigest.
	Same string
	// SurfaceOnly skips the comparison and checks the surface only.
	SurfaceOnly bool
	// Run tells Verify that Verified.Run follows, so it refuses at once an image that doesn't run on this machine.
	Run bool
}

// Verified is the result of Verify.
type Verified struct {
	Inspected
	Profile *profile.Profile
	Report  *verify.Report
	// Opened maps the image's files that were opened in Run to the program that opened each first; it needs runc.
	Opened map[string]string

	access Access
	made   *Resolved                 // the image compared with; nil without a base
	expect map[string]*expect.Expect // by platform
}

// Verify reproduces the image: it resolves the profile against the base, makes the image and compares. An image with
// the same digest is proven, without reading a layer. For another one Verify lists the differences. The rules on the
// surface run in both cases. Findings are in the report, not in the error. A report that is neither proven nor has an
// Error is about an image that was compared with nothing; Report.Unchecked has the reason.
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
	if o.Run {
		if err := f.checkRuns(o.Image); err != nil {
			return nil, err
		}
	}
	in := verify.Input{Index: f.source.Index(), FromDocker: f.source.FromDocker(), SurfaceOnly: o.SurfaceOnly}
	in.Ignored = ignored(f.source, o.Same == SameTree || o.SurfaceOnly)
	if in.Outside, err = f.source.Outside(); err != nil {
		return nil, err
	}
	in.Names = f.source.Names()
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
	} else if err = f.readSurface(ctx, o, nil, nil); err == nil {
		in.Expect, unchecked, err = expectAlone(ctx, o.ResolveOptions, p, f.images)
		ledgers, _ := f.ledgers(ctx) // an unreadable ledger is not checked
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
		unchecked = append(unchecked, fmt.Sprintf("%s: profile %s publishes it, too, but this image is for %s only", m, p.Name, alone))
	}
	in.Images = f.images
	checked, err := verify.Check(ctx, in)
	if err != nil {
		return nil, err
	}
	checked.Reference, checked.Digest, checked.Profile = o.Image, f.source.Digest().String(), p.Name
	if r != nil {
		checked.Base = r.Recipes[0].Base.Reference
		if digest := r.Source.Digest().String(); !strings.Contains(checked.Base, digest) {
			checked.Base += "@" + digest
		}
		checked.OtherBase, err = f.otherBase(r.Source.Digest())
	}
	checked.Unchecked = append(checked.Unchecked, unchecked...)
	return &Verified{Inspected: Inspected{f.source, f.images}, Profile: p, Report: checked, access: o.Access, made: r, expect: in.Expect}, err
}

// found is the image to verify.
type found struct {
	source    *image.Source
	platforms []v1.Platform
	manifests []v1.Image // of the platforms
	images    []*inspect.Image
}

// otherBase returns the digest of the base in the image's annotations, or "" if it is base or there is none.
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

// openFound opens the image without reading a layer.
func openFound(ctx context.Context, o VerifyOptions) (f *found, err error) {
	f = &found{}
	if f.source, f.platforms, err = o.openPlatforms(ctx, InspectOptions{Image: o.Image, Platforms: o.Platforms}); err != nil {
		return nil, err
	}
	f.manifests, err = f.source.Images(f.platforms...)
	return f, err
}

// readSurface reads the surfaces of the images. It takes files from an image in made with the same digest, and
// otherwise shared layers. It compares layers on this machine with their digests.
func (f *found) readSurface(ctx context.Context, o VerifyOptions, made map[string]*inspect.Image, skip func(v1.Hash) bool) (err error) {
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

// resolveFound resolves the profile against the image's base. r is nil if the base is unknown or can't be read; why is
// the reason.
func resolveFound(ctx context.Context, o VerifyOptions, p *profile.Profile, f *found) (r *Resolved, why string, err error) {
	named := o.Base != "" || o.Lock != ""
	asked := "" // the build's reference of its base
	o.NoLock = o.Lock == ""
	switch {
	case o.SurfaceOnly:
		return nil, "", nil
	case !named:
		if o.Base, asked, why, err = annotatedBase(p, f); o.Base == "" || err != nil {
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
			recipe.Base.Reference = asked
		}
	}
	return r, "", err
}

// annotatedBase returns the base in the image's annotations, by digest, and the reference that the build used. The
// profile decides which repository is trusted; the image chooses only the digest.
func annotatedBase(p *profile.Profile, f *found) (reference, asked, why string, err error) {
	for i, img := range f.manifests {
		m, err := img.Manifest()
		if err != nil {
			return "", "", "", err
		}
		at, why := believedBase(p.Base.Reference, m.Annotations)
		switch {
		case why != "":
			return "", "", fmt.Sprintf("%s: the base: %s; name it with --base IMAGE", f.platforms[i], why), nil
		case reference != "" && at != reference:
			return "", "", "the base: the images of the platforms name several; name it with --base IMAGE", nil
		}
		reference, asked = at, m.Annotations[image.AnnotationBaseName]
	}
	return reference, asked, "", nil
}

// believedBase returns the repository of the profile's reference at the digest in the annotations. The build may have
// used another tag or the digest.
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
	have, err := image.ParseReference(annotations[image.AnnotationBaseName], false)
	if err != nil || have.Context().Name() != want.Context().Name() {
		return "", fmt.Sprintf("its annotation names %.300q, but the profile names %s", annotations[image.AnnotationBaseName], want.Name())
	}
	for whose, n := range map[string]name.Reference{"annotation base.name": have, "profile": want} {
		if pinned, ok := n.(name.Digest); ok && pinned.DigestStr() != digest.String() {
			return "", fmt.Sprintf("its annotation base.digest names %s, but the %s names %s", digest, whose, pinned.DigestStr())
		}
	}
	return want.Context().Name() + "@" + digest.String(), ""
}

// reproduce makes the image of the recipes, and reads the found one where it differs.
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
	same, err := f.isAmong(images)
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
	if err := f.readSurface(ctx, o, want.Images, skip); err != nil {
		return nil, err
	}
	return r.expect()
}

// isAmong reports whether all found images are in images.
func (f *found) isAmong(images []v1.Image) (bool, error) {
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

// openMade opens an image that was made. It skips base layers for which skip holds and that are not in the cache.
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

// baseLayers returns the digests of all layers of the recipes' bases, and of those that replace them in a lock.
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
		if strip == nil || !strip.Locked {
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

// onlyPlatform returns the platform of an image without an index, as made by build --platform, and the profile's other
// platforms. It returns "" for an index, and for a platform that the profile doesn't have.
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

// expect returns what the surfaces of the recipes' images may have, by platform.
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

// expectAlone returns what the images must have by the profile alone. A platform of the profile that the image lacks is
// included, so that it is reported missing.
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
		if platform := profilePlatform(i.Platform); out[platform.String()] != nil { // another platform is a finding
			here = append(here, platform)
		}
	}
	own, err := makeOverlays(ctx, o, p, here)
	if err != nil {
		return nil, nil, fmt.Errorf("overlays of profile %s: %w", p.Name, err)
	}
	for _, i := range images {
		platform := profilePlatform(i.Platform).String()
		if out[platform] == nil {
			continue
		}
		e, unsure, err := expectImage(p, i, own[platform])
		if err != nil {
			return nil, nil, fmt.Errorf("overlays of profile %s on %s: %w", p.Name, platform, err)
		}
		out[platform], unchecked = e, append(unchecked, unsure...)
	}
	return out, unchecked, nil
}

// RunOptions configures the boot of a verified image.
type RunOptions struct {
	// Runtime is sandbox.Docker, sandbox.Runc or sandbox.Auto; empty means Auto. Reach needs sandbox.Runc, the only one
	// that observes opened files.
	Runtime string
	// Artifacts is a directory for the containers' evidence and logs; empty discards them.
	Artifacts string
	// Reach also boots the image on top of the whole base, and finds files that are opened there and missing in the
	// image.
	Reach bool
}

// thisMachine is this machine's platform.
var thisMachine = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// checkRuns returns an error if the image isn't for this machine's platform, or can't be booted.
func (f *found) checkRuns(reference string) error {
	var platforms []string
	for _, p := range f.platforms {
		platforms = append(platforms, profilePlatform(p).String())
	}
	if !slices.Contains(platforms, thisMachine.String()) {
		return notHere(reference, platforms)
	}
	return CheckBoots(reference, f.source)
}

func notHere(reference string, platforms []string) error {
	return usage(fmt.Errorf("--run boots %s on this machine, and %s is verified for %s: leave out --run here, and pass it on a machine of such a platform",
		thisMachine, reference, strings.Join(platforms, ", ")))
}

// Run boots the image of this machine's platform, lets its tool open a page, and adds the results to the report.
func (v *Verified) Run(ctx context.Context, o RunOptions) error {
	e := v.expect[thisMachine.String()]
	if e == nil {
		return notHere(v.Report.Reference, v.Report.Platforms)
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
		if profilePlatform(i.Platform).String() == thisMachine.String() {
			toolPolicy, _ = i.Files.ReadFile(ctx, policy.DefaultPath) // without a policy no page is opened, and the report says so
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
		if err := v.reach(ctx, thisMachine, options); err != nil {
			return err
		}
	}
	run, err := acceptance.Run(ctx, options)
	if err != nil {
		return err
	}
	v.Opened = run.Opened
	v.noteUse(thisMachine, run)
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

// verify checks the surface of a built image against its profile, before publishing it. It skips base layers that are
// not in the cache, so a build with a lock reads none.
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
	checked, err := verify.Check(ctx, in)
	if err != nil {
		return nil, err
	}
	checked.Profile = r.Profile.Name
	if unread := unreadLayers(in.Images); unread > 0 {
		a.Log("verify: %s never read, so what they hold is not checked; slimctl verify reads them",
			english.Plural(unread, "layer of the base was", "layers of the base were"))
	}
	if !checked.Passed {
		return nil, &FindingsError{checked}
	}
	return checked, nil
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

// unreadLayers counts the layers that were skipped, each once.
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

// ignored describes the entries of an index that are neither images nor, with attested, attestations.
func ignored(src *image.Source, attested bool) (out []string) {
	for _, d := range src.Ignored(attested) {
		words := fmt.Sprintf("%s (%q", d.Digest, d.MediaType)
		if d.Platform != nil {
			words += ", " + d.Platform.String()
		}
		out = append(out, words+"): "+d.Why)
	}
	return out
}

// Verdict returns the sentence for an image that fails its profile.
func Verdict(r *verify.Report) string {
	return fmt.Sprintf("%s does not hold what profile %s promises: %s, %s", r.Reference, r.Profile,
		english.Plural(r.Count(verify.Error), "error", ""), english.Plural(r.Count(verify.Warning), "warning", ""))
}
