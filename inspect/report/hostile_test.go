package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/internal/rawname"
)

// hostile are names, notes and values of an image that somebody made to harm its readers.
var hostile = []string{
	"<script>window.pwned=1</script>",
	"</script><script>window.pwned=2</script>",
	"<!--<script>",
	`"><img src=x onerror="window.pwned=3">`,
	`' onmouseover='window.pwned=4`,
	"javascript:window.pwned=5",
	"{{.}}${window.pwned=6}`+window.pwned=7+`",
	"\x1b[2J\x1b]0;owned\a\x00\r\u009b31m",
	"exe.\u202egnp.\u2066x\u2069\u200f",
	"line\u2028and\u2029paragraph\nbreak|pipe\\|more\\\\|",
	"@everyone #1 https://evil.example/ www.evil.example [link](https://evil.example) ![x](https://evil.example/x.png)",
	"``` `` ` | ~~~ </details></summary> & &amp; <b>",
	"invalid \xff\xfe\xc0 utf-8",
	"__proto__",
	"",
	strings.Repeat("long", 2500),
	"../../../etc/passwd",
}

// fill puts hostile strings wherever v holds a string that comes from an image, keeping what our own code chooses.
func fill(v reflect.Value, next func() string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem(), next)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch v.Type().Field(i).Name {
			case "In", "Missing", "ModTime":
				continue
			case "Kind", "Fields", "Text":
				if v.Type() == reflect.TypeFor[diff.Change]() {
					continue
				}
			}
			if v.Field(i).CanSet() {
				fill(v.Field(i), next)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if v.Type().Elem().Kind() == reflect.String {
				v.SetMapIndex(k, reflect.Value{})
				v.SetMapIndex(reflect.ValueOf(next()).Convert(k.Type()), reflect.ValueOf(next()))
			}
		}
	case reflect.String:
		v.SetString(next())
	default: // numbers, and what has no strings
	}
}

func hostileNext() func() string {
	n := -1
	return func() string {
		n++
		return hostile[n%len(hostile)]
	}
}

// hostileSurface and hostileDiff say everything that a hostile image can say. Strings that come in another order each time
// meet each field.
func hostileSurface(shift int) *inspect.Surface {
	s := sampleSurface("linux/amd64")
	next := hostileNext()
	for range shift {
		next()
	}
	fill(reflect.ValueOf(s), next)
	return s
}

func hostileDiff(shift int) *diff.Diff {
	d := sampleDiff("linux/amd64")
	next := hostileNext()
	for range shift {
		next()
	}
	fill(reflect.ValueOf(d), next)
	for i := range d.Files {
		c := &d.Files[i]
		c.Path = "/dir/" + strings.ReplaceAll(hostile[i%len(hostile)], "/", "\\") + fmt.Sprintf("/%d", i)
		if c.Text != "" {
			c.Text = "--- a\n+++ b\n@@ -1 +1 @@\n-" + strings.Join(hostile, "\n-") + "\n+" + strings.Join(hostile, "\n+") + "\n"
		}
	}
	return d
}

func TestFillReachesEverything(t *testing.T) {
	data, err := json.Marshal(hostileSurface(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range []string{"jupyter", "sandbox_execute_bash", "NOPASSWD", "ghcr.io", "fonts-noto", "/etc/passwd:", "1.2.29"} {
		if bytes.Contains(data, []byte(sample)) {
			t.Errorf("%q is still there: this test misses a field", sample)
		}
	}
}

// unprintable finds what should have been quoted.
func unprintable(s string) string {
	for i, r := range s {
		if r != '\n' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
			return fmt.Sprintf("%q in %q", r, s[max(0, i-40):min(len(s), i+40)])
		}
	}
	return ""
}

func TestHostileText(t *testing.T) {
	// Only these may be there beside what there is without colours.
	colour := regexp.MustCompile("\x1b\\[(0|1|2|3[1-6])m")
	for shift := range hostile {
		for _, o := range []Options{{}, {Width: 40, Depth: 2}, {All: true, Layers: true, Width: 200}} {
			write := func(o Options) string {
				var b bytes.Buffer
				if err := Surfaces(&b, Text, []*inspect.Surface{hostileSurface(shift)}, o); err != nil {
					t.Fatal(err)
				}
				if err := Diffs(&b, Text, []*diff.Diff{hostileDiff(shift)}, o); err != nil {
					t.Fatal(err)
				}
				return b.String()
			}
			plain := write(o)
			if s := unprintable(strings.ReplaceAll(plain, "\t", "")); s != "" {
				t.Fatalf("it reaches the terminal: %s", s)
			}
			if o.All && (!strings.Contains(plain, `\x1b[2J`) || !strings.Contains(plain, `\u202e`)) {
				t.Fatal("what was quoted can't be seen")
			}
			o.Color = true
			coloured := write(o)
			if !colour.MatchString(coloured) {
				t.Fatal("no colours")
			}
			if d := cmp.Diff(plain, colour.ReplaceAllString(coloured, "")); d != "" {
				t.Fatalf("colours change what is said: -without +with\n%s", d)
			}
		}
	}
}

func TestHostileJSON(t *testing.T) {
	s, d := hostileSurface(3), hostileDiff(3)
	var b bytes.Buffer
	if err := Surfaces(&b, JSON, []*inspect.Surface{s}, Options{}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		SchemaVersion int
		Platforms     []*inspect.Surface
	}
	again := decode(t, b.Bytes(), &got)
	if got.SchemaVersion != SchemaVersion || len(got.Platforms) != 1 {
		t.Errorf("version %d, %d platforms", got.SchemaVersion, len(got.Platforms))
	}
	if want := decode(t, marshal(t, s), nil); cmp.Diff(want, again.(map[string]any)["platforms"].([]any)[0]) != "" {
		t.Error("escaping changed what the JSON says")
	}
	if err := Diffs(&b, JSON, []*diff.Diff{d}, Options{}); err != nil {
		t.Fatal(err)
	}
	if s := unprintable(b.String()); s != "" {
		// A character in the place of what isn't UTF-8 is encoding/json's.
		if !strings.HasPrefix(s, `'�'`) {
			t.Errorf("it reaches the terminal: %s", s)
		}
	}
	b.Reset()
	if err := Diffs(&b, JSON, nil, Options{}); err != nil || !strings.Contains(b.String(), `"platforms": []`) {
		t.Errorf("no platform gives %q, %v", b.String(), err)
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(rawname.Quoted(v))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte, into any) any {
	t.Helper()
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// span is a code span: a run of backticks, and what lies up to the next run of just as many (CommonMark 6.1).
func withoutSpans(line string) string {
	runs := regexp.MustCompile("`+")
	var out strings.Builder
	for {
		open := runs.FindStringIndex(line)
		if open == nil {
			return out.String() + line
		}
		out.WriteString(line[:open[0]])
		fence, rest := line[open[0]:open[1]], line[open[1]:]
		shut := -1
		for _, r := range runs.FindAllStringIndex(rest, -1) {
			if rest[r[0]:r[1]] == fence {
				shut = r[1]
				break
			}
		}
		if shut < 0 {
			out.WriteString(fence)
			line = rest
			continue
		}
		out.WriteString("CODE")
		line = rest[shut:]
	}
}

// cells counts the cells of a row as cmark-gfm does: a backslash takes the character after it along.
func cells(row string) int {
	n := 0
	for i := 0; i < len(row); i++ {
		switch row[i] {
		case '\\':
			i++
		case '|':
			n++
		}
	}
	return n - 1
}

func TestHostileMarkdown(t *testing.T) {
	ours := regexp.MustCompile(`</?(details|summary)>`)
	for shift := range hostile {
		var b bytes.Buffer
		if err := Surfaces(&b, Markdown, []*inspect.Surface{hostileSurface(shift)}, Options{}); err != nil {
			t.Fatal(err)
		}
		if err := Diffs(&b, Markdown, []*diff.Diff{hostileDiff(shift)}, Options{}); err != nil {
			t.Fatal(err)
		}
		if s := unprintable(b.String()); s != "" {
			t.Fatalf("unprintable: %s", s)
		}
		want := 0
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "|") {
				n := cells(line)
				if want == 0 {
					want = n
				}
				if n != want {
					t.Fatalf("a row has %d cells, its table %d: %s", n, want, line)
				}
			} else {
				want = 0
			}
			rest := ours.ReplaceAllString(withoutSpans(line), "")
			if i := strings.IndexAny(rest, "<>`@[]!&*_#"); i >= 0 && !strings.HasPrefix(rest, "### ") {
				t.Fatalf("%q is no code: %s", rest[i], line)
			}
			if strings.Contains(rest, "http") || strings.Contains(rest, "evil") {
				t.Fatalf("a link: %s", line)
			}
		}
	}
}

// Whatever there is, a comment takes it, and says what it doesn't have.
func TestMarkdownFits(t *testing.T) {
	large := largeDiff(2000)
	for i := range 600 {
		name := fmt.Sprintf("%d %s", i, hostile[i%len(hostile)])
		for _, g := range []*diff.Group{&large.Surface.Programs, &large.Surface.Routes, &large.Surface.Packages, &large.Surface.Switches, &large.Surface.Users, &large.Surface.Sudo, &large.Surface.Hooks, &large.Surface.Privileged} {
			g.Items = append(g.Items, diff.Field{Name: name, Old: name, New: name + "!", InBase: true, InSlim: i%2 == 0})
		}
		large.Notes = append(large.Notes, name)
		large.Unmatched = append(large.Unmatched, name)
	}
	surface := hostileSurface(0)
	for range 7 {
		surface.Programs = append(surface.Programs, surface.Programs...)
		surface.Notes = append(surface.Notes, surface.Notes...)
	}
	for _, n := range []int{1, 2, 100} {
		var diffs []*diff.Diff
		var surfaces []*inspect.Surface
		for i := range n {
			d, s := *large, *surface
			d.Platform, s.Platform = fmt.Sprintf("linux/%d", i), fmt.Sprintf("linux/%d", i)
			diffs, surfaces = append(diffs, &d), append(surfaces, &s)
		}
		var b, c bytes.Buffer
		if err := Diffs(&b, Markdown, diffs, Options{}); err != nil {
			t.Fatal(err)
		}
		if err := Surfaces(&c, Markdown, surfaces, Options{}); err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]string{"diff": b.String(), "inspect": c.String()} {
			if len(s) >= maxMarkdown || len(s) < 10_000 {
				t.Errorf("%d platforms of %s take %d bytes", n, what, len(s))
			}
			if !strings.Contains(s, "… and ") || n == 100 && !strings.Contains(s, "no room here") {
				t.Errorf("%d platforms of %s: it isn't said what is missing", n, what)
			}
			var words strings.Builder
			for line := range strings.Lines(s) {
				words.WriteString(withoutSpans(line))
			}
			if w := words.String(); strings.Count(w, "<details>") != strings.Count(w, "</details>") {
				t.Errorf("%d platforms of %s: not every table is closed", n, what)
			}
		}
	}
}
