package conf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// all is what Read gives.
func all(ctx context.Context, img *tree.Image, path string, o Options) (out []*Config, err error) {
	for c, err := range Read(ctx, img, path, o) {
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// TestIncludesAsNginxDoes compares which files a pattern names, and in what order, with what nginx itself opens.
func TestIncludesAsNginxDoes(t *testing.T) {
	program, dir := need.Program(t, "nginx"), t.TempDir()
	var files []image.File
	for _, name := range []string{
		"a.conf", "b.conf", "B.conf", "c.conf", ".hidden.conf", "*.conf", "a b.conf", "ab.conf", "d/x.conf", "d/y.conf", "e/x.conf",
		"f.d/.x.conf", "dir.conf/x", "-.conf", `back\slash.conf`, "0.conf",
	} {
		files = append(files, image.Bytes(filepath.Join(dir, name), 0o644, []byte("# "+name+"\n")))
	}
	files = append(files, image.Symlink(dir+"/link", "d"), image.Symlink(dir+"/absolute", dir+"/e"), image.Symlink(dir+"/lf.conf", "d/x.conf"),
		image.Symlink(dir+"/e/dangling.cnf", "nowhere"), image.Symlink(dir+"/loop", "loop"),
		image.Bytes(dir+"/d/relative.inc", 0o644, []byte("include b.conf;\n")))
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			t.Fatal(err)
		}
		if f.Type == image.TypeSymlink {
			if err := os.Symlink(f.Link, f.Path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, f.Size)
		r.Read(text)
		r.Close()
		if err := os.WriteFile(f.Path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, pattern := range []string{
		"[a-c]*.conf", "d/*.conf", "*/x.conf", "[ab].conf", "[!a-zA-Z*]*.conf", "[^a].conf", `\*.conf*`, "?.conf", ".*.conf", "link/*.conf", "absolute/*.conf",
		"d/../[ab].conf", "nothing*", "d/x.conf", dir + "/d/*", "lf.con?", "*/../a*.conf", "loop/*", "e/*.cnf",
		"f.d/*", "f.d/.*conf", "??.conf", `back\\\\*`, "nothing", "link", "d/*.inc",
		"d//*.conf", "./[a].conf", "*b*.conf", "dir.con?", "*/*/*",
	} {
		text := "events {}\ninclude \"" + pattern + "\";\n"
		main := image.Bytes(dir+"/nginx.conf", 0o644, []byte(text))
		if err := os.WriteFile(dir+"/nginx.conf", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "-T", "-p", dir, "-c", dir+"/nginx.conf", "-e", "stderr", "-g", "pid "+dir+"/pid;").CombinedOutput()
		var opened []string
		for _, m := range regexp.MustCompile(`(?m)^# configuration file (.*):$`).FindAllStringSubmatch(string(out), -1) {
			opened = append(opened, filepath.Clean(m[1]))
		}
		im, err2 := tree.FromFiles(t.Context(), nil, append(files, main)...)
		if err2 != nil {
			t.Fatal(err2)
		}
		configs, err2 := all(t.Context(), im, dir+"/nginx.conf", Options{})
		if err2 != nil {
			t.Fatal(err2)
		}
		if (err == nil) != (len(configs[0].Notes) == 0) {
			t.Errorf("%s: nginx says %v %s, notes %v", pattern, err, out, configs[0].Notes)
		}
		if diff := cmp.Diff(opened, configs[0].Files); err == nil && diff != "" {
			t.Errorf("%s (-nginx +read):\n%s", pattern, diff)
		}
	}
}

// TestHostIsNeverRead includes files that are on this machine and not in the image.
func TestHostIsNeverRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/secret.conf", []byte("user secret;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("include %[1]s/secret.conf;\ninclude %[1]s/*.conf;\ninclude ../../../../../..%[1]s/secret.conf;\ninclude /out/secret.conf;\ninclude /link.conf;\n"+
		"include /etc/passwd; include /dev/stdin; include /proc/self/environ;\nevents {}\n", dir)
	im, err := tree.FromFiles(t.Context(), nil, image.Bytes("/nginx.conf", 0o644, []byte(text)),
		image.Symlink("/out", "../../../.."+dir), image.Symlink("/link.conf", dir+"/secret.conf"))
	if err != nil {
		t.Fatal(err)
	}
	configs, err := all(t.Context(), im, "/nginx.conf", Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := configs[0]
	if len(Only(c.Block, "user")) > 0 || !cmp.Equal(c.Files, []string{"/nginx.conf"}) {
		t.Errorf("%q, files %q", c.Block, c.Files)
	}
	if len(c.Notes) != 7 {
		t.Errorf("notes: %v", c.Notes)
	}
	if _, err := all(t.Context(), im, dir+"/secret.conf", Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a main file of the host: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all(ctx, im, "/nginx.conf", Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestVariantsAreBounded(t *testing.T) {
	files := []image.File{image.Bytes("/t1", 0o644, []byte("# 1\n")), image.Bytes("/t2", 0o644, []byte("# 2\n"))}
	text := "events {}\n"
	o := Options{Rendered: map[string][]Template{}}
	for i := range 300 {
		text += fmt.Sprintf("include /o%d;\n", i)
		o.Rendered[fmt.Sprintf("/o%d", i)] = []Template{{Path: "/t1"}, {Path: "/t2"}}
	}
	im, err := tree.FromFiles(t.Context(), nil, append(files, image.Bytes("/nginx.conf", 0o644, []byte(text)))...)
	if err != nil {
		t.Fatal(err)
	}
	configs, err := all(t.Context(), im, "/nginx.conf", o)
	if err != nil || len(configs) == 0 || len(configs) > maxVariants {
		t.Fatalf("%d variants, %v", len(configs), err)
	}
	noted := false
	for _, n := range configs[0].Notes {
		noted = noted || strings.Contains(n.Text, "more choices of templates")
	}
	if !noted {
		t.Errorf("notes %v", configs[0].Notes)
	}
}

// Each file that is read may mean to go through a layer, and all are kept: there is an end to both.
func TestReadingIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		n, size int
		note    string
	}{
		"many files":  {maxRounds + 20, 10, "too much is read already"},
		"large files": {20, maxBytes/2 + 1, "all files together"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "events {}\nhttp {\n"
			var files []image.File
			for i := range tt.n {
				p := fmt.Sprintf("/lib/%d", i)
				text += "include " + p + ";\n"
				files = append(files, image.Bytes(p, 0o644, []byte(fmt.Sprintf("#%d", i)+strings.Repeat(" ", tt.size))))
			}
			im, err := tree.FromFiles(t.Context(), nil, append(files, image.Bytes("/c/nginx.conf", 0o644, []byte(text+"}\n")))...)
			if err != nil {
				t.Fatal(err)
			}
			configs, err := all(t.Context(), im, "/c/nginx.conf", Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(configs[0].Notes, func(n tree.Note) bool { return strings.Contains(n.Text, tt.note) }) {
				t.Errorf("no note has %q: %v", tt.note, configs[0].Notes)
			}
			if n := len(configs[0].Files); n > maxRounds || n*tt.size > maxRead {
				t.Errorf("%d files of %d bytes are read", n, tt.size)
			}
		})
	}
}
