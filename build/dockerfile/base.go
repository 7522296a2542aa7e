package dockerfile

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// transports are the prefixes of base references that FROM can't name.
var transports = []string{"oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "standin:", "standin-live:"}

// layoutName is the named context in FROM for a base that is an OCI layout on this machine.
const layoutName = "slimctl-base"

// base describes the base as the Dockerfile names it.
type base struct {
	// from is FROM's argument: a registry reference with the digest that the recipes were resolved for, or layoutName.
	from string
	// layout is the argument of the context layoutName, for buildx; empty for a base in a registry.
	layout string
	// annotations are the base annotations that slimctl build writes, for verify and scanners.
	annotations map[string]string
}

func findBase(of build.Base, o Options) (base, error) {
	out := base{annotations: map[string]string{image.AnnotationBaseDigest: of.Index.String()}}
	if o.Layout != "" && o.Base == "" {
		if strings.ContainsAny(o.Layout, ":@,\n\r\"\\$%") { // they have a meaning in buildx contexts or in HCL
			return base{}, fmt.Errorf("the base's directory %q has a character that docker buildx bake can't take in a context: move it, or push the base and name it with --from", o.Layout)
		}
		out.from, out.layout = layoutName, "oci-layout://"+o.Layout+"@"+of.Index.String()
		return out, nil
	}
	reference := of.Reference
	if o.Base != "" {
		reference = o.Base
	}
	for _, t := range transports {
		if strings.HasPrefix(reference, t) {
			return base{}, fmt.Errorf("base %s is neither in a registry nor an OCI layout, so that FROM can't name it: push it and name it with --from",
				reference)
		}
	}
	if n, err := name.ParseReference(reference, name.WeakValidation); err == nil {
		out.annotations[image.AnnotationBaseName] = n.Name()
	}
	reference, _, _ = strings.Cut(reference, "@")
	out.from = reference + "@" + of.Index.String()
	// BuildKit accepts a tag together with a digest; the parser here accepts only one of them.
	for _, part := range []string{reference, out.from} {
		if _, err := name.ParseReference(part); err != nil {
			return base{}, fmt.Errorf("base: %w", err)
		}
	}
	return out, nil
}
