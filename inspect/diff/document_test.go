package diff_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

var update = flag.Bool("update", false, "write the example in docs/diff.md anew")

const document = "../../docs/diff.md"

// TestDocument checks that docs/diff.md names every field of the JSON, in order, and no other.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` (○ )?\\|")
	for _, v := range []any{
		diff.Diff{}, diff.Side{}, diff.Layer{}, diff.Change{}, tree.Entry{}, diff.Counts{}, diff.Field{}, diff.Surface{}, diff.Group{}, diff.Size{}, diff.Component{},
	} {
		typ := reflect.TypeOf(v)
		_, section, ok := strings.Cut(string(text), "\n### "+typ.Name()+"\n")
		if !ok {
			t.Errorf("no section %s", typ.Name())
			continue
		}
		section, _, _ = strings.Cut(section, "\n### ")
		var documented []string
		for _, row := range rows.FindAllStringSubmatch(section, -1) {
			documented = append(documented, strings.TrimSpace(row[1]+" "+row[2]))
		}
		if d := cmp.Diff(documented, jsonFields(typ)); d != "" {
			t.Errorf("%s: -documented +written\n%s", typ.Name(), d)
		}
	}
}

// jsonFields are the names in a struct's JSON, with a mark for those that may be left out.
func jsonFields(typ reflect.Type) []string {
	var out []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			out = append(out, jsonFields(f.Type)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if strings.HasPrefix(options, "omit") {
			name += " ○"
		}
		out = append(out, name)
	}
	return out
}

// TestExample checks the example in docs/diff.md: it is what is written, and all of it can be read back.
func TestExample(t *testing.T) {
	blob := func(f ...image.File) v1.Layer { return layerOf(t, f) }
	below := blob(image.Dir("/opt", 0o755), image.Dir("/opt/gem", 0o755), file("/opt/gem/run.sh", "#!/bin/bash\n"), file("/opt/gem/nginx.conf", "listen 8080;\nlocation /v1 { }\n"))
	above := blob(image.Whiteout("/opt/gem/run.sh"), file("/opt/gem/nginx.conf", "listen 8080;\nlocation = /mcp { }\n"))
	base := opened(t, tree.Cache{}, imageOf(t, v1.Config{Env: []string{"TZ=UTC"}, Entrypoint: []string{"/opt/gem/run.sh"}}, below))
	slim := opened(t, tree.Cache{}, imageOf(t, v1.Config{Env: []string{"TZ=UTC"}, Entrypoint: []string{"/usr/local/bin/browser-shell", "init"}}, below, above))
	base.Reference, slim.Reference = "registry.example/base:1", "registry.example/slim:1"
	for _, img := range []struct {
		sizes    *size.Sizes
		programs *[]supervisord.Program
		names    []string
	}{
		{&base.Surface.Size, &base.Surface.Programs, []string{"jupyter", "nginx"}}, {&slim.Surface.Size, &slim.Surface.Programs, []string{"nginx"}},
	} {
		img.sizes.Layers, img.sizes.Components, img.sizes.Directories = []size.Layer{}, []size.Component{}, []size.Directory{}
		for _, n := range img.names {
			*img.programs = append(*img.programs, supervisord.Program{Name: n, Kind: "program", Autostart: "true", Command: "/usr/sbin/" + n})
		}
	}
	diffs := []*diff.Diff{compare(t, base, slim, diff.Options{Text: 1000})}
	var b bytes.Buffer
	if err := report.Diffs(&b, report.JSON, diffs, report.Options{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	start, end := "### Example\n\n```json\n", "```\n"
	before, rest, ok := strings.Cut(string(text), start)
	example, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/diff.md has no example")
	}
	if *update {
		if err := os.WriteFile(document, []byte(before+start+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(example, b.String()); d != "" {
		t.Errorf("docs/diff.md has another example; go test ./inspect/diff -run Example -update writes it: -documented +written\n%s", d)
	}
	var read struct {
		SchemaVersion int
		Platforms     []*diff.Diff
	}
	dec := json.NewDecoder(strings.NewReader(example))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&read); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(diffs, read.Platforms); d != "" {
		t.Errorf("read back it differs: -written +read\n%s", d)
	}
}
