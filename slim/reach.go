package slim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/embedded"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/acceptance"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
)

// reach boots the image of a platform on top of the whole base and tries it like the image. It reports files that were
// opened there and are missing in the image.
func (v *Verified) reach(ctx context.Context, platform v1.Platform, o acceptance.Options) error {
	if v.made == nil {
		return usage(errors.New("--reach compares with the base: name it with --base IMAGE or --lock FILE"))
	}
	whole := v.wholeRecipe(platform)
	if whole == nil {
		return usage(fmt.Errorf("--reach is for a profile with keep, such as l1; an image of profile %s has all of the base", v.Profile.Name))
	}
	made, err := embedded.Assemble(ctx, []*build.Recipe{whole}, v.made.Annotations(build.Annotations{}))
	if err != nil {
		return err
	}
	images, err := imagesOf(made)
	if err != nil {
		return err
	}
	o.Image = sandbox.Image{Reference: o.Image.Reference + " with all of " + whole.Base.Reference, Image: images[0]}
	observed, err := acceptance.Observe(ctx, o)
	if err != nil {
		return fmt.Errorf("--reach: %w", err)
	}
	if observed.NotObserved != nil {
		v.Report.Unchecked = append(v.Report.Unchecked, fmt.Sprintf("files opened with all of the base: %v", observed.NotObserved))
	}
	base, err := tree.Cache{Dir: v.access.CacheDir}.Open(ctx, whole.Base.Image, tree.Options{Progress: v.access.Progress})
	if err != nil {
		return err
	}
	findings := verify.Reach(platform.String(), observed.Opened, base, v.image(platform).Files)
	v.Report.Add(slices.DeleteFunc(findings, func(f verify.Finding) bool { return v.Profile.Keep.IsUnused(f.Subject) })...)
	return nil
}

// noteUse reports how much of an image with replaced layers was opened.
func (v *Verified) noteUse(platform v1.Platform, run *acceptance.Result) {
	switch {
	case v.Profile.Keep == nil:
	case run.NotObserved != nil:
		v.Report.Unchecked = append(v.Report.Unchecked, fmt.Sprintf("files of the image that are opened: %v", run.NotObserved))
	default:
		v.Report.Use = verify.UseOf(v.image(platform).Files, run.Opened)
	}
}

// wholeRecipe returns the recipe of a platform's image on top of the whole base, or nil.
func (v *Verified) wholeRecipe(platform v1.Platform) *build.Recipe {
	i := slices.IndexFunc(v.made.Recipes, func(r *build.Recipe) bool { return r.Platform.String() == platform.String() })
	if i < 0 {
		return nil
	}
	return v.made.Recipes[i].Whole()
}

func (v *Verified) image(platform v1.Platform) *inspect.Image {
	i := slices.IndexFunc(v.Images, func(i *inspect.Image) bool { return profilePlatform(i.Platform).String() == platform.String() })
	return v.Images[i]
}
