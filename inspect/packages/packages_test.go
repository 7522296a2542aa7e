package packages

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func text(p string, l ...string) image.File { return image.Bytes(p, 0o644, []byte(lines(l...))) }

// sized is a file of n bytes.
func sized(p string, n int) image.File { return image.Bytes(p, 0o644, make([]byte, n)) }

func hardLink(p, to string) image.File {
	return image.File{Entry: image.Entry{Path: p, Type: image.TypeLink, Mode: 0o644, Link: to}}
}

func open(t testing.TB, files ...image.File) *tree.Image {
	t.Helper()
	img, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func read(t testing.TB, files ...image.File) *Database {
	t.Helper()
	db, err := Read(t.Context(), open(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// table writes packages one a line.
func table(db *Database) []string {
	out := []string{}
	for _, p := range db.Packages {
		l := fmt.Sprintf("%s %s %s", p.Kind, p.Name, p.Version)
		if p.Arch != "" {
			l += " " + p.Arch
		}
		if p.Dir != "" {
			l += " in " + p.Dir
		}
		l += fmt.Sprintf(": %d bytes, %d files", p.Size, p.Files)
		if p.Missing > 0 {
			l += fmt.Sprintf(", %d missing", p.Missing)
		}
		if p.Hollow {
			l += ", hollow"
		}
		out = append(out, l+" @ "+p.Place.String())
	}
	return out
}

func notes(db *Database) []string {
	var out []string
	for _, n := range db.Notes {
		out = append(out, n.String())
	}
	return out
}

func check(t *testing.T, what string, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// owners are the names of the owners of paths; "-" is none.
func owners(db *Database, paths ...string) []string {
	var out []string
	for _, p := range paths {
		owner := "-"
		if pkg := db.Owner(p); pkg != nil {
			owner = pkg.Kind + " " + pkg.Name
		}
		out = append(out, p+" "+owner)
	}
	return out
}

func TestDpkg(t *testing.T) {
	const info = "/var/lib/dpkg/info/"
	db := read(t,
		image.Symlink("/bin", "usr/bin"), image.Symlink("/lib", "usr/lib"),
		text("/var/lib/dpkg/status",
			"Package: bash", "Status: install ok installed", "Version: 5.2-1", "Architecture: amd64", "Conffiles:",
			" /etc/skel/.bashrc 0123", " /etc/bash.bashrc 4567", "Description: a shell", " that is",
			" .", " long", "",
			"Package: libc6", "Status: hold ok installed", "Architecture: amd64", "Multi-Arch: same", "Version: 2.36", "",
			"Package: libc6", "Status: install ok installed", "Architecture: i386", "Version: 2.36", "",
			"",
			"package: dash", "status: install ok installed", "VERSION: 0.5", "architecture: amd64", "",
			"Package: gcc", "Status: install ok installed", "Version: 12", "Architecture: amd64", "",
			"Package: gone", "Status: deinstall ok config-files", "Version: 1", "Architecture: amd64", "",
			"Package: never", "Status: unknown ok not-installed", "",
			"Package: half", "Status: install ok half-configured", "Version: 3", "Architecture: all", "",
			"Package: reinst", "Status: install reinstreq installed", "Version: 4", "Architecture: all", "",
			"Package: odd", "Status: installed", "Architecture: all", "",
			"Version: 9", "",
			" continues nothing", "no field here", "Package: last", "Status: install ok installed", "Version: 1:2~x",
		),
		text("/var/lib/dpkg/diversions", "/bin/sh", "/bin/sh.distrib", "dash", "/usr/bin/cut", "/usr/bin/cut.x"),
		text(info+"bash.list", "/.", "/bin", "/bin/bash", "/bin/rbash", "/bin/sh", "/etc", "/etc/skel", "/etc/skel/.bashrc", "/bin/bash"),
		text(info+"libc6:amd64.list", "/.", "/lib", "/lib/libc.so.6", "/lib/ld.so", "/usr/share/doc/libc6", "/usr/share/doc/libc6/copyright"),
		text(info+"libc6:i386.md5sums", "0123  usr/lib32/libc.so.6", "4567  usr/share/doc/libc6/copyright", "broken"),
		text(info+"dash.list", "/bin/dash", "/bin/sh"),
		text(info+"gcc.list", "/.", "/usr", "/usr/bin", "/usr/bin/gcc", "/usr/lib", "/usr/lib/gcc", "/usr/lib/gcc/12", "/usr/lib/gcc/12/cc1",
			"/usr/share/doc/gcc/copyright"),
		text(info+"gcc.md5sums", "0123  usr/share/not/read"),
		text(info+"half.list", "/usr/share/half"), text(info+"reinst.list"), text(info+"gone.list", "/etc/gone"),
		text(info+"hidden.list", "/usr/bin/hidden"), text(info+"bash.postinst", "exit"),
		sized("/usr/bin/bash", 1000), hardLink("/usr/bin/rbash", "/usr/bin/bash"), sized("/usr/bin/sh.distrib", 10),
		sized("/etc/skel/.bashrc", 5), image.Symlink("/usr/bin/sh", "dash"), sized("/usr/bin/dash", 100),
		sized("/usr/lib/libc.so.6", 2000), image.Symlink("/usr/lib/ld.so", "libc.so.6"), sized("/usr/share/doc/libc6/copyright", 7),
		sized("/usr/lib32/libc.so.6", 1500), sized("/usr/share/doc/gcc/copyright", 3), sized("/usr/share/half", 1), sized("/usr/bin/own", 1),
	)
	check(t, "packages", []string{
		"dpkg bash 5.2-1 amd64: 1015 bytes, 4 files @ /var/lib/dpkg/status:1",
		"dpkg dash 0.5 amd64: 100 bytes, 2 files @ /var/lib/dpkg/status:25",
		"dpkg gcc 12 amd64: 3 bytes, 1 files, 2 missing, hollow @ /var/lib/dpkg/status:30",
		"dpkg half 3 all: 1 bytes, 1 files @ /var/lib/dpkg/status:43",
		"dpkg last 1:2~x: 0 bytes, 0 files @ /var/lib/dpkg/status:59",
		"dpkg libc6 2.36 amd64: 2007 bytes, 3 files @ /var/lib/dpkg/status:13",
		"dpkg libc6 2.36 i386: 1507 bytes, 2 files @ /var/lib/dpkg/status:19",
		"dpkg odd  all: 0 bytes, 0 files @ /var/lib/dpkg/status:53",
		"dpkg reinst 4 all: 0 bytes, 0 files @ /var/lib/dpkg/status:48",
	}, table(db))
	check(t, "owners", []string{
		"/usr/bin/bash dpkg bash", "/usr/bin/rbash dpkg bash", "/usr/bin/sh dpkg dash", "/usr/bin/sh.distrib dpkg bash",
		"/usr/lib/libc.so.6 dpkg libc6", "/usr/bin/own -", "/usr/bin -", "/etc/skel/.bashrc dpkg bash", "/nowhere -", "/usr/bin/hidden -",
	}, owners(db, "/usr/bin/bash", "/usr/bin/rbash", "/usr/bin/sh", "/usr/bin/sh.distrib", "/usr/lib/libc.so.6", "/usr/bin/own",
		"/usr/bin", "/etc/skel/.bashrc", "/nowhere", "/usr/bin/hidden"))
	check(t, "notes", []string{
		"/var/lib/dpkg/diversions:5: the last diversion is cut: each has three lines",
		"/var/lib/dpkg/status:35: gone is removed, but its configuration is not",
		`/var/lib/dpkg/status:43: half is not wholly installed: its status is "install ok half-configured"`,
		`/var/lib/dpkg/status:48: reinst is not wholly installed: its status is "install reinstreq installed"`,
		`/var/lib/dpkg/status:53: odd: status is "installed", not three words`,
		"/var/lib/dpkg/status:53: odd has no Version",
		"/var/lib/dpkg/status:53: odd has no list of its files",
		"/var/lib/dpkg/status:57: a paragraph without Package",
		"/var/lib/dpkg/status:59: neither a field nor the continuation of one",
		"/var/lib/dpkg/status:60: neither a field nor the continuation of one",
		"/var/lib/dpkg/status:59: last has no list of its files",
		"/var/lib/dpkg/info/hidden.list: a list of files of a package that the status doesn't name",
	}, notes(db))
}

func TestDistroless(t *testing.T) {
	db := read(t,
		text("/var/lib/dpkg/status.d/base", "Package: base-files", "Version: 12", "Architecture: amd64"),
		text("/var/lib/dpkg/status.d/base.md5sums", "0123  usr/lib/os-release", "4567 *./etc/gone"),
		text("/var/lib/dpkg/status.d/doc", "Package: doc", "Version: 1", "Architecture: all"),
		text("/var/lib/dpkg/status.d/doc.md5sums", "0123  usr/share/doc/doc/copyright"),
		text("/var/lib/dpkg/status.d/tzdata", "Package: tzdata", "Version: 2025", "Architecture: all"),
		sized("/usr/lib/os-release", 11),
	)
	check(t, "packages", []string{
		"dpkg base-files 12 amd64: 11 bytes, 1 files, 1 missing @ /var/lib/dpkg/status.d/base:1",
		"dpkg doc 1 all: 0 bytes, 0 files, 1 missing @ /var/lib/dpkg/status.d/doc:1",
		"dpkg tzdata 2025 all: 0 bytes, 0 files @ /var/lib/dpkg/status.d/tzdata:1",
	}, table(db))
	check(t, "notes", []string{"/var/lib/dpkg/status.d/tzdata:1: tzdata has no list of its files"}, notes(db))
	check(t, "owners", []string{"/usr/lib/os-release dpkg base-files"}, owners(db, "/usr/lib/os-release"))
}

func TestPip(t *testing.T) {
	const site = "/opt/python3.12/lib/python3.12/site-packages"
	db := read(t,
		text(site+"/requests-2.32.0.dist-info/METADATA", "Metadata-Version: 2.1", "Name: requests", "Version: 2.32.0", "License: A",
			"        B", "", "Name: not this"),
		text(site+"/requests-2.32.0.dist-info/RECORD",
			"requests/__init__.py,sha256=x,10", `"requests/a,""b"".py",sha256=x,3`, "requests/__pycache__/__init__.cpython-312.pyc,,",
			"../../../bin/requests,sha256=x,5", "/etc/requests.conf,,", "requests/gone.py,sha256=x,1", "requests-2.32.0.dist-info/METADATA,,",
			"requests-2.32.0.dist-info/RECORD,,", "../../../../../../../../out,,"),
		sized(site+"/requests/__init__.py", 10), sized(site+`/requests/a,"b".py`, 3), sized("/opt/python3.12/bin/requests", 5),
		sized("/etc/requests.conf", 2), sized("/out", 1),
		text(site+"/hollow-1.dist-info/METADATA", "Name: hollow", "Version: 1"),
		text(site+"/hollow-1.dist-info/RECORD", "hollow.py,,", "hollow-1.dist-info/RECORD,,"),
		text(site+"/no_record-1.5.dist-info/METADATA", "Name: no-record", "Version: 1.5"),
		text(site+"/nameless-3-py3.12.egg-info/PKG-INFO", "Metadata-Version: 1"),
		text(site+"/old-1.egg-info/PKG-INFO", "Name: old", "Version: 1"),
		text(site+"/old-1.egg-info/installed-files.txt", "../old.py", "PKG-INFO"), sized(site+"/old.py", 4),
		text("/usr/lib/python3/dist-packages/single-2.egg-info", "Name: single", "Version: 2"),
		text("/usr/lib/python3/dist-packages/six-1.dist-info/METADATA", "Name: six", "Version: 1"),
		text("/var/lib/dpkg/status", "Package: python3-six", "Status: install ok installed", "Version: 1", "Architecture: all"),
		text("/var/lib/dpkg/info/python3-six.list", "/usr/lib/python3/dist-packages/six-1.dist-info", "/usr/lib/python3/dist-packages/six-1.dist-info/METADATA"),
	)
	check(t, "packages", []string{
		"dpkg python3-six 1 all: 21 bytes, 1 files @ /var/lib/dpkg/status:1",
		"pip hollow 1 in " + site + ": 40 bytes, 1 files, 1 missing, hollow @ " + site + "/hollow-1.dist-info/METADATA",
		"pip nameless 3 in " + site + ": 20 bytes, 1 files @ " + site + "/nameless-3-py3.12.egg-info/PKG-INFO",
		"pip no-record 1.5 in " + site + ": 29 bytes, 1 files @ " + site + "/no_record-1.5.dist-info/METADATA",
		"pip old 1 in " + site + ": 25 bytes, 2 files @ " + site + "/old-1.egg-info/PKG-INFO",
		"pip requests 2.32.0 in " + site + ": 409 bytes, 7 files, 1 missing @ " + site + "/requests-2.32.0.dist-info/METADATA",
		"pip single 2 in /usr/lib/python3/dist-packages: 24 bytes, 1 files @ /usr/lib/python3/dist-packages/single-2.egg-info",
		"pip six 1 in /usr/lib/python3/dist-packages: 21 bytes, 1 files @ /usr/lib/python3/dist-packages/six-1.dist-info/METADATA",
	}, table(db))
	check(t, "owners", []string{
		site + "/requests/__init__.py pip requests", site + `/requests/a,"b".py pip requests`, "/opt/python3.12/bin/requests pip requests",
		"/etc/requests.conf pip requests", "/out pip requests",
		"/usr/lib/python3/dist-packages/six-1.dist-info/METADATA dpkg python3-six",
	}, owners(db, site+"/requests/__init__.py", site+`/requests/a,"b".py`, "/opt/python3.12/bin/requests", "/etc/requests.conf", "/out",
		"/usr/lib/python3/dist-packages/six-1.dist-info/METADATA"))
	check(t, "notes", []string{
		site + "/nameless-3-py3.12.egg-info/PKG-INFO: the metadata has no Name, or no Version: they are taken from the path",
	}, notes(db))
}

func TestNPM(t *testing.T) {
	const global = "/usr/lib/node_modules"
	db := read(t,
		text(global+"/npm/package.json", `{"name": "npm", "version": "10.0.0"}`), sized(global+"/npm/lib/npm.js", 100),
		text(global+"/npm/lib/esm/package.json", `{"type": "module"}`),
		text(global+"/npm/node_modules/@npmcli/fs/package.json", `{"name": "@npmcli/fs", "version": "3.1.0"}`),
		sized(global+"/npm/node_modules/@npmcli/fs/index.js", 20), image.Symlink(global+"/npm/node_modules/.bin/fs", "../@npmcli/fs/index.js"),
		text(global+"/npm/node_modules/.package-lock.json", "{}"),
		text(global+"/alias/package.json", "\ufeff"+`{"name": "real", "version": "1"}`),
		text(global+"/noname/package.json", "{}"), text(global+"/@scope/broken/package.json", `{"name": 1`), text(global+"/package.json", "{}"),
		text(global+"/.pnpm/a@1/node_modules/a/package.json", `{"name": "a", "version": "1"}`),
		sized(global+"/.pnpm/a@1/node_modules/a/a.js", 5), hardLink(global+"/.pnpm/a@1/node_modules/a/b.js", global+"/.pnpm/a@1/node_modules/a/a.js"),
		hardLink(global+"/alias/a.js", global+"/.pnpm/a@1/node_modules/a/a.js"), hardLink(global+"/npm/z.js", global+"/.pnpm/a@1/node_modules/a/a.js"),
		image.Symlink(global+"/a", ".pnpm/a@1/node_modules/a"),
		// A package.json with a name is a package wherever it lies, as for syft; without one only node_modules makes it one.
		text("/opt/novnc/package.json", `{"name": "novnc"}`), text("/opt/novnc/lib/package.json", `{"type": "module"}`),
		text("/opt/broken/package.json", `{"name": "x`), text(global+"/npm/vendored/package.json", `{"name": "vendored", "version": "2"}`),
		sized("/node_modules/top/index.js", 1), text("/node_modules/node_modules/package.json", "{}"),
	)
	check(t, "packages", []string{
		"npm @npmcli/fs 3.1.0 in " + global + "/npm/node_modules/@npmcli/fs: 63 bytes, 2 files @ " + global + "/npm/node_modules/@npmcli/fs/package.json",
		"npm @scope/broken  in " + global + "/@scope/broken: 11 bytes, 1 files @ " + global + "/@scope/broken/package.json",
		"npm a 1 in " + global + "/.pnpm/a@1/node_modules/a: 35 bytes, 3 files @ " + global + "/.pnpm/a@1/node_modules/a/package.json",
		"npm noname  in " + global + "/noname: 3 bytes, 1 files @ " + global + "/noname/package.json",
		"npm novnc  in /opt/novnc: 37 bytes, 2 files @ /opt/novnc/package.json",
		"npm npm 10.0.0 in " + global + "/npm: 164 bytes, 6 files @ " + global + "/npm/package.json",
		"npm real 1 in " + global + "/alias: 41 bytes, 2 files @ " + global + "/alias/package.json",
		"npm vendored 2 in " + global + "/npm/vendored: 37 bytes, 1 files @ " + global + "/npm/vendored/package.json",
	}, table(db))
	check(t, "owners", []string{
		global + "/npm npm npm", global + "/npm/lib npm npm", global + "/npm/vendored/package.json npm npm", global + "/npm/node_modules/.package-lock.json npm npm",
		global + "/npm/node_modules/@npmcli/fs/index.js npm @npmcli/fs", global + "/npm/node_modules/@npmcli npm npm", global + "/other -",
		"/opt/novnc/package.json -", "/node_modules/top/index.js -",
	}, owners(db, global+"/npm", global+"/npm/lib", global+"/npm/vendored/package.json", global+"/npm/node_modules/.package-lock.json",
		global+"/npm/node_modules/@npmcli/fs/index.js", global+"/npm/node_modules/@npmcli", global+"/other", "/opt/novnc/package.json",
		"/node_modules/top/index.js"))
	check(t, "notes", []string{
		global + "/@scope/broken/package.json: no package.json that npm would read: unexpected end of JSON input",
	}, notes(db))
}

// TestStrangeFiles has databases that are no files, lead nowhere or are too large.
func TestStrangeFiles(t *testing.T) {
	db := read(t,
		image.Symlink("/var/lib/dpkg", "/usr/dpkg"), image.Dir("/usr/dpkg/status", 0o755), image.Symlink("/usr/dpkg/diversions", "nowhere"),
		image.Symlink("/usr/dpkg/info", "loop"), image.Symlink("/usr/dpkg/loop", "info"),
		image.File{Entry: image.Entry{Path: "/usr/dpkg/status.d/x", Type: image.TypeFifo}},
		image.Symlink("/x/a.dist-info/METADATA", "/etc/metadata"), text("/etc/metadata", "Name: a", "Version: 1"),
		image.Bytes("/x/node_modules/big/package.json", 0o644, make([]byte, tree.MaxRead+1)),
	)
	check(t, "packages", []string{
		"npm big  in /x/node_modules/big: 16777217 bytes, 1 files @ /x/node_modules/big/package.json",
		"pip a 1 in /x: 0 bytes, 1 files @ /x/a.dist-info/METADATA",
	}, table(db))
	check(t, "notes", []string{
		"/var/lib/dpkg/status: not a readable file",
		"/var/lib/dpkg/diversions: not a readable file",
		"/usr/dpkg/status.d/x: not a readable file",
		"/x/node_modules/big/package.json: the file has 16777217 bytes; at most 16777216 are read",
	}, notes(db))
}

func TestNothing(t *testing.T) {
	db := read(t, text("/etc/hostname", "x"))
	if len(db.Packages) != 0 || db.Packages == nil || len(db.Notes) != 0 || db.Owner("/etc/hostname") != nil || (*Database)(nil).Owner("/") != nil {
		t.Errorf("%+v", db)
	}
}

// TestHostile has databases that are made to take memory or time.
func TestHostile(t *testing.T) {
	const info = "/var/lib/dpkg/info/"
	long := strings.Repeat("x", 1<<20)
	var many strings.Builder
	for i := range maxPackages + 1000 {
		fmt.Fprintf(&many, "Package: %d\nStatus: install ok installed\nVersion: 1\n\n", i)
	}
	var named strings.Builder
	for i := range maxNamed/8 + 1000 {
		fmt.Fprintf(&named, "/%d\n", i)
	}
	packages := func(names ...string) image.File {
		text := ""
		for _, name := range names {
			text += "Package: " + name + "\nStatus: install ok installed\nVersion: " + name + "\n\n"
		}
		return image.Bytes(dpkgStatus, 0o644, []byte(text))
	}
	for name, files := range map[string][]image.File{
		"deep paths":     {packages("a"), text(info+"a.list", strings.Repeat("/a", 4<<20), strings.Repeat("/b", 2000), "/c/"+long)},
		"long names":     {packages(long), image.Bytes("/a.dist-info/METADATA", 0o644, []byte("Name: "+long)), text("/node_modules/x/package.json", `{"name": "`+long+`"}`)},
		"many packages":  {image.Bytes(dpkgStatus, 0o644, []byte(many.String()))},
		"many files":     {packages("a", "b", "c", "d", "e", "f", "g", "h", "i"), image.Bytes(info+"a.list", 0o644, []byte(named.String()))},
		"deep JSON":      {text("/node_modules/x/package.json", strings.Repeat("[", 1<<20))},
		"an endless CSV": {text("/a.dist-info/METADATA", "Name: a", "Version: 1"), text("/a.dist-info/RECORD", `"`+strings.Repeat(`""`, 1<<20))},
	} {
		if name == "many files" {
			for _, c := range "bcdefghi" {
				files = append(files, hardLink(info+string(c)+".list", info+"a.list"))
			}
		}
		db := read(t, files...)
		if len(db.Packages) > maxPackages || len(db.Notes) > maxNotes+2 || len(db.owners) > maxNamed {
			t.Errorf("%s: %d packages, %d notes, %d owners", name, len(db.Packages), len(db.Notes), len(db.owners))
		}
		for _, p := range db.Packages {
			if len(p.Name) > maxText || len(p.Version) > maxText {
				t.Errorf("%s: a name of %d bytes", name, len(p.Name))
			}
		}
		for _, n := range db.Notes {
			if len(n.Text) > 1000 {
				t.Errorf("%s: a note of %d bytes", name, len(n.Text))
			}
		}
		if strings.HasPrefix(name, "many") && !slices.ContainsFunc(db.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "more than") }) && len(db.Notes) <= maxNotes {
			t.Errorf("%s: no note of what is left out: %d", name, len(db.Notes))
		}
	}
}

func TestStandIns(t *testing.T) {
	const node22 = "/opt/fnm/node-versions/v22.*/installation/lib/node_modules/"
	want := map[string][]string{
		"A": {
			"npm @agent-infra/mcp-hub 1.1.0 /usr/lib/node_modules/@agent-infra/mcp-hub",
			"npm @agent-infra/mcp-server-browser 1.2.21 /usr/lib/node_modules/@agent-infra/mcp-server-browser", "npm @novnc/novnc 1.4.0 /opt/novnc",
			"npm chrome-devtools-mcp 0.9.0 /usr/lib/node_modules/chrome-devtools-mcp",
		},
		"B": {
			"npm @agent-infra/mcp-server-browser 1.2.29 " + node22 + "@agent-infra/mcp-server-browser", "npm @novnc/novnc 1.4.0 /opt/novnc",
			"npm agent-browser 0.22.3 " + node22 + "agent-browser", "npm chrome-devtools-mcp 0.9.0 " + node22 + "chrome-devtools-mcp",
			"npm nodejs-repl-server 0.0.0 /opt/repl-servers/nodejs",
		},
		"C": {
			"npm @agent-infra/mcp-server-browser 1.2.29 " + node22 + "@agent-infra/mcp-server-browser",
			"npm @anthropic-ai/claude-code 0.0.0-guess " + node22 + "@anthropic-ai/claude-code",
			"npm @novnc/novnc 1.4.0 /opt/novnc", "npm @openai/codex 0.139.0 " + node22 + "@openai/codex",
			"npm agent-browser 0.22.3 " + node22 + "agent-browser", "npm chrome-devtools-mcp 0.9.0 " + node22 + "chrome-devtools-mcp",
			"npm nodejs-repl-server 0.0.0 /opt/repl-servers/nodejs",
		},
	}
	version := regexp.MustCompile(`/v22\.[0-9.]+/`)
	for line, want := range want {
		dir := filepath.Join(t.TempDir(), "base")
		if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
			t.Fatal(err)
		}
		img, err := tree.Cache{}.Open(t.Context(), ocitest.Layout(t, dir)["linux/amd64"], tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		db, err := Read(t.Context(), img)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range db.Packages {
			got = append(got, version.ReplaceAllString(strings.Join([]string{p.Kind, p.Name, p.Version, p.Dir}, " "), "/v22.*/"))
			if p.Files == 0 || p.Size == 0 || p.Place.Layer == "" {
				t.Errorf("%s: %+v", line, p)
			}
		}
		check(t, line, want, got)
		if len(db.Notes) > 0 {
			t.Errorf("%s: %v", line, db.Notes)
		}
	}
}
