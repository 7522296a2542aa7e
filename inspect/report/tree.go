package report

import (
	"fmt"
	"path"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/diff"
)

// node is a changed path, or a directory above one.
type node struct {
	name  string
	depth int32 // 1 is directly below the root
	// end is the position after the last node below this one.
	end int32
	// change is nil for an unchanged directory.
	change *diff.Change
	sums   sums
}

// summed lists the kinds of changes, in the order of sums.kinds.
const summed = diff.Added + diff.Removed + diff.Modified + diff.Type + diff.Meta

// sums holds the totals of a node and everything below it.
type sums struct {
	paths int32
	kinds [len(summed)]int32 // paths by kind
	bytes int64              // more in slim
}

func (s *sums) add(o sums) {
	s.paths += o.paths
	for i, n := range o.kinds {
		s.kinds[i] += n
	}
	s.bytes += o.bytes
}

// list returns bytes, then paths by kind, for the script.
func (s sums) list() []int64 {
	out := []int64{s.bytes}
	for _, n := range s.kinds {
		out = append(out, int64(n))
	}
	return out
}

// whole is diff.Added or diff.Removed for a node that was added or removed with everything in it; empty otherwise.
func (n *node) whole() string {
	switch s := n.sums; {
	case n.change == nil:
	case s.kinds[0] == s.paths:
		return diff.Added
	case s.kinds[1] == s.paths:
		return diff.Removed
	}
	return ""
}

func (n *node) isDir() bool {
	if n.change == nil {
		return true
	}
	e := n.change.New
	if e == nil {
		e = n.change.Old
	}
	return e != nil && e.IsDir()
}

func (s sums) String() string {
	var out []string
	for i, n := range s.kinds {
		if n > 0 {
			out = append(out, summed[i:i+1]+number(int(n)))
		}
	}
	return strings.Join(out, " ")
}

// treeOf returns changes with the directories above them, in the order of a walk, which is the order of changes.
func treeOf(changes []diff.Change) []node {
	nodes := make([]node, 0, len(changes)+len(changes)/4)
	var open []int // the last node and its ancestors
	var at, names []string
	shut := func(n int) {
		for len(open) > n {
			last := open[len(open)-1]
			open = open[:len(open)-1]
			nodes[last].end = int32(len(nodes)) //nolint:gosec // an image has at most so many entries
			if len(open) > 0 {
				nodes[open[len(open)-1]].sums.add(nodes[last].sums)
			}
		}
		at = at[:len(open)]
	}
	for i := range changes {
		c := &changes[i]
		names = names[:0]
		clean := c.Path
		if path.Clean(clean) != clean || !path.IsAbs(clean) { // image.Clean makes a copy that the nodes' names would keep alive
			clean = image.Clean(clean)
		}
		for name := range strings.SplitSeq(strings.TrimPrefix(clean, "/"), "/") {
			names = append(names, name)
		}
		same := 0
		for same < len(names)-1 && same < len(at) && at[same] == names[same] {
			same++
		}
		shut(same)
		for depth := same; depth < len(names); depth++ {
			n := node{name: names[depth], depth: int32(depth + 1)} //nolint:gosec // a path has 4,096 bytes
			if depth == len(names)-1 {
				n.change, n.sums = c, sumsOf(c)
			}
			open = append(open, len(nodes))
			at = append(at, names[depth])
			nodes = append(nodes, n)
		}
	}
	shut(0)
	return nodes
}

// compact joins an unchanged directory that contains only one directory with that one: "lib/python3". It reuses the
// memory of nodes.
func compact(nodes []node) []node {
	out := nodes[:0]
	type joined struct{ end, by int32 }
	var open []joined // a stack of less deep nodes
	at := make([]int32, len(nodes)+1)
	var prefix []string
	all := int32(len(nodes)) //nolint:gosec // see treeOf
	for i := range all {
		for len(open) > 0 && open[len(open)-1].end <= i {
			open = open[:len(open)-1]
		}
		by := int32(0)
		if len(open) > 0 {
			by = open[len(open)-1].by
		}
		at[i] = int32(len(out)) //nolint:gosec // no more than nodes
		n := nodes[i]
		if one := i+1 < n.end && nodes[i+1].end == n.end; one && n.change == nil && nodes[i+1].isDir() {
			prefix = append(prefix, n.name)
			open = append(open, joined{n.end, by + 1})
			continue
		}
		if n.depth -= by; len(prefix) > 0 {
			n.name, prefix = strings.Join(append(prefix, n.name), "/"), prefix[:0]
		}
		out = append(out, n)
	}
	at[all] = int32(len(out)) //nolint:gosec // no more than nodes
	for i := range out {
		out[i].end = at[out[i].end]
	}
	return out
}

func sumsOf(c *diff.Change) sums {
	s := sums{paths: 1, bytes: sizeOf(c.New) - sizeOf(c.Old)}
	if i := strings.Index(summed, c.Kind); i >= 0 {
		s.kinds[i] = 1
	}
	return s
}

func sizeOf(e *tree.Entry) int64 {
	if e == nil {
		return 0
	}
	return e.Size
}

// describeChange returns what changed of an entry: empty for a plain file or directory that was added or removed.
func describeChange(c *diff.Change) string {
	old, now := c.Old, c.New
	if old == nil || now == nil {
		e := now
		if e == nil {
			e = old
		}
		if e != nil && e.Link != "" {
			return "→ " + quote(e.Link)
		}
		return ""
	}
	var out []string
	for _, f := range c.Fields {
		switch f {
		case "type":
			out = append(out, fmt.Sprintf("%s → %s", quote(string(old.Type)), quote(string(now.Type))))
		case "mode":
			out = append(out, fmt.Sprintf("mode %s → %s", mode(*old), mode(*now)))
		case "owner":
			out = append(out, fmt.Sprintf("owner %s → %s", owner(*old), owner(*now)))
		case "size":
			out = append(out, fmt.Sprintf("%s → %s", Bytes(old.Size), Bytes(now.Size)))
		case "link":
			out = append(out, fmt.Sprintf("link %s → %s", quote(old.Link), quote(now.Link)))
		default:
			out = append(out, quote(f))
		}
	}
	return strings.Join(out, ", ")
}
