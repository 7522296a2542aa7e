package report

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// Nothing that the page itself says leads anywhere else, and it allows no script but its own.
func TestPageIsSelfContained(t *testing.T) {
	var b bytes.Buffer
	if err := Diffs(&b, HTML, []*diff.Diff{sampleDiff("linux/amd64")}, Options{}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, s := range []string{" src=", "url(", "@import", "<link", "<iframe", " onload=", " style=", "ZgotmplZ"} {
		if strings.Contains(page, s) {
			t.Errorf("the page has %q", s)
		}
	}
	for _, m := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(m[1], "#") {
			t.Errorf("the page leads to %q", m[1])
		}
	}
	if p := policy(); strings.Contains(p, "unsafe") || !strings.HasPrefix(p, "default-src 'none'; script-src 'sha256-") {
		t.Errorf("the policy allows too much: %s", p)
	}
}

func TestPieces(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"plain words only":                     "plain words only",
		"/opt/gem/run.sh --port 8080":          "/opt/|gem/|run.sh |[--port]| 8080",
		"http://x/y-z --no-sandbox":            "http:/|/|x/|y-z |[--no-sandbox]",
		"- a":                                  "[-]| a",
		"--" + strings.Repeat("long", 20):      "--" + strings.Repeat("long", 20),
		"see a/ and / and <b>--x</b>":          "see a/| and / and <b>--x</|b>",
		"  two  spaces --a  --b":               "  two  spaces |[--a]|  |[--b]",
		"--features=A,B --lang=en-US -g \"x\"": "[--features=A,B]| |[--lang=en-US]| |[-g]| \"x\"",
	} {
		var got []string
		for _, p := range pieces(in) {
			if p.Whole {
				p.Text = "[" + p.Text + "]"
			}
			got = append(got, p.Text)
		}
		if s := strings.Join(got, "|"); s != want {
			t.Errorf("%q is cut into %q, want %q", in, s, want)
		}
	}
}

// What is written can be read: WCAG 2.2, success criterion 1.4.3, level AA, has 4.5:1 for text.
func TestContrast(t *testing.T) {
	light, rest, _ := strings.Cut(styleCSS, "@media screen and (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "\n}")
	variable := regexp.MustCompile(`--([\w-]+): (#[0-9a-f]{6});`)
	for what, css := range map[string]string{"light": light, "dark": dark} {
		colors := map[string]string{}
		for _, m := range variable.FindAllStringSubmatch(css, -1) {
			colors[m[1]] = m[2]
		}
		var pairs [][2]string
		for _, ground := range []string{"bg", "panel", "soft"} {
			for _, ink := range []string{"ink", "muted", "accent", "add", "del", "mod", "typ", "meta"} {
				pairs = append(pairs, [2]string{ink, ground})
			}
		}
		for _, mark := range []string{"add", "del", "mod", "typ", "meta", "eq"} {
			pairs = append(pairs, [2]string{mark, mark + "-bg"})
		}
		for i := range 10 {
			for _, ink := range []string{"ink", "add", "del"} {
				pairs = append(pairs, [2]string{ink, fmt.Sprintf("c%d", i)})
			}
		}
		pairs = append(pairs, [2]string{"ink", "hit"})
		for _, p := range pairs {
			if c := contrast(t, colors[p[0]], colors[p[1]]); c < 4.5 {
				t.Errorf("%s: %s on %s has a contrast of %.2f", what, p[0], p[1], c)
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(color string) float64 {
		n, err := strconv.ParseUint(strings.TrimPrefix(color, "#"), 16, 32)
		if err != nil {
			t.Fatalf("color %q: %v", color, err)
		}
		part := func(shift int) float64 {
			c := float64(n>>shift&0xff) / 255
			if c <= 0.04045 {
				return c / 12.92
			}
			return math.Pow((c+0.055)/1.055, 2.4)
		}
		return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// written writes a page for the browser.
func written(t *testing.T, write func(*os.File) error) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	if err := write(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func diffPageFile(t *testing.T, o Options, diffs ...*diff.Diff) string {
	t.Helper()
	return written(t, func(f *os.File) error { return Diffs(f, HTML, diffs, o) })
}

// What a test asks of the page.
const (
	namesShown = `[...document.querySelectorAll('.panel:not([hidden]) .row')].map(r => (r.querySelector('.mark').textContent || ' ') + r.querySelector('.name').textContent)`
	matches    = `[...document.querySelectorAll('.panel:not([hidden]) .row:not(.above)')].map(r => r.querySelector('.name').textContent)`
	tableRows  = `[...document.querySelectorAll('.panel:not([hidden]) .section:not([hidden]) tbody tr:not([hidden])')].map(r => r.querySelector('td.c').textContent)`
)

// search types into the search field.
func (b *tab) search(query string) {
	b.t.Helper()
	b.press("/", "/")
	b.until(`document.activeElement.id === 'search'`)
	eval[any](b, fmt.Sprintf(`{ const s = document.activeElement; s.value = %q; s.dispatchEvent(new Event('input')); }`, query))
	b.press("Enter", "\r")
}

func (b *tab) same(expression string, want ...string) {
	b.t.Helper()
	if got := eval[[]string](b, expression); !slices.Equal(got, want) {
		b.t.Errorf("%s\n got %q\nwant %q", expression, got, want)
	}
}

func TestHTMLInChromium(t *testing.T) {
	b := newTab(t)
	sub := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			b.t = t
			defer func() { b.t = nil }()
			test(t)
		})
	}

	sub("tree", func(t *testing.T) {
		file := diffPageFile(t, Options{Layers: true}, sampleDiff("linux/amd64"))
		b.look(1400, 1000, false)
		b.open(file)
		b.same(namesShown, " etc/", "Ushadow", "-sudoers", " opt/", " gem/", "+closed.conf", "Mnginx.conf", "-jupyter/", "+slim/", " usr/bin/", "Tnode")
		eval[any](b, `document.querySelector('.tree').focus()`)
		b.press("ArrowLeft", "") // folds etc
		b.same(namesShown, " etc/", " opt/", " gem/", "+closed.conf", "Mnginx.conf", "-jupyter/", "+slim/", " usr/bin/", "Tnode")
		b.press("ArrowDown", "")
		b.press("ArrowLeft", "")
		b.press("End", "")
		b.press("ArrowLeft", "") // from node to its directory
		b.press("ArrowLeft", "")
		b.same(namesShown, " etc/", " opt/", " usr/bin/")
		b.press("Home", "")
		b.press("ArrowRight", "")
		b.same(namesShown, " etc/", "Ushadow", "-sudoers", " opt/", " usr/bin/")
		b.press("ArrowDown", "")
		if got := eval[string](b, `document.getElementById(document.querySelector('.tree').getAttribute('aria-activedescendant')).textContent`); !strings.Contains(got, "shadow") {
			t.Errorf("the row that a screen reader is told of is %q", got)
		}
		if got := eval[string](b, `document.querySelector('.about').textContent`); !strings.Contains(got, "/etc/shadow") || !strings.Contains(got, "mode 0644 → 0640") {
			t.Errorf("what is told of the file is %q", got)
		}
		eval[any](b, `document.querySelector('[data-do=unfold]').click()`)
		if n := eval[int](b, `document.querySelectorAll('.row').length`); n < 20 {
			t.Errorf("%d rows when all is unfolded", n)
		}
		eval[any](b, `document.querySelector('[data-do=fold]').click()`)
		b.same(namesShown, " etc/", " opt/", " usr/bin/")
		eval[any](b, `document.querySelector('[data-kind="-"]').click()`) // without what was removed
		eval[any](b, `document.querySelector('[data-kind="U"]').click()`)
		b.same(matches, "closed.conf", "nginx.conf", "slim/", "browser-shell", "node")
		eval[any](b, `document.querySelector('[data-kind="-"]').click(); document.querySelector('[data-kind="U"]').click()`)
		eval[any](b, `{ const s = document.querySelector('select'); s.selectedIndex = 1; s.dispatchEvent(new Event('change')); }`)
		b.same(namesShown, " opt/", " gem/", "+closed.conf", "+slim/") // the layer's own
		b.quiet(file)
	})

	sub("one layout, links, reasons", func(t *testing.T) {
		why := func(c *diff.Change) string {
			if c.Path == "/opt/jupyter" {
				return "l0.yaml:12:5 removes /opt/jupyter: <script>window.pwned=1</script>"
			}
			return ""
		}
		file := diffPageFile(t, Options{Why: why}, sampleDiff("linux/amd64"), sampleDiff("linux/arm64"))
		b.look(1400, 1000, false)
		b.open(file)
		b.until(`document.querySelectorAll('.cell').length > 3`)
		places := func(side string) string {
			return fmt.Sprintf(`[...document.querySelectorAll('#panel-0 .map[data-side=%s] .cell')].map(c => c.dataset.name + ' ' + c.style.left + ' ' + c.style.top)`, side)
		}
		b.same(places("slim"), eval[[]string](b, places("base"))...)
		eval[any](b, `[...document.querySelectorAll('.row')].find(r => r.textContent.includes('jupyter/')).click()`)
		if got := eval[string](b, `document.querySelector('.about').textContent`); !strings.Contains(got, "removes /opt/jupyter: <script>") {
			t.Errorf("what is told of the directory is %q", got)
		}
		eval[any](b, `[...document.querySelectorAll('.row')].find(r => r.textContent.includes('data/')).click()`)
		if got := eval[string](b, `document.querySelector('.about').textContent`); !strings.Contains(got, "l0.yaml:12:5") {
			t.Errorf("what is told of a directory in one that was removed is %q", got)
		}
		eval[any](b, `location.hash = '#tools-1-4'`)
		b.until(`!document.getElementById('panel-1').hidden && document.getElementById('tools-1').open`)
		b.quiet(file)
	})

	// Each flag of a command was a cell of its row's grid.
	sub("flags at 420 pixels", func(t *testing.T) {
		file := written(t, func(f *os.File) error {
			return Surfaces(f, HTML, []*inspect.Surface{sampleSurface("linux/amd64")}, Options{})
		})
		b.look(420, 1000, false)
		b.open(file)
		const flags = `[...document.querySelectorAll('#programs-0 td .whole')]`
		if n := eval[int](b, flags+`.length`); n < 2 {
			t.Fatalf("%d flags: this test sees nothing", n)
		}
		if n := eval[int](b, flags+`.filter(f => f.getBoundingClientRect().left < f.closest('td').getBoundingClientRect().left + 80).length`); n > 0 {
			t.Errorf("%d flags are in the column of labels", n)
		}
		b.quiet(file)
		b.look(1400, 1000, false)
	})

	sub("search", func(t *testing.T) {
		file := diffPageFile(t, Options{}, sampleDiff("linux/amd64"))
		b.open(file)
		b.search("NODE")
		b.same(matches, "node")
		b.same(tableRows, "node packages")
		b.search("jupyter")
		b.same(matches, "jupyter/") // and what lies in it is folded
		b.same(tableRows, "jupyter", "8080 /jupyter", "env.JUPYTER_PORT", "jupyter")
		if got := eval[string](b, `document.getElementById('found').value`); got != "1 path, 4 rows" {
			t.Errorf("found: %q", got)
		}
		b.press("ArrowDown", "")
		b.press("End", "")
		b.press("ArrowRight", "")
		b.same(matches, "jupyter/")
		b.same(namesShown, " opt/", "-jupyter/", "-data/") // until it is unfolded
		b.search("data/0")
		b.same(matches, "00.bin", "01.bin", "02.bin", "03.bin", "04.bin", "05.bin", "06.bin", "07.bin", "08.bin", "09.bin")
		if got := eval[int](b, `document.querySelectorAll('.row mark').length`); got != 10 {
			t.Errorf("%d matches are marked", got)
		}
		b.search("no such thing")
		b.same(matches)
		b.until(`!document.getElementById('nothing').hidden`)
		b.press("Escape", "")
		if got := eval[int](b, `document.querySelectorAll('.part[hidden], .section[hidden], tr[hidden], .head[hidden]').length`); got != 0 {
			t.Errorf("%d parts stay hidden when the search is over", got)
		}
		b.quiet(file)
	})

	sub("texts and platforms", func(t *testing.T) {
		arm := sampleDiff("linux/arm64")
		arm.Files = arm.Files[:1]
		file := diffPageFile(t, Options{}, sampleDiff("linux/amd64"), arm)
		b.open(file)
		eval[any](b, `document.querySelector('.text summary').click()`)
		b.until(`document.querySelectorAll('.text pre .add').length === 1 && document.querySelectorAll('.text pre .del').length === 2`)
		eval[any](b, `document.querySelector('[role=tab][aria-selected=true]').focus()`)
		b.press("ArrowRight", "")
		b.until(`document.getElementById('panel-0').hidden && !document.getElementById('panel-1').hidden`)
		b.same(namesShown, " etc/", "Ushadow")
		b.quiet(file)
	})

	sub("said to a screen reader", func(t *testing.T) {
		file := diffPageFile(t, Options{Layers: true}, sampleDiff("linux/amd64"), sampleDiff("linux/arm64"))
		b.open(file)
		var tree struct {
			Nodes []struct {
				Ignored    bool
				Role, Name struct{ Value any }
			}
		}
		b.call("Accessibility.getFullAXTree", nil, &tree)
		roles := map[string]int{}
		for _, n := range tree.Nodes {
			role, _ := n.Role.Value.(string)
			if n.Ignored {
				continue
			}
			roles[role]++
			name, _ := n.Name.Value.(string)
			if strings.TrimSpace(name) == "" && slices.Contains([]string{"button", "link", "searchbox", "combobox", "tab", "tree", "treeitem", "heading", "image", "DisclosureTriangle"}, role) {
				t.Errorf("a %s has no name", role)
			}
		}
		for _, role := range []string{"tree", "treeitem", "tab", "tabpanel", "table", "columnheader", "searchbox", "main", "navigation", "heading"} {
			if roles[role] == 0 {
				t.Errorf("there is no %s", role)
			}
		}
	})

	sub("hostile", func(t *testing.T) {
		for _, shift := range []int{0, 5, 11} {
			diffs := diffPageFile(t, Options{Layers: true}, hostileDiff(shift), hostileDiff(shift+1))
			surfaces := written(t, func(f *os.File) error {
				return Surfaces(f, HTML, []*inspect.Surface{hostileSurface(shift), hostileSurface(shift + 1)}, Options{})
			})
			for _, file := range []string{diffs, surfaces} {
				b.open(file)
				eval[any](b, `document.querySelectorAll('details').forEach(d => { d.open = true; }); document.querySelectorAll('[data-do=unfold]').forEach(x => x.click())`)
				eval[any](b, `document.querySelectorAll('.row').forEach(r => { r.click(); r.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})); })`)
				b.search("script")
				b.search("x/1")
				b.press("Escape", "")
				if got := eval[string](b, `String(window.pwned)`); got != "undefined" {
					t.Errorf("script %s of the image ran", got)
				}
				if n := eval[int](b, `document.querySelectorAll('img, iframe, object, script:not([type]):not(:last-of-type)').length`); n != 0 {
					t.Errorf("%d elements of the image", n)
				}
				text := eval[string](b, `document.body.textContent`)
				if !strings.Contains(text, "<script>window.pwned=1</script>") {
					t.Error("the hostile name can't be seen as it is")
				}
				if i := strings.IndexAny(text, "\x1b\u202e\u2066\u009b"); i >= 0 {
					t.Errorf("unprintable: %q", text[max(0, i-20):i+10])
				}
				for _, width := range []int{420, 780, 1400} {
					b.look(width, 800, false)
					if n := eval[int](b, `document.documentElement.scrollWidth - innerWidth`); n > 0 {
						t.Errorf("long names make the page %d pixels too wide for %d", n, width)
					}
				}
				b.quiet(file)
			}
		}
		// And if one of them were not escaped, it would not run.
		eval[any](b, `{ const s = document.createElement('script'); s.textContent = 'window.pwned = 8'; document.body.append(s); }`)
		eval[any](b, `new Promise(done => { const i = new Image(); i.onerror = () => done(); i.src = 'http://127.0.0.1:1/x'; document.body.append(i); })`)
		if got := eval[string](b, `String(window.pwned)`); got != "undefined" {
			t.Errorf("script %s ran in spite of the policy", got)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.troubles) == 0 {
			t.Error("the policy was broken and nothing was told of it: this test sees no trouble")
		}
		if slices.Contains(b.requests, "http://127.0.0.1:1/x") && !strings.Contains(strings.Join(b.troubles, " "), "Content Security Policy") {
			t.Error("the page may ask for pictures")
		}
	})

	sub("150,000 paths", func(t *testing.T) {
		file := diffPageFile(t, Options{}, largeDiff(100_000))
		b.look(1400, 1000, false)
		start := time.Now()
		b.open(file)
		n := eval[int](b, `JSON.parse(document.getElementById('data-0').textContent).trees[0].names.length`)
		t.Logf("%d nodes are shown %s after the page was asked for", n, time.Since(start).Round(time.Millisecond))
		if n < 150_000 {
			t.Fatalf("%d nodes: this test is too small", n)
		}
		eval[any](b, `document.querySelector('[data-do=unfold]').click()`)
		if rows := eval[int](b, `document.querySelectorAll('.row').length`); rows > 100 {
			t.Errorf("%d rows are in the page at once", rows)
		}
		eval[any](b, `document.querySelector('.tree').focus()`)
		b.press("End", "")
		b.until(`[...document.querySelectorAll('.row')].pop().getBoundingClientRect().bottom <= document.querySelector('.tree').getBoundingClientRect().bottom + 1`)
		b.same(`[document.querySelector('.row.current .name').textContent]`, eval[string](b, `[...document.querySelectorAll('.row .name')].pop().textContent`))
		took := eval[float64](b, `(() => { const s = document.getElementById('search'), from = performance.now(); s.value = 'worker-99'; s.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); document.querySelector('.row').getBoundingClientRect(); return performance.now() - from; })()`)
		t.Logf("a search takes %.0f ms", took)
		found := eval[string](b, `document.getElementById('found').value`)
		want := eval[int](b, `JSON.parse(document.getElementById('data-0').textContent).trees[0].names.filter(n => n.includes('worker-99')).length`)
		if paths, _, _ := strings.Cut(found, " "); want == 0 || strings.ReplaceAll(paths, ",", "") != strconv.Itoa(want) {
			t.Errorf("found %q, there are %d", found, want)
		}
		b.shot("search")
		b.quiet(file)
	})

	sub("looks", func(t *testing.T) {
		large := largeDiff(3000)
		diffs := diffPageFile(t, Options{Layers: true}, large, sampleDiff("linux/arm64"))
		surfaces := written(t, func(f *os.File) error {
			return Surfaces(f, HTML, []*inspect.Surface{sampleSurface("linux/amd64")}, Options{})
		})
		for _, look := range []struct {
			name  string
			width int
			dark  bool
		}{{"light", 1400, false}, {"dark", 1400, true}, {"narrow", 400, false}, {"narrow-dark", 400, true}} {
			b.look(look.width, 1800, look.dark)
			for what, file := range map[string]string{"diff": diffs, "inspect": surfaces} {
				b.open(file)
				b.until(`document.querySelectorAll('.cell b').length > 3`)
				b.shot(what + "-" + look.name)
				eval[any](b, `document.querySelectorAll('details').forEach(d => { d.open = true; })`)
				eval[any](b, `document.getElementById('size-0').scrollIntoView()`)
				b.shot(what + "-size-" + look.name)
				if n := eval[int](b, `document.documentElement.scrollWidth - innerWidth`); n > 0 {
					t.Errorf("%s is %d pixels too wide at %d", what, n, look.width)
				}
				dark := eval[string](b, `getComputedStyle(document.documentElement).backgroundColor`) != "rgb(251, 250, 248)"
				if dark != look.dark {
					t.Errorf("%s is dark: %t, want %t", what, dark, look.dark)
				}
				b.quiet(file)
			}
		}
		var pdf struct{ Data string }
		b.open(diffs)
		b.call("Page.printToPDF", map[string]any{"printBackground": true}, &pdf)
		if len(pdf.Data) < 10_000 {
			t.Errorf("printed it has %d bytes", len(pdf.Data))
		}
		b.until(`document.querySelectorAll('.row').length > 5 && document.querySelectorAll('.row').length < 100`) // and all is as it was
		b.quiet(diffs)
	})
}

func TestChangedWords(t *testing.T) {
	for _, tt := range []struct{ value, other, want string }{
		{"nginx -g off", "nginx -c /x -g off", "nginx -g off"},
		{"nginx -c /x/y -g off", "nginx -g off", "nginx [-c /x/y ]-g off"},
		{"same", "same", "same"},
		{"all of it", "", "[all of it]"},
		{"a b c", "c b a", "a [b c]"},
		{strings.Repeat("x ", 500), "y", "[" + strings.Repeat("x ", 500) + "]"},
	} {
		var got strings.Builder
		marked := false
		for _, p := range changedWords(tt.value, tt.other) {
			if p.Other != marked {
				got.WriteString(map[bool]string{true: "[", false: "]"}[p.Other])
			}
			marked = p.Other
			got.WriteString(p.Text)
		}
		if marked {
			got.WriteString("]")
		}
		if got.String() != tt.want {
			t.Errorf("%q beside %q:\n got %s\nwant %s", tt.value, tt.other, got.String(), tt.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	failed := &Verdict{Profile: "l0", Words: "87 rules, 7 errors, 0 warnings", Findings: []string{
		"file-changed: /opt/<script>window.pwned=1</script>", "b: \x1b[31m", "c: 3", "d: 4", "e: 5", "f: 6", "g: 7",
	}}
	for name, tt := range map[string]struct {
		verdict *Verdict
		want    []string
	}{
		"none":   {nil, []string{`<div class="verdict none"><b>Not verified</b> Pass --profile NAME`}},
		"passed": {&Verdict{Profile: "l0", Passed: true, Words: "87 rules, 0 errors, 0 warnings"}, []string{`<div class="verdict passed"><b>Verified</b> profile l0: 87 rules`, `profile <code>l0</code>`}},
		"failed": {failed, []string{
			`<div class="verdict failed"><b>Failed</b> profile l0: 87 rules, 7 errors`, `/opt/&lt;script&gt;window.pwned`, `b: \x1b[31m`, "… and 2 more",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var page, text bytes.Buffer
			o := Options{Version: "v1.2.3", Verdict: tt.verdict}
			if err := Diffs(&page, HTML, []*diff.Diff{sampleDiff("linux/amd64")}, o); err != nil {
				t.Fatal(err)
			}
			for _, want := range append(tt.want, "<footer>slimctl v1.2.3", sha("d"), sha("e")) {
				if !strings.Contains(page.String(), want) {
					t.Errorf("no %q in the page", want)
				}
			}
			if err := Diffs(&text, Markdown, []*diff.Diff{sampleDiff("linux/amd64")}, o); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(text.String(), "\n")
			if want := map[string]string{"none": "| | base | slim | change |", "passed": "**Verified** `profile l0: 87 rules, 0 errors, 0 warnings`", "failed": "**Failed** `profile l0: 87 rules, 7 errors, 0 warnings`"}[name]; lines[2] != want {
				t.Errorf("Markdown has %q under its title, want %q", lines[2], want)
			}
			if tt.verdict == failed && !strings.Contains(text.String(), "- `file-changed: /opt/<script>window.pwned=1</script>`") {
				t.Errorf("a finding is no code span:\n%.900s", text.String())
			}
		})
	}
}

func TestCardsByWeight(t *testing.T) {
	cards, quiet := diffCards(sampleDiff("linux/amd64"))
	what := func(cards []card) (out []string) {
		for _, c := range cards {
			out = append(out, c.What)
		}
		return out
	}
	if got, want := what(cards), []string{"answer from outside", "tools", "programs", "download", "visible"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := what(quiet), []string{"routes", "hidden"}; !slices.Equal(got, want) {
		t.Errorf("folded are %q, want %q", got, want)
	}
}
