package diff

import (
	"container/heap"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// layers lists both images' layers, each once: those in both in base's order, then base's own, then slim's.
func (c *comparison) layers() []Layer {
	var both, own []Layer
	list := func(img, other *tree.Image, in string) {
		digests, contents := map[v1.Hash]bool{}, map[v1.Hash]bool{}
		for _, l := range other.Layers {
			digests[l.Digest], contents[l.DiffID] = true, true
		}
		seen := map[v1.Hash]bool{}
		var mine []Layer
		at := map[int]int{} // from a position in the image to one in mine
		for i, l := range img.Layers {
			if seen[l.Digest] {
				continue
			}
			seen[l.Digest] = true
			out := Layer{
				Digest: l.Digest.String(), DiffID: l.DiffID.String(), CreatedBy: l.CreatedBy,
				Size: l.Size, Unpacked: l.Unpacked, Unread: l.Unread, In: in,
			}
			switch {
			case !digests[l.Digest]:
				if !contents[l.DiffID] {
					at[i] = len(mine)
				}
				mine = append(mine, out)
			case in == InBase:
				out.In = InBoth
				both = append(both, out)
			}
		}
		r := replay{comparison: c, merged: img.Tree, layers: img.Layers, asked: map[int]*Layer{}}
		for i, j := range at {
			r.asked[i] = &mine[j]
		}
		r.run()
		own = append(own, mine...)
	}
	list(c.base, c.slim, InBase)
	list(c.slim, c.base, InSlim)
	return append(both, own...)
}

// cursor is where the walk stands in one layer.
type cursor struct {
	layer int
	rest  []tree.Entry
}

func (c *cursor) path() string { return c.rest[0].Path }

// cursors are a heap by path, and for one path by layer.
type cursors []*cursor

func (h cursors) Len() int { return len(h) }
func (h cursors) Less(i, j int) bool {
	order := comparePaths(h[i].path(), h[j].path())
	return order < 0 || order == 0 && h[i].layer < h[j].layer
}
func (h cursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursors) Push(x any)   { *h = append(*h, x.(*cursor)) }
func (h *cursors) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// skip moves the first cursor on by n entries.
func (h *cursors) skip(n int) {
	c := (*h)[0]
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		heap.Pop(h)
		return
	}
	heap.Fix(h, 0)
}

// replay tells what some layers of an image do to the layers below them, in one walk over the entries of all layers side
// by side. Of the layers that nobody asks for it looks only at what the others touch, so that what it does grows with those.
type replay struct {
	*comparison
	merged *tree.Tree
	layers []tree.Layer
	asked  map[int]*Layer // by position
	stack  []frame        // the directories that the walk is in, the root first
	said   []said         // of the path where the walk is, lowest layer first
}

// frame is a path that has something below it, with what it means for that.
type frame struct {
	path string
	// hiding are the layers that hide what the layers under them have below path, lowest first.
	hiding []int
	// asked is true when somebody asks for one of hiding.
	asked bool
	// removing are the asked layers that take the directory path away.
	removing []int
}

// said is what one layer says of one path.
type said struct {
	layer            int
	whiteout, opaque bool
	entry            *tree.Entry // nil for nothing but these
}

func (r *replay) run() {
	if len(r.asked) == 0 {
		return
	}
	var asked, others cursors
	for i, l := range r.layers {
		if len(l.Entries) == 0 {
			continue
		}
		if at := (&cursor{layer: i, rest: l.Entries}); r.asked[i] != nil {
			asked = append(asked, at)
		} else {
			others = append(others, at)
		}
	}
	heap.Init(&asked)
	heap.Init(&others)
	for len(asked) > 0 || len(others) > 0 {
		first := firstOf(&asked, &others)
		p := (*first)[0].path()
		for len(r.stack) > 0 && !image.Within(p, r.stack[len(r.stack)-1].path) {
			r.stack = r.stack[:len(r.stack)-1]
		}
		if first == &others && (len(r.stack) == 0 || !r.stack[len(r.stack)-1].asked) {
			if len(asked) == 0 {
				return
			}
			if next := asked[0].path(); !image.Within(next, p) {
				others.skip(search(others[0].rest, firstAfter(next, p)))
				continue
			}
		}
		r.said = r.said[:0]
		for _, h := range []*cursors{&asked, &others} {
			for len(*h) > 0 && (*h)[0].path() == p {
				r.hear((*h)[0].layer, &(*h)[0].rest[0])
				h.skip(1)
			}
		}
		slices.SortFunc(r.said, func(a, b said) int { return a.layer - b.layer })
		next := firstOf(&asked, &others)
		r.visit(p, len(*next) > 0 && image.Within((*next)[0].path(), p))
	}
}

// firstOf is the heap whose first cursor comes first in the walk.
func firstOf(a, b *cursors) *cursors {
	if len(*a) == 0 || len(*b) > 0 && comparePaths((*b)[0].path(), (*a)[0].path()) < 0 {
		return b
	}
	return a
}

// search finds the first entry that isn't before p, in steps that double: what is near is found fast.
func search(entries []tree.Entry, p string) int {
	high := 1
	for high < len(entries) && comparePaths(entries[high].Path, p) < 0 {
		high *= 2
	}
	low := high / 2
	n, _ := slices.BinarySearchFunc(entries[low:min(high, len(entries))], p, comparePath)
	return low + n
}

func comparePath(e tree.Entry, p string) int { return comparePaths(e.Path, p) }

// firstAfter is the first of p's parents, and p itself, that comes after q in a walk.
func firstAfter(p, q string) string {
	for i := 1; i < len(p); i++ {
		if p[i] == '/' && comparePaths(p[:i], q) > 0 {
			return p[:i]
		}
	}
	return p
}

// hear notes what a layer says of the path where the walk is. A layer may say several things.
func (r *replay) hear(layer int, e *tree.Entry) {
	if n := len(r.said); n == 0 || r.said[n-1].layer != layer {
		r.said = append(r.said, said{layer: layer})
	}
	s := &r.said[len(r.said)-1]
	switch e.Type {
	case tree.TypeWhiteout:
		s.whiteout = true
	case tree.TypeOpaque:
		s.opaque = true
	default:
		s.entry = e
	}
}

// visit tells what the asked layers do at p: by what they say of it, or by hiding what it lies in. dir is true when there is
// something below p.
func (r *replay) visit(p string, dir bool) {
	var parent frame
	if len(r.stack) > 0 {
		parent = r.stack[len(r.stack)-1]
	}
	at := frame{path: p, asked: parent.asked}
	for n, s := range r.said {
		r.tell(s.layer, &at, &parent)
		// Where nothing more is said of p, the next layer that hides the directory takes p with it.
		if h, _ := slices.BinarySearch(parent.hiding, s.layer+1); h < len(parent.hiding) {
			if i := parent.hiding[h]; n == len(r.said)-1 || i < r.said[n+1].layer {
				r.tell(i, &at, &parent)
			}
		}
	}
	if !dir {
		return
	}
	at.hiding = slices.Clone(parent.hiding)
	for _, s := range r.said {
		if s.whiteout || s.opaque || !s.entry.IsDir() {
			at.hiding = append(at.hiding, s.layer)
			at.asked = at.asked || r.asked[s.layer] != nil
		}
	}
	slices.Sort(at.hiding)
	at.hiding = slices.Compact(at.hiding)
	r.stack = append(r.stack, at)
}

// tell tells what layer i does at a path, if somebody asks for it.
func (r *replay) tell(i int, at, parent *frame) {
	l := r.asked[i]
	if l == nil {
		return
	}
	old, new := r.before(i, parent.hiding), r.before(i+1, parent.hiding)
	if old.entry == new.entry {
		return
	}
	if new.entry == nil || !new.entry.IsDir() {
		at.removing = append(at.removing, i)
	}
	change, ok := r.change(old.entry, new.entry, r.fileOf(old), r.fileOf(new))
	if !ok || !r.paths.wants(at.path) {
		return
	}
	l.Counts.add(change)
	// What lies below a directory that the layer takes away goes without saying.
	if r.list && (new.entry != nil || !slices.Contains(parent.removing, i) || !r.paths.wants(parent.path)) {
		change.Old, change.New = old.own(), new.own()
		l.Files = append(l.Files, change)
	}
}

// before is what the layers under i show of the path where the walk is.
func (r *replay) before(i int, hiding []int) said {
	lowest := 0
	if h, _ := slices.BinarySearch(hiding, i); h > 0 {
		lowest = hiding[h-1]
	}
	for _, s := range slices.Backward(r.said) {
		if s.layer < i && (s.entry != nil || s.whiteout) {
			if s.layer < lowest {
				break
			}
			return s
		}
	}
	return said{}
}

// own is the entry as an image has it, that says which layer it is from.
func (s said) own() *tree.Entry {
	if s.entry == nil {
		return nil
	}
	e := *s.entry
	e.Layer = s.layer
	return &e
}

// fileOf is the file that a hard link is another name of in its own layer. Of one that leads to a lower layer the merged
// tree knows, if it still shows it.
func (r *replay) fileOf(s said) *tree.Entry {
	e := s.entry
	if e == nil || e.Type != image.TypeLink {
		return e
	}
	if e.Digest == (tree.Digest{}) {
		if now, ok := r.merged.Lookup(e.Path); ok && now.Layer == s.layer {
			return fileOf(r.merged, &now)
		}
		return e
	}
	entries := r.layers[s.layer].Entries
	n, _ := slices.BinarySearchFunc(entries, e.Link, comparePath)
	for ; n < len(entries) && entries[n].Path == e.Link; n++ {
		if entries[n].Digest == e.Digest {
			return &entries[n]
		}
	}
	return e
}
