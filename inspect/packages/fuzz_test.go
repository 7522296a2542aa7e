package packages

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/deb822"
)

// written is what deb822.All reads, written again.
func written(text string) (out string, read [][]deb822.Field) {
	var b strings.Builder
	for s := range deb822.All(text) {
		if len(s.Fields) == 0 {
			continue
		}
		fields := slices.Clone(s.Fields)
		for i := range fields {
			fields[i].Line = 0
			b.WriteString(fields[i].Name + ": " + fields[i].Value + "\n")
		}
		b.WriteString("\n")
		read = append(read, fields)
	}
	return b.String(), read
}

// FuzzDpkg feeds dpkg's database to the reader. What is read of it is read again the same way, no package counts a file that
// isn't there, and what owns a file has it.
func FuzzDpkg(f *testing.F) {
	status, err := os.ReadFile("/var/lib/dpkg/status")
	if err == nil {
		f.Add(string(status[:min(len(status), 4000)]), "/.\n/usr\n/usr/bin\n/usr/bin/ls\n", "/usr/bin/ls\n/usr/bin/ls.x\n:\n")
	}
	f.Add("Package: a\nStatus: install ok installed\nVersion: 1\n b\n\nPackage: b\nStatus: install ok installed\n", "/bin/ls\n/etc/x\n/bin", "/bin/ls\n/bin/cat\na\n")
	f.Add("Package: a\nStatus: deinstall ok config-files\n\n x: y\n:\nx\r\n y\r\n", "0123  usr/bin/ls\n//\n/../x\n", "a\nb")
	img := open(f,
		image.Symlink("/bin", "usr/bin"), sized("/usr/bin/ls", 3), hardLink("/usr/bin/more", "/usr/bin/ls"), image.Symlink("/loop", "loop"),
		sized("/etc/x", 1), sized("/srv/node_modules/a/package.json", 1),
	)
	f.Fuzz(func(t *testing.T, status, list, diversions string) {
		again, want := written(status)
		if _, got := written(again); !slices.EqualFunc(want, got, slices.Equal[[]deb822.Field]) {
			t.Fatalf("read %+v, and then %+v", want, got)
		}
		r := newReader(img)
		info := map[string]string{"a.list": dpkgInfo + "/a.list", "b.list": dpkgInfo + "/b.list", "a:amd64.md5sums": dpkgInfo + "/a:amd64.md5sums"}
		r.files = map[string]string{dpkgStatus: status, dpkgDiversions: diversions, dpkgStatusD + "/c": status, dpkgStatusD + "/c.md5sums": list}
		for _, p := range info {
			r.files[p] = list
		}
		r.dpkg(&found{dpkgInfo: info, statusD: []string{dpkgStatusD + "/c", dpkgStatusD + "/c.md5sums"}})
		r.countFiles()
		r.sortPackages()
		if len(r.db.Notes) > maxNotes+1 {
			t.Fatalf("%d notes", len(r.db.Notes))
		}
		lines := strings.Count(list, "\n") + 1
		for _, p := range r.db.Packages {
			if p.Name == "" || p.Files < 0 || p.Missing < 0 || p.Files+p.Missing > lines || p.Size > 4 || p.Place.Line < 1 {
				t.Fatalf("%+v of a list of %d lines", p, lines)
			}
		}
		for _, p := range []string{"/usr/bin/ls", "/usr/bin/more", "/etc/x"} {
			if owner := r.db.Owner(p); owner != nil && owner.Files == 0 {
				t.Fatalf("%s belongs to %+v", p, owner)
			}
		}
	})
}
