package slim

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// expectRecipe returns what the surface of a recipe's image may have, and the paths that the recipe adds and removes.
func expectRecipe(p *profile.Profile, r *build.Recipe) (*expect.Expect, error) {
	e := expectProfile(p, r.Platform)
	for _, s := range r.Removals {
		e.Removed[s.Path] = s.Source
	}
	for _, lay := range r.Overlays {
		for _, f := range lay.Files {
			e.Laid[f.Path] = sourceOf(p, lay.Name, f.Path)
		}
	}
	config, err := r.Base.Image.ConfigFile()
	if err != nil {
		return nil, err
	}
	for _, d := range config.RootFS.DiffIDs {
		e.Base = append(e.Base, d.String())
	}
	return e, nil
}

// expectImage returns what the surface of img may have by a profile without a known base. unchecked lists what can't be
// decided without the base.
func expectImage(p *profile.Profile, img *inspect.Image, own []build.Lay) (e *expect.Expect, unchecked []string, err error) {
	platform := profilePlatform(img.Platform)
	e = expectProfile(p, platform)
	lays, unsure, err := resolve.Laid(p, platform, assets.FS, own)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range unsure {
		unchecked = append(unchecked, fmt.Sprintf("%s: whether %s must exist depends on the base; name it with --base", platform, name))
	}
	for _, lay := range lays {
		for _, f := range lay.Files {
			at, err := img.Files.Resolve(f.Path)
			if err != nil {
				at = f.Path // it doesn't exist
			}
			e.Laid[at] = sourceOf(p, lay.Name, f.Path)
		}
	}
	return e, unchecked, nil
}

// profilePlatform returns a platform as profiles write it, without a default variant.
func profilePlatform(p v1.Platform) v1.Platform {
	if p.Architecture == "arm64" && p.Variant == "v8" {
		p.Variant = ""
	}
	return p
}

// expectProfile returns the expectations that a profile states itself.
func expectProfile(p *profile.Profile, platform v1.Platform) *expect.Expect {
	x := p.Expect
	return &expect.Expect{
		Profile: p.Name, Platform: platform.String(),
		Programs: x.Programs, Routes: x.Routes, MCPServers: x.MCPServers, Tools: x.Tools,
		Listeners: x.Listeners, Upstreams: x.Upstreams, Privileged: p.Privileged, Switches: x.Switches, Env: p.Config.Env,
		Laid: map[string]string{}, Removed: map[string]string{},
	}
}

// sourceOf returns the profile's line for a file of an overlay, or for the overlay; "" if slimctl adds it by itself.
func sourceOf(p *profile.Profile, overlay, written string) string {
	for _, o := range p.Overlays {
		if o.Name != overlay {
			continue
		}
		for _, f := range o.Files {
			if image.Clean(f.Path) == written {
				return f.Position.String()
			}
		}
		return o.Position.String()
	}
	return ""
}
