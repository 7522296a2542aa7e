package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
)

// textsOf returns the files with changed lines for the page, and the number of those omitted.
func textsOf(nodes []node) (texts []textChange, left int) {
	bytes := 0
	for i := range nodes {
		n := &nodes[i]
		if n.change == nil || n.change.Text == "" {
			continue
		}
		if bytes += len(n.change.Text); bytes > maxText {
			left++
			continue
		}
		added, removed := 0, 0
		for s := range strings.Lines(n.change.Text) {
			switch {
			case strings.HasPrefix(s, "+++ "), strings.HasPrefix(s, "--- "):
			case strings.HasPrefix(s, "+"):
				added++
			case strings.HasPrefix(s, "-"):
				removed++
			}
		}
		texts = append(texts, textChange{i, quote(n.change.Path), number(added), number(removed)})
	}
	return texts, left
}

// treeData is a tree for the script.
type treeData struct {
	d     *diff.Diff
	nodes []node
	shown []int32 // positions of the nodes that fit
	// deepest is the deepest level that fits.
	deepest int
	why     func(*diff.Change) string
	texts   map[int]string // changed lines, by position in shown; negative for omitted nodes
}

// dataOf returns as many levels of nodes as limit allows, and the number of these nodes. It sets the node position of
// each of texts.
func dataOf(d *diff.Diff, nodes []node, texts []textChange, limit int) (*treeData, int) {
	out := &treeData{d: d, nodes: nodes, deepest: level(nodes, limit), texts: map[int]string{}}
	place := make(map[int]int, len(texts)) // maps nodes to positions in shown
	for _, t := range texts {
		place[t.Node] = -1
	}
	for i := range nodes {
		if int(nodes[i].depth) > out.deepest {
			continue
		}
		if len(out.shown) == limit {
			break
		}
		if _, ok := place[i]; ok {
			place[i] = len(out.shown)
		}
		out.shown = append(out.shown, int32(i)) //nolint:gosec // see treeOf
	}
	for i := range texts {
		t := &texts[i]
		at := place[t.Node]
		if at < 0 { // below the deepest level
			at = -1 - i
		}
		var b strings.Builder
		for s := range strings.Lines(nodes[t.Node].change.Text) {
			b.WriteString(line(strings.TrimSuffix(s, "\n")) + "\n")
		}
		t.Node = at
		out.texts[at] = b.String()
	}
	return out, len(out.shown)
}

// write writes lists with one element for each node, in the order of a walk, and objects by node for rare properties.
// It buffers nothing: there may be hundreds of thousands of nodes.
func (t *treeData) write(j *jsonWriter) {
	list := func(name string, of func(n *node, c *diff.Change) any) {
		j.put(`"` + name + `":[`)
		for at, i := range t.shown {
			if at > 0 {
				j.put(",")
			}
			n := &t.nodes[i]
			c := n.change
			if c == nil {
				c = &diff.Change{}
			}
			j.compact(of(n, c))
		}
		j.put("],")
	}
	object := func(name string, of func(at int, n *node) any) {
		j.put(`"` + name + `":{`)
		comma := ""
		for at, i := range t.shown {
			if v := of(at, &t.nodes[i]); v != nil {
				j.put(comma + `"` + strconv.Itoa(at) + `":`)
				j.compact(v)
				comma = ","
			}
		}
		j.put("},")
	}
	var kinds, dirs strings.Builder // a space is a directory above changes; 1 is a directory
	for _, i := range t.shown {
		n := &t.nodes[i]
		kind, dir := " ", "0"
		if n.change != nil && marks[n.change.Kind].Class != "" {
			kind = n.change.Kind
		}
		if n.isDir() {
			dir = "1"
		}
		kinds.WriteString(kind)
		dirs.WriteString(dir)
	}
	j.put(`{"kinds":`)
	j.compact(kinds.String())
	j.put(`,"dirs":`)
	j.compact(dirs.String())
	j.put(",")
	list("depths", func(n *node, _ *diff.Change) any { return n.depth })
	list("names", func(n *node, _ *diff.Change) any { return quote(n.name) })
	list("was", func(_ *node, c *diff.Change) any { return sizeOf(c.Old) })
	list("is", func(_ *node, c *diff.Change) any { return sizeOf(c.New) })
	attrs := attributes{at: map[[4]string]int{}}
	list("wasAttr", func(_ *node, c *diff.Change) any { return attrs.of(c.Old, t.d.Base.Size.Layers) })
	list("isAttr", func(_ *node, c *diff.Change) any { return attrs.of(c.New, t.d.Slim.Size.Layers) })
	object("words", func(_ int, n *node) any {
		if n.change != nil {
			if w := describeChange(n.change); w != "" {
				return w
			}
		}
		return nil
	})
	object("why", t.reasons())
	object("links", func(_ int, n *node) any {
		if n.change != nil {
			if old, now := linkOf(n.change.Old), linkOf(n.change.New); old != "" || now != "" {
				return [2]string{old, now}
			}
		}
		return nil
	})
	object("rest", func(at int, _ *node) any {
		if rest := t.rest(at); rest != nil {
			return rest
		}
		return nil
	})
	j.put(`"texts":`)
	j.compact(t.texts)
	j.put(`,"attrs":`)
	j.compact(attrs.all)
	j.put("}")
}

// maxReasons limits the changed paths for which the profile's reason is looked up.
const maxReasons = 20_000

// reasons returns the profile's reason for a node, once for everything below it.
func (t *treeData) reasons() func(at int, n *node) any {
	asked, told := 0, int32(0) // nodes before told have the reason of a node above
	return func(at int, n *node) any {
		if i := t.shown[at]; t.why != nil && n.change != nil && i >= told && asked < maxReasons {
			asked++
			if words := t.why(n.change); words != "" {
				told = n.end
				return quote(words)
			}
		}
		return nil
	}
}

// rest is the omitted part below a shown node: bytes added, paths by kind.
func (t *treeData) rest(at int) []int64 {
	i := t.shown[at]
	n := &t.nodes[i]
	if int(n.depth) != t.deepest || n.end <= i+1 {
		return nil
	}
	var rest sums
	for j := i + 1; j < n.end; j = t.nodes[j].end {
		rest.add(t.nodes[j].sums)
	}
	return rest.list()
}

// attributes holds type, mode, owner and layer, each combination once.
type attributes struct {
	all [][4]string
	at  map[[4]string]int
}

// of returns the position of an entry's attributes; -1 for no entry.
func (as *attributes) of(e *tree.Entry, layers []size.Layer) int {
	if e == nil {
		return -1
	}
	a := [4]string{quote(string(e.Type)), mode(*e), owner(*e), ""}
	if e.Type == image.TypeSymlink {
		a[1] = ""
	}
	if e.Layer >= 0 && e.Layer < len(layers) {
		a[3] = fmt.Sprintf("layer %d, %s", e.Layer+1, short(layers[e.Layer].Digest))
	}
	at, ok := as.at[a]
	if !ok {
		at = len(as.all)
		as.at[a] = at
		as.all = append(as.all, a)
	}
	return at
}

func linkOf(e *tree.Entry) string {
	if e == nil {
		return ""
	}
	return quote(e.Link)
}

// level returns the depth of a tree with at most limit nodes.
func level(nodes []node, limit int) int {
	if len(nodes) <= limit {
		return math.MaxInt
	}
	by := map[int]int{}
	for i := range nodes {
		by[int(nodes[i].depth)]++
	}
	depth := 1
	for sum := by[1]; by[depth+1] > 0 && sum+by[depth+1] <= limit; depth++ {
		sum += by[depth+1]
	}
	return depth
}
