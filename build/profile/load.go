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

	"gopkg.in/yaml.v3"
)

// maxChain is the largest number of profiles in a chain of `extends`.
const maxChain = 16

// Loader loads profiles.
type Loader struct {
	// Builtin holds the embedded profiles as NAME.yaml; nil for none.
	Builtin fs.FS
	// Set holds assignments to keys of the loaded profile, such as config.env.TZ=UTC (slimctl's --set).
	Set []string
}

// Summary is a line of `slimctl profile list`.
type Summary struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Extends     string `json:"extends,omitempty"`
}

// Load reads a profile and the profiles that it extends, checks and merges them. nameOrFile is a file if it has a path
// separator or ends in .yaml or .yml. Otherwise it is the name of an embedded profile.
//
// All problems in the files are returned together as Errors. The error for an unreadable file wraps its fs.PathError;
// the error for an unknown name wraps fs.ErrNotExist.
func (l Loader) Load(nameOrFile string) (*Profile, error) {
	chain, err := l.readChain(nameOrFile)
	if err != nil {
		return nil, err
	}
	return chain.merge()
}

// List returns the embedded profiles that have a description, sorted by name.
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
		if one.profile.Description == "" { // it is for others to extend
			continue
		}
		out = append(out, Summary{one.profile.Name, one.profile.Description, one.profile.Extends})
	}
	return out, nil
}

// link is one file of a chain.
type link struct {
	source
	id      string // identifies the file, to detect cycles
	profile *Profile
	errs    Errors
	broken  bool // not read to the end, so missing keys are unknown
	seen    map[string]Position
	opaque  map[string]bool
}

// chain is a profile, followed by the profiles that it extends.
type chain []link

// readChain reads a profile and follows `extends`.
func (l Loader) readChain(nameOrFile string) (chain, error) {
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
		if IsFile(parent) {
			if problem := c[0].confine(last.file, parent); problem != "" {
				return stop(quote(parent) + ": " + problem)
			}
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

// confine returns the problem with a parent's file that child names, or "". The file must be YAML by its name, and lie in
// the git work tree of s, the loaded profile; without one, in or below the directory of s. Symlinks can't lead out.
func (s source) confine(child, parent string) (problem string) {
	if ext := filepath.Ext(parent); ext != ".yaml" && ext != ".yml" {
		return "not a .yaml or .yml file"
	}
	if !filepath.IsAbs(parent) {
		parent = filepath.Join(filepath.Dir(child), parent)
	}
	abs, err := filepath.Abs(parent)
	if err != nil {
		return reason(err)
	}
	for dir := s.dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			s.dir = dir
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	rel, err := filepath.Rel(s.dir, abs)
	if err != nil {
		return reason(err)
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return reason(err)
	}
	defer root.Close()
	if _, err := root.Stat(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "outside " + s.dir + " or not readable; keep it in the git work tree of " + s.file + ", or below its directory"
	}
	return ""
}

func (c chain) files() []string {
	out := make([]string, len(c))
	for i, x := range c {
		out[i] = x.file
	}
	return out
}

// merge returns the effective profile, or every problem of the chain.
func (c chain) merge() (*Profile, error) {
	var errs Errors
	broken := false
	out := new(Profile)
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i].errs...)
		broken = broken || c[i].broken
		out = merge(out, c[i].profile)
	}
	errs = append(errs, c.checkNames()...)
	if !broken {
		errs = append(errs, c.missing(reflect.TypeFor[Profile](), "")...)
		errs = append(errs, c.checkRest(out)...)
	}
	errs = append(errs, findClashes(out)...)
	if len(errs) > 0 {
		errs.sort(c.files())
		return nil, errs
	}
	out.Chain = c.files()
	return out, c.relate(out)
}

// relate makes every source relative to the directory of the loaded profile.
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

// checkNames refuses a profile with the name of one that it extends.
func (c chain) checkNames() (errs Errors) {
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

// missing returns an error for each required key that no file of the chain has.
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
	return slices.ContainsFunc(c, func(l link) bool { _, ok := l.seen[path]; return ok })
}

// near returns the position for a missing key: the section that should have it, or the start of the first file.
func (c chain) near(path string) Position {
	for i := strings.LastIndexByte(path, '.'); i > 0; i = strings.LastIndexByte(path[:i], '.') {
		for _, l := range c {
			if at, ok := l.seen[path[:i]]; ok {
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
	if !isProfile(root) {
		out.errs, out.broken = Errors{{
			Position: Position{src.file, root.Line, root.Column}, Msg: "not a profile: it has none of the keys of one",
			Hint: "a profile starts with \"version: 1\" and \"name:\"",
		}}, true
		return out
	}
	if err := set(root, assignments); err != nil {
		out.errs, out.broken = Errors{err}, true
		return out
	}
	p, d := decode(src, root, assignments)
	out.profile, out.errs, out.seen, out.opaque = p, d.errs, d.seen, d.opaque
	_, extends := d.seen["extends"]
	out.broken = d.nodes > maxNodes || d.opaque[""] || extends && p.Extends == "" // the keys that it would inherit are unknown
	if src.dir == "" && p.Name != "" && p.Name != nameOrFile {
		out.errs = append(out.errs, &Error{
			Position: d.seen["name"], Path: "name",
			Msg: fmt.Sprintf("the file is %s.yaml, but the name is %q", nameOrFile, p.Name),
		})
	}
	return out
}

// isProfile reports whether a document has a key of a profile. Errors quote nothing of another file.
func isProfile(root *yaml.Node) bool {
	known := fieldsOf(reflect.TypeFor[Profile]())
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		if slices.ContainsFunc(known, func(f field) bool { return f.key == root.Content[i].Value }) {
			return true
		}
	}
	return false
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

// IsFile reports whether Load takes nameOrFile as a file, not as the name of an embedded profile.
func IsFile(nameOrFile string) bool {
	return strings.ContainsRune(nameOrFile, '/') || strings.ContainsRune(nameOrFile, filepath.Separator) ||
		strings.HasSuffix(nameOrFile, ".yaml") || strings.HasSuffix(nameOrFile, ".yml")
}

// open reads an embedded profile or a file. A relative file name is relative to child, the file that extends it.
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

// readFile reads at most maxSize+1 bytes of a regular file. It refuses other types, since a pipe may never end.
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
	} else if info, err := os.Stat(name + ".yaml"); err == nil && info.Mode().IsRegular() {
		hint = fmt.Sprintf("did you mean %q?", "./"+name+".yaml")
	}
	if len(names) == 0 {
		hint = "there are none"
	}
	return fmt.Errorf("embedded profile %s: %w; %s", quote(name), fs.ErrNotExist, hint)
}

// names returns the names of the embedded profiles.
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

// reason returns the message of a file system error without the name of the operation.
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
