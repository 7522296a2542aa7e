package profile

import (
	"fmt"
	"slices"

	"github.com/bmatcuk/doublestar/v4"
)

// Keep rebuilds the base's layers with only what stays: the files that the image's programs need, by the rules of the
// dynamic loader and of dpkg, and the files named here. All other files are removed with their bytes.
type Keep struct {
	// Roots are paths that must stay with everything that they need. slimctl finds the programs of supervisord.conf by
	// itself.
	Roots []Root `yaml:"roots,omitempty" merge:"key"`
	// Packages are names of packages, or globs of names, that stay although no file needs them.
	Packages []string `yaml:"packages,omitempty" check:"package" list:"unique" merge:"union"`
	// Paths are absolute paths or globs of files that stay and belong to no package. A directory stays whole.
	Paths []string `yaml:"paths,omitempty" check:"glob" list:"unique" merge:"union"`
	// Dlopen lists the libraries that programs load without naming them in an ELF header.
	Dlopen []Dlopen `yaml:"dlopen,omitempty" merge:"key"`
	// Without cuts dependencies between packages. The build fails if a kept package needs one that was cut.
	Without []Cut `yaml:"without,omitempty" merge:"key"`
	// Drop removes files of packages that stay.
	Drop []Drop `yaml:"drop,omitempty" merge:"key"`
	// Unused lists files that programs open but don't need, so that verify --reach doesn't report them as missing.
	Unused []Unused `yaml:"unused,omitempty" merge:"key"`
	// Components are the layers, lowest first. One of them names nothing and gets the files that no other names.
	Components []Component `yaml:"components" list:"min" merge:"key"`
}

// Root is a path that must stay.
type Root struct {
	// Path is absolute. Symlinks are followed, and stay.
	Path string `yaml:"path" check:"path"`
	// Why is the reason: what needs the path.
	Why string `yaml:"why" check:"text"`
	// When restricts the root. Otherwise the base must have it.
	When When `yaml:"when,omitempty"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Dlopen lists what a program loads by dlopen(3).
type Dlopen struct {
	// Opener is a glob of the program. The rule applies if the program stays.
	Opener string `yaml:"opener" check:"glob"`
	// Objects are names of libraries, searched for like the loader does, or absolute globs. Missing ones are ignored.
	Objects []string `yaml:"objects" check:"object" list:"min,unique"`
	// Why is the reason: what fails without them.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Cut removes a dependency between packages.
type Cut struct {
	// From is the dependent package, or a glob of names.
	From string `yaml:"from" check:"package"`
	// To are the packages that it doesn't need, or globs of names.
	To []string `yaml:"to" check:"package" list:"min,unique"`
	// Drop are globs of files of From that are removed with them.
	Drop []string `yaml:"drop,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing breaks.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Drop removes files although their package stays.
type Drop struct {
	// Glob is an absolute pattern, as in `remove`.
	Glob string `yaml:"glob" check:"glob"`
	// Except are patterns of files to keep.
	Except []string `yaml:"except,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing breaks.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Unused names files that are opened but not needed.
type Unused struct {
	// Glob is an absolute pattern, as in `remove`.
	Glob string `yaml:"glob" check:"glob"`
	// Why is the reason that nothing is lost.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// IsUnused reports whether a pattern in Unused matches p.
func (k *Keep) IsUnused(p string) bool {
	return slices.ContainsFunc(k.Unused, func(u Unused) bool { return doublestar.MatchUnvalidated(u.Glob, p) })
}

// Component is one layer of what stays.
type Component struct {
	// Name is [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" check:"name"`
	// Packages are names of packages, or globs of names, whose files are in the layer.
	Packages []string `yaml:"packages,omitempty" check:"package" list:"min,unique"`
	// Paths are absolute paths or globs of other files in the layer. They take precedence over packages.
	Paths []string `yaml:"paths,omitempty" check:"glob" list:"min,unique"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

func (r Root) key() string      { return r.Path }
func (d Dlopen) key() string    { return d.Opener }
func (c Cut) key() string       { return c.From }
func (d Drop) key() string      { return d.Glob }
func (u Unused) key() string    { return u.Glob }
func (c Component) key() string { return c.Name }

// checkRest requires exactly one component that names nothing, which gets the files that no other names.
func (c chain) checkRest(p *Profile) (errs Errors) {
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
			Msg:  fmt.Sprintf("expected one component without packages and paths, which gets the files that no other names, found %d", rest),
			Hint: "write it as {name: system}",
		})
	}
	return errs
}
