// Package packages reads which packages an image has (dpkg, pip, npm), how big they are, and which files are theirs.
package packages

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Kinds of a package.
const (
	Dpkg = "dpkg"
	Pip  = "pip"
	NPM  = "npm"
)

// Package is an installed package.
type Package struct {
	// Kind is Dpkg, Pip or NPM.
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Arch is dpkg's; empty otherwise.
	Arch string `json:"arch,omitempty"`
	// Dir is where a pip or npm package lies.
	Dir string `json:"dir,omitempty"`
	// Size is in bytes: of its files that are in the image, each counted once. Files is how many.
	Size  int64 `json:"size"`
	Files int   `json:"files"`
	// Missing is how many of the files and empty directories that its record names are not in the image. Compiled Python
	// is not counted.
	Missing int `json:"missing,omitempty"`
	// Hollow is true when all that it named is missing, but for documentation and the record itself: the database says that
	// the package is installed, and it is not.
	Hollow bool       `json:"hollow,omitempty"`
	Place  tree.Place `json:"place"`
}

// Database is every package of an image.
type Database struct {
	// Packages are sorted by kind, name and directory.
	Packages []Package   `json:"packages"`
	Notes    []tree.Note `json:"notes,omitempty"`

	// owners has the position in Packages by the hash of the path: a tenth of what the paths would take. The seed is
	// random, so that no image can be made whose paths collide.
	owners map[uint64]int32
	seed   maphash.Seed
	// modules has the position in Packages by the directory of an npm package.
	modules map[string]int32
}

// Read reads the databases of img. What makes no sense in them is a note; an error is a layer that can't be read.
func Read(ctx context.Context, img *tree.Image) (*Database, error) {
	r := newReader(img)
	found := r.find()
	if err := r.read(ctx, found); err != nil {
		return nil, err
	}
	r.dpkg(found)
	for _, p := range found.dists {
		if r.pip(p); r.full {
			break
		}
	}
	for _, p := range slices.Concat(found.modules, found.manifests) {
		if r.npm(p); r.full {
			break
		}
	}
	r.count()
	r.sort()
	return r.db, nil
}

// Owner is the package that a path belongs to, whether it is in the image or missing; nil when none does. The path is one
// of the merged tree: without symlinks among its parents. A file inside of an npm package belongs to it, and a file that
// both dpkg and another name belongs to dpkg. Of directories only npm's and empty ones belong to a package.
func (d *Database) Owner(path string) *Package {
	if d == nil {
		return nil
	}
	if n, ok := d.owners[d.hash(path)]; ok {
		return &d.Packages[n]
	}
	if n, ok := d.module(path); ok {
		return &d.Packages[n]
	}
	return nil
}

func (d *Database) hash(path string) uint64 { return maphash.String(d.seed, path) }

// nodeModules is the directory below which Node looks for packages.
const nodeModules = "/node_modules/"

// module finds the innermost npm package around p.
func (d *Database) module(p string) (int32, bool) {
	if !strings.Contains(p, nodeModules) { // sooner told than where the last one is
		return 0, false
	}
	for end := len(p); ; {
		i := strings.LastIndex(p[:end], nodeModules)
		if i < 0 {
			return 0, false
		}
		if dir := moduleDir(p, i+len(nodeModules)); dir != "" {
			if n, ok := d.modules[dir]; ok {
				return n, true
			}
		}
		end = i + 1 // a node_modules may follow another one directly
	}
}

// moduleDir is the directory of the package whose name begins at start of p: one element, or two when it has a scope.
func moduleDir(p string, start int) string {
	end := start
	if end < len(p) && p[end] == '@' {
		i := strings.IndexByte(p[end:], '/')
		if i < 0 {
			return ""
		}
		end += i + 1
	}
	if i := strings.IndexByte(p[end:], '/'); i >= 0 {
		return p[:end+i]
	}
	return p
}

// Bounds of what a hostile image can make us do. A real one has 2,000 packages, 300,000 files named, 20 MB of databases.
const (
	maxDatabases = 64 << 20 // bytes that are read
	maxPackages  = 20_000
	maxFiles     = 2 * maxPackages // that are read
	maxNamed     = 1_000_000       // files that packages name
	maxNotes     = 1000
	maxText      = 256  // bytes of a name or a version
	maxPath      = 4096 // Linux's PATH_MAX
	maxDirs      = 1 << 16
)

// reader is a Database while it is made.
type reader struct {
	img   *tree.Image
	db    *Database
	files map[string]string // by path, their content
	// records has, for each package, the directory of its record; empty for dpkg's, which lie elsewhere.
	records []string
	// named and there are, for each package, how many files it names that are more than documentation and the record, and
	// how many of these are in the image.
	named, there []int32
	full         bool // there are too many packages
	claims       int
	// others are the packages that name a path after its owner has, by the path's hash.
	others map[uint64][]int32
	// linked are the files that have other names; counted are those of them that a package has counted.
	linked   map[string]bool
	counted  map[counted]bool
	symlinks map[string]bool
	// dirs remembers where directories really are: databases name the same ones over and over.
	dirs map[string]string
	// npmDirs has the position in Packages by the directory of every npm package, also one outside node_modules, which
	// owns nothing: rules that trust a package's files must not trust all that lies beside a package.json.
	npmDirs map[string]int32
}

func newReader(img *tree.Image) *reader {
	return &reader{
		img: img, others: map[uint64][]int32{}, linked: map[string]bool{}, counted: map[counted]bool{},
		symlinks: map[string]bool{}, dirs: map[string]string{}, npmDirs: map[string]int32{},
		db: &Database{Packages: []Package{}, owners: map[uint64]int32{}, seed: maphash.MakeSeed(), modules: map[string]int32{}},
	}
}

// counted is a file that package n has counted.
type counted struct {
	path string
	n    int32
}

// found are the paths of an image's databases.
type found struct {
	dpkgInfo map[string]string // by name in the info directory, the path
	statusD  []string
	dists    []string // METADATA, PKG-INFO, or a single egg-info file
	modules  []string // package.json of a directory in which Node looks for a package
	// manifests are the other package.json files. One with a name is a package, as for syft.
	manifests []string
}

// isModule reports whether the package.json at p is that of a directory in which Node looks for a package.
func isModule(p string) bool {
	i := strings.LastIndex(p, nodeModules)
	return i >= 0 && moduleDir(p, i+len(nodeModules))+"/package.json" == p
}

// find looks for databases.
func (r *reader) find() *found {
	f := &found{dpkgInfo: map[string]string{}}
	for e := range r.img.Walk("/") {
		switch e.Type {
		case image.TypeLink:
			r.linked[e.Link] = true
		case image.TypeSymlink:
			r.symlinks[e.Path] = true
		case image.TypeFile:
		default:
			continue
		}
		switch base := e.Path[strings.LastIndexByte(e.Path, '/')+1:]; {
		case base == "package.json":
			if isModule(e.Path) {
				f.modules = append(f.modules, e.Path)
			} else {
				f.manifests = append(f.manifests, e.Path)
			}
		case base == "METADATA" && strings.HasSuffix(e.Path, ".dist-info/METADATA"),
			base == "PKG-INFO" && strings.HasSuffix(e.Path, ".egg-info/PKG-INFO"),
			strings.HasSuffix(base, ".egg-info"):
			f.dists = append(f.dists, e.Path)
		}
	}
	if dir, err := r.img.Resolve(dpkgInfo + "/x"); err == nil {
		for _, e := range r.img.Dir(path.Dir(dir)) {
			f.dpkgInfo[path.Base(e.Path)] = e.Path
		}
	}
	if dir, err := r.img.Resolve(dpkgStatusD + "/x"); err == nil {
		for _, e := range r.img.Dir(path.Dir(dir)) {
			f.statusD = append(f.statusD, e.Path)
		}
	}
	return f
}

// read reads every file that is needed, in one go.
func (r *reader) read(ctx context.Context, f *found) error {
	var want []string
	var total int64
	add := func(p string) {
		e, ok := r.img.Lookup(p)
		if !ok || e.Type == image.TypeSymlink {
			e, ok = r.img.Stat(p)
		}
		switch {
		case !ok || e.Digest == (tree.Digest{}):
			if _, there := r.img.Lookup(r.canonical(p)); there {
				r.note(p, 0, "it is no file that can be read")
			}
		case e.Size > tree.MaxRead:
			r.note(p, 0, fmt.Sprintf("it has %d bytes, more than the %d that are read of a file", e.Size, tree.MaxRead))
		case total+e.Size > maxDatabases, len(want) == maxFiles:
			r.note(p, 0, "not read: the image's package databases are larger than any real one")
		default:
			total += e.Size
			want = append(want, p)
		}
	}
	add(dpkgStatus)
	add(dpkgDiversions)
	for _, name := range sortedKeys(f.dpkgInfo) {
		stem, isSums := strings.CutSuffix(name, ".md5sums")
		_, hasList := f.dpkgInfo[stem+".list"]
		if strings.HasSuffix(name, ".list") || isSums && !hasList {
			add(f.dpkgInfo[name])
		}
	}
	for _, p := range f.statusD {
		add(p)
	}
	for _, p := range f.dists {
		if add(p); len(want) == maxFiles {
			r.note(p, 0, fmt.Sprintf("what follows is not read: package databases have more than %d files", maxFiles))
			break
		}
		if _, ok := r.img.Lookup(record(p)); ok {
			add(record(p))
		}
	}
	for _, p := range slices.Concat(f.modules, f.manifests) {
		if add(p); len(want) == maxFiles {
			r.note(p, 0, fmt.Sprintf("what follows is not read: package databases have more than %d files", maxFiles))
			break
		}
	}
	raw, err := r.img.ReadFiles(ctx, want...)
	if err != nil {
		return err
	}
	r.files = make(map[string]string, len(raw))
	for p, data := range raw {
		r.files[p] = string(data)
		delete(raw, p)
	}
	return nil
}

// add makes a package and gives its position. What it claims next is its own. It is false when there are too many.
func (r *reader) add(p Package, record string) (int32, bool) {
	n := len(r.db.Packages)
	if n == maxPackages {
		if !r.full {
			// First, since there may be more notes than are kept.
			r.db.Notes = slices.Insert(r.db.Notes, 0, tree.Note{Place: p.Place, Text: fmt.Sprintf("not read: these are more than %d packages", maxPackages)})
		}
		r.full = true
		return 0, false
	}
	p.Name, p.Version, p.Arch = clip(p.Name), clip(p.Version), clip(p.Arch)
	r.db.Packages = append(r.db.Packages, p)
	r.records = append(r.records, record)
	r.named = append(r.named, 0)
	r.there = append(r.there, 0)
	return int32(n), true
}

// clip gives a copy of s that doesn't hold the file that it is a part of, and no more than maxText of it.
func clip(s string) string { return strings.Clone(s[:min(len(s), maxText)]) }

// canonical is p as the merged tree has it: with the symlinks among its parents followed. What can't be stays as it is.
func (r *reader) canonical(p string) string {
	if len(p) > maxPath {
		return p // nothing can have this path
	}
	i := max(strings.LastIndexByte(p, '/'), 0)
	if dir := r.dir(p[:i]); dir != p[:i] {
		return dir + p[i:]
	}
	return p
}

// dir is canonical for a directory, its own symlink followed too. The root is "".
func (r *reader) dir(p string) string {
	if p == "" {
		return ""
	}
	to, ok := r.dirs[p]
	if ok {
		return to
	}
	if to = r.canonical(p); r.symlinks[to] {
		if inside, err := r.img.Resolve(to + "/x"); err == nil {
			to = strings.TrimSuffix(path.Dir(inside), "/")
		}
	}
	if len(r.dirs) == maxDirs {
		clear(r.dirs)
	}
	r.dirs[p] = to
	return to
}

// claim notes that package n, the last one that was added, names the path p, which is one of the tree. The first package
// that does so owns it. Until all is counted, a named path is a missing one.
func (r *reader) claim(n int32, p string) {
	if r.claims++; r.claims >= maxNamed {
		if r.claims == maxNamed {
			r.note(r.db.Packages[n].Place.Path, 0, fmt.Sprintf("not wholly read: packages name more than %d files", maxNamed))
		}
		return
	}
	h := r.db.hash(p)
	switch owner, taken := r.db.owners[h]; {
	case !taken:
		r.db.owners[h] = n
	case owner == n:
		return // named twice
	default:
		others := r.others[h]
		if len(others) > 0 && others[len(others)-1] == n {
			return
		}
		r.others[h] = append(others, n)
	}
	r.db.Packages[n].Missing++
	if r.isBody(n, p) {
		r.named[n]++
	}
}

// isBody reports whether a file that package n names is more than documentation and the record.
func (r *reader) isBody(n int32, p string) bool {
	if below, ok := strings.CutPrefix(p, "/usr/share/"); ok {
		top, _, _ := strings.Cut(below, "/")
		switch top {
		case "doc", "doc-base", "man", "info", "lintian", "bug":
			return false
		}
	}
	record := r.records[n]
	return record == "" || !image.Within(p, record)
}

// count gives each package what is in the image of its files.
func (r *reader) count() {
	var open []int32 // the npm packages around e, innermost last
	for e := range r.img.Walk("/") {
		h := r.db.hash(e.Path)
		if n, ok := r.db.owners[h]; ok {
			r.have(n, e)
			for _, n := range r.others[h] {
				r.have(n, e)
			}
		}
		for len(open) > 0 && !image.Within(e.Path, r.db.Packages[open[len(open)-1]].Dir) {
			open = open[:len(open)-1]
		}
		if n, ok := r.npmDirs[e.Path]; ok && e.IsDir() {
			open = append(open, n)
		}
		if len(open) > 0 && !e.IsDir() {
			r.has(open[len(open)-1], e)
		}
	}
	for n := range r.db.Packages {
		r.db.Packages[n].Hollow = r.named[n] > 0 && r.there[n] == 0
	}
}

// have counts an entry that package n named.
func (r *reader) have(n int32, e *tree.Entry) {
	r.db.Packages[n].Missing--
	if e.IsDir() {
		return
	}
	if r.isBody(n, e.Path) {
		r.there[n]++
	}
	r.has(n, e)
}

// has adds an entry to package n's sizes.
func (r *reader) has(n int32, e *tree.Entry) {
	pkg := &r.db.Packages[n]
	pkg.Files++
	inode := e.Path
	if e.Type == image.TypeLink {
		inode = e.Link
	}
	if r.linked[inode] {
		if r.counted[counted{inode, n}] {
			return
		}
		r.counted[counted{inode, n}] = true
	}
	pkg.Size += e.Size
}

// note says something about a file.
func (r *reader) note(p string, line int, text string) {
	switch n := len(r.db.Notes); {
	case n < maxNotes:
		r.db.Notes = append(r.db.Notes, tree.Note{Place: r.img.Place(p, line), Text: text})
	case n == maxNotes:
		r.db.Notes = append(r.db.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on packages are left out"})
	}
}

// sort brings the packages into their order.
func (r *reader) sort() {
	pkgs := r.db.Packages
	order := make([]int32, len(pkgs))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &pkgs[a], &pkgs[b]
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Dir, y.Dir), cmp.Compare(x.Arch, y.Arch))
	})
	sorted, position := make([]Package, len(pkgs)), make([]int32, len(pkgs))
	for to, from := range order {
		sorted[to], position[from] = pkgs[from], int32(to)
	}
	r.db.Packages = sorted
	for h, n := range r.db.owners {
		r.db.owners[h] = position[n]
	}
	for dir, n := range r.db.modules {
		r.db.modules[dir] = position[n]
	}
}
