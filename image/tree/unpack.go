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

// The limits for all layers of an image together, against hostile images.
const (
	// maxEntries limits entries, including directories that exist although no layer names them.
	maxEntries = 5_000_000
	// maxNames limits the size of paths, link targets and extended attributes, in bytes.
	maxNames = 512 << 20
	// maxSparse limits the size of sparse files, in bytes, since their holes are hashed, too.
	maxSparse = 8 << 30
	// maxInflated limits the uncompressed size of layers, in bytes, if it exceeds maxRatio times the compressed size.
	maxInflated = 16 << 30
	maxRatio    = 64
)

// maxPath is the length of the longest path that the kernel accepts, in bytes (PATH_MAX, path_resolution(7)).
const maxPath = 4095

// maxSteps limits the directories walked to place one layer's entries, because symlinks cause many in few bytes.
const maxSteps = 100_000_000

// limits is what remains for the layers of an image; nil is unlimited.
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

// inflate returns a reader of the uncompressed content, like image.Inflate.
func (l *limits) inflate(compressed io.Reader) (io.ReadCloser, error) {
	raw, err := image.Inflate(readerFunc(func(b []byte) (int, error) {
		n, err := compressed.Read(b)
		l.inflatedBytes.Add(int64(n) * maxRatio)
		return n, err
	}))
	if err != nil {
		return nil, err
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
	}), raw}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// unpacker unpacks a layer in memory, entry by entry, like container runtimes in an empty directory: a later entry
// replaces an earlier one, and a parent that the layer made a symlink is followed.
type unpacker struct {
	limits  *limits
	entries []Entry
	marks   []Entry
	// nodes[0] is the root. Parents come before their children.
	nodes []node
	at    map[place]int32
	// links maps the entry of a hard link to the entry of its file.
	links map[int32]int32
	steps int
	// The last directory looked up, which is often the next, too, and the number of symlinks on its way.
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

// add adds the layer's next entry, with a clean path.
func (u *unpacker) add(e Entry) error {
	names := len(e.Path) + len(e.Link)
	if len(e.Path) > maxPath || len(e.Link) > maxPath {
		return fmt.Errorf("%s: a path of more than %d bytes", shown(e.Path), maxPath)
	}
	for k, v := range e.Xattrs {
		names += len(k) + len(v) + 64 // the overhead of a map entry
	}
	if err := u.limits.take(1, int64(names)); err != nil {
		return err
	}
	if err := u.place(e); err != nil {
		return fmt.Errorf("%s: %w", shown(e.Path), err)
	}
	return nil
}

// shown returns a path for errors: short, and without control characters.
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
	if e.Type == TypeWhiteout || e.Type == TypeOpaque {
		u.marks = append(u.marks, e)
		return nil
	}
	i := int32(len(u.entries))
	if e.Path == "/" {
		if !e.IsDir() {
			return fmt.Errorf("the root is a %s", e.Type)
		}
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
	if taken && (!e.IsDir() || !u.isDir(old)) {
		u.nodes[old].gone = true
		delete(u.at, where)
		u.lastPath = ""
		taken = false
	}
	if e.Type == image.TypeLink {
		if e, err = u.resolveLink(e, i); err != nil {
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

// path returns the path of a place.
func (u *unpacker) path(at place) (string, error) {
	names := []string{at.name}
	size := 1 + len(at.name)
	for dir := at.dir; dir != 0; dir = u.nodes[dir].parent {
		names = append(names, u.nodes[dir].name)
		if size += 1 + len(u.nodes[dir].name); size > maxPath {
			return "", fmt.Errorf("through symlinks its path has more than %d bytes", maxPath)
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

// find returns the place of p, and its path after following symlinks in its parents. It creates missing directories.
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
	p, err := u.path(at)
	if err == nil {
		err = u.limits.take(0, int64(len(p)))
	}
	return at, p, err
}

// errMissing is the error for a path that the layer doesn't have.
var errMissing = errors.New("not in the layer")

// follow returns the directory p, following every symlink inside the layer, and the number of symlinks.
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

// resolveLink sets what a hard link leads to. The merge resolves a target that the layer doesn't have.
func (u *unpacker) resolveLink(e Entry, i int32) (Entry, error) {
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
	e, err = e.linkedTo(u.entries[to])
	if err != nil {
		return e, fmt.Errorf("hard link to %s: %w", shown(e.Link), err)
	}
	return e, nil
}

// linkedTo returns the hard link e to target, which is not a directory.
//
// It refuses a link with more rights than its file. Docker and containerd give these rights to the file, which keeps them
// even if a later layer removes the link.
func (e Entry) linkedTo(target Entry) (Entry, error) {
	switch target.Type {
	case image.TypeFile:
		e.Link, e.Digest, e.Size = target.Path, target.Digest, target.Size
	case image.TypeLink:
		e.Link, e.Digest, e.Size = target.Link, target.Digest, target.Size
	default: // another name of a symlink, device or pipe has nothing to copy
		target.Path, target.Layer = e.Path, e.Layer
		return target, nil
	}
	if capability := e.Xattrs[capabilityXattr]; e.Mode&^target.Mode&0o6000 != 0 || capability != "" && capability != target.Xattrs[capabilityXattr] {
		return e, errors.New("it brings setuid, setgid or capabilities, which that file lacks, and runtimes give them to the file")
	}
	return e, nil
}

// finish returns the layer's content in the order of a walk, with marks before entries of the same path.
func (u *unpacker) finish() ([]Entry, error) {
	marks := u.marks[:0]
	for _, m := range u.marks {
		if err := u.resolveMark(&m); err != nil {
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
	if names > maxNames { // links may have become longer
		return nil, fmt.Errorf("the paths and links of the layer have more than %d bytes", maxNames)
	}
	kept = append(kept, marks...)
	slices.SortFunc(kept, func(a, b Entry) int { return a.compare(&b) })
	kept = slices.CompactFunc(kept, func(a, b Entry) bool { return a.compare(&b) == 0 })
	return kept, nil
}

// resolveMark sets the path of a mark to the one that it applies to.
func (u *unpacker) resolveMark(m *Entry) error {
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

// relink makes the first remaining name of a file its own name, if that was removed.
func (u *unpacker) relink(live []bool) {
	first := map[int32]int32{} // from a file without its own name to the entry that replaces it
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

// compare orders entries as in a walk, with an opaque mark and a whiteout before an entry of the same path.
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

// comparePaths orders paths as in a walk: a directory's content directly after it, names in byte order.
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
