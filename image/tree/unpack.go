package tree

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/slimctl/slimctl/image"
)

// What one hostile image can make us do, all its layers together.
const (
	// maxEntries bounds entries, and directories that no layer names but that must be there.
	maxEntries = 5_000_000
	// maxNames bounds paths, link targets and extended attributes, in bytes.
	maxNames = 512 << 20
	// maxSparse bounds the size of sparse files, in bytes: what the archive leaves out of them is hashed too.
	maxSparse = 8 << 30
	// maxInflated bounds what layers inflate to, in bytes, beside maxRatio times what they have compressed.
	maxInflated = 16 << 30
	maxRatio    = 64
)

// maxPath is the longest path that the kernel takes, in bytes (PATH_MAX, path_resolution(7)).
const maxPath = 4095

// maxSteps bounds the directories that are walked through to place one layer's entries: symlinks make many of few bytes.
const maxSteps = 100_000_000

// limits is what is left for the layers of an image; nil has no end.
type limits struct{ entries, names, sparseBytes, inflatedBytes atomic.Int64 }

func newLimits() *limits {
	l := &limits{}
	l.entries.Store(maxEntries)
	l.names.Store(maxNames)
	l.sparseBytes.Store(maxSparse)
	l.inflatedBytes.Store(maxInflated)
	return l
}

func (l *limits) take(entries, names int64) error {
	if l == nil {
		return nil
	}
	if l.entries.Add(-entries) < 0 {
		return fmt.Errorf("the image has more than %d files and directories", maxEntries)
	}
	if l.names.Add(-names) < 0 {
		return fmt.Errorf("the paths, links and attributes of the image have more than %d bytes", maxNames)
	}
	return nil
}

func (l *limits) sparse(size int64) error {
	if size > maxSparse || l.sparseBytes.Add(-size) < 0 {
		return fmt.Errorf("the sparse files of the image have more than %d bytes", int64(maxSparse))
	}
	return nil
}

// inflate returns a reader of the decompressed content, as image.Inflate does. members returns how many gzip members were read.
func (l *limits) inflate(compressed io.Reader) (_ io.ReadCloser, members func() int, _ error) {
	raw, err := image.Inflate(readerFunc(func(b []byte) (int, error) {
		n, err := compressed.Read(b)
		l.inflatedBytes.Add(int64(n) * maxRatio)
		return n, err
	}))
	if err != nil {
		return nil, nil, err
	}
	members = func() int {
		if g, ok := raw.(*image.Gunzip); ok {
			return g.Members
		}
		return 0
	}
	return struct {
		io.Reader
		io.Closer
	}{readerFunc(func(b []byte) (int, error) {
		n, err := raw.Read(b)
		if l.inflatedBytes.Add(-int64(n)) < 0 {
			return 0, fmt.Errorf("the layers inflate to more than %d GiB and %d times their size", maxInflated>>30, maxRatio)
		}
		return n, err
	}), raw}, members, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// unpacker lays one layer in memory as container runtimes lay it in an empty directory, entry by entry: a later entry takes
// the place of an earlier one, and a parent that the layer made a symlink is followed.
type unpacker struct {
	limits  *limits
	entries []Entry
	marks   []Entry
	odd     []Odd
	foreign string // Layer.Foreign
	// nodes[0] is the root. A node's parent stands before it.
	nodes []node
	at    map[place]int32
	// links has, for the entry of a hard link, the entry of its file.
	links map[int32]int32
	steps int
	// The directory that was asked for last, most often asked for again, and how many symlinks lead to it.
	lastPath  string
	last      int32
	lastLinks int
}

type node struct {
	name   string
	parent int32
	entry  int32 // -1 for a directory that the layer doesn't name
	gone   bool
}

type place struct {
	dir  int32
	name string
}

func newUnpacker(l *limits) *unpacker {
	return &unpacker{limits: l, nodes: []node{{entry: -1}}, at: map[place]int32{}, links: map[int32]int32{}, lastPath: "/"}
}

// add takes the layer's next entry, with a clean path.
func (u *unpacker) add(e Entry) error {
	names := len(e.Path) + len(e.Link)
	if len(e.Path) > maxPath || len(e.Link) > maxPath {
		return fmt.Errorf("%s: a path of more than %d bytes", shown(e.Path), maxPath)
	}
	for k, v := range e.Xattrs {
		names += len(k) + len(v) + 64 // what a map takes beside them
	}
	if err := u.limits.take(1, int64(names)); err != nil {
		return err
	}
	if err := u.place(e); err != nil {
		return fmt.Errorf("%s: %w", shown(e.Path), err)
	}
	return nil
}

// shown is a path as an error may have it: short, and without control characters.
func shown(p string) string {
	if len(p) > 200 {
		p = p[:200] + "…"
	}
	if q := strconv.Quote(p); q[1:len(q)-1] != p {
		return q
	}
	return p
}

func (u *unpacker) place(e Entry) error {
	if strings.Contains(e.Path, "/"+aufsPrefix) {
		u.note(e.Path, "a name of AUFS's records (.wh..wh.NAME): some runtimes pass it over, others remove or lay something by it")
	}
	if e.Type == typeAUFS {
		return nil
	}
	if e.Type == TypeWhiteout || e.Type == TypeOpaque {
		if e.Type == TypeWhiteout {
			u.removedLate(e.Path)
		}
		u.marks = append(u.marks, e)
		return nil
	}
	i := int32(len(u.entries))
	if e.Path == "/" {
		if !e.IsDir() {
			return fmt.Errorf("the root is a %s", e.Type)
		}
		u.again(&e, 0)
		u.nodes[0].entry = i
		u.entries = append(u.entries, e)
		return nil
	}
	where, p, err := u.find(e.Path)
	if err != nil {
		return err
	}
	e.Path = p
	old, taken := u.at[where]
	if taken {
		u.again(&e, old)
	}
	if taken && (!e.IsDir() || !u.isDir(old)) {
		u.nodes[old].gone = true
		delete(u.at, where)
		u.lastPath = ""
		taken = false
	}
	if e.Type == image.TypeLink {
		if e, err = u.link(e, i); err != nil {
			return err
		}
	}
	if !taken {
		if old, err = u.make(where, i); err != nil {
			return err
		}
	}
	u.nodes[old].entry = i
	u.entries = append(u.entries, e)
	return nil
}

// path is where an entry lies.
func (u *unpacker) path(at place) (string, error) {
	names := []string{at.name}
	size := 1 + len(at.name)
	for dir := at.dir; dir != 0; dir = u.nodes[dir].parent {
		names = append(names, u.nodes[dir].name)
		if size += 1 + len(u.nodes[dir].name); size > maxPath {
			return "", fmt.Errorf("symlinks make it a path of more than %d bytes", maxPath)
		}
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/"), nil
}

func (u *unpacker) isDir(n int32) bool {
	e := u.nodes[n].entry
	return e < 0 || u.entries[e].IsDir()
}

func (u *unpacker) make(at place, entry int32) (int32, error) {
	if entry < 0 {
		if err := u.limits.take(1, 0); err != nil {
			return 0, err
		}
	}
	n := int32(len(u.nodes))
	u.nodes = append(u.nodes, node{name: at.name, parent: at.dir, entry: entry})
	u.at[at] = n
	return n, nil
}

// find tells where p is to lie: its directory is made if need be, with symlinks followed, so that its path may be another.
func (u *unpacker) find(p string) (place, string, error) {
	dir, name := path.Split(p)
	if dir != u.lastPath {
		n, links, err := u.follow(dir, true)
		if err != nil {
			return place{}, "", err
		}
		u.lastPath, u.last, u.lastLinks = dir, n, links
	}
	at := place{u.last, name}
	if u.lastLinks == 0 {
		return at, p, nil
	}
	u.note(p, "it lies below a symlink of its own layer: some programs follow that, others replace or refuse it")
	p, err := u.path(at)
	if err == nil {
		err = u.limits.take(0, int64(len(p)))
	}
	return at, p, err
}

// errMissing is a path that the layer doesn't have.
var errMissing = errors.New("not in the layer")

// follow finds the directory p with every symlink in it followed inside the layer, and tells how many there were.
func (u *unpacker) follow(p string, create bool) (at int32, links int, err error) {
	rest := p
	for rest != "" {
		if u.steps++; u.steps > maxSteps {
			return 0, 0, errors.New("the layer's symlinks take too long to follow")
		}
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		switch name {
		case "", ".":
			continue
		case "..":
			at = u.nodes[at].parent
			continue
		}
		where := place{at, name}
		n, ok := u.at[where]
		switch {
		case ok && u.isDir(n):
			at = n
		case ok && u.entries[u.nodes[n].entry].Type == image.TypeSymlink:
			if links++; links > maxSymlinks {
				return 0, 0, fmt.Errorf("more than %d symlinks to follow", maxSymlinks)
			}
			target := u.entries[u.nodes[n].entry].Link
			if strings.HasPrefix(target, "/") {
				at = 0
			}
			rest = target + "/" + rest
		case ok:
			e := u.entries[u.nodes[n].entry]
			return 0, 0, fmt.Errorf("%s is a %s, not a directory", shown(e.Path), e.Type)
		case !create:
			return 0, 0, errMissing
		default:
			if at, err = u.make(where, -1); err != nil {
				return 0, 0, err
			}
		}
	}
	return at, links, nil
}

// link gives a hard link what it leads to. A target that the layer doesn't have is left for the merge to find.
func (u *unpacker) link(e Entry, i int32) (Entry, error) {
	dir, _, err := u.follow(path.Dir(e.Link), false)
	if errors.Is(err, errMissing) {
		return e, nil
	}
	if err != nil {
		return e, fmt.Errorf("hard link to %s: %w", shown(e.Link), err)
	}
	n, ok := u.at[place{dir, path.Base(e.Link)}]
	if !ok {
		return e, nil
	}
	if u.isDir(n) {
		return e, fmt.Errorf("hard link to %s, which is a directory", shown(e.Link))
	}
	to := u.nodes[n].entry
	if file, ok := u.links[to]; ok {
		to = file
	}
	if u.entries[to].Type == image.TypeFile {
		u.links[i] = to
	}
	return e.linked(u.entries[to]), nil
}

// linked is the hard link e once it is known to lead to target, which is not a directory.
func (e Entry) linked(target Entry) Entry {
	switch target.Type {
	case image.TypeFile:
		e.Link, e.Digest, e.Size = target.Path, target.Digest, target.Size
	case image.TypeLink:
		e.Link, e.Digest, e.Size = target.Link, target.Digest, target.Size
	default: // one more name of a symlink, a device or a pipe: there is nothing else to tell of it
		target.Path, target.Layer = e.Path, e.Layer
		return target
	}
	return e
}

// finish gives what the layer holds, in the order of a walk; each mark stands before what has its path.
func (u *unpacker) finish() ([]Entry, error) {
	marks := u.marks[:0]
	for _, m := range u.marks {
		if err := u.mark(&m); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", m.Type, shown(m.Path), err)
		}
		marks = append(marks, m)
	}
	live := make([]bool, len(u.entries))
	for i := range u.nodes {
		n := &u.nodes[i]
		n.gone = n.gone || u.nodes[n.parent].gone
		if !n.gone && n.entry >= 0 {
			live[n.entry] = true
		}
	}
	u.relink(live)
	kept := u.entries[:0]
	names := 0
	for i, e := range u.entries {
		if live[i] {
			kept = append(kept, e)
			names += len(e.Path) + len(e.Link)
		}
	}
	if names > maxNames { // links may have become longer than the layer says
		return nil, fmt.Errorf("the paths and links of the layer have more than %d bytes", maxNames)
	}
	kept = append(kept, marks...)
	slices.SortFunc(kept, func(a, b Entry) int { return a.compare(&b) })
	kept = slices.CompactFunc(kept, func(a, b Entry) bool { return a.compare(&b) == 0 })
	u.noteHalfHidden(kept)
	return kept, nil
}

// mark finds the path that a mark is really about.
func (u *unpacker) mark(m *Entry) error {
	p := m.Path
	if m.Type == TypeOpaque {
		p = path.Join(p, opaqueMarker)
	}
	_, p, err := u.find(p)
	if err == nil && m.Type == TypeOpaque {
		p = path.Dir(p)
	}
	if err == nil {
		m.Path = p
	}
	return err
}

// relink gives a file whose own name was taken away the first of its other names.
func (u *unpacker) relink(live []bool) {
	first := map[int32]int32{} // of a file without its own name: the entry that is the file now
	for link, file := range u.links {
		if !live[link] || live[file] {
			continue
		}
		if old, ok := first[file]; !ok || comparePaths(u.entries[link].Path, u.entries[old].Path) < 0 {
			first[file] = link
		}
	}
	for link, file := range u.links {
		if now, ok := first[file]; ok && link == now {
			u.entries[link].Type, u.entries[link].Link = image.TypeFile, ""
		} else if ok {
			u.entries[link].Link = u.entries[now].Path
		}
	}
}

// compare orders entries as a walk does, with an opaque mark and a whiteout before what has the same path.
func (e *Entry) compare(o *Entry) int {
	if c := comparePaths(e.Path, o.Path); c != 0 {
		return c
	}
	return rank(e.Type) - rank(o.Type)
}

func rank(t image.Type) int {
	switch t {
	case TypeOpaque:
		return 0
	case TypeWhiteout:
		return 1
	}
	return 2
}

// comparePaths orders paths as a walk does: a directory's content right behind it, names in byte order.
func comparePaths(a, b string) int {
	if a == "/" || b == "/" {
		return len(a) - len(b) // every path begins with a slash
	}
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	switch {
	case i == n:
		return len(a) - len(b)
	case a[i] == '/':
		return -1
	case b[i] == '/':
		return 1
	}
	return int(a[i]) - int(b[i])
}
