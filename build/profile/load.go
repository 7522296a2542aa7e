package profile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// maxChain is how many profiles may extend one another.
const maxChain = 16

// Loader reads profiles.
type Loader struct {
	// Builtin holds the embedded profiles as NAME.yaml; nil for none.
	Builtin fs.FS
	// Set holds assignments to keys of the profile that is asked for, as config.env.TZ=UTC (slimctl's --set).
	Set []string
}

// Summary is a line of `slimctl profile list`.
type Summary struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Extends     string `json:"extends,omitempty"`
}

// Load reads a profile and what it extends, checks and merges them. nameOrFile is a file if it has a path separator or
// ends in .yaml or .yml, and the name of an embedded profile otherwise.
//
// The problems in what the files say come as Errors, all at once. A file that cannot be read gives an error that wraps
// its fs.PathError; an embedded name that does not exist one that wraps fs.ErrNotExist.
func (l Loader) Load(nameOrFile string) (*Profile, error) {
	chain, err := l.read(nameOrFile)
	if err != nil {
		return nil, err
	}
	return chain.merge()
}

// List gives the embedded profiles, sorted by name.
func (l Loader) List() ([]Summary, error) {
	var out []Summary
	for _, name := range l.names() {
		src, data, err := l.open(name, "")
		if err != nil {
			return nil, err
		}
		one := readLink(src, name, data, nil)
		if len(one.errs) > 0 {
			return nil, one.errs
		}
		out = append(out, Summary{one.profile.Name, one.profile.Description, one.profile.Extends})
	}
	return out, nil
}

// link is one file of a chain.
type link struct {
	source
	id      string // what a circle is found by
	profile *Profile
	errs    Errors
	broken  bool // it could not be read to its end, so nothing is known of missing keys
	seen    map[string]Position
	opaque  map[string]bool
}

// chain is a profile and, after it, what it extends.
type chain []link

// read follows `extends`.
func (l Loader) read(nameOrFile string) (chain, error) {
	src, data, err := l.open(nameOrFile, "")
	if err != nil {
		return nil, err
	}
	c := chain{readLink(src, nameOrFile, data, l.Set)}
	for {
		last := &c[len(c)-1]
		parent := last.profile.Extends
		if parent == "" || last.broken {
			return c, nil
		}
		stop := func(msg string) (chain, error) {
			last.errs = append(last.errs, &Error{Position: last.seen["extends"], Path: "extends", Msg: msg})
			last.broken = true
			return c, nil
		}
		if IsFile(parent) && last.dir == "" {
			return stop("an embedded profile can extend only an embedded one")
		}
		src, data, err := l.open(parent, last.file)
		if err != nil {
			return stop(reason(err))
		}
		next := readLink(src, parent, data, nil)
		if i := slices.IndexFunc(c, func(x link) bool { return x.id == next.id }); i >= 0 {
			return stop("the profiles extend one another in a circle: " + strings.Join(append(c.files()[i:], src.file), " -> "))
		}
		if len(c) == maxChain {
			return stop(fmt.Sprintf("more than %d profiles extend one another", maxChain))
		}
		c = append(c, next)
	}
}

func (c chain) files() []string {
	out := make([]string, len(c))
	for i, x := range c {
		out[i] = x.file
	}
	return out
}

// merge gives the effective profile, or every problem of the chain.
func (c chain) merge() (*Profile, error) {
	var errs Errors
	broken := false
	out := new(Profile)
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i].errs...)
		broken = broken || c[i].broken
		out = merge(out, c[i].profile)
	}
	errs = append(errs, c.sameNames()...)
	if !broken {
		errs = append(errs, c.missing(reflect.TypeFor[Profile](), "")...)
	}
	errs = append(errs, clashes(out)...)
	errs = append(errs, c.oneRest(out)...)
	if len(errs) > 0 {
		errs.sort(c.files())
		return nil, errs
	}
	out.Chain = c.files()
	return out, c.relate(out)
}

// relate writes every source relative to the directory of the profile that was asked for.
func (c chain) relate(p *Profile) error {
	for _, o := range p.Overlays {
		for i, f := range o.Files {
			if f.Source == "" || strings.HasPrefix(f.Source, "asset:") {
				continue
			}
			rel, err := filepath.Rel(c[0].dir, f.Source)
			if err != nil {
				return err
			}
			o.Files[i].Written = filepath.ToSlash(rel)
		}
	}
	return nil
}

// sameNames finds a profile that has the name of one it extends.
func (c chain) sameNames() (errs Errors) {
	for i, child := range c {
		for _, parent := range c[i+1:] {
			if name := child.profile.Name; name != "" && name == parent.profile.Name {
				errs = append(errs, &Error{
					Position: child.seen["name"], Path: "name",
					Msg:  fmt.Sprintf("%q is the name of a profile that this one extends, %s", name, parent.file),
					Hint: "give it another name",
				})
			}
		}
	}
	return errs
}

// missing finds the required keys that no file of the chain has.
func (c chain) missing(t reflect.Type, path string) (errs Errors) {
	for _, f := range fieldsOf(t) {
		at := join(path, f.key)
		inner, isSection := section(t.Field(f.index).Type)
		switch {
		case f.each:
		case !c.has(at) && f.required:
			errs = append(errs, &Error{Position: c.near(at), Path: at, Msg: "the key is missing"})
		case slices.ContainsFunc(c, func(l link) bool { return l.opaque[at] }):
		case c.has(at) && isSection:
			errs = append(errs, c.missing(inner, at)...)
		}
	}
	return errs
}

func (c chain) has(path string) bool {
	return slices.ContainsFunc(c, func(l link) bool { return l.seen[path].Line > 0 })
}

// near places a key that is missing: at the section that should have it, or at the beginning of the first file.
func (c chain) near(path string) Position {
	for i := strings.LastIndexByte(path, '.'); i > 0; i = strings.LastIndexByte(path[:i], '.') {
		for _, l := range c {
			if at := l.seen[path[:i]]; at.Line > 0 {
				return at
			}
		}
	}
	return Position{c[0].file, 1, 1}
}

func readLink(src source, nameOrFile string, data []byte, assignments []string) link {
	out := link{source: src, id: src.file, profile: new(Profile)}
	if src.dir != "" {
		out.id = realPath(src.file)
	}
	root, err := parse(src.file, data)
	if err != nil {
		out.errs, out.broken = Errors{err}, true
		return out
	}
	if err := set(root, assignments); err != nil {
		out.errs, out.broken = Errors{&Error{Position: Position{src.file, 1, 1}, Msg: err.Error()}}, true
		return out
	}
	p, d := decode(src, root)
	out.profile, out.errs, out.seen, out.opaque = p, d.errs, d.seen, d.opaque
	out.broken = d.nodes > maxNodes || d.opaque[""]
	if src.dir == "" && p.Name != "" && p.Name != nameOrFile {
		out.errs = append(out.errs, &Error{
			Position: d.seen["name"], Path: "name",
			Msg: fmt.Sprintf("the file is %s.yaml, but the name is %q", nameOrFile, p.Name),
		})
	}
	return out
}

func realPath(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return file
}

// IsFile tells whether nameOrFile is a file for Load, and not the name of an embedded profile.
func IsFile(nameOrFile string) bool {
	return strings.ContainsRune(nameOrFile, '/') || strings.ContainsRune(nameOrFile, filepath.Separator) ||
		strings.HasSuffix(nameOrFile, ".yaml") || strings.HasSuffix(nameOrFile, ".yml")
}

// open reads an embedded profile or a file; a relative file name is relative to the file that extends it, child.
func (l Loader) open(nameOrFile, child string) (source, []byte, error) {
	if IsFile(nameOrFile) {
		if child != "" && !filepath.IsAbs(nameOrFile) {
			nameOrFile = filepath.Join(filepath.Dir(child), nameOrFile)
		}
		data, err := readFile(nameOrFile)
		if err != nil {
			return source{}, nil, fmt.Errorf("profile: %w", err)
		}
		dir, err := filepath.Abs(filepath.Dir(nameOrFile))
		return source{nameOrFile, dir}, data, err
	}
	names := l.names()
	if !slices.Contains(names, nameOrFile) {
		return source{}, nil, l.unknown(nameOrFile, names)
	}
	f, err := l.Builtin.Open(nameOrFile + ".yaml")
	if err != nil {
		return source{}, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	return source{"embedded:" + nameOrFile + ".yaml", ""}, data, err
}

// readFile reads at most one byte more than a profile may have; only a regular file, since a pipe may never end.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

func (l Loader) unknown(name string, names []string) error {
	hint := didYouMean(name, names)
	if hint == "" {
		hint = "there are " + strings.Join(names, ", ")
	}
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
		hint = fmt.Sprintf("for the file of that name write %q", "./"+name)
	}
	if len(names) == 0 {
		hint = "there are none"
	}
	return fmt.Errorf("embedded profile %s: %w; %s", quote(name), fs.ErrNotExist, hint)
}

// names lists the embedded profiles.
func (l Loader) names() []string {
	if l.Builtin == nil {
		return nil
	}
	files, err := fs.Glob(l.Builtin, "*.yaml")
	if err != nil {
		return nil
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".yaml")
	}
	slices.Sort(files)
	return files
}

// reason is what a file system error says, without the operation's name.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		if errors.Is(pe.Err, fs.ErrNotExist) {
			return pe.Path + ": no such file"
		}
		return pe.Path + ": " + pe.Err.Error()
	}
	return err.Error()
}
