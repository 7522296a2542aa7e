package resolve

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// A ".." in a symlink's target leads to the parent of where the symlinks before it lead (path_resolution(7)).
func TestFindProblemGoesUpLikeTheKernel(t *testing.T) {
	for name, c := range map[string]struct{ target, file, want string }{
		"through a link":       {"../share/alias/../tool", "/opt/pkg/tool", ""},
		"not there, by text":   {"../share/alias/../tool", "/usr/share/tool", "/usr/bin/tool -> /opt/pkg/tool is not there"},
		"through two links":    {"/usr/share/alias/../v2/../tool", "/opt/tool", ""},
		"through a directory":  {"../share/.././/share/tool", "/usr/share/tool", ""},
		"above the root":       {"../../../../opt/tool", "/opt/tool", ""},
		"the link's directory": {"tool2", "/usr/bin/tool2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := treeOf(t,
				image.Symlink("/usr/bin/tool", c.target), image.Symlink("/usr/share/alias", "/opt/pkg/v1"), image.Bytes("/opt/pkg/v1/x", 0o644, nil),
				image.Symlink("/opt/pkg/v2", "/opt/v2"), image.Bytes("/opt/v2/x", 0o644, nil), image.Bytes(c.file, 0o755, nil))
			foot := lock.NewFootprint()
			for _, from := range []*tree.Image{{Tree: files}, nil} { // from the base, then from its lock
				w := &work{base: lock.NewView(t.Context(), from, &foot)}
				if got := w.findProblem("/usr/bin/tool", false, scripts); got != c.want || w.base.Err != nil {
					t.Errorf("got %q, want %q; %v", got, c.want, w.base.Err)
				}
			}
		})
	}
}

// Links through deep directories end the search by an error, and not after hours.
func TestFindProblemGivesUp(t *testing.T) {
	deep := "/" + strings.Repeat("a/", 1990)
	for name, target := range map[string]string{"links": "l%d", "links and \"..\"": strings.Repeat("b/../", 10) + "l%d"} {
		t.Run(name, func(t *testing.T) {
			links := []image.File{image.Symlink("/usr/bin/tool", deep+"l0"), image.Bytes(deep+"b/x", 0o644, nil)}
			for i := range 30 {
				links = append(links, image.Symlink(fmt.Sprintf("%sl%d", deep, i), fmt.Sprintf(target, i+1)))
			}
			foot := lock.NewFootprint()
			w := &work{base: lock.NewView(t.Context(), &tree.Image{Tree: treeOf(t, links...)}, &foot)}
			w.findProblem("/usr/bin/tool", false, scripts)
			if w.base.Err == nil || !strings.Contains(w.base.Err.Error(), "too many directories and symlinks") {
				t.Errorf("got %v", w.base.Err)
			}
		})
	}
}
