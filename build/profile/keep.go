package profile

import (
	"fmt"
	"slices"

	"github.com/bmatcuk/doublestar/v4"
)

// Keep says what of the base stays when its layers are made anew: what the programs that run need, by the rules of the dynamic
// loader and of dpkg, and what is named here besides. Everything else goes, with its bytes.
type Keep struct {
	// Roots are paths that must stay with all that they need, besides the programs that slimctl finds by itself.
	Roots []Root `yaml:"roots,omitempty" merge:"key"`
	// Packages are names of packages, or globs of names, that nothing leads to.
	Packages []string `yaml:"packages,omitempty" check:"package" list:"unique" merge:"union"`
	// Paths are absolute paths or globs of what no package owns; a directory stays whole.
	Paths []string `yaml:"paths,omitempty" check:"glob" list:"unique" merge:"union"`
	// Dlopen is what programs load that no ELF file names.
	Dlopen []Dlopen `yaml:"dlopen,omitempty" merge:"key"`
	// Without cuts dependencies between packages. What is kept and needs what is cut stops the build.
	Without []Cut `yaml:"without,omitempty" merge:"key"`
	// Drop takes files out of packages that stay.
	Drop []Drop `yaml:"drop,omitempty" merge:"key"`
	// Unused are files that programs open without need of them, so that verify --reach doesn't miss them.
	Unused []Unused `yaml:"unused,omitempty" merge:"key"`
	// Layers is how the layers are cut: "component" (when absent), by the list of components, or "keep", as the base's are, each
	// without what goes; then a layer of which nothing goes is the base's own, and what the last component names lies on them.
	Layers string `yaml:"layers,omitempty" check:"layers"`
	// Components are the layers, lowest first. What no component names goes to the one that names nothing.
	Components []Component `yaml:"components" list:"min" merge:"key"`
}

// Zstd is a value of Profile.Compression.
const Zstd = "zstd"

// The values of Keep.Layers.
const (
	LayersByComponent = "component"
	LayersKept        = "keep"
)

// Root is a path that must stay.
type Root struct {
	// Path is absolute; symlinks are followed, and stay.
	Path string `yaml:"path" check:"path"`
	// Why names what needs it.
	Why string `yaml:"why" check:"text"`
	// When restricts the root; without it the base must have it.
	When When `yaml:"when,omitempty"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Dlopen is what a program loads by itself.
type Dlopen struct {
	// Opener is a glob of the program; the rule holds when it stays.
	Opener string `yaml:"opener" check:"glob"`
	// Objects are names of libraries, looked for as the loader does, or absolute globs. What the base lacks is left out.
	Objects []string `yaml:"objects" check:"object" list:"min,unique"`
	// Why names what would not work.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Cut says that a package doesn't need another after all.
type Cut struct {
	// From is the package, or a glob of names.
	From string `yaml:"from" check:"package"`
	// To are the packages that it doesn't need, or globs of names.
	To []string `yaml:"to" check:"package" list:"min,unique"`
	// Drop are globs of the files of From that go with them.
	Drop []string `yaml:"drop,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing breaks.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Drop is files that go although their package stays.
type Drop struct {
	// Glob is an absolute pattern, as a removal's.
	Glob string `yaml:"glob" check:"glob"`
	// Except keeps what it matches.
	Except []string `yaml:"except,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing breaks.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Unused is files that are opened and not used.
type Unused struct {
	// Glob is an absolute pattern, as a removal's.
	Glob string `yaml:"glob" check:"glob"`
	// Why is the reason that nothing is lost.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// IsUnused reports whether the profile says of a file that it is opened and not used.
func (k *Keep) IsUnused(p string) bool {
	return slices.ContainsFunc(k.Unused, func(u Unused) bool { return doublestar.MatchUnvalidated(u.Glob, p) })
}

// Component is one layer of what stays.
type Component struct {
	// Name is [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" check:"name"`
	// Packages are names of packages, or globs of names, whose files are in it.
	Packages []string `yaml:"packages,omitempty" check:"package" list:"min,unique"`
	// Paths are absolute paths or globs of other files in it; they come before packages.
	Paths []string `yaml:"paths,omitempty" check:"glob" list:"min,unique"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

func (r Root) key() string      { return r.Path }
func (d Dlopen) key() string    { return d.Opener }
func (c Cut) key() string       { return c.From }
func (d Drop) key() string      { return d.Glob }
func (u Unused) key() string    { return u.Glob }
func (c Component) key() string { return c.Name }

// oneRest finds a profile without the one component that takes what no other names, or with several.
func (c chain) oneRest(p *Profile) (errs Errors) {
	if p.Keep == nil {
		return nil
	}
	rest := 0
	for _, c := range p.Keep.Components {
		if len(c.Packages)+len(c.Paths) == 0 {
			rest++
		}
	}
	if rest != 1 {
		errs = append(errs, &Error{
			Position: c.near("keep.components.name"), Path: "keep.components",
			Msg:  fmt.Sprintf("expected one component that names neither packages nor paths, found %d: what no other names goes there", rest),
			Hint: "write it as {name: system}",
		})
	}
	return errs
}
