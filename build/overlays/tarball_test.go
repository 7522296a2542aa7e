package overlays

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

const (
	loneVersion = "0.20.0"
	loneSum     = "sha512-SQjQjAhuIMXdqqigSFwfEZjQDixD+snGZI3ORClJB+OR6XFd0uwldxGVnpGcCeKEWhUeeflWya+1WgLEmxm8SQ=="
)

// TestUncommittedVersion: a native version without a committed lock, by its integrity alone, and what a changed cache
// does to it.
func TestUncommittedVersion(t *testing.T) {
	p := fetched(t, loneVersion, loneSum)
	if !p.Native || p.Version != loneVersion || p.Integrity != loneSum {
		t.Errorf("payload %+v", p)
	}
	tgz, err := os.ReadFile(p.dir + ".tgz")
	must(t, err)
	o, dir := privateCache(t, p)
	o.Npm = "no-such-npm"
	put(t, dir+".tgz", string(tgz))
	put(t, filepath.Join(dir, "LICENSE"), "changed")
	m, err := describe(dir, loneSum)
	must(t, err)
	put(t, filepath.Join(dir, manifestName), string(m.encode()))
	again, err := Fetch(context.Background(), loneVersion, loneSum, o)
	must(t, err)
	if again.Digest != p.Digest {
		t.Error("a changed file and list came out of the cache")
	}
	must(t, os.RemoveAll(dir))
	if _, err := Fetch(context.Background(), loneVersion, loneSum, o); err != nil {
		t.Errorf("from the cached tarball: %v", err)
	}
	put(t, dir+".tgz", string(tgz[:len(tgz)-1]))
	if _, err := Fetch(context.Background(), loneVersion, loneSum, o); !errors.Is(err, ErrNoTool) {
		t.Errorf("a tarball cut short: error %v, want that npm is asked", err)
	}
}

func TestUncommittedWrongIntegrity(t *testing.T) {
	need.Program(t, "npm")
	wrong := "sha512-" + strings.Repeat("A", 86) + "=="
	o := Options{CacheDir: t.TempDir()}
	_, err := Fetch(context.Background(), loneVersion, wrong, o)
	if !errors.Is(err, ErrIntegrity) || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), loneSum) {
		t.Errorf("error %v, want ErrIntegrity with both", err)
	}
	noLeftovers(t, o.CacheDir, "payload")
}

type member struct {
	name, text string
	kind       byte
}

// linkTarget is where the links of a tarball lead to. What is called setuidName is setuid.
const (
	linkTarget = "/etc/passwd"
	setuidName = "agent-browser-darwin-x64"
)

// tarball makes an npm tarball and its integrity.
func tarball(t *testing.T, members ...member) (string, string) {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	for _, m := range members {
		must(t, archive.WriteHeader(memberHeader(m)))
		_, err := archive.Write([]byte(m.text))
		must(t, err)
	}
	must(t, archive.Close())
	must(t, zipped.Close())
	sum := sha512.Sum512(out.Bytes())
	file := filepath.Join(t.TempDir(), "made")
	put(t, file, out.String())
	return file, "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

func memberHeader(m member) *tar.Header {
	h := &tar.Header{Name: m.name, Typeflag: m.kind, Size: int64(len(m.text)), Linkname: linkTarget, Mode: 0o644}
	if strings.HasSuffix(m.name, setuidName) {
		h.Mode = 0o4755
	}
	return h
}

// TestHostileTarballs: a tarball of the right integrity with what no package of npm's has is refused whole, also where the
// rules keep nothing of it, and leaves nothing behind.
func TestHostileTarballs(t *testing.T) {
	need.Program(t, "sh")
	pkg := member{"package/package.json", `{"name":"agent-browser","version":"0.99.0"}`, tar.TypeReg}
	for name, c := range map[string]struct {
		bad  member
		says string
	}{
		"a link":                 {member{"package/x", "", tar.TypeSymlink}, "is not a regular file"},
		"a hard link":            {member{"package/x", "", tar.TypeLink}, "is not a regular file"},
		"a device":               {member{"package/x", "", tar.TypeBlock}, "is not a regular file"},
		"a FIFO":                 {member{"package/x", "", tar.TypeFifo}, "is not a regular file"},
		"setuid":                 {member{"package/bin/" + setuidName, "x", tar.TypeReg}, "mode 4755"},
		"an absolute name":       {member{"/package/x", "", tar.TypeReg}, "is not a path below the package"},
		"a name that climbs":     {member{"package/../../x", "", tar.TypeReg}, "is not a path below the package"},
		"one that comes back":    {member{"package/x/../package.json", "{}", tar.TypeReg}, "is not a path below the package"},
		"a backslash":            {member{`package/..\x`, "", tar.TypeReg}, "is not a path below the package"},
		"a control character":    {member{"package/a\nb", "", tar.TypeReg}, "is not a path below the package"},
		"another case":           {member{"package/Package.json", "{}", tar.TypeReg}, "twice"},
		"a file for a directory": {member{"package", "x", tar.TypeReg}, "is not a path below the package"},
		"a huge one":             {member{"package/x", strings.Repeat("\x00", 64<<20), tar.TypeReg}, "to unpack"},
		"a program elsewhere":    {member{"package/package.json", `{"name":"agent-browser","version":"0.99.0","bin":{"agent-browser":"../../bin/sh"}}`, tar.TypeReg}, "bin"},
		"one from the root":      {member{"package/package.json", `{"name":"agent-browser","version":"0.99.0","bin":"/bin/sh"}`, tar.TypeReg}, "bin"},
		"a bin that is none":     {member{"package/package.json", `{"name":"agent-browser","version":"0.99.0","bin":[1]}`, tar.TypeReg}, "bin"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a huge one" {
				defer func(most int64) { maxKept = most }(maxKept)
				maxKept = 32 << 20
			}
			members := []member{pkg, c.bad}
			if c.bad.name == pkg.name {
				members = members[1:]
			}
			file, integrity := tarball(t, members...)
			o := fakeNpm(t, `for a; do case $a in --pack-destination=*) cp '`+file+`' "${a#*=}/x.tgz";; esac; done`)
			_, err := Fetch(context.Background(), "0.99.0", integrity, o)
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error %v, want %q", err, c.says)
			}
			noLeftovers(t, o.CacheDir, "payload")
		})
	}
}

func TestBadTarballs(t *testing.T) {
	need.Program(t, "sh")
	pkg := member{"package/package.json", `{"name":"agent-browser","version":"0.99.0"}`, tar.TypeReg}
	for name, c := range map[string]struct {
		members []member
		says    string
	}{
		"empty":           {nil, "package.json"},
		"another package": {[]member{{"package/package.json", `{"name":"other","version":"0.99.0"}`, tar.TypeReg}}, `"other"`},
		"another version": {[]member{{"package/package.json", `{"name":"agent-browser","version":"0.98.0"}`, tar.TypeReg}}, "0.98.0"},
		"dependencies":    {[]member{{"package/package.json", `{"name":"agent-browser","version":"0.99.0","dependencies":{"x":"1"}}`, tar.TypeReg}}, "has dependencies"},
		"no binary":       {[]member{pkg}, "linux-x64"},
		"a script":        {[]member{pkg, {"package/bin/agent-browser-linux-x64", "#!/bin/sh", tar.TypeReg}}, "not a Linux program"},
		"a link":          {[]member{pkg, {"package/LICENSE", "", tar.TypeSymlink}}, "not a regular file"},
		"twice":           {[]member{pkg, pkg}, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			file, integrity := tarball(t, c.members...)
			o := fakeNpm(t, `for a; do case $a in --pack-destination=*) cp '`+file+`' "${a#*=}/x.tgz";; esac; done`)
			_, err := Fetch(context.Background(), "0.99.0", integrity, o)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			entries, err := filepath.Glob(filepath.Join(o.CacheDir, "payload", "*"))
			must(t, err)
			for _, e := range entries {
				if !strings.HasSuffix(e, ".tgz") { // it is the pinned one, if useless
					t.Errorf("%s stays", e)
				}
			}
		})
	}
}
