package diff

import (
	"cmp"
	"iter"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// comparison is two images being compared.
type comparison struct {
	base, slim *tree.Image
	paths      filter
	times      bool
	list       bool // the changes of layers
}

// files walks both merged trees side by side. It counts in d.Size what base shows and slim doesn't.
func (c *comparison) files(d *Diff) {
	kept := map[v1.Hash]bool{} // the contents of slim's layers
	for _, l := range c.slim.Layers {
		kept[l.DiffID] = true
	}
	found := func(old, new *tree.Entry) {
		change, ok := c.change(old, new, fileOf(c.base.Tree, old), fileOf(c.slim.Tree, new))
		if !ok {
			return
		}
		if old != nil && change.Kind != Meta {
			if old.Layer >= 0 && kept[c.base.Layers[old.Layer].DiffID] {
				d.Size.Hidden += bytesOf(old)
			} else {
				d.Size.Gone += bytesOf(old)
			}
		}
		if c.paths.wants(change.Path) {
			d.Counts.add(change)
			d.Files = append(d.Files, change)
		}
	}
	next, stop := iter.Pull(c.slim.Walk("/"))
	defer stop()
	new, more := next()
	for old := range c.base.Walk("/") {
		for more && comparePaths(new.Path, old.Path) < 0 {
			found(nil, new)
			new, more = next()
		}
		switch {
		case !more || new.Path != old.Path:
			found(old, nil)
			continue
		case !c.same(old, new):
			found(old, new)
		}
		new, more = next()
	}
	for ; more; new, more = next() {
		found(nil, new)
	}
}

// same is a fast answer for most entries: they are equal in everything that counts.
func (c *comparison) same(old, new *tree.Entry) bool {
	if old.Type == image.TypeLink || new.Type == image.TypeLink {
		return false
	}
	kind, _ := c.compare(old, new)
	return kind == ""
}

// comparePaths is the order of a walk: parents before their content, names in byte order.
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

// fileOf is the file that a hard link in t is another name of, and anything else itself.
func fileOf(t *tree.Tree, e *tree.Entry) *tree.Entry {
	if e == nil || e.Type != image.TypeLink {
		return e
	}
	if to, ok := t.Lookup(e.Link); ok && to.Digest == e.Digest {
		return &to
	}
	return e
}

// change is what differs between two entries of one path, of which one may be nil; it is false when nothing does. oldFile
// and newFile are what the entries stand for when they are hard links.
func (c *comparison) change(old, new, oldFile, newFile *tree.Entry) (Change, bool) {
	switch {
	case old == nil:
		return Change{Path: new.Path, Kind: Added, New: new}, true
	case new == nil:
		return Change{Path: old.Path, Kind: Removed, Old: old}, true
	}
	kind, set := c.compare(oldFile, newFile)
	return Change{Path: old.Path, Kind: kind, Fields: fieldLists[set], Old: old, New: new}, kind != ""
}

// What may differ, as bits.
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

// fieldLists has the names for each set of bits, so that changes can share them.
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

// compare gives the kind of a change, empty for none, and what differs.
func (c *comparison) compare(old, new *tree.Entry) (kind string, set int) {
	oldType, newType := typeOf(old), typeOf(new)
	if old.UID != new.UID || old.GID != new.GID {
		set |= differsOwner
	}
	// What a layer says of a symlink's mode means nothing (symlink(7)).
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

// typeOf is the type that a container sees: a hard link is a file.
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

// bytesOf are the bytes of a file; another name of it has none of its own.
func bytesOf(e *tree.Entry) int64 {
	if e == nil || e.Type != image.TypeFile {
		return 0
	}
	return e.Size
}
