// Package packages reads the installed packages of an image (dpkg, pip, npm), their sizes and their files.
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

// Kinds of a Package.
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
	// Arch is the architecture for dpkg; empty otherwise.
	Arch string `json:"arch,omitempty"`
	// Dir is the directory of a pip or npm package.
	Dir string `json:"dir,omitempty"`
	// Size is the size in bytes of its files in the image, each counted once. Files is their number.
	Size  int64 `json:"size"`
	Files int   `json:"files"`
	// Missing is the number of recorded files and empty directories that the image lacks, without compiled Python.
	Missing int `json:"missing,omitempty"`
	// Hollow is true if all recorded files are missing, except documentation and the record itself: the database lists
	// the package, but it is not installed.
	Hollow bool       `json:"hollow,omitempty"`
	Place  tree.Place `json:"place"`
}

// Database holds all packages of an image.
type Database struct {
	// Packages are sorted by kind, name and directory.
	Packages []Package   `json:"packages"`
	Notes    []tree.Note `json:"notes,omitempty"`

	// owners maps the hash of a path to a position in Packages, with a tenth of the paths' memory. The seed is random,
	// so that no image can be made with colliding paths.
	owners map[uint64]int32
	seed   maphash.Seed
	// modules maps the directory of an npm package to its position in Packages.
	modules map[string]int32
}

// Read reads the databases of img. Invalid content becomes a note; an error reports a layer that can't be read.
func Read(ctx context.Context, img *tree.Image) (*Database, error) {
	r := newReader(img)
	found := r.findDatabases()
	if err := r.readFiles(ctx, found); err != nil {
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
	r.countFiles()
	r.sortPackages()
	return r.db, nil
}

// Owner returns the package that owns a path, whether the file exists or not; nil if none does. The path is one of the
// merged tree: without symlinks among its parents. A file inside an npm package belongs to that, and a file named by
// dpkg and another belongs to dpkg. Only npm's and empty directories belong to a package.
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

// nodeModules is the path element below which Node looks for packages.
const nodeModules = "/node_modules/"

// module returns the innermost npm package around p.
func (d *Database) module(p string) (int32, bool) {
	if !strings.Contains(p, nodeModules) { // faster than searching for the last one
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
		end = i + 1 // a node_modules may directly follow another
	}
}

// moduleDir returns the directory of the package whose name begins at start of p: one element, or two with a scope.
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

// Limits for a hostile image. A real one has 2,000 packages, 300,000 recorded files, 20 MB of databases.
const (
	maxDatabases = 64 << 20 // bytes that are read
	maxPackages  = 20_000
	maxFiles     = 2 * maxPackages // that are read
	maxNamed     = 1_000_000       // files named by packages
	maxNotes     = 1000
	maxText      = 256  // bytes of a name or a version
	maxPath      = 4096 // Linux's PATH_MAX
	maxDirs      = 1 << 16
)

// reader is a Database under construction.
type reader struct {
	img   *tree.Image
	db    *Database
	files map[string]string // contents by path
	// records holds the directory of each package's record; empty for dpkg's, which are elsewhere.
	records []string
	// named and there hold, for each package, the number of recorded files other than documentation and the record, and
	// the number of those that exist.
	named, there []int32
	full         bool // the limit for packages is reached
	claims       int
	// others maps a path's hash to the packages that name it after its owner.
	others map[uint64][]int32
	// linked lists files with several names; counted those of them that a package has counted.
	linked   map[string]bool
	counted  map[counted]bool
	symlinks map[string]bool
	// dirs caches the resolved directories: databases repeat the same ones.
	dirs map[string]string
	// npmDirs maps the directory of every npm package to its position in Packages. It includes those outside
	// node_modules, which own nothing: rules that trust a package's files must not trust everything beside a
	// package.json.
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

// found holds the paths of an image's databases.
type found struct {
	dpkgInfo map[string]string // paths by name in the info directory
	statusD  []string
	dists    []string // METADATA, PKG-INFO, or a single egg-info file
	modules  []string // package.json files of directories in which Node looks for a package
	// manifests holds the other package.json files. One with a name is a package, as for syft.
	manifests []string
}

// isModule reports whether the package.json at p is that of a directory in which Node looks for a package.
func isModule(p string) bool {
	i := strings.LastIndex(p, nodeModules)
	return i >= 0 && moduleDir(p, i+len(nodeModules))+"/package.json" == p
}

// findDatabases finds the databases.
func (r *reader) findDatabases() *found {
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

// readFiles reads every needed file in one pass.
func (r *reader) readFiles(ctx context.Context, f *found) error {
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
				r.addNote(p, 0, "not a readable file")
			}
		case e.Size > tree.MaxRead:
			r.addNote(p, 0, fmt.Sprintf("the file has %d bytes; at most %d are read", e.Size, tree.MaxRead))
		case total+e.Size > maxDatabases, len(want) == maxFiles:
			r.addNote(p, 0, "not read: the image's package databases are larger than any real one")
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
			r.addNote(p, 0, fmt.Sprintf("what follows is not read: package databases have more than %d files", maxFiles))
			break
		}
		if _, ok := r.img.Lookup(record(p)); ok {
			add(record(p))
		}
	}
	for _, p := range slices.Concat(f.modules, f.manifests) {
		if add(p); len(want) == maxFiles {
			r.addNote(p, 0, fmt.Sprintf("what follows is not read: package databases have more than %d files", maxFiles))
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

// addPackage adds a package and returns its position. Later claims are for it. It returns false beyond the limit.
func (r *reader) addPackage(p Package, record string) (int32, bool) {
	n := len(r.db.Packages)
	if n == maxPackages {
		if !r.full {
			// First, since the notes may exceed their limit.
			r.db.Notes = slices.Insert(r.db.Notes, 0, tree.Note{Place: p.Place, Text: fmt.Sprintf("not read: these are more than %d packages", maxPackages)})
		}
		r.full = true
		return 0, false
	}
	p.Name, p.Version, p.Arch = copyText(p.Name), copyText(p.Version), copyText(p.Arch)
	r.db.Packages = append(r.db.Packages, p)
	r.records = append(r.records, record)
	r.named = append(r.named, 0)
	r.there = append(r.there, 0)
	return int32(n), true
}

// copyText returns a copy of s that doesn't keep the file in memory, limited to maxText.
func copyText(s string) string { return strings.Clone(s[:min(len(s), maxText)]) }

// canonical returns the path of p in the merged tree, with the symlinks among its parents resolved. An unresolvable
// path stays unchanged.
func (r *reader) canonical(p string) string {
	if len(p) > maxPath {
		return p // too long for a path
	}
	i := max(strings.LastIndexByte(p, '/'), 0)
	if dir := r.dir(p[:i]); dir != p[:i] {
		return dir + p[i:]
	}
	return p
}

// dir resolves a directory like canonical, its own symlink included. The root is "".
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

// claimPath records that package n, the last one added, names the path p of the tree. The first claim wins. Until
// everything is counted, a claimed path counts as missing.
func (r *reader) claimPath(n int32, p string) {
	if r.claims++; r.claims >= maxNamed {
		if r.claims == maxNamed {
			r.addNote(r.db.Packages[n].Place.Path, 0, fmt.Sprintf("not wholly read: packages name more than %d files", maxNamed))
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

// isBody reports whether a file of package n is something other than documentation and the record.
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

// countFiles adds the existing files to the packages.
func (r *reader) countFiles() {
	var open []int32 // the npm packages around e, innermost last
	for e := range r.img.Walk("/") {
		h := r.db.hash(e.Path)
		if n, ok := r.db.owners[h]; ok {
			r.countEntry(n, e)
			for _, n := range r.others[h] {
				r.countEntry(n, e)
			}
		}
		for len(open) > 0 && !image.Within(e.Path, r.db.Packages[open[len(open)-1]].Dir) {
			open = open[:len(open)-1]
		}
		if n, ok := r.npmDirs[e.Path]; ok && e.IsDir() {
			open = append(open, n)
		}
		if len(open) > 0 && !e.IsDir() {
			r.addSize(open[len(open)-1], e)
		}
	}
	for n := range r.db.Packages {
		r.db.Packages[n].Hollow = r.named[n] > 0 && r.there[n] == 0
	}
}

// countEntry counts an entry that package n named.
func (r *reader) countEntry(n int32, e *tree.Entry) {
	r.db.Packages[n].Missing--
	if e.IsDir() {
		return
	}
	if r.isBody(n, e.Path) {
		r.there[n]++
	}
	r.addSize(n, e)
}

// addSize adds an entry to package n's sizes.
func (r *reader) addSize(n int32, e *tree.Entry) {
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

// addNote adds a note about a file.
func (r *reader) addNote(p string, line int, text string) {
	switch n := len(r.db.Notes); {
	case n < maxNotes:
		r.db.Notes = append(r.db.Notes, tree.Note{Place: r.img.Place(p, line), Text: text})
	case n == maxNotes:
		r.db.Notes = append(r.db.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on packages are left out"})
	}
}

// sortPackages sorts the packages.
func (r *reader) sortPackages() {
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
