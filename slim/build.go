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

// BuildOptions selects the profile and base, and the target of the image.
type BuildOptions struct {
	ResolveOptions
	// Annotations are added to those that name the base.
	Annotations build.Annotations
	// Target is where the image goes. Without any target, Build only computes the digest.
	Target output.Target
	// Engine builds and writes the image instead of the embedded engine, which needs no daemon. buildkit.Engine is an
	// Engine.
	Engine build.Engine
	// NoVerify skips the verification of the image.
	NoVerify bool
}

// Built is the result of Build.
type Built struct {
	*Resolved
	// Image describes the image index, or the manifest if there is one platform.
	Image v1.Descriptor
	// Transfer counts what a push sent. It is empty with an Engine.
	Transfer output.Transfer
	// Report is the result of verifying the image; nil with NoVerify.
	Report *verify.Report
}

// Build resolves a profile, makes the image, verifies it and writes it to the target: files first, registry tags last.
// If the verification finds errors, Build returns a FindingsError and writes nothing.
//
// It doesn't read base layers whose index is not in the cache, so their content is unchecked. With a lock it reads
// none.
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
	resolved.LogNewUpstream(access.Log)
	if err := checkPlatforms(o.Target, len(resolved.Recipes)); err != nil {
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

// checkTarget refuses an invalid target, before anything is read.
func checkTarget(t output.Target) error {
	if t.Push && len(t.Tags) == 0 {
		return usage(errors.New("--push needs a --tag to push to"))
	}
	for i, f := range t.Files {
		if slices.ContainsFunc(t.Files[:i], func(o output.Spec) bool { return o.Dest == f.Dest }) {
			return usage(fmt.Errorf("--output: two outputs have the destination %s", f.Dest))
		}
		if err := f.Check(); err != nil {
			return err
		}
	}
	return nil
}

// checkPlatforms refuses several platforms for outputs that hold one.
func checkPlatforms(t output.Target, platforms int) error {
	if platforms == 1 {
		return nil
	}
	for _, f := range t.Files {
		if f.Type == output.DockerArchive {
			return usage(fmt.Errorf("--output type=%s holds one platform, but there are %d; choose one with --platform", f.Type, platforms))
		}
	}
	if t.Load {
		return usage(errors.New("--load takes one platform; choose it with --platform"))
	}
	return nil
}
