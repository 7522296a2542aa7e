package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/size"
)

// largeDiff has n changed paths, in trees like those of the AIO Sandbox.
func largeDiff(n int) *diff.Diff {
	d := sampleDiff("linux/amd64")
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("index main core utils render parse stream buffer server client locale theme icons fonts shell proxy cache worker model view test types schema codec")
	word := func() string { return words[r.IntN(len(words))] }
	roots := []struct {
		path, kind string
		share      int
	}{
		{"/usr/local/code-server-4.104.0/lib/vscode/extensions", diff.Removed, 30},
		{"/opt/python3.12/lib/python3.12/site-packages", diff.Removed, 30},
		{"/opt/nodejs/22/lib/node_modules", diff.Removed, 20},
		{"/usr/share/fonts/truetype", diff.Removed, 3},
		{"/usr/share/doc", diff.Meta, 10},
		{"/opt/slim/payload", diff.Added, 5},
		{"/etc", diff.Modified, 2},
	}
	seen := map[string]bool{}
	var files []diff.Change
	put := func(c diff.Change) {
		if !seen[c.Path] {
			seen[c.Path] = true
			files = append(files, c)
		}
	}
	change := func(kind string, e tree.Entry) diff.Change {
		old, now := e, e
		c := diff.Change{Path: e.Path, Kind: kind, Old: &old, New: &now}
		switch kind {
		case diff.Added:
			c.Old = nil
		case diff.Removed:
			c.New = nil
		case diff.Modified:
			now.Size += int64(r.IntN(2000))
			c.Fields = []string{"size", "content"}
		case diff.Meta:
			now.Mode, c.Fields = 0o600, []string{"mode"}
		}
		return c
	}
	for _, root := range roots {
		if root.kind == diff.Removed || root.kind == diff.Added {
			put(change(root.kind, tree.Entry{Entry: image.Entry{Path: root.path, Type: image.TypeDir, Mode: 0o755}}))
		}
		for range n * root.share / 100 {
			dirs := root.path
			for range 1 + r.IntN(5) {
				dirs += "/" + word()
				if root.kind == diff.Removed || root.kind == diff.Added {
					put(change(root.kind, tree.Entry{Entry: image.Entry{Path: dirs, Type: image.TypeDir, Mode: 0o755}}))
				}
			}
			name := fmt.Sprintf("%s/%s-%d.%s", dirs, word(), r.IntN(1000), []string{"js", "py", "json", "so", "md"}[r.IntN(5)])
			put(change(root.kind, tree.Entry{Entry: image.Entry{Path: name, Type: image.TypeFile, Mode: 0o644, Size: int64(r.ExpFloat64() * 20000)}, Layer: r.IntN(20)}))
		}
	}
	files = append(files, d.Files...)
	walk := strings.NewReplacer("/", "\x00")
	keys := make(map[string]string, len(files))
	for _, c := range files {
		keys[c.Path] = walk.Replace(c.Path)
	}
	slices.SortFunc(files, func(a, b diff.Change) int { return strings.Compare(keys[a.Path], keys[b.Path]) })
	d.Files, d.Counts = files, diff.Counts{}
	for _, c := range files {
		switch c.Kind {
		case diff.Added:
			d.Counts.Added++
			d.Counts.AddedBytes += c.New.Size
		case diff.Removed:
			d.Counts.Removed++
			d.Counts.RemovedBytes += c.Old.Size
		case diff.Modified:
			d.Counts.Modified++
		case diff.Type:
			d.Counts.Type++
		case diff.Meta:
			d.Counts.Meta++
		}
	}
	components := func(names ...any) (out []size.Component) {
		for i := 0; i < len(names); i += 2 {
			out = append(out, size.Component{Name: names[i].(string), Size: int64(names[i+1].(int)) * 1_000_000})
		}
		return out
	}
	d.Base.Size.Components = components("Python packages", 1510, "node packages", 1320, "Chromium", 612, "system libraries", 1980, "code-server", 524, "fonts", 431, "agent CLIs", 523,
		"compilers", 388, "Python", 300, "opencode", 120, "locales", 98, "documentation", 77, "jupyter", 60, "input method", 22, "noVNC", 9, "other", 636)
	d.Slim.Size.Components = components("Python packages", 410, "node packages", 320, "Chromium", 612, "system libraries", 1630, "fonts", 431,
		"Python", 290, "locales", 12, "payload", 84, "noVNC", 9, "other", 200)
	d.Base.Size.Visible, d.Slim.Size.Visible = 8_610_000_000, 3_998_000_000
	d.Base.Size.Layers, d.Slim.Size.Layers, d.Layers = nil, nil, nil
	d.Base.Size.Transfer, d.Slim.Size.Transfer = 0, 0
	for i := range 31 {
		bytes := int64(r.ExpFloat64() * 100_000_000)
		l := size.Layer{Digest: fmt.Sprintf("sha256:%064x", i*7919+1), CreatedBy: "RUN /bin/sh -c " + word() + " " + word(), Size: bytes, Unpacked: bytes * 27 / 10, Visible: bytes * 26 / 10}
		d.Base.Size.Layers = append(d.Base.Size.Layers, l)
		d.Base.Size.Transfer += bytes
		in := diff.InBoth
		if i < 20 {
			l.Visible = l.Visible * int64(r.IntN(10)) / 9
			d.Slim.Size.Layers = append(d.Slim.Size.Layers, l)
			d.Slim.Size.Transfer += bytes
		} else {
			in = diff.InBase
		}
		d.Layers = append(d.Layers, diff.Layer{Digest: l.Digest, CreatedBy: l.CreatedBy, Size: bytes, Unpacked: l.Unpacked, In: in})
	}
	for i := range 4 {
		bytes := int64(30_000_000 * (i + 1))
		by := "slimctl: " + strings.Repeat(word()+" ", 30)
		l := size.Layer{Digest: fmt.Sprintf("sha256:%064x", i+99), CreatedBy: by, Size: bytes, Unpacked: bytes * 2, Visible: bytes * 2}
		d.Slim.Size.Layers = append(d.Slim.Size.Layers, l)
		d.Slim.Size.Transfer += bytes
		d.Layers = append(d.Layers, diff.Layer{Digest: l.Digest, CreatedBy: l.CreatedBy, Size: bytes, Unpacked: l.Unpacked, In: diff.InSlim})
	}
	d.Size.Components = nil
	for _, c := range d.Base.Size.Components {
		k := diff.Component{Name: c.Name, Base: c.Size}
		for _, s := range d.Slim.Size.Components {
			if s.Name == c.Name {
				k.Slim = s.Size
			}
		}
		if k.Base != k.Slim {
			d.Size.Components = append(d.Size.Components, k)
		}
	}
	d.Size.Transfer, d.Size.Beside, d.Size.Visible = d.Slim.Size.Transfer-d.Base.Size.Transfer, 300_000_000, d.Slim.Size.Visible-d.Base.Size.Visible
	return d
}
