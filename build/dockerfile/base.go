package dockerfile

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/slimctl/slimctl/build"
)

// transports are the prefixes of bases that no Dockerfile can name.
var transports = []string{"oci:", "oci-archive:", "docker-archive:", "standin:", "standin-live:"}

// baseReference gives what FROM names: a registry reference with the digest that the recipes were made for.
func baseReference(recipes []*build.Recipe, o Options) (string, error) {
	if len(recipes) == 0 {
		return "", fmt.Errorf("no recipe to render")
	}
	base := recipes[0].Base
	for _, r := range recipes {
		if r.Base.Index != base.Index || r.Profile != recipes[0].Profile {
			return "", fmt.Errorf("the recipes are of two bases or profiles: %s of %s@%s and %s of %s@%s",
				recipes[0].Profile, base.Reference, base.Index, r.Profile, r.Base.Reference, r.Base.Index)
		}
	}
	reference := base.Reference
	if o.Base != "" {
		reference = o.Base
	}
	for _, t := range transports {
		if strings.HasPrefix(reference, t) {
			return "", fmt.Errorf("base %s isn't in a registry, so that FROM can't name it: push it and name it by its reference there",
				reference)
		}
	}
	reference, _, _ = strings.Cut(reference, "@")
	pinned := reference + "@" + base.Index.String()
	// A tag and a digest together are right for BuildKit; the parser here takes one of them.
	for _, part := range []string{reference, pinned} {
		if _, err := name.ParseReference(part); err != nil {
			return "", fmt.Errorf("base: %w", err)
		}
	}
	return pinned, nil
}
