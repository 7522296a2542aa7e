package packages

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/deb822"
)

// The locations of dpkg's database (dpkg(1), "FILES"), and of its substitute in images without dpkg: distroless has one
// file for each package below status.d.
const (
	dpkgStatus     = "/var/lib/dpkg/status"
	dpkgStatusD    = "/var/lib/dpkg/status.d"
	dpkgInfo       = "/var/lib/dpkg/info"
	dpkgDiversions = "/var/lib/dpkg/diversions"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// diversion moves one path of every package except one (dpkg-divert(1)).
type diversion struct{ to, by string }

// dpkg reads dpkg's database.
func (r *reader) dpkg(f *found) {
	diversions := r.diversions()
	used := map[string]bool{}
	for s := range deb822.All(r.files[dpkgStatus]) {
		r.dpkgStanza(s, dpkgStatus, func(name, arch string) string {
			for _, stem := range []string{name + ":" + arch, name} {
				for _, ext := range []string{".list", ".md5sums"} {
					if p, ok := f.dpkgInfo[stem+ext]; ok {
						used[p] = true
						return p
					}
				}
			}
			return ""
		}, diversions)
	}
	for _, name := range sortedKeys(f.dpkgInfo) {
		if p := f.dpkgInfo[name]; strings.HasSuffix(name, ".list") && !used[p] {
			r.addNote(p, 0, "a list of files of a package that the status doesn't name")
		}
	}
	lists := map[string]bool{}
	for _, p := range f.statusD {
		lists[p] = strings.HasSuffix(p, ".md5sums") || strings.HasSuffix(p, ".list")
	}
	for _, p := range f.statusD {
		if lists[p] {
			continue
		}
		for s := range deb822.All(r.files[p]) {
			r.dpkgStanza(s, p, func(string, string) string {
				for _, list := range []string{p + ".list", p + ".md5sums"} {
					if lists[list] {
						return list
					}
				}
				return ""
			}, diversions)
		}
	}
}

// dpkgStanza reads one package of the status file; list returns the path of its file list.
func (r *reader) dpkgStanza(s *deb822.Stanza, file string, list func(name, arch string) string, diversions map[string]diversion) {
	for _, line := range s.Bad {
		r.addNote(file, line, "neither a field nor the continuation of one")
	}
	name, version, arch := copyText(s.Get("Package")), s.Get("Version"), s.Get("Architecture")
	if name == "" {
		r.addNote(file, s.Line, "a paragraph without Package")
		return
	}
	listed := list(name, arch)
	// Status has three words: the desired state, the error flag, and the current state. A file of status.d has none.
	if status := copyText(s.Get("Status")); status != "" || file == dpkgStatus {
		words := strings.Fields(status)
		switch {
		case len(words) != 3:
			r.addNote(file, s.Line, fmt.Sprintf("%s: status is %q, not three words", name, status))
		case words[2] == "not-installed":
			return
		case words[2] == "config-files":
			r.addNote(file, s.Line, name+" is removed, but its configuration is not")
			return
		case words[1] != "ok" || words[2] != "installed":
			r.addNote(file, s.Line, fmt.Sprintf("%s is not wholly installed: its status is %q", name, status))
		}
	}
	if version == "" {
		r.addNote(file, s.Line, name+" has no Version")
	}
	n, ok := r.addPackage(Package{Kind: Dpkg, Name: name, Version: version, Arch: arch, Place: r.img.Place(file, s.Line)}, "")
	if !ok {
		return
	}
	if listed == "" {
		r.addNote(file, s.Line, name+" has no list of its files")
		return
	}
	r.dpkgFiles(n, name, listed, diversions)
}

// dpkgFiles reads the list of a package's files and directories, or its checksums: "hash  path" without the leading
// slash.
func (r *reader) dpkgFiles(n int32, name, list string, diversions map[string]diversion) {
	text, sums := r.files[list], path.Ext(list) == ".md5sums"
	// A path with others below it is a directory for the package, even if the image has a symlink there: /bin.
	dirs, last := map[string]bool{}, ""
	if !sums {
		for l := range strings.Lines(text) {
			if dir := l[:max(strings.LastIndexByte(l, '/'), 0)]; dir != last {
				dirs[dir] = true
				last = dir
			}
		}
	}
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if sums {
			if _, l, _ = strings.Cut(l, " "); l != "" {
				l = "/" + strings.TrimPrefix(strings.TrimLeft(l, " *"), "./")
			}
		}
		if r.claims >= maxNamed {
			return // the note exists already
		}
		if len(l) < 2 || l[0] != '/' || l == "/." || dirs[l] {
			continue
		}
		p := r.canonical(l)
		if d, ok := diversions[p]; ok && d.by != name {
			p = d.to
		}
		r.claimPath(n, p)
	}
}

// diversions reads the diversions: three lines each.
func (r *reader) diversions() map[string]diversion {
	out := map[string]diversion{}
	text := r.files[dpkgDiversions]
	if text == "" {
		return out
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i+2 < len(lines); i += 3 {
		out[r.canonical(lines[i])] = diversion{to: r.canonical(lines[i+1]), by: lines[i+2]}
	}
	if len(lines)%3 != 0 {
		r.addNote(dpkgDiversions, len(lines), "the last diversion is cut: each has three lines")
	}
	return out
}
