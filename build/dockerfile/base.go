package dockerfile

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// transports are the prefixes of bases that FROM can't name.
var transports = []string{"oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "standin:", "standin-live:"}

// layoutName is what FROM names where the base is an OCI layout on this machine: a named context of the build.
const layoutName = "slimctl-base"

// base is what the Dockerfile is built on.
type base struct {
	// from is what FROM names: a registry reference with the digest that the recipes were made for, or layoutName.
	from string
	// layout is the context called layoutName, as buildx takes it; empty for a base in a registry.
	layout string
	// annotations are those that slimctl build writes, for verify and scanners.
	annotations map[string]string
}

func findBase(recipes []*build.Recipe, o Options) (base, error) {
	if len(recipes) == 0 {
		return base{}, fmt.Errorf("no recipe to render")
	}
	of := recipes[0].Base
	for _, r := range recipes {
		if r.Base.Index != of.Index || r.Profile != recipes[0].Profile {
			return base{}, fmt.Errorf("the recipes are of two bases or profiles: %s of %s@%s and %s of %s@%s",
				recipes[0].Profile, of.Reference, of.Index, r.Profile, r.Base.Reference, r.Base.Index)
		}
	}
	out := base{annotations: map[string]string{image.AnnotationBaseDigest: of.Index.String()}}
	if o.Layout != "" && o.Base == "" {
		if strings.ContainsAny(o.Layout, ":@,\n\r\"\\$%") { // of a buildx context and of HCL
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
	// A tag and a digest together are right for BuildKit; the parser here takes one of them.
	for _, part := range []string{reference, out.from} {
		if _, err := name.ParseReference(part); err != nil {
			return base{}, fmt.Errorf("base: %w", err)
		}
	}
	return out, nil
}
