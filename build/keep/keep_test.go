package keep_test

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/build/keep"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf/elftest"
	"github.com/slimctl/slimctl/image/tree"
)

// program makes a program of the base's.
func program(p string, needed ...string) image.File {
	return image.Bytes(p, 0o755, elftest.Make(elftest.File{Interp: "/lib64/ld.so", Needed: needed}))
}

// withoutStringSize returns an ELF file of elftest without DT_STRSZ, which the loader doesn't read.
func withoutStringSize(file []byte) []byte {
	binary.LittleEndian.PutUint64(file[len(file)-32:], uint64(elf.DT_DEBUG))
	return file
}

func library(p string, needed ...string) image.File {
	return image.Bytes(p, 0o644, elftest.Make(elftest.File{Needed: needed}))
}

// deb is a package with its files.
type deb struct {
	name, fields string
	files        []image.File
}

// base makes a tree with a loader, libraries in merged directories, and packages.
func base(t *testing.T, debs []deb, more ...image.File) *tree.Image {
	t.Helper()
	files := append([]image.File{
		image.Symlink("/bin", "usr/bin"), image.Symlink("/lib", "usr/lib"), image.Symlink("/lib64", "usr/lib64"),
		image.Bytes("/etc/ld.so.conf", 0o644, []byte("include /etc/ld.so.conf.d/*.conf\n")),
		image.Bytes("/etc/ld.so.conf.d/x.conf", 0o644, []byte("# ours\n/opt/lib\n")),
		library("/usr/lib64/ld.so"),
		image.Bytes("/var/lib/dpkg/info/format", 0o644, []byte("1\n")),
	}, more...)
	var status strings.Builder
	for _, d := range debs {
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n%s\n", d.name, d.fields)
		list, sums := "/.\n", ""
		for _, f := range d.files {
			files = append(files, f)
			// As Debian's own packages: by the path before /usr was merged.
			named := strings.Replace(f.Path, "/usr/lib/", "/lib/", 1)
			list += named + "\n"
			sums += "0123  " + strings.TrimPrefix(named, "/") + "\n"
		}
		files = append(files,
			image.Bytes("/var/lib/dpkg/info/"+d.name+".list", 0o644, []byte(list)),
			image.Bytes("/var/lib/dpkg/info/"+d.name+".md5sums", 0o644, []byte(sums)),
			image.Bytes("/var/lib/dpkg/info/"+d.name+".postinst", 0o755, []byte("#!/bin/sh\n")))
	}
	if len(debs) > 0 {
		files = append(files, image.Bytes("/var/lib/dpkg/status", 0o644, []byte(status.String())))
	}
	files = withParents(files)
	img, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func withParents(files []image.File) []image.File {
	have := map[string]bool{}
	for _, f := range files {
		have[f.Path] = true
	}
	for _, f := range slices.Clone(files) {
		for _, dir := range image.Parents(f.Path) {
			if !have[dir] && dir != "/" {
				have[dir] = true
				files = append(files, image.Dir(dir, 0o755))
			}
		}
	}
	return files
}

func roots(paths ...string) (out []profile.Root) {
	for _, p := range paths {
		out = append(out, profile.Root{Path: p, Why: "a test"})
	}
	return out
}

// TestFiles: what a root needs stays, by the loader's rules, and nothing else.
func TestFiles(t *testing.T) {
	arm := image.Bytes("/usr/lib/x86_64-linux-gnu/libarm.so", 0o644, elftest.Make(elftest.File{Machine: elf.EM_AARCH64}))
	img := base(t, nil,
		program("/usr/bin/real", "liba.so", "libarm.so"), image.Symlink("/usr/bin/link", "/etc/alternatives/link"), image.Symlink("/etc/alternatives/link", "../../bin/real"),
		library("/usr/lib/x86_64-linux-gnu/liba.so.1", "libb.so"), image.Symlink("/usr/lib/x86_64-linux-gnu/liba.so", "liba.so.1"),
		library("/opt/lib/libb.so"), library("/usr/lib/x86_64-linux-gnu/libb.so"), library("/usr/lib64/libb.so"), // the last is never loaded
		arm, library("/usr/lib/libarm.so"),
		image.Bytes("/usr/bin/script", 0o755, []byte("#!/usr/bin/env python\n")), program("/usr/bin/env"), image.Symlink("/usr/local/bin/python", "/opt/py/bin/py3"),
		image.Bytes("/opt/py/bin/py3", 0o755, elftest.Make(elftest.File{Interp: "/lib64/ld.so", RunPath: "$ORIGIN/../lib", Needed: []string{"libpy.so"}})),
		library("/opt/py/lib/libpy.so"), library("/opt/py/lib/glibc-hwcaps/x86-64-v3/libpy.so"), library("/opt/py/lib/libother.so"),
		image.Bytes("/opt/old", 0o755, elftest.Make(elftest.File{RPath: "/opt/rpath", Needed: []string{"libold.so"}})),
		library("/opt/rpath/libold.so", "libolder.so"), library("/opt/rpath/libolder.so"), // found by the RPATH of what loads it
		image.Bytes("/opt/filter", 0o755, elftest.Make(elftest.File{Filter: "libarm.so"})),
		image.Bytes("/usr/bin/odd", 0o755, withoutStringSize(elftest.Make(elftest.File{Needed: []string{"liba.so"}}))),
		image.Bytes("/usr/bin/other", 0o755, []byte("#!/usr/bin/nowhere\n")),
		image.Symlink("/usr/bin/via", "../share/alias/..//./tool"), image.Symlink("/usr/share/alias", "/opt/pkg/v1"), image.Dir("/opt/pkg/v1", 0o755),
		image.Bytes("/opt/pkg/tool", 0o755, nil), image.Bytes("/usr/share/tool", 0o755, nil), // where ".." leads without links
		image.Symlink("/usr/bin/loop", "../../../../etc/loop"), image.Symlink("/etc/loop", "/usr/bin/loop"),
	)
	for name, tt := range map[string]struct {
		root  string
		want  string
		paths string
	}{
		"links, libraries, the loader": {"/usr/bin/link", "/bin /etc/alternatives/link /lib /lib64 /opt/lib/libb.so /usr/bin/link /usr/bin/real /usr/lib/libarm.so /usr/lib/x86_64-linux-gnu/liba.so /usr/lib/x86_64-linux-gnu/liba.so.1 /usr/lib/x86_64-linux-gnu/libb.so /usr/lib64/ld.so", ""},
		"a filter":                     {"/opt/filter", "/lib /opt/filter /usr/lib/libarm.so", ""},
		"a script":                     {"/usr/bin/script", "/lib64 /opt/py/bin/py3 /opt/py/lib/glibc-hwcaps/x86-64-v3/libpy.so /opt/py/lib/libpy.so /usr/bin/env /usr/bin/script /usr/lib64/ld.so /usr/local/bin/python", "/opt/py/bin/py3"},
		"RPATH":                        {"/opt/old", "/opt/old /opt/rpath/libold.so /opt/rpath/libolder.so", ""},
		"a directory":                  {"/opt/py/lib/glibc-hwcaps", "", ""},
		"\"..\" after a link":          {"/usr/bin/via", "/opt/pkg/tool /usr/bin/via /usr/share/alias", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := keep.Resolve(t.Context(), img, profile.Keep{Roots: roots(tt.root), Paths: strings.Fields(tt.paths)}, "/usr/bin:/usr/local/bin")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(set.Paths)), " "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			for p := range set.Paths {
				if dir := path.Dir(p); dir != "/" && !set.Dirs[dir] {
					t.Errorf("the directory of %s doesn't stay", p)
				}
			}
		})
	}
	set, err := keep.Resolve(t.Context(), img, profile.Keep{Roots: roots("/usr/bin/link")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/opt/lib/libb.so: library of /usr/lib/x86_64-linux-gnu/liba.so.1",
		"/usr/lib/x86_64-linux-gnu/liba.so.1: target of /usr/lib/x86_64-linux-gnu/liba.so",
		"/usr/lib/x86_64-linux-gnu/liba.so: library of /usr/bin/real",
		"/usr/bin/real: target of /etc/alternatives/link",
		"/etc/alternatives/link: target of /usr/bin/link",
		"/usr/bin/link: root (a test)",
	}
	if d := cmp.Diff(want, set.Explain("/opt/lib/libb.so")); d != "" {
		t.Error(d)
	}
	for root, want := range map[string]string{
		"/usr/bin/nothing": "/usr/bin/nothing is not in the base (a test)",
		"/usr/bin/loop":    "/usr/bin/loop is not in the base (a test)",
		"/usr/bin/odd":     "/usr/bin/odd is an ELF file that can't be read, so its libraries are unknown: dynamic section: a name at offset 1, but its strings have 0 bytes; choose a base with another build of it",
		"/usr/bin/other":   "/usr/bin/other needs the interpreter /usr/bin/nowhere, which is not in the base",
	} {
		if _, err := keep.Resolve(t.Context(), img, profile.Keep{Roots: roots(root)}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", root, err)
		}
	}
}

// TestInterpreters: a script stays with an interpreter that can start. Where no package owns one, its modules stay with it; where
// they aren't at PREFIX/lib/NAME, the error has the line of the profile that keeps them, and with it the script stays.
func TestInterpreters(t *testing.T) {
	script := func(p, interpreter string) image.File { return image.Bytes(p, 0o755, []byte("#!"+interpreter+" -s\n")) }
	debs := []deb{
		{"python3.11", "", []image.File{program("/usr/bin/python3.11"), image.Bytes("/usr/lib/python3.11/os.py", 0o644, nil)}},
		{"coreutils", "", []image.File{program("/usr/bin/env"), image.Bytes("/usr/bin/by-env", 0o755, []byte("#!/usr/bin/env tool\n"))}},
	}
	files := []image.File{
		image.Symlink("/usr/bin/python3", "/etc/alternatives/python3"), image.Symlink("/etc/alternatives/python3", "/usr/bin/python3.11"),
		program("/opt/python3.12/bin/python3.12"), image.Bytes("/opt/python3.12/lib/python3.12/os.py", 0o644, nil),
		image.Symlink("/opt/python3.12/bin/tool", "python3.12"), image.Symlink("/usr/local/bin/py", "/opt/python3.12/bin/tool"),
		program("/usr/local/bin/python3.13"), image.Bytes("/usr/local/lib/python3.13/os.py", 0o644, nil), program("/usr/local/bin/lua"),
		image.Symlink("/opt/venv/bin/python", "/usr/bin/python3.11"), image.Bytes("/opt/venv/pyvenv.cfg", 0o644, nil),
		image.Symlink("/opt/env/bin/python", "/usr/bin/python3.11"), image.Bytes("/opt/env/pyvenv.cfg", 0o644, nil),
		image.Bytes("/opt/env/lib/python3.11/site-packages/m.py", 0o644, nil),
		script("/opt/wrapped/bin/python", "/opt/python3.12/bin/python3.12"),
		program("/usr/bin/tool"), program("/opt/google/chrome"),
		image.Bytes("/opt/wrapper", 0o755, []byte("#!/usr/bin/python3.11\n# in /opt\nexec -a \"$0\" /opt/google/chrome --flag=/etc/none\n")),
	}
	for name, tt := range map[string]struct {
		interpreter string // or a script
		paths       string
		needs       string // the profile's line, without its beginning and end
		stays       string
	}{
		"of a package":           {interpreter: "/usr/bin/python3.11", stays: "/usr/lib/python3.11/os.py"},
		"an alternative":         {interpreter: "/usr/bin/python3", stays: "/usr/lib/python3.11/os.py"},
		"of no package":          {interpreter: "/opt/python3.12/bin/python3.12", stays: "/opt/python3.12/lib/python3.12/os.py"},
		"a link to it":           {interpreter: "/usr/local/bin/py", stays: "/opt/python3.12/lib/python3.12/os.py"},
		"by the first PATH":      {interpreter: "/usr/bin/by-env", stays: "/usr/bin/tool", paths: "/opt/python3.12"},
		"by the second PATH":     {interpreter: "/usr/bin/by-env", stays: "/opt/python3.12/bin/tool", paths: "/usr/bin/tool"},
		"in a directory of many": {interpreter: "/usr/local/bin/python3.13", stays: "/usr/local/lib/python3.13/os.py"},
		"by itself":              {interpreter: "/usr/local/bin/lua", stays: "/usr/local/bin/lua"},
		"a virtual environment":  {interpreter: "/opt/venv/bin/python", needs: "/opt/venv", stays: "/opt/venv/pyvenv.cfg"},
		"one with modules":       {interpreter: "/opt/env/bin/python", stays: "/opt/env/lib/python3.11/site-packages/m.py"},
		"its settings":           {interpreter: "/opt/env/bin/python", stays: "/opt/env/pyvenv.cfg"},
		"a wrapper":              {interpreter: "/opt/wrapper", stays: "/opt/google/chrome"},
		"a script":               {interpreter: "/opt/wrapped/bin/python", paths: "/opt/python3.12", needs: "/opt/wrapped"},
		"the interpreter of one": {interpreter: "/opt/wrapped/bin/python", paths: "/opt/wrapped", stays: "/opt/python3.12/lib/python3.12/os.py"},
		"named by a glob":        {interpreter: "/opt/python3.12/bin/python3.12", paths: "/opt/py*", stays: "/opt/python3.12/lib/python3.12/os.py"},
	} {
		t.Run(name, func(t *testing.T) {
			img := base(t, debs, append(files, script("/usr/bin/root", tt.interpreter))...)
			spec := profile.Keep{Roots: roots("/usr/bin/root"), Paths: strings.Fields(tt.paths)}
			search := []string{"/usr/local/sbin:/usr/bin", ":relative:/opt/python3.12/bin:/usr/bin"}
			set, err := keep.Resolve(t.Context(), img, spec, search...)
			if tt.needs != "" {
				var broken *keep.BrokenError
				if !errors.As(err, &broken) || !strings.HasSuffix(err.Error(), "\nkeep: {paths: ["+tt.needs+"]}") {
					t.Fatalf("got %v, want %s", err, tt.needs)
				}
				spec.Paths = append(spec.Paths, strings.Split(tt.needs, ", ")...)
				set, err = keep.Resolve(t.Context(), img, spec, search...)
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.stays != "" && !set.Has(tt.stays) {
				t.Errorf("%s doesn't stay: %v", tt.stays, slices.Sorted(maps.Keys(set.Paths)))
			}
		})
	}
}

// packages of TestPackages: a window manager that loads pictures by plugins, in the way of openbox and imlib2.
func packages() []deb {
	return []deb{
		{"wm", "Depends: libimage (>= 1), menu | libmenu-any\n", []image.File{program("/usr/bin/wm", "libimage.so"), image.Bytes("/usr/share/doc/wm/readme", 0o644, nil), image.Bytes("/usr/share/doc/wm/copyright", 0o644, nil)}},
		{"libimage", "Depends: libps, libpng:any, data\nConffiles:\n /etc/image.conf 0123\n /etc/ps.conf 0123\n", []image.File{
			library("/usr/lib/x86_64-linux-gnu/libimage.so"), library("/usr/lib/x86_64-linux-gnu/image/ps.so", "libps.so"), library("/usr/lib/x86_64-linux-gnu/image/png.so", "libpng.so"),
			image.Bytes("/etc/image.conf", 0o644, nil), image.Bytes("/etc/ps.conf", 0o644, nil),
		}},
		{"libps", "Pre-Depends: fonts\n", []image.File{library("/usr/lib/x86_64-linux-gnu/libps.so")}},
		{"libpng", "Depends: data\n", []image.File{library("/usr/lib/x86_64-linux-gnu/libpng.so")}},
		{"fonts", "", []image.File{image.Bytes("/usr/share/fonts/f", 0o644, []byte("f"))}},
		{"data", "", []image.File{image.Bytes("/usr/share/data/d", 0o644, []byte("d")), image.Dir("/usr/share/empty", 0o755), image.Symlink("/usr/share/data/gone", "../fonts/f")}},
		{"realmenu", "Provides: libmenu-any (= 1), other\n", []image.File{image.Bytes("/usr/share/menu", 0o644, nil)}},
		{"python", "", []image.File{image.Bytes("/usr/lib/python/a.py", 0o644, nil), image.Bytes("/usr/lib/python/b.py", 0o644, nil)}},
	}
}

func products() []image.File {
	return []image.File{
		image.Bytes("/usr/lib/python/__pycache__/a.cpython-311.pyc", 0o644, nil), image.Bytes("/usr/lib/python/__pycache__/b.cpython-311.opt-1.pyc", 0o644, nil),
		image.Bytes("/etc/ld.so.cache", 0o644, nil), image.Bytes("/var/cache/fonts/x", 0o644, nil),
	}
}

// TestPackages: packages come with their owners and dependencies, less what is cut and dropped, and the database says so.
func TestPackages(t *testing.T) {
	img := base(t, packages(), products()...)
	spec := profile.Keep{
		Roots: roots("/usr/bin/wm"), Packages: []string{"pyth*"}, Paths: []string{"/etc/ld.so.cache", "/var/cache/fonts"},
		Without: []profile.Cut{{From: "libimage", To: []string{"libps"}, Drop: []string{"/usr/lib/*/image/ps.so", "/etc/ps.conf"}, Why: "no PostScript"}},
		Drop:    []profile.Drop{{Glob: "/usr/share/doc/**", Except: []string{"/usr/share/doc/*/copyright"}, Why: "nobody reads it"}, {Glob: "/usr/lib/python/b.py", Why: "a test"}},
	}
	set, err := keep.Resolve(t.Context(), img, spec)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(slices.Sorted(maps.Keys(set.Packages)), " "), "data libimage libpng python realmenu wm"; got != want {
		t.Errorf("packages %s", got)
	}
	for p, stays := range map[string]bool{
		"/usr/bin/wm": true, "/usr/share/doc/wm/readme": false, "/usr/share/doc/wm/copyright": true, "/usr/lib/x86_64-linux-gnu/image/png.so": true,
		"/usr/lib/x86_64-linux-gnu/image/ps.so": false, "/usr/lib/x86_64-linux-gnu/libps.so": false, "/usr/share/fonts/f": false, "/usr/share/data/d": true,
		"/usr/share/data/gone": false, // what it leads to goes
		"/usr/share/menu":      true, "/usr/lib/python/__pycache__/a.cpython-311.pyc": true, "/usr/lib/python/__pycache__/b.cpython-311.opt-1.pyc": false,
		"/etc/ld.so.cache": true, "/var/cache/fonts/x": true, "/var/lib/dpkg/status": true, "/var/lib/dpkg/info/wm.list": true, "/var/lib/dpkg/info/libps.list": false,
		"/var/lib/dpkg/info/wm.postinst": false, "/var/lib/dpkg/info/format": true,
	} {
		if _, ok := set.Paths[p]; ok != stays {
			t.Errorf("%s stays: %t", p, ok)
		}
	}
	if !set.Dirs["/usr/share/empty"] || set.Dirs["/usr/share/fonts"] {
		t.Error("of the directories those stay that a package has and that something lies in")
	}
	edits := set.Edits(img, set.Has)
	edited := func(p string) string {
		data, err := img.ReadFile(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return string(edits[p](data))
	}
	status := edited("/var/lib/dpkg/status")
	for _, want := range []string{"Package: wm\n", "\nDepends: libimage (>= 1), menu | libmenu-any\n", "\nDepends: libpng:any, data\nConffiles:\n /etc/image.conf 0123\n\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status lacks %q:\n%s", want, status)
		}
	}
	if strings.Contains(status, "Package: libps\n") {
		t.Error("the status has a package that goes")
	}
	if got, want := edited("/var/lib/dpkg/info/libimage.list"), "/.\n/lib/x86_64-linux-gnu/libimage.so\n/lib/x86_64-linux-gnu/image/png.so\n/etc/image.conf\n"; got != want {
		t.Errorf("list:\n%s", got)
	}
	if got, want := edited("/var/lib/dpkg/info/wm.md5sums"), "0123  usr/bin/wm\n0123  usr/share/doc/wm/copyright\n"; got != want {
		t.Errorf("md5sums:\n%s", got)
	}
}

// TestDiversions: a file that a package moved away from its own path belongs to the package that brought it.
func TestDiversions(t *testing.T) {
	debs := []deb{
		{"awrap", "", []image.File{program("/usr/bin/tool"), image.Bytes("/usr/share/awrap", 0o644, nil)}},
		{"brought", "Conffiles:\n /etc/tool.conf 0123 obsolete\n", []image.File{image.Bytes("/usr/share/brought", 0o644, nil)}},
	}
	img := base(t, debs, program("/usr/bin/tool.real"), image.Bytes("/etc/tool.conf.mine", 0o644, nil),
		image.Bytes("/var/lib/dpkg/info/brought:amd64.list", 0o644, []byte("/.\n/usr/bin/tool\n/usr/share/brought\n/etc/tool.conf\n")),
		image.Bytes("/var/lib/dpkg/info/brought:amd64.md5sums", 0o644, []byte("0123  usr/bin/tool\n")),
		image.Bytes("/var/lib/dpkg/diversions", 0o644, []byte("/usr/bin/tool\n/usr/bin/tool.real\nawrap\n/etc/tool.conf\n/etc/tool.conf.mine\n:\n/usr/share/brought\n\nawrap\n/cut\n")))
	for root, want := range map[string]string{"/usr/bin/tool": "awrap", "/usr/bin/tool.real": "brought"} {
		set, err := keep.Resolve(t.Context(), img, profile.Keep{Roots: roots(root)})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(set.Packages)), " "); got != want || set.Owner(root) != want {
			t.Errorf("%s: packages %s stay, and %q owns it", root, got, set.Owner(root))
		}
	}
	set, err := keep.Resolve(t.Context(), img, profile.Keep{Packages: []string{"brought"}})
	if err != nil {
		t.Fatal(err)
	}
	without, err := keep.Resolve(t.Context(), base(t, debs[1:], image.Bytes("/usr/bin/tool.real", 0o755, nil), image.Bytes("/etc/tool.conf.mine", 0o644, nil),
		image.Bytes("/var/lib/dpkg/info/brought:amd64.list", 0o644, []byte("/usr/bin/tool.real\n/usr/share/brought\n/etc/tool.conf.mine\n")),
		image.Bytes("/var/lib/dpkg/info/brought:amd64.md5sums", 0o644, nil)), profile.Keep{Packages: []string{"brought"}})
	if err != nil || !maps.Equal(set.Paths, without.Paths) || set.Digest() == without.Digest() {
		t.Errorf("%v; without diversions the same digest, by which layers are cached: %v, %v", err, set.Paths, without.Paths)
	}
	edits := set.Edits(img, set.Has)
	for p, want := range map[string]string{
		"/var/lib/dpkg/info/brought:amd64.list":    "/.\n/usr/bin/tool.real\n/usr/share/brought\n/etc/tool.conf.mine\n",
		"/var/lib/dpkg/info/brought:amd64.md5sums": "0123  usr/bin/tool.real\n",
		"/var/lib/dpkg/status":                     "Package: brought\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nConffiles:\n /etc/tool.conf.mine 0123 obsolete\n\n",
	} {
		data, err := img.ReadFile(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(edits[p](data)); got != want {
			t.Errorf("%s:\n%s", p, got)
		}
	}
}

// TestBrokenCuts: it is the files that decide whether an edge may be cut.
func TestBrokenCuts(t *testing.T) {
	img := base(t, packages())
	spec := profile.Keep{Roots: roots("/usr/bin/wm"), Without: []profile.Cut{{From: "libimage", To: []string{"libps"}, Why: "forgot the plugin"}}}
	_, err := keep.Resolve(t.Context(), img, spec)
	var broken *keep.BrokenError
	want := "/usr/lib/x86_64-linux-gnu/image/ps.so stays and needs /usr/lib/x86_64-linux-gnu/libps.so of package libps: drop it with the edge from libimage, or don't cut or drop what it needs"
	if !errors.As(err, &broken) || err.Error() != want {
		t.Errorf("got %v", err)
	}
	// One that its owner's main library needs stays, whoever cuts it.
	spec.Without = []profile.Cut{{From: "wm", To: []string{"libimage"}, Why: "wrong"}}
	set, err := keep.Resolve(t.Context(), img, spec)
	if err != nil {
		t.Fatal(err)
	}
	if r := set.Packages["libimage"]; r != (keep.Reason{Rule: keep.ByOwner, From: "/usr/lib/x86_64-linux-gnu/libimage.so"}) {
		t.Errorf("libimage stays by %+v", r)
	}
	// What is dropped and a program needs stays, too.
	spec = profile.Keep{Roots: roots("/usr/bin/wm"), Drop: []profile.Drop{{Glob: "/usr/lib/**", Why: "wrong"}}}
	if set, err = keep.Resolve(t.Context(), img, spec); err != nil {
		t.Fatal(err)
	}
	if _, ok := set.Paths["/usr/lib/x86_64-linux-gnu/libimage.so"]; !ok {
		t.Error("a library that a program needs was dropped")
	}
}

// TestDlopen: what a program loads by itself stays with the program, and with its packages.
func TestDlopen(t *testing.T) {
	debs := append(packages(), deb{"libsoft", "Depends: libpng\n", []image.File{library("/usr/lib/x86_64-linux-gnu/libsoft.so", "libpng.so")}})
	img := base(t, debs, image.Symlink("/usr/bin/alias", "wm"))
	spec := profile.Keep{Roots: roots("/usr/bin/wm"), Dlopen: []profile.Dlopen{
		{Opener: "/usr/bin/{alias,wm}", Objects: []string{"libsoft.so", "libnone.so", "/usr/share/f*/*"}, Why: "TLS"},
		{Opener: "/usr/bin/nothing", Objects: []string{"libps.so"}, Why: "not here"},
	}}
	set, err := keep.Resolve(t.Context(), img, spec)
	if err != nil {
		t.Fatal(err)
	}
	if r := set.Paths["/usr/lib/x86_64-linux-gnu/libsoft.so"]; r != (keep.Reason{Rule: keep.ByDlopen, From: "/usr/bin/wm", Why: "TLS"}) {
		t.Errorf("libsoft stays by %+v", r)
	}
	if _, ok := set.Packages["libsoft"]; !ok || set.Paths["/usr/share/fonts/f"].Rule != keep.ByDlopen {
		t.Errorf("packages %v", set.Packages)
	}
}

// TestSameSet: no order of a map decides what stays.
func TestSameSet(t *testing.T) {
	img := base(t, packages(), image.Bytes("/var/lib/dpkg/info/fonts:amd64.list", 0o644, []byte("/etc/image.conf\n/usr/bin/wm\n"))) // two packages have one file
	first := ""
	for range 20 {
		set, err := keep.Resolve(t.Context(), img, profile.Keep{Roots: roots("/usr/bin/wm", "/etc/image.conf")})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = set.Digest()
		}
		if d := set.Digest(); d != first {
			t.Fatalf("%s, and then %s", first, d)
		}
	}
}

// TestTooMuch: a base that is odd, or made to take for ever, ends soon, by an error that names its file.
func TestTooMuch(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	var loop []image.File // of files that include all others
	for i := range 30 {
		loop = append(loop, image.Bytes(fmt.Sprintf("/etc/ld.so.conf.d/%d.conf", i), 0o644, []byte("include *.conf\ninclude ../ld.so.conf\n")))
	}
	deep := "/" + strings.Repeat("a/", 2000)
	wide := []image.File{image.Symlink("/link", deep), image.Dir(deep, 0o755)}
	for i := range 300 {
		wide = append(wide, image.Dir(fmt.Sprintf("%s/%d", deep, i), 0o755))
	}
	sprawl := elftest.File{Interp: "/lib64/ld.so", RunPath: strings.TrimPrefix(many(700, ":/a%d"), ":")}
	for i := range 8000 {
		sprawl.Needed = append(sprawl.Needed, fmt.Sprintf("l%d", i))
	}
	for name, tt := range map[string]struct {
		debs []deb
		file []image.File
		want string // of the error; empty for none
	}{
		"ld.so.conf includes itself":   {file: loop},
		"a long ld.so.conf":            {file: []image.File{image.Bytes("/etc/ld.so.conf.d/y.conf", 0o644, []byte(many(2000, "/%d\n")))}, want: "/etc/ld.so.conf.d/y.conf: ld.so.conf with its includes has more than 1000 lines"},
		"an include with alternatives": {file: []image.File{image.Bytes("/etc/ld.so.conf.d/y.conf", 0o644, []byte("include /etc/"+strings.Repeat("{a,a}", 40)+"b\n")), image.Bytes("/etc/"+strings.Repeat("a", 40), 0o644, nil)}},
		"libraries times directories":  {file: []image.File{image.Bytes("/usr/bin/sprawl", 0o755, elftest.Make(sprawl))}, want: "name too many libraries"},
		"libraries times deep links": {file: []image.File{
			image.Bytes("/etc/ld.so.conf.d/y.conf", 0o644, []byte(many(900, "/link/%d/..\n"))), image.Symlink("/link", deep), image.Dir(deep, 0o755),
			image.Bytes("/usr/bin/sprawl", 0o755, elftest.Make(elftest.File{Interp: "/lib64/ld.so", Needed: sprawl.Needed[:500]})),
		}, want: "name too many libraries"},
		"includes times deep links":   {file: append([]image.File{image.Bytes("/etc/ld.so.conf.d/y.conf", 0o644, []byte(many(900, "include /link/*/%d\n")))}, wide...), want: "name too many libraries"},
		"packages in a link":          {file: []image.File{image.Symlink("/var/lib/dpkg/status", "status-old"), image.Bytes("/var/lib/dpkg/status-old", 0o644, nil)}, want: "/var/lib/dpkg/status leads to /var/lib/dpkg/status-old"},
		"a list in a link":            {debs: []deb{{"all", "", nil}}, file: []image.File{image.Symlink("/var/lib/dpkg/info/all:amd64.list", "/etc/passwd")}, want: "/var/lib/dpkg/info/all:amd64.list is a symlink"},
		"a package without a name":    {debs: []deb{{"", "", nil}}, want: `/var/lib/dpkg/status:1: "" is not the name of a package`},
		"a name for a terminal":       {debs: []deb{{"a\x1b[2J", "", nil}}, want: `"a\x1b[2J" is not the name of a package`},
		"a name out of its directory": {debs: []deb{{"../a", "", nil}}, want: `"../a" is not the name of a package`},
		"a name without end":          {debs: []deb{{strings.Repeat("a", 300), "", nil}}, want: "is not the name of a package"},
		"diversions without end":      {debs: []deb{{"all", "", nil}}, file: []image.File{image.Bytes("/var/lib/dpkg/diversions", 0o644, []byte(strings.Repeat("/\n/\n:\n", 1<<17)))}, want: "/var/lib/dpkg/diversions: more than 65536 diversions"},
		"provides without end":        {debs: []deb{{"all", "Provides: " + strings.Repeat("x,", 1_100_000) + "x\n", nil}}, want: "/var/lib/dpkg/status: the dependencies"},
		"dependencies times provides": {debs: []deb{{"all", "Depends: " + many(100_000, "x,") + "x\nProvides: " + many(100_000, "x,") + "x\n", nil}}, want: "/var/lib/dpkg/status: the dependencies"},
	} {
		t.Run(name, func(t *testing.T) {
			img := base(t, tt.debs, append(tt.file, program("/usr/bin/wm"))...)
			spec := profile.Keep{Roots: roots("/usr/bin/wm")}
			if _, ok := img.Lookup("/usr/bin/sprawl"); ok {
				spec.Roots = append(spec.Roots, roots("/usr/bin/sprawl")...)
			}
			_, err := keep.Resolve(t.Context(), img, spec)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %.300v, want %q", err, tt.want)
			}
		})
	}
}
