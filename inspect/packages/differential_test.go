package packages

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

// hostFile is a file of this machine as a file of an image.
func hostFile(t *testing.T, at, p string) (image.File, bool) {
	t.Helper()
	info, err := os.Lstat(p)
	if err != nil {
		return image.File{}, false
	}
	switch info.Mode().Type() {
	case fs.ModeSymlink:
		to, err := os.Readlink(p)
		if err != nil {
			t.Fatal(err)
		}
		return image.Symlink(at, to), true
	case 0:
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		return image.Bytes(at, 0o644, data), true
	}
	return image.Dir(at, 0o755), true
}

// TestDpkgAgreesWithDpkg puts packages that every Debian and Ubuntu has into an image, and asks dpkg the same questions.
func TestDpkgAgreesWithDpkg(t *testing.T) {
	query := need.Program(t, "dpkg-query")
	names := []string{
		"bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip", "hostname", "libacl1", "libc-bin", "ncurses-base", "sed", "tar",
	}
	output := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(query, args...).Output()
		if err != nil && !slices.Contains(args, "-S") { // it fails when there is one path that it doesn't know
			t.Fatalf("dpkg-query %.100q: %v", args, err)
		}
		return string(out)
	}
	admin := t.TempDir()
	if err := os.MkdirAll(admin+"/info", 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(admin, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("status", []byte(output(append([]string{"-s"}, names...)...)))
	diversions, err := os.ReadFile("/var/lib/dpkg/diversions")
	if err != nil {
		t.Fatal(err)
	}
	// One more, for a file of a package that is here.
	write("diversions", append(diversions, "/etc/bash.bashrc\n/etc/bash.bashrc.diverted\n:\n"...))
	paths := map[string]bool{}
	for _, name := range names {
		lists, err := filepath.Glob("/var/lib/dpkg/info/" + name + "*.list")
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			if base := strings.TrimSuffix(filepath.Base(list), ".list"); base != name && !strings.HasPrefix(base, name+":") {
				continue
			}
			data, err := os.ReadFile(list)
			if err != nil {
				t.Fatal(err)
			}
			write("info/"+filepath.Base(list), data)
			for l := range strings.Lines(string(data)) {
				paths[strings.TrimSuffix(l, "\n")] = true
			}
		}
	}
	var files []image.File
	for p := range paths {
		at := p
		if p == "/etc/bash.bashrc" {
			at = p + ".diverted"
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(p))
		if err != nil {
			continue // documentation that this machine doesn't have
		}
		at = filepath.Join(dir, filepath.Base(at))
		if f, ok := hostFile(t, at, p); ok && at != "/" {
			files = append(files, f)
		}
	}
	for _, top := range []string{"/bin", "/lib", "/sbin"} { // links of no package, on Debian 12
		if f, ok := hostFile(t, top, top); ok {
			files = append(files, f)
		}
		delete(paths, top)
	}
	for _, name := range []string{"status", "diversions"} {
		f, _ := hostFile(t, "/var/lib/dpkg/"+name, filepath.Join(admin, name))
		files = append(files, f)
	}
	lists, err := os.ReadDir(admin + "/info")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		f, _ := hostFile(t, "/var/lib/dpkg/info/"+l.Name(), filepath.Join(admin, "info", l.Name()))
		files = append(files, f)
	}
	// A path may be met by two ways, and as a directory of one package and a link of another.
	slices.SortFunc(files, func(a, b image.File) int { return strings.Compare(a.Path, b.Path) })
	files = slices.CompactFunc(files, func(a, b image.File) bool { return a.Path == b.Path })
	db := read(t, files...)

	var got []string
	for _, p := range db.Packages {
		got = append(got, p.Name+" "+p.Version+" "+p.Arch)
		if p.Files == 0 || p.Size == 0 {
			t.Errorf("%s has %d files of %d bytes", p.Name, p.Files, p.Size)
		}
	}
	want := strings.Split(strings.TrimSpace(output("--admindir="+admin, "-W", "-f", "${Package} ${Version} ${Architecture}\n")), "\n")
	slices.Sort(want)
	slices.Sort(got)
	check(t, "packages", want, got)

	asked := 0
	args := []string{"--admindir=" + admin, "-S"}
	for i, p := range slices.Sorted(maps.Keys(paths)) {
		if i%(len(paths)/300+1) != 0 && p != "/bin/ls" && p != "/etc/bash.bashrc" {
			continue // dpkg is slow
		}
		if info, err := os.Lstat(p); err == nil && !info.IsDir() && !strings.ContainsAny(p, `[*?\`) {
			args = append(args, p)
		}
	}
	for l := range strings.Lines(output(args...)) {
		owner, p, ok := strings.Cut(strings.TrimSuffix(l, "\n"), ": ")
		if !ok || strings.HasPrefix(owner, "diversion by") || strings.HasPrefix(owner, "local diversion") || strings.Contains(owner, ",") {
			continue
		}
		asked++
		owner, _, _ = strings.Cut(owner, ":")
		if p == "/etc/bash.bashrc" {
			p += ".diverted"
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(p))
		if err != nil {
			t.Fatal(err)
		}
		if pkg := db.Owner(filepath.Join(dir, filepath.Base(p))); pkg == nil || pkg.Name != owner {
			t.Errorf("%s belongs to %v; dpkg says %s", p, pkg, owner)
		}
	}
	if asked < 150 {
		t.Errorf("dpkg knew %d files of %d", asked, len(args))
	}
}

// TestPipAgreesWithPython asks Python's importlib.metadata about the same files.
func TestPipAgreesWithPython(t *testing.T) {
	python := need.Program(t, "python3")
	dir := t.TempDir()
	files := map[string]string{
		"a-1.dist-info/METADATA":                  "Metadata-Version: 2.1\nName: a\nVersion: 1.0.post1\nSummary: x\n y\n\nVersion: no\n",
		"a-1.dist-info/RECORD":                    "a.py,sha256=x,1\r\n\"odd, \"\"name\"\".py\",,\r\n../../bin/a,,\r\na-1.dist-info/RECORD,,\r\nmissing.py,,\r\n",
		"B_b-2.dist-info/METADATA":                "metadata-version: 2.1\nname:   B.b  \nversion:2\n",
		"B_b-2.dist-info/RECORD":                  "B_b-2.dist-info/METADATA,,\n",
		"c-3-py3.12.egg-info/PKG-INFO":            "Name: c\nVersion: 3\n",
		"c-3-py3.12.egg-info/installed-files.txt": "../c.py\nPKG-INFO\n",
		"d-4.egg-info":                            "Name: d\nVersion: 4\n",
		"a.py":                                    "", `odd, "name".py`: "", "c.py": "",
	}
	var img []image.File
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		img = append(img, image.Bytes("/site/"+name, 0o644, []byte(text)))
	}
	out, err := exec.Command(python, "-c", `
import importlib.metadata, json, os, sys
d = sys.argv[1]
print(json.dumps({x.metadata["Name"].strip() + " " + x.version: [os.path.normpath("/site/" + str(f)) for f in (x.files or [])]
    for x in importlib.metadata.distributions(path=[d])}))`, dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	db := read(t, img...)
	if len(db.Packages) != len(want) || len(want) != 4 {
		t.Errorf("%v; Python has %v", table(db), want)
	}
	for _, p := range db.Packages {
		paths, ok := want[p.Name+" "+p.Version]
		if !ok {
			t.Errorf("Python doesn't know %s %s", p.Name, p.Version)
		}
		for _, f := range paths {
			if owner := db.Owner(f); owner == nil || owner.Name != p.Name {
				t.Errorf("%s belongs to %v; Python says %s", f, owner, p.Name)
			}
		}
		// Newer Pythons leave out files that aren't there.
		if n := len(paths); n > 0 && n != p.Files && n != p.Files+p.Missing {
			t.Errorf("%s has %d files and %d missing; Python says %v", p.Name, p.Files, p.Missing, paths)
		}
	}
}
