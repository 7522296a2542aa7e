package slim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/embedded"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/inspect/verify"
)

// BuildOptions says what is built of which profile, and where it goes.
type BuildOptions struct {
	ResolveOptions
	// Annotations are set beside those that name the base.
	Annotations build.Annotations
	// Target is where the image goes. With none its digest is worked out, and nothing is written.
	Target output.Target
	// Engine makes and writes the image instead of the embedded one, which needs no daemon; buildkit.Engine is one.
	Engine build.Engine
	// NoVerify leaves the image unverified.
	NoVerify bool
}

// Built is an image that was built.
type Built struct {
	*Resolved
	// Image describes the image index, or the manifest when there is one platform.
	Image v1.Descriptor
	// Ledger counts what a push moved; an Engine doesn't tell.
	Transfer output.Transfer
	// Report is what verifying the image gave; nil with NoVerify.
	Report *verify.Report
}

// Build resolves a profile, makes the image of its recipes and verifies it, and then writes it to the target: files first,
// the tags in registries last. An image that verifying finds an error in is a FindingsError, and nothing is written then.
//
// Base layers that the cache doesn't know stay unread, and what they hold unchecked: with a lock none is read.
func Build(ctx context.Context, o BuildOptions) (*Built, error) {
	if err := checkTarget(o.Target); err != nil {
		return nil, err
	}
	resolved, err := Resolve(ctx, o.ResolveOptions)
	if err != nil {
		return nil, err
	}
	access, err := o.Access.withDefaults()
	if err != nil {
		return nil, err
	}
	resolved.logNewUpstream(access)
	if err := onePlatform(o.Target, len(resolved.Recipes)); err != nil {
		return nil, err
	}
	b := &Built{Resolved: resolved}
	annotations := resolved.Annotations(o.Annotations)
	var made image.Built
	if o.Engine == nil || !o.NoVerify {
		if made, err = embedded.Assemble(ctx, resolved.Recipes, annotations); err != nil {
			return nil, err
		}
		if b.Image, err = made.Descriptor(); err != nil {
			return nil, err
		}
	}
	if !o.NoVerify {
		if b.Report, err = resolved.verify(ctx, access, made); err != nil {
			return nil, err
		}
	}
	if o.Engine == nil {
		b.Transfer, err = output.Publish(ctx, made, o.Target, resolved.Source, access.Options)
	} else {
		b.Image, err = o.Engine.Build(ctx, build.Request{
			Recipes: resolved.Recipes, Source: resolved.Source, Annotations: annotations, Digest: b.Image.Digest, Target: o.Target,
		})
	}
	if err == nil && o.Engine != nil && o.Target.Push {
		var attached output.Transfer
		attached, err = output.Attach(ctx, made.Referrers, o.Target.Tags, access.Options)
		b.Transfer.Refused = attached.Refused
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// checkTarget refuses what can't be written, before anything is read.
func checkTarget(t output.Target) error {
	if t.Push && len(t.Tags) == 0 {
		return usage(errors.New("--push needs a --tag to push to"))
	}
	for i, f := range t.Files {
		if slices.ContainsFunc(t.Files[:i], func(o output.Spec) bool { return o.Dest == f.Dest }) {
			return usage(fmt.Errorf("--output: two outputs go to %s", f.Dest))
		}
		if err := f.Check(); err != nil {
			return err
		}
	}
	return nil
}

// onePlatform refuses several platforms for what holds one.
func onePlatform(t output.Target, platforms int) error {
	if platforms == 1 {
		return nil
	}
	for _, f := range t.Files {
		if f.Type == output.DockerArchive {
			return usage(fmt.Errorf("--output type=%s holds one platform and these are %d; choose one with --platform", f.Type, platforms))
		}
	}
	if t.Load {
		return usage(errors.New("--load takes one platform; choose it with --platform"))
	}
	return nil
}
