package diff

import (
	"cmp"
	"iter"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// comparison is the comparison of two images.
type comparison struct {
	base, slim *tree.Image
	paths      filter
	times      bool
	list       bool // list the changes of layers
}

// compareFiles walks both merged trees in parallel. It adds base's files that slim doesn't show to d.Size.
func (c *comparison) compareFiles(d *Diff) {
	kept := map[v1.Hash]bool{} // the layers' contents in slim
	for _, l := range c.slim.Layers {
		kept[l.DiffID] = true
	}
	for change := range c.changes(c.base.Tree, c.slim.Tree) {
		if old := change.Old; old != nil && change.Kind != Meta {
			if old.Layer >= 0 && kept[c.base.Layers[old.Layer].DiffID] {
				d.Size.Hidden += bytesOf(old)
			} else {
				d.Size.Gone += bytesOf(old)
			}
		}
		if c.paths.isSelected(change.Path) {
			d.Counts.add(change)
			d.Files = append(d.Files, change)
		}
	}
}

// changes walks two merged trees in parallel.
func (c *comparison) changes(base, slim *tree.Tree) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		next, stop := iter.Pull(slim.Walk("/"))
		defer stop()
		new, more := next()
		found := func(old, new *tree.Entry) bool {
			change, ok := c.compareEntries(old, new, fileOf(base, old), fileOf(slim, new))
			return !ok || yield(change)
		}
		for old := range base.Walk("/") {
			for more && new != old && comparePaths(new.Path, old.Path) < 0 {
				if !found(nil, new) {
					return
				}
				new, more = next()
			}
			switch {
			case more && new == old:
			case !more || new.Path != old.Path:
				if !found(old, nil) {
					return
				}
				continue
			case !found(old, new):
				return
			}
			new, more = next()
		}
		for ; more && found(nil, new); new, more = next() {
		}
	}
}

// comparePaths compares paths in the order of a walk: parents before their content, names in byte order.
func comparePaths(a, b string) int {
	if a == b {
		return 0
	}
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// fileOf returns the file of a hard link in t, and any other entry itself.
func fileOf(t *tree.Tree, e *tree.Entry) *tree.Entry {
	if e == nil || e.Type != image.TypeLink {
		return e
	}
	if to, ok := t.Lookup(e.Link); ok && to.Digest == e.Digest {
		return &to
	}
	return e
}

// compareEntries returns the change between two entries of one path, of which one may be nil; false if there is none.
// oldFile and newFile are the entries' files if they are hard links.
func (c *comparison) compareEntries(old, new, oldFile, newFile *tree.Entry) (Change, bool) {
	switch {
	case old == nil:
		return Change{Path: new.Path, Kind: Added, New: new}, true
	case new == nil:
		return Change{Path: old.Path, Kind: Removed, Old: old}, true
	}
	kind, set := c.compare(oldFile, newFile)
	return Change{Path: old.Path, Kind: kind, Fields: fieldLists[set], Old: old, New: new}, kind != ""
}

// Possible differences, as bits.
const (
	differsType = 1 << iota
	differsMode
	differsOwner
	differsSize
	differsContent
	differsLink
	differsDevice
	differsXattr
	differsTime
)

var fieldNames = [...]string{"type", "mode", "owner", "size", "content", "link", "device", "xattr", "time"}

// fieldLists holds the names for each set of bits, so that changes can share them.
var fieldLists = func() (lists [1 << len(fieldNames)][]string) {
	for set := range lists {
		for bit, name := range fieldNames {
			if set&(1<<bit) != 0 {
				lists[set] = append(lists[set], name)
			}
		}
	}
	return lists
}()

// compare returns the kind of a change, empty for none, and the differences.
func (c *comparison) compare(old, new *tree.Entry) (kind string, set int) {
	oldType, newType := typeOf(old), typeOf(new)
	if old.UID != new.UID || old.GID != new.GID {
		set |= differsOwner
	}
	// A symlink's mode in a layer has no meaning (symlink(7)).
	if old.Mode != new.Mode && oldType != image.TypeSymlink && newType != image.TypeSymlink {
		set |= differsMode
	}
	if !maps.Equal(old.Xattrs, new.Xattrs) {
		set |= differsXattr
	}
	if c.times && !old.ModTime.Equal(new.ModTime) {
		set |= differsTime
	}
	switch {
	case oldType != newType:
		return Type, set | differsType
	case oldType == image.TypeFile && old.Digest != new.Digest:
		if old.Size != new.Size {
			set |= differsSize
		}
		return Modified, set | differsContent
	case oldType == image.TypeSymlink && old.Link != new.Link:
		return Modified, set | differsLink
	case old.Device != new.Device:
		return Modified, set | differsDevice
	case set != 0:
		return Meta, set
	}
	return "", 0
}

// typeOf returns the type that a container sees: a hard link is a file.
func typeOf(e *tree.Entry) image.Type {
	if e.Type == image.TypeLink {
		return image.TypeFile
	}
	return e.Type
}

func (n *Counts) add(c Change) {
	switch c.Kind {
	case Added:
		n.Added++
	case Removed:
		n.Removed++
	case Modified:
		n.Modified++
	case Type:
		n.Type++
	case Meta:
		n.Meta++
		return
	}
	n.RemovedBytes += bytesOf(c.Old)
	n.AddedBytes += bytesOf(c.New)
}

// bytesOf returns the bytes of a file; a further name of it has none of its own.
func bytesOf(e *tree.Entry) int64 {
	if e == nil || e.Type != image.TypeFile {
		return 0
	}
	return e.Size
}
