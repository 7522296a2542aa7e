package resolve

import (
	"errors"
	"fmt"

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

// errUnknownLine is the error for a base of no known line.
var errUnknownLine = errors.New("not an AIO Sandbox base")

// detectLine returns the base's line. The error for an unknown one wraps errUnknownLine.
func detectLine(base *lock.View) (profile.Line, error) {
	for _, m := range lineMarks {
		for _, set := range m.sets {
			all := true
			for _, p := range set {
				_, ok := base.Lookup(p)
				all = all && ok
			}
			if all {
				return m.line, nil
			}
		}
	}
	if base.Err != nil {
		return "", base.Err
	}
	return "", fmt.Errorf("%w: it has none of the files that mark line A (%s), B (%s) or C (%s); choose another base, or pass --set base.acceptUnknownLine=true",
		errUnknownLine, lineMarks[1].sets[0][0], lineMarks[2].sets[0][0], lineMarks[0].sets[0][0])
}
