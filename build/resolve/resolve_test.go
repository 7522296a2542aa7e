package resolve_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/standin"
)

// header is a whole profile but for what a test adds.
const header = `version: 1
name: test
base: {reference: example.org/base, lines: [B]}
platforms: [linux/amd64]
payload: {agentBrowser: {version: 0.8.10, integrity: "sha512-tL5ZfnAa+vZQfEUkEVyyZQFzF6+r9nE07UnjCFMhNFZA709dRc9KYIK1AOXwzBKNHrnxrCaAMgeNJin7NO7j5g=="}}
`

const expect = "expect: {programs: [], routes: [], mcpServers: [browser_shell], tools: [browser-shell]}\n"

// base writes a stand-in of line B with the files of this test in it, once for all tests.
func base(t *testing.T, line string) *image.Source {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	_, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}, Extra: []image.File{
		image.Dir("/t", 0o755), image.Dir("/t/dir", 0o710), image.Bytes("/t/dir/file", 0o644, nil), image.Bytes("/t/a.conf", 0o644, nil),
		image.Bytes("/t/b.conf", 0o644, nil), image.Symlink("/t/link", "a.conf"), image.Symlink("/t/dirlink", "dir"), image.Symlink("/t/loop", "loop"),
		image.Dir("/odd", 0o755), image.Bytes("/odd/x\xff", 0o644, nil), image.Bytes("/odd/x\xfe", 0o644, nil), image.Symlink("/odd/link", "x\xff"),
		image.Dir("/t/own", 0o777), image.Bytes("/t/own/a", 0o644, nil), image.Bytes("/t/own/sub/deep/b", 0o644, nil), image.Bytes("/t/own/sub/deep/c", 0o644, nil),
		image.Bytes("/t/own/sub2/d", 0o644, nil), image.Symlink("/t/ownlink", "own"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := image.Open(t.Context(), "oci:"+dir, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func load(t *testing.T, text string) *profile.Profile {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Loader{}.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func input(src *image.Source, p *profile.Profile) resolve.Input {
	return resolve.Input{
		Profile: p, Reference: "base", Source: src, Platforms: []v1.Platform{{OS: "linux", Architecture: "amd64"}},
		Assets: fstest.MapFS{"x.conf": {Data: []byte("asset")}, "mcp-hub.json.template": {}},
	}
}

// steps shows what a recipe does, but for the hub's file that every one has.
func steps(r *build.Recipe) []string {
	var out []string
	if r.Strip != nil {
		out = append(out, fmt.Sprintf("strip the base to %d layers", len(r.Strip.Layers)))
	}
	for _, s := range r.Removals {
		if strings.HasPrefix(s.Why, "setuid") {
			continue // which every stand-in has
		}
		out = append(out, "- "+s.Path)
	}
	for _, l := range r.Overlays {
		for _, f := range l.Files {
			if l.Name != "hub" {
				out = append(out, "+ "+f.Path)
			}
		}
	}
	return out
}

func TestResolve(t *testing.T) {
	src := base(t, "B")
	for _, c := range []struct {
		name, profile string
		want          []string
		err           string
	}{
		{name: "a path", profile: "remove: [{path: /t/a.conf, why: w}]", want: []string{"- /t/a.conf"}},
		{name: "a glob with an exception", profile: "remove: [{glob: '/t/*.conf', except: [/t/b.conf], why: w}]", want: []string{"- /t/a.conf"}},
		{name: "a removal within a removal", profile: "remove: [{path: /t/dir, why: w}, {path: /t/dir/file, why: w}]", want: []string{"- /t/dir"}},
		{name: "a path through a symlink", profile: "remove: [{path: /t/dirlink/file, why: w}]", want: []string{"- /t/dir/file"}},
		{name: "a symlink itself", profile: "remove: [{path: /t/link, why: w}]", want: []string{"- /t/link"}},
		{name: "another line's removal", profile: "remove: [{path: /none, why: w, when: {line: [A]}}]"},
		{name: "another platform's removal", profile: "remove: [{path: /none, why: w, when: {platform: [linux/arm64]}}]"},
		{name: "when a file is there", profile: "remove: [{path: /t/a.conf, why: w, when: {exists: /t/dir}}]", want: []string{"- /t/a.conf"}},
		{name: "when a file isn't there", profile: "remove: [{path: /t/a.conf, why: w, when: {exists: /none}}]"},
		{name: "when a file is missing", profile: "remove: [{path: /t/a.conf, why: w, when: {missing: /none}}]", want: []string{"- /t/a.conf"}},
		{name: "nothing to remove", profile: "remove: [{path: /none, why: w, ifMissing: ignore}]"},

		{name: "a removal of nothing", profile: "remove:\n  - {path: /t/gone, why: w}", err: "test.yaml:7:5: remove[0]: /t/gone matches nothing in base base (line B)"},
		{name: "a glob of nothing", profile: "remove: [{glob: /t/*.none, why: w}]", err: "glob /t/*.none matches nothing"},
		{name: "all that is wrong at once", profile: "remove: [{path: /n1, why: w}, {path: /n2, why: w}]", err: "/n1 matches nothing in base base (line B); correct it, or write `ifMissing: ignore`\n"},
		{name: "a loop in the base", profile: "remove: [{path: /t/loop/x, why: w}]", err: "symlinks to follow"},
		{name: "a path below a file", profile: "remove: [{path: /t/a.conf/x, why: w}]", err: "/t/a.conf is a file, not a directory"},

		{
			name: "a file of each kind", profile: "overlays: [{name: o, why: w, files: [{path: /t/new, source: 'asset:x.conf'}, {path: /t/l, link: x}, {path: /t/d, dir: true}]}]",
			want: []string{"+ /t/new", "+ /t/l", "+ /t/d"},
		},
		{name: "a file through a symlink", profile: "overlays: [{name: o, why: w, files: [{path: /bin/new, content: x}]}]", want: []string{"+ /usr/bin/new"}},
		{name: "a file in a symlink's place", profile: "overlays: [{name: o, why: w, files: [{path: /t/link, content: x}]}]", want: []string{"- /t/link", "+ /t/link"}},
		{name: "a symlink in a file's place", profile: "overlays: [{name: o, why: w, files: [{path: /t/a.conf, link: b.conf}]}]", want: []string{"- /t/a.conf", "+ /t/a.conf"}},
		{name: "a file over a file", profile: "overlays: [{name: o, why: w, files: [{path: /t/a.conf, content: x}]}]", want: []string{"+ /t/a.conf"}},
		{
			name: "a file in a removed directory's place", profile: "remove: [{path: /t/dir, why: w}]\noverlays: [{name: o, why: w, files: [{path: /t/dir, content: x}]}]",
			want: []string{"- /t/dir", "+ /t/dir"},
		},
		{name: "another line's overlay", profile: "overlays: [{name: o, why: w, when: {line: [A]}, files: [{path: /t/new, content: x}]}]"},

		{name: "a file over a directory", profile: "overlays: [{name: o, why: w, files: [{path: /t/dir, content: x}]}]", err: "/t/dir is a directory in the base; add it to the profile's `remove`"},
		{name: "one path twice", profile: "overlays: [{name: o, why: w, files: [{path: /bin/new, content: x}]}, {name: p, why: w, files: [{path: /usr/bin/new, content: y}]}]", err: "overlay o writes /usr/bin/new too"},
		{name: "an asset that isn't there", profile: "overlays: [{name: o, why: w, files: [{path: /x, source: 'asset:none'}]}]", err: "none"},
		{name: "a name that is taken", profile: "overlays: [{name: hub, why: w, files: [{path: /x, content: x}]}]", err: "overlay hub"},

		{name: "an owned directory", profile: "own: [{path: /t/own, why: w}]", want: []string{"- /t/own"}},
		{name: "an owned directory that isn't there", profile: "own: [{path: /none, why: w}]"},
		{name: "an owned directory with something laid", profile: "own: [{path: /t/own, why: w}]\noverlays: [{name: o, why: w, files: [{path: /t/own/sub/new, content: x}]}]", want: []string{"- /t/own", "+ /t/own/sub/new"}},
		{name: "an owned directory that is laid", profile: "own: [{path: /t/own, why: w}]\noverlays: [{name: o, why: w, files: [{path: /t/own, dir: true, mode: '0711'}]}]", want: []string{"- /t/own", "+ /t/own"}},
		{name: "an owned directory that keeps a file", profile: "own: [{path: /t/own, keep: [/t/own/sub/deep/b], why: w}]", want: []string{"- /t/own/a", "- /t/own/sub/deep/c", "- /t/own/sub2"}},
		{name: "an owned directory that keeps a directory", profile: "own: [{path: /t/own, keep: [/t/own/s*b], why: w}]", want: []string{"- /t/own/a", "- /t/own/sub2"}},
		{name: "an owned directory in what one keeps", profile: "own: [{path: /t/own, keep: [/t/own/sub], why: w}, {path: /t/own/sub/deep, why: w}]", want: []string{"- /t/own/a", "- /t/own/sub/deep", "- /t/own/sub2"}},
		{name: "an owned directory in one that keeps nothing", profile: "own: [{path: /t/own, why: w}, {path: /t/own/sub, keep: [/t/own/sub/deep/b], why: w}]", want: []string{"- /t/own/a", "- /t/own/sub/deep/c", "- /t/own/sub2"}},
		{name: "a symlink in an owned directory's place", profile: "own: [{path: /t/dirlink, why: w}]\noverlays: [{name: o, why: w, files: [{path: /t/dirlink/new, content: x}]}]", want: []string{"- /t/dirlink", "+ /t/dirlink/new"}},
		{name: "a symlink above an owned directory", profile: "own: [{path: /t/ownlink/sub, why: w}]", want: []string{"- /t/own/sub"}},
		{name: "a file in an owned directory's place", profile: "own: [{path: /t/a.conf, why: w}]\noverlays: [{name: o, why: w, files: [{path: /t/a.conf/new, content: x}]}]", want: []string{"- /t/a.conf", "+ /t/a.conf/new"}},
		{name: "a file kept in an owned directory's place", profile: "own: [{path: /t/a.conf, keep: [/t/a.conf/x], why: w}]", err: "/t/a.conf is a file, not a directory"},
		{name: "a loop above an owned directory", profile: "own: [{path: /t/loop/x, why: w}]", err: "symlinks to follow"},

		{
			name: "a file below a laid file", profile: "overlays: [{name: o, why: w, files: [{path: /usr/bin/new, content: x}]}, {name: p, why: w, files: [{path: /bin/new/x, content: y}]}]",
			err: "/usr/bin/new/x lies below /usr/bin/new, which overlay o lays as a file",
		},
		{name: "a directory of another mode", profile: "overlays: [{name: o, why: w, files: [{path: /t/dir, dir: true, mode: '0700'}]}]", err: "with mode 0710 and owner 0:0"},
		{name: "a directory of the same mode", profile: "overlays: [{name: o, why: w, files: [{path: /t/dir, dir: true, mode: '0710'}]}]", want: []string{"+ /t/dir"}},
		{name: "one directory in two overlays", profile: "overlays: [{name: o, why: w, files: [{path: /t/d, dir: true}]}, {name: p, why: w, files: [{path: /t/d, dir: true}]}]", want: []string{"+ /t/d"}},
		{name: "one directory of two owners, through a symlink", profile: "overlays: [{name: o, why: w, files: [{path: /usr/bin/d, dir: true}]}, {name: p, why: w, files: [{path: /bin/d, dir: true, owner: '1:1'}]}]", err: "overlay o writes"},
		{name: "what stays", profile: "keep: {roots: [{path: /t/dirlink/file, why: w}], components: [{name: all}]}", want: []string{"strip the base to 1 layers"}},
		{name: "what stays, if it is there", profile: "keep: {roots: [{path: /none, why: w, when: {exists: /none}}], components: [{name: all}]}", want: []string{"strip the base to 0 layers"}},
		{name: "what is to stay, and isn't there", profile: "keep: {roots: [{path: /none, why: w}], components: [{name: all}]}", err: "profile test: /none is not in the base (w)"},
		{name: "what is to stay, and goes", profile: "own: [{path: /t/dir, why: w}]\nkeep: {roots: [{path: /t/dir/file, why: w}], components: [{name: all}]}", err: "the profile removes /t/dir/file, but the image needs it: /t/dir/file: root (w)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := header + c.profile + "\n"
			if !strings.Contains(text, "expect:") {
				text += expect
			}
			in := input(src, load(t, text))
			in.Cache = tree.Cache{Dir: t.TempDir()}
			recipes, _, err := resolve.Resolve(t.Context(), in)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v\nwant one that says %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, steps(recipes[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLines(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		p := load(t, strings.Replace(header, "lines: [B]", "lines: [A, B, C]", 1)+expect)
		recipes, _, err := resolve.Resolve(t.Context(), input(base(t, line), p))
		if err != nil {
			t.Fatal(err)
		}
		if got := recipes[0].Base.Line; got != line {
			t.Errorf("the stand-in of line %s is taken for %s", line, got)
		}
	}
}

// TestLockAnswersForTheBase resolves again from the lock alone, and holds the lock against what changed.
func TestLockAnswersForTheBase(t *testing.T) {
	src := base(t, "B")
	text := header + `remove: [{glob: '/t/*.conf', why: w}, {glob: '/odd/*', why: w}, {path: /t/dirlink/file, why: w}, {path: /none, why: w, ifMissing: ignore}]
overlays: [{name: o, why: w, files: [{path: /bin/new, content: x}]}]
` + expect
	in := input(src, load(t, text))
	recipes, made, err := resolve.Resolve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), lock.Name)
	if err := made.Write(file); err != nil {
		t.Fatal(err)
	}
	if in.Lock, err = lock.Read(file); err != nil {
		t.Fatal(err)
	}
	if err := in.Lock.Matches(in.Profile, "base", in.Platforms); err != nil {
		t.Errorf("the lock doesn't match what it was made of: %v", err)
	}
	for _, odd := range []string{"/odd/link", "/odd/x\xfe", "/odd/x\xff"} { // names that are no UTF-8
		if !slices.Contains(in.Lock.Platforms["linux/amd64"].Removals, odd) {
			t.Errorf("the lock doesn't remove %q", odd)
		}
	}
	again, _, err := resolve.Resolve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(steps(recipes[0]), steps(again[0])); diff != "" {
		t.Errorf("(-tree +lock):\n%s", diff)
	}
	if diff := cmp.Diff(recipes[0].Dirs, again[0].Dirs); diff != "" {
		t.Errorf("directories (-tree +lock):\n%s", diff)
	}

	for name, tamper := range map[string]func(*lock.Platform){
		"another line":    func(p *lock.Platform) { p.Line = "A" },
		"fewer removals":  func(p *lock.Platform) { p.Removals = p.Removals[1:] },
		"an entry hidden": func(p *lock.Platform) { p.Footprint.Globs["/t/*.conf"] = nil },
	} {
		bad, err := lock.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		tamper(bad.Platforms["linux/amd64"])
		with := in
		with.Lock = bad
		if _, _, err := resolve.Resolve(t.Context(), with); err == nil {
			t.Errorf("a lock with %s is believed", name)
		}
	}

	changed := load(t, strings.Replace(text, "/none", "/other", 1))
	if err := in.Lock.Matches(changed, "base", in.Platforms); err == nil {
		t.Error("a changed profile matches")
	}
	if err := in.Lock.Matches(in.Profile, "elsewhere", in.Platforms); err == nil {
		t.Error("another base matches")
	}
	if err := in.Lock.Matches(in.Profile, "base", []v1.Platform{{OS: "linux", Architecture: "arm64"}}); err == nil {
		t.Error("a platform that isn't locked matches")
	}
	in.Profile = changed // used all the same, it must not guess
	if _, _, err := resolve.Resolve(t.Context(), in); err == nil || !strings.Contains(err.Error(), "slimctl lock") {
		t.Errorf("error for a question that the lock can't answer: %v", err)
	}
}
