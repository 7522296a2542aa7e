package start

import "github.com/slimctl/slimctl/image/tree"

// lineMarks lists files that only one line has (facts/aio-base.md section 1). C comes first: it also has B's files.
var lineMarks = []struct {
	line  string
	files []string // all of them
}{
	{"C", []string{"/opt/gem/gem_init.sh"}},
	{"C", []string{"/opt/gem/gem.sh"}},
	{"A", []string{"/opt/gem/entrypoint.sh", "/opt/gem/nginx.srv.conf"}},
	{"B", []string{"/opt/gem/nginx/nginx.gembrowser_compat.conf"}},
}

// Line returns the generation of the base's layout: "A", "B" or "C", or "" for an image without the files of
// any, such as a closed image.
func Line(img *tree.Image) string {
	for _, m := range lineMarks {
		all := true
		for _, p := range m.files {
			_, ok := img.Lookup(p)
			all = all && ok
		}
		if all {
			return m.line
		}
	}
	return ""
}
