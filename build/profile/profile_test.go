package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "write the golden files anew")

var testLoader = Loader{Builtin: os.DirFS("testdata/builtin")}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func each(t *testing.T, pattern string, do func(t *testing.T, file string)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) { do(t, f) })
	}
}

// TestInvalid compares every message, with its place, with a golden file.
func TestInvalid(t *testing.T) {
	each(t, "testdata/invalid/*.yaml", func(t *testing.T, file string) {
		p, err := testLoader.Load(file)
		var errs Errors
		if !errors.As(err, &errs) {
			t.Fatalf("got %v, %v; want Errors", p, err)
		}
		for _, e := range errs {
			if e.Position.File == "" || e.Msg == "" || strings.ContainsAny(e.Error(), "\n\x1b") {
				t.Errorf("not a good error: %#v", e)
			}
		}
		golden(t, strings.TrimSuffix(file, ".yaml")+".err", err.Error()+"\n")
	})
}

// TestValid compares the effective profile with a golden file, and loads that again.
func TestValid(t *testing.T) {
	each(t, "testdata/valid/*.yaml", func(t *testing.T, file string) {
		p, err := testLoader.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		data, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, strings.TrimSuffix(file, ".yaml")+".effective", string(data))
		same(t, p, reload(t, filepath.Dir(file), data))
	})
}

// reload reads data as a file that lies in dir.
func reload(t *testing.T, dir string, data []byte) *Profile {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, perr := parse("again.yaml", data)
	if perr != nil {
		t.Fatalf("%v\n%s", perr, data)
	}
	again, d := decode(source{"again.yaml", abs}, root, nil)
	if len(d.errs) > 0 {
		t.Fatalf("the effective profile does not load: %v\n%s", d.errs, data)
	}
	return again
}

func same(t *testing.T, a, b *Profile) {
	t.Helper()
	opts := cmp.Options{
		cmpopts.IgnoreTypes(Position{}),
		cmpopts.IgnoreFields(Profile{}, "Extends", "Chain"),
	}
	if diff := cmp.Diff(a, b, opts); diff != "" {
		t.Errorf("the effective profile, loaded again, differs (-first +again):\n%s", diff)
	}
	if a.Digest() != b.Digest() {
		t.Errorf("digests differ: %s, %s", a.Digest(), b.Digest())
	}
}

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := makeSchema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON returns a YAML file as the schema's validator wants it; false when the file is not one YAML document.
func asJSON(t *testing.T, data []byte) (any, bool) {
	t.Helper()
	var v any
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if dec.Decode(&v) != nil || dec.Decode(new(any)) == nil {
		return nil, false
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc, true
}

// TestSchemaAgrees holds the schema against the decoder. What a schema cannot say is marked in the file's first line.
func TestSchemaAgrees(t *testing.T) {
	s := compiledSchema(t)
	for _, dir := range []string{"valid", "invalid", "builtin"} {
		each(t, "testdata/"+dir+"/*.yaml", func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, ok := asJSON(t, data)
			if !ok {
				t.Skip("not one YAML document, so the schema has nothing to judge")
			}
			accepts := dir != "invalid" || bytes.HasPrefix(data, []byte("# the schema cannot tell"))
			if err := s.Validate(doc); accepts != (err == nil) {
				t.Errorf("want accepted %v, got %v", accepts, err)
			}
		})
	}
}

// TestRulesAgree holds each rule against the schema made of it, on texts that are near the edge of one rule or other.
func TestRulesAgree(t *testing.T) {
	texts := []string{
		"", " ", "a", "A", "0", "0644", "01777", "0000", "4755", "/", "/a", "/a/", "a/b", "/a/../b", "/a//b", "/./a",
		"/a/.wh.b", "/a*", "/**", "/a/**/b", "/a/**b", "/a/b**", "/a/{b,c}", "asset:x", "asset:/x", "asset:../x", "../x", "x/../y",
		"x/", "./x", "x:y", "1.2.3", "1.2", "v1.2.3", "01.2.3", "sha512-x", "8080", "0", "65535", "65536", "80/tcp", "80/icmp",
		"0:0", "00:1", "1", "A_B", "1A", "org.example.x", "x y", "x\ny", "x\x1by", "x\u009by", "10s", "1m30s", "s", "-1s",
		"fail", "ignore", "B", "linux/amd64", "windows/amd64", "browser_shell", "browser-shell", "user:group", "fail\n", "A\n",
		strings.Repeat("a", 5000), "/" + strings.Repeat("a", 1100),
	}
	for name, r := range rules {
		if name == "true" {
			continue
		}
		schemaOf := map[string]any{"type": "string"}
		if r.values != nil {
			var values []any
			for _, v := range r.values {
				values = append(values, v)
			}
			schemaOf["enum"] = values
		} else {
			schemaOf["pattern"] = r.pattern.String()
			schemaOf["maxLength"] = json.Number(fmt.Sprint(r.limit()))
			if r.reject != nil {
				schemaOf["not"] = map[string]any{"pattern": r.reject.String()}
			}
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("mem:///x", schemaOf); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile("mem:///x")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, text := range texts {
			msg, _ := r.verdict(text)
			accepted := s.Validate(text) == nil
			stricter := r.check != nil && r.check(text) != ""
			if accepted != (msg == "") && !stricter {
				t.Errorf("rule %s on %.60q: the schema accepts: %v; the decoder says: %q", name, text, accepted, msg)
			}
		}
	}
}

// TestSchemaIsCommitted fails when the types and profiles/schema.json drift apart.
func TestSchemaIsCommitted(t *testing.T) {
	got, err := makeSchema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("profiles/schema.json is not of these types; run: go test ./build/profile -run TestSchemaIsCommitted -update\n%s", diff)
	}
}

// TestTags finds a text without a rule and a key without a description: both would pass everything else.
func TestTags(t *testing.T) {
	comments, err := docComments()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for _, f := range fieldsOf(typ) {
			sf := typ.Field(f.index)
			at := typ.Name() + "." + sf.Name
			if comments[at] == "" {
				t.Errorf("%s has no comment", at)
			}
			inner := sf.Type
			if inner.Kind() == reflect.Map {
				if _, ok := rules[f.keys]; !ok {
					t.Errorf("%s: no rule for its keys", at)
				}
			}
			for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, inner.Kind()) {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(inner)
				continue
			}
			if _, ok := rules[f.check]; !ok && inner.Kind() != reflect.Int {
				t.Errorf("%s: no rule %q", at, f.check)
			}
			if inner.Kind() == reflect.Int && f.high == 0 {
				t.Errorf("%s: no range", at)
			}
		}
	}
	walk(reflect.TypeFor[Profile]())
}

func TestLoadNames(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		missing    bool
	}{
		{"l0x", `embedded profile "l0x": file does not exist; did you mean "l0"?`, true},
		{"", `embedded profile "": file does not exist; there are l0, l1`, true},
		{"..", `embedded profile "..": file does not exist; there are l0, l1`, true},
		{"errors.go", `embedded profile "errors.go": file does not exist; for the file of that name write "./errors.go"`, true},
		{"testdata/none.yaml", `profile: stat testdata/none.yaml: no such file or directory`, true},
		{"./testdata", `profile: read ./testdata: not a regular file`, false},
		{"/dev/zero", `profile: read /dev/zero: not a regular file`, false},
	} {
		_, err := testLoader.Load(tt.name)
		if err == nil || err.Error() != tt.want || errors.Is(err, fs.ErrNotExist) != tt.missing {
			t.Errorf("Load(%q): %v; want %s", tt.name, err, tt.want)
		}
	}
	if _, err := (Loader{}).Load("l0"); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("without embedded profiles: %v", err)
	}
}

func TestList(t *testing.T) {
	got, err := testLoader.List()
	want := []Summary{{"l0", "closes surface", ""}, {"l1", "small", "l0"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	broken := Loader{Builtin: fstest.MapFS{"x.yaml": {Data: []byte("version: 1\nname: y\n")}}}
	_, err = broken.List()
	if want := `embedded:x.yaml:2:1: name: the file is x.yaml, but the name is "y"`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestSources shows that a relative source is found beside the profile that wrote it, and nowhere above.
func TestSources(t *testing.T) {
	p, err := testLoader.Load("testdata/valid/child.yaml")
	if err != nil {
		t.Fatal(err)
	}
	abs, _ := filepath.Abs("testdata/valid")
	want := map[string]string{
		"/opt/own/parent.conf": filepath.Join(abs, "parent", "parent.conf"),
		"/opt/own/child.conf":  filepath.Join(abs, "child.conf"),
		"/opt/own/asset.conf":  "asset:nginx/a.conf",
	}
	for _, o := range p.Overlays {
		for _, f := range o.Files {
			if w, ok := want[f.Path]; ok && f.Source != w {
				t.Errorf("%s: source %s, want %s", f.Path, f.Source, w)
			}
			delete(want, f.Path)
			if f.Position.Line == 0 || !slices.Contains(p.Chain, f.Position.File) {
				t.Errorf("%s: position %s", f.Path, f.Position)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not laid: %v", want)
	}
	if want := []string{"testdata/valid/child.yaml", "testdata/valid/parent/parent.yaml", "embedded:l0.yaml"}; !slices.Equal(p.Chain, want) {
		t.Errorf("chain %v, want %v", p.Chain, want)
	}
}

func TestSourceEscapesBySymlink(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "profile")
	write(t, filepath.Join(dir, "secret"), "x")
	write(t, filepath.Join(inner, "p.yaml"), "version: 1\nname: p\nextends: l0\noverlays:\n  - {name: o, why: w, files: [{path: /a, source: link}]}\n")
	if err := os.Symlink("../secret", filepath.Join(inner, "link")); err != nil {
		t.Fatal(err)
	}
	_, err := testLoader.Load(filepath.Join(inner, "p.yaml"))
	if err == nil || !strings.Contains(err.Error(), `p.yaml:5:50: overlays[0].files[0].source: "link": link: path escapes from parent`) {
		t.Errorf("got %v", err)
	}
}

// TestSourceOfGit lays files of .git into an image, where CI keeps its token.
func TestSourceOfGit(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".git/config"), "token")
	write(t, filepath.Join(dir, "sub/.git"), "gitdir: /elsewhere")
	write(t, filepath.Join(dir, ".gitignore"), "*.o")
	if err := errors.Join(os.Symlink(".git/config", filepath.Join(dir, "link")), os.Symlink(".git", filepath.Join(dir, "repo"))); err != nil {
		t.Fatal(err)
	}
	for source, refused := range map[string]bool{".git/config": true, "sub/.git": true, "link": true, "repo/config": true, ".gitignore": false} {
		file := filepath.Join(dir, "p.yaml")
		write(t, file, "version: 1\nname: p\nextends: l0\noverlays:\n  - {name: o, why: w, files: [{path: /a, source: "+source+"}]}\n")
		_, err := testLoader.Load(file)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), `p.yaml:5:50: overlays[0].files[0].source: "`+source+`": it lies in .git`) {
			t.Errorf("%s: got %v", source, err)
		}
	}
}

// TestExtendsIsConfined extends files that a profile must not read, and files that are no profiles.
func TestExtendsIsConfined(t *testing.T) {
	const secret = "root:s3cret:20781\n"
	const parent = "version: 1\nname: parent\nextends: l0\n"
	for _, tt := range []struct{ name, git, extends, want string }{
		{"above the directory", "", "../base.yaml", `mine.yaml:3:1: extends: "../base.yaml": outside `},
		{"above the work tree", "team", "../../out.yaml", `mine.yaml:3:1: extends: "../../out.yaml": outside `},
		{"absolute", "team", "/etc/hosts.yaml", `mine.yaml:3:1: extends: "/etc/hosts.yaml": outside `},
		{"another kind of file", "team", "./shadow", `mine.yaml:3:1: extends: "./shadow": not a .yaml or .yml file`},
		{"a link that leads out", "team", "link.yaml", `mine.yaml:3:1: extends: "link.yaml": outside `},
		{"a text", "team", "text.yaml", "text.yaml:1:1: not a profile: "},
		{"a mapping", "team", "map.yaml", "map.yaml:1:1: not a profile: "},
		{"no YAML", "team", "anchor.yaml", "anchor.yaml:1:1: not YAML: unknown anchor"},
		{"below", "", "sub/base.yml", ""},
		{"in the work tree", "team", "../base.yaml", ""},
		{"in a linked work tree", "file", "../base.yaml", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{
				"out.yaml": parent, "team/base.yaml": parent, "team/p/sub/base.yml": parent,
				"team/p/shadow": secret, "team/p/text.yaml": "s3cret", "team/p/map.yaml": "s3cret: [s3cret]\n",
				"team/p/anchor.yaml": "*s3cret\n", "team/p/mine.yaml": "version: 1\nname: mine\nextends: " + tt.extends + "\n",
			} {
				write(t, filepath.Join(dir, file), text)
			}
			if err := os.Symlink("../../out.yaml", filepath.Join(dir, "team/p/link.yaml")); err != nil {
				t.Fatal(err)
			}
			switch tt.git {
			case "team":
				write(t, filepath.Join(dir, "team/.git/config"), secret)
			case "file":
				write(t, filepath.Join(dir, "team/.git"), "gitdir: /elsewhere\n")
			}
			_, err := testLoader.Load(filepath.Join(dir, "team/p/mine.yaml"))
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret")):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestCircle(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "a.yaml", "version: 1\nname: a\nextends: sub/b.yaml\n")
	write(t, "sub/b.yaml", "version: 1\nname: b\nextends: ../c.yaml\n")
	write(t, "c.yaml", "version: 1\nname: c\nextends: ./a.yaml\n")
	_, err := testLoader.Load("./a.yaml")
	want := "c.yaml:3:1: extends: the profiles extend one another in a circle: ./a.yaml -> sub/b.yaml -> c.yaml -> a.yaml"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestLongChain(t *testing.T) {
	t.Chdir(t.TempDir())
	for i := range 20 {
		write(t, fmt.Sprintf("p%d.yaml", i), fmt.Sprintf("version: 1\nname: p%d\nextends: p%d.yaml\n", i, i+1))
	}
	_, err := testLoader.Load("p0.yaml")
	if err == nil || !strings.Contains(err.Error(), "p15.yaml:3:1: extends: more than 16 profiles") {
		t.Errorf("got %v", err)
	}
}

// TestHostile gives what would cost time or memory, or crash a careless reader.
func TestHostile(t *testing.T) {
	bomb := "version: 1\nname: b\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	items := "version: 1\nname: b\nconfig:\n  cmd: &c [" + strings.Repeat("x,", 60_000) + "x]\n  entrypoint: *c\n"
	for name, tt := range map[string]struct{ text, want string }{
		"too large":  {strings.Repeat("#", maxSize+1), "larger than 1 MiB"},
		"alias bomb": {bomb, "a8: unknown key"},
		"aliases":    {items, "more than 100000 values"},
		"self":       {"version: 1\nname: b\nconfig: &c\n  env: *c\n", "the alias *c holds itself"},
		"deep":       {"version: 1\nname: b\nconfig: " + strings.Repeat("[", 200_000), "not YAML"},
		"deep block": {strings.Repeat("- ", 200_000), ""},
		"late quote": {"version: 1\nname: b\n" + strings.Repeat("a: [b, c, d]\n", 70_000) + "x: \"" + strings.Repeat("never closed\n", 10_000), "not YAML: found unexpected end of stream"},
		"utf-8":      {"version: 1\nname: \"\xff\"\n", "x.yaml:2:8: not UTF-8 text"},
		"utf-16":     {"\xff\xfev\x00", "x.yaml:1:1: not UTF-8 text"},
		"many":       {"version: 1\nname: b\n" + strings.Repeat("x:\n", 500), "and 405 more problems"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Loader{Builtin: fstest.MapFS{"x.yaml": {Data: []byte(tt.text)}}}.Load("x")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %.300v; want %s", err, tt.want)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	load := func(text string) *Profile {
		p, err := Loader{Builtin: fstest.MapFS{"x.yaml": {Data: []byte(text)}}}.Load("x")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	data, err := os.ReadFile("testdata/builtin/l0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), "name: l0", "name: x", 1)
	p := load(text)
	if got := load("# a comment\n" + text).Digest(); got != p.Digest() || !strings.HasPrefix(got, "sha256:") {
		t.Errorf("a comment changed the digest: %s, %s", got, p.Digest())
	}
	if load(strings.Replace(text, "/opt/old", "/opt/old2", 1)).Digest() == p.Digest() {
		t.Error("another removal did not change the digest")
	}
}

// TestDocs finds a key that docs/profile.md does not name.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/profile.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, typ.Kind()) {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for _, f := range fieldsOf(typ) {
			if !regexp.MustCompile("[`.]" + f.key + "[`.]").Match(doc) {
				t.Errorf("docs/profile.md does not name the key %s of %s", f.key, typ.Name())
			}
			walk(typ.Field(f.index).Type)
		}
	}
	walk(reflect.TypeFor[Profile]())
}

// FuzzLoad shows that no bytes make Load panic, that errors have places, and that what loads survives Marshal.
func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"valid", "invalid", "builtin"} {
		files, _ := filepath.Glob("testdata/" + dir + "/*.yaml")
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	parent, err := os.ReadFile("testdata/builtin/l0.yaml")
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		l := Loader{Builtin: fstest.MapFS{"l0.yaml": {Data: parent}}}
		src := source{"x.yaml", dir}
		one := readLink(src, "x.yaml", data, nil)
		if e := one.profile.Extends; e != "l0" {
			one.profile.Extends = "" // no other file is read
		}
		c := chain{one}
		if one.profile.Extends != "" && !one.broken {
			src, data, err := l.open("l0", "")
			if err != nil {
				t.Fatal(err)
			}
			c = append(c, readLink(src, "l0", data, nil))
		}
		p, err := c.merge()
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("%T: %v", err, err)
			}
			for _, e := range errs {
				if e.Msg == "" || e.Position.File == "" {
					t.Errorf("%#v", e)
				}
			}
			return
		}
		out, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		same(t, p, reload(t, dir, out))
	})
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestExpandBraces(t *testing.T) {
	for pattern, want := range map[string][]string{
		"/a/b":                  {"/a/b"},
		"/{a,b}/c":              {"/a/c", "/b/c"},
		"/{a,b}/{c,d}.conf":     {"/a/c.conf", "/a/d.conf", "/b/c.conf", "/b/d.conf"},
		"/{a,{b,c}/d}/e":        {"/a/e", "/b/d/e", "/c/d/e"},
		"/x/{nginx.,}{a,b}":     {"/x/nginx.a", "/x/nginx.b", "/x/a", "/x/b"},
		`/a/\{b,c\}`:            {`/a/\{b,c\}`},
		"/a/[{,}]x":             {"/a/[{,}]x"},
		"/a/{b,[,}]}":           {"/a/b", "/a/[,}]"},
		"/a/{b":                 {"/a/{b"},
		"/opt/*/{x,y*}/z/**":    {"/opt/*/x/z/**", "/opt/*/y*/z/**"},
		"/opt/gem/nginx*.conf*": {"/opt/gem/nginx*.conf*"},
	} {
		if got := ExpandBraces(pattern); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
}
