package resolve

import (
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
)

// lineMarks holds, for each line, files that only it has. C comes first, because it also has B's file.
var lineMarks = []struct {
	line profile.Line
	// sets lists alternatives: the base is of this line if all paths of one set exist.
	sets [][]string
}{
	{"C", [][]string{{"/opt/gem/gem_init.sh"}, {"/opt/gem/gem.sh"}}},
	{"A", [][]string{{"/opt/gem/entrypoint.sh", "/opt/gem/nginx.srv.conf"}}},
	{"B", [][]string{{"/opt/gem/nginx/nginx.gembrowser_compat.conf"}}},
}

// detectLine returns the base's line, or "" if it is of none that is known.
func detectLine(base *lock.View) profile.Line {
	for _, m := range lineMarks {
		for _, set := range m.sets {
			all := true
			for _, p := range set {
				_, ok := base.Lookup(p)
				all = all && ok
			}
			if all {
				return m.line
			}
		}
	}
	return ""
}
