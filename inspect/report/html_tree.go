package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
)

// textsOf are the files whose changed lines the page has, and how many it has no room for.
func textsOf(nodes []node) (texts []textChange, left int) {
	bytes := 0
	for i, n := range nodes {
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

// treeData is the tree for the script: one element of each list for each node, in the order of a walk.
type treeData struct {
	Kinds  string   `json:"kinds"` // a space is a directory above changes
	Dirs   string   `json:"dirs"`  // 1 for a directory
	Depths []int    `json:"depths"`
	Names  []string `json:"names"`
	// Was and Is are sizes in base and slim; WasAttr and IsAttr are positions in Attrs, -1 for nothing.
	Was     []int64 `json:"was"`
	Is      []int64 `json:"is"`
	WasAttr []int   `json:"wasAttr"`
	IsAttr  []int   `json:"isAttr"`
	// Attrs are type, mode, owner, layer.
	Attrs [][4]string `json:"attrs"`
	// The others are by node.
	Words map[int]string    `json:"words"`
	Links map[int][2]string `json:"links"`
	Texts map[int]string    `json:"texts"`
	// Rest is what there is no room for below a node: bytes more, paths by kind.
	Rest map[int][]int64 `json:"rest"`
}

// dataOf gives as many levels of nodes as limit has room for, and how many nodes these are.
func dataOf(d *diff.Diff, nodes []node, texts []textChange, limit int) (*treeData, int) {
	deepest := level(nodes, limit)
	out := &treeData{
		Attrs: [][4]string{}, Words: map[int]string{}, Links: map[int][2]string{}, Texts: map[int]string{}, Rest: map[int][]int64{},
	}
	var kinds, dirs strings.Builder
	attrs := map[[4]string]int{}
	attr := func(e *tree.Entry, layers []size.Layer) int {
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
		at, ok := attrs[a]
		if !ok {
			at = len(out.Attrs)
			attrs[a] = at
			out.Attrs = append(out.Attrs, a)
		}
		return at
	}
	position := make(map[int]int, len(texts)) // from nodes to what is given
	for i := range nodes {
		n := &nodes[i]
		if n.depth > deepest {
			continue
		}
		if len(out.Names) == limit {
			break
		}
		at := len(out.Names)
		position[i] = at
		kind, dir := " ", "0"
		c := n.change
		if n.isDir() {
			dir = "1"
		}
		if c == nil {
			c = &diff.Change{}
		} else {
			kind = c.Kind
			if w := what(c); w != "" {
				out.Words[at] = w
			}
			if old, now := linkOf(c.Old), linkOf(c.New); old != "" || now != "" {
				out.Links[at] = [2]string{old, now}
			}
		}
		if marks[kind].Class == "" {
			kind = " "
		}
		kinds.WriteString(kind)
		dirs.WriteString(dir)
		out.Depths = append(out.Depths, n.depth)
		out.Names = append(out.Names, quote(n.name))
		out.Was, out.Is = append(out.Was, sizeOf(c.Old)), append(out.Is, sizeOf(c.New))
		out.WasAttr = append(out.WasAttr, attr(c.Old, d.Base.Size.Layers))
		out.IsAttr = append(out.IsAttr, attr(c.New, d.Slim.Size.Layers))
		if n.depth == deepest && n.end > i+1 {
			var rest sums
			for j := i + 1; j < n.end; j = nodes[j].end {
				rest.add(nodes[j].sums)
			}
			out.Rest[at] = rest.list()
		}
	}
	for i := range texts {
		t := &texts[i]
		at, ok := position[t.Node]
		var b strings.Builder
		for s := range strings.Lines(nodes[t.Node].change.Text) {
			b.WriteString(line(strings.TrimSuffix(s, "\n")) + "\n")
		}
		if !ok { // deeper than the tree goes
			at = -1 - i
		}
		t.Node = at
		out.Texts[at] = b.String()
	}
	out.Kinds, out.Dirs = kinds.String(), dirs.String()
	if out.Names == nil {
		out.Names, out.Depths = []string{}, []int{}
	}
	return out, len(out.Names)
}

func linkOf(e *tree.Entry) string {
	if e == nil {
		return ""
	}
	return quote(e.Link)
}

// level is how deep a tree of at most limit nodes goes.
func level(nodes []node, limit int) int {
	if len(nodes) <= limit {
		return math.MaxInt
	}
	by := map[int]int{}
	for _, n := range nodes {
		by[n.depth]++
	}
	depth := 1
	for sum := by[1]; by[depth+1] > 0 && sum+by[depth+1] <= limit; depth++ {
		sum += by[depth+1]
	}
	return depth
}
