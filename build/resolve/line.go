package resolve

import (
	"errors"
	"fmt"

	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
)

// lineMarks tell the lines apart by files that only one of them has. C is asked first: it also has what B has.
var lineMarks = []struct {
	line profile.Line
	// one set of paths that must all be there is enough
	sets [][]string
}{
	{"C", [][]string{{"/opt/gem/gem_init.sh"}, {"/opt/gem/gem.sh"}}},
	{"A", [][]string{{"/opt/gem/entrypoint.sh", "/opt/gem/nginx.srv.conf"}}},
	{"B", [][]string{{"/opt/gem/nginx/nginx.gembrowser_compat.conf"}}},
}

// errUnknownLine is a base of no known line.
var errUnknownLine = errors.New("not an AIO Sandbox base")

// detectLine tells the base's line; an unknown one is errUnknownLine.
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
	return "", fmt.Errorf("%w: none of the files that mark line A (%s), B (%s) or C (%s) is there; pass --accept-unknown-line to build on it, if it has what the image needs",
		errUnknownLine, lineMarks[1].sets[0][0], lineMarks[2].sets[0][0], lineMarks[0].sets[0][0])
}
