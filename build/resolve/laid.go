package resolve

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
)

// Laid returns the overlays of a profile without a base: own, the profile's and mcp-hub.json's, at the paths as written. It
// omits files whose condition depends on the base and lists them in unsure.
func Laid(p *profile.Profile, platform v1.Platform, assets fs.FS, own []build.Lay) (lays []build.Lay, unsure []string, err error) {
	lays = slices.Clone(own)
	w := &work{in: Input{Assets: assets}}
	var errs []error
	for _, o := range p.Overlays {
		lay := build.Lay{Name: o.Name, Why: o.Why}
		for _, f := range o.Files {
			here, sure := canHold(o.When, platform)
			holds, too := canHold(f.When, platform)
			switch {
			case !here || !holds:
				continue
			case !sure || !too:
				unsure = append(unsure, f.Path)
				continue
			}
			file, err := w.makeFile(f)
			if err != nil {
				errs = append(errs, fmt.Errorf("overlay %s: %s: %w", o.Name, f.Path, err))
				continue
			}
			lay.Files = append(lay.Files, file)
		}
		lays = append(lays, lay)
	}
	hub, err := hubOverlay(assets)
	return append(lays, hub), unsure, errors.Join(append(errs, err)...)
}

// canHold reports whether a condition can hold for a platform on some base, and whether it holds on every base.
func canHold(c profile.When, p v1.Platform) (can, always bool) {
	can = len(c.Platform) == 0 || slices.Contains(c.Platform, profile.Platform(p.String()))
	return can, len(c.Line) == 0 && c.Exists == "" && c.Missing == ""
}
