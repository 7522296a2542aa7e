package size

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

// sized is a file of n bytes.
func sized(p string, n int) image.File { return image.Bytes(p, 0o644, make([]byte, n)) }

func link(p, to string) image.File {
	return image.File{Entry: image.Entry{Path: p, Type: image.TypeLink, Mode: 0o644, Link: to}}
}

func layer(t testing.TB, files ...image.File) v1.Layer {
	t.Helper()
	l, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func open(t testing.TB, layers ...v1.Layer) *tree.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

func TestSizes(t *testing.T) {
	lower := layer(t,
		sized("/opt/python3.11/bin/python", 100), sized("/opt/gone/x", 1000), sized("/etc/changed", 10), sized("/a", 7), link("/b", "/a"),
		sized("/usr/share/doc/x/copyright", 3), image.Symlink("/usr/l", "nowhere"), image.Dir("/usr/share/empty", 0o755),
		sized("/lost", 50), link("/lost-found", "/lost"), link("/lost-found-too", "/lost"), sized("/replaced", 60), link("/replaced-kept", "/replaced"),
		sized("/borrowed", 40),
	)
	upper := layer(t,
		image.Whiteout("/opt/gone"), sized("/etc/changed", 20), link("/c", "/a"), image.Whiteout("/lost"), sized("/replaced", 5),
		link("/kept", "/borrowed"),
	)
	top := layer(t, image.Whiteout("/borrowed"))
	// The third layer is the first again: it brings back what the second took away.
	img := open(t, lower, upper, lower)
	again := Of(img, nil, 0)
	if again.Transfer != img.Layers[0].Size+img.Layers[1].Size {
		t.Errorf("transfer is %d: a blob that two layers are counts once", again.Transfer)
	}
	if want := again.Unpacked - again.Visible; again.Hidden != want || len(again.Directories) != 0 {
		t.Errorf("hidden is %d, want %d; directories %v", again.Hidden, want, again.Directories)
	}

	img = open(t, lower, upper, top)
	got := Of(img, nil, 2)
	for i := range got.Layers {
		if got.Layers[i].Digest == "" || got.Layers[i].Size == 0 {
			t.Errorf("layer %d is %+v", i, got.Layers[i])
		}
		got.Layers[i].Digest, got.Layers[i].Size = "", 0
	}
	want := Sizes{
		Transfer: img.Layers[0].Size + img.Layers[1].Size + img.Layers[2].Size,
		Unpacked: 100 + 1000 + 10 + 7 + 3 + 50 + 60 + 40 + 20 + 5,
		Visible:  100 + 20 + 7 + 3 + 50 + 60 + 40 + 5, Hidden: 1000 + 10,
		Files: 21,
		Layers: []Layer{
			{Unpacked: 1270, Visible: 260, Entries: len(img.Layers[0].Entries)},
			{Unpacked: 25, Visible: 25, Entries: len(img.Layers[1].Entries)},
			{Entries: 1},
		},
		Components: []Component{
			{Name: "Python 3.11", Size: 100, Files: 1}, {Name: "documentation", Size: 3, Files: 1}, {Name: "other", Size: 182, Files: 10},
		},
		Directories: []Directory{
			{Path: "/opt", Size: 100, Files: 1},
			{Path: "/opt/python3.11", Size: 100, Files: 1},
			{Path: "/etc", Size: 20, Files: 1},
			{Path: "/usr", Size: 3, Files: 2},
			{Path: "/usr/share", Size: 3, Files: 1},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestComponent(t *testing.T) {
	const info = "/var/lib/dpkg/info/"
	list := func(name, p string) image.File { return image.Bytes(info+name+".list", 0o644, []byte(p+"\n")) }
	status := ""
	files := []image.File{}
	for name, p := range map[string]string{
		"coreutils": "/usr/bin/ls", "gcc-12": "/usr/bin/x86_64-linux-gnu-gcc-12", "libc6-dev": "/usr/lib/crt1.o", "gcc-12-base": "/usr/lib/y",
		"libavcodec59": "/usr/lib/libavcodec.so.59", "fonts-noto": "/usr/lib/odd-font", "openbox": "/usr/lib/libobt.so",
		"nginx-core": "/usr/lib/x/nginx", "python3.10": "/usr/bin/python3.10", "some-doc": "/usr/lib/manual",
	} {
		status += "Package: " + name + "\nStatus: install ok installed\nVersion: 1\n\n"
		files = append(files, list(name, p), sized(p, 1))
	}
	files = append(files, image.Bytes("/var/lib/dpkg/status", 0o644, []byte(status)))
	db, err := packages.Read(t.Context(), open(t, layer(t, files...)))
	if err != nil || len(db.Notes) > 0 {
		t.Fatal(err, db.Notes)
	}
	for p, want := range map[string]string{
		"/opt/browser/chrome": "Chromium",
		"/opt/browserx":       "other",
		"/home/gem/.cache/ms-playwright/chromium-1/chrome":             "Chromium",
		"/opt/novnc/vnc.html":                                          "noVNC",
		"/usr/local/code-server-4.104.0/lib/vscode/node_modules/x/y":   "code-server",
		"/opt/runtime/code-server/bin/x":                               "code-server",
		"/opt/python3.12/lib/python3.12/site-packages/numpy/core.so":   "Python 3.12",
		"/opt/python3.12/lib/python3.12/site-packages/jupyterlab/x.js": "Jupyter",
		"/opt/python3.12/share/jupyter/lab/x":                          "Jupyter",
		"/opt/uv-python/cpython-3.11.13-linux/bin/python3.11":          "Python 3.11",
		"/opt/python3.13/bin/python":                                   "Python",
		"/usr/lib/python3/dist-packages/six.py":                        "Python",
		"/usr/local/lib/python3.10/dist-packages/supervisor/x.py":      "supervisor",
		"/opt/fnm/node-versions/v22.22.2/installation/bin/node":        "Node 22",
		"/opt/fnm/node-versions/v20.20.2/installation/bin/node":        "Node 20",
		"/opt/fnm/fnm": "Node",
		"/opt/fnm/node-versions/v22.22.2/installation/lib/node_modules/npm/node_modules/x/y":                 "Node 22",
		"/opt/fnm/node-versions/v22.22.2/installation/lib/node_modules/typescript/x":                         "npm packages",
		"/opt/fnm/node-versions/v22.22.2/installation/lib/node_modules/@openai/codex/node_modules/z/x":       "coding agents",
		"/opt/fnm/node-versions/v22.22.2/installation/lib/node_modules/@agent-infra/mcp-server-browser/x.js": "MCP servers",
		"/opt/fnm/node-versions/v22.22.2/installation/lib/node_modules/agent-browser/bin/x":                  "agent-browser",
		"/usr/lib/node_modules/npm/lib/npm.js":                                                               "Node",
		"/usr/lib/node_modules/typescript/lib/tsc.js":                                                        "npm packages",
		"/srv/app/node_modules/left-pad/index.js":                                                            "npm packages",
		"/opt/agent-browser/dist/daemon.js":                                                                  "agent-browser",
		"/opt/agent-browser/node_modules/playwright-core/x":                                                  "agent-browser",
		"/usr/local/bin/browser-shell":                                                                       "browser-shell",
		"/opt/gem/nginx.conf":                                                                                "AIO Sandbox",
		"/usr/local/bin/linux_amd64_ve":                                                                      "AIO Sandbox",
		"/usr/share/fonts/truetype/noto/x.ttf":                                                               "fonts",
		"/usr/lib/locale/locale-archive":                                                                     "locales",
		"/usr/share/doc/chromium/copyright":                                                                  "documentation",
		"/usr/include/stdio.h":                                                                               "compilers",
		"/usr/lib/gcc/x86_64-linux-gnu/12/cc1":                                                               "compilers",
		"/usr/bin/ffmpeg":                                                                                    "media tools",
		"/usr/bin/Xvnc":                                                                                      "desktop",
		"/usr/lib/x86_64-linux-gnu/fcitx5/libx.so":                                                           "input method",
		"/etc/nginx/mime.types":                                                                              "nginx",
		"/usr/bin/ls":                                                                                        "system packages",
		"/usr/bin/x86_64-linux-gnu-gcc-12":                                                                   "compilers",
		"/usr/lib/crt1.o":                                                                                    "compilers",
		"/usr/lib/y":                                                                                         "system packages",
		"/usr/lib/libavcodec.so.59":                                                                          "media tools",
		"/usr/lib/odd-font":                                                                                  "fonts",
		"/usr/lib/libobt.so":                                                                                 "desktop",
		"/usr/lib/x/nginx":                                                                                   "nginx",
		"/usr/bin/python3.10":                                                                                "Python",
		"/usr/lib/manual":                                                                                    "documentation",
		"/":                                                                                                  "other",
		"/somewhere":                                                                                         "other",
	} {
		if got := (&sorter{db: db}).component(p); got != want {
			t.Errorf("%s is of %q, want %q", p, got, want)
		}
	}
	if got := new(sorter).component("/usr/bin/ls"); got != Other {
		t.Errorf("without packages /usr/bin/ls is of %q", got)
	}
}

// TestStandIns holds what must be true of every image: each visible file is in one component, each byte in one layer.
func TestStandIns(t *testing.T) {
	for _, line := range []string{"A", "B", "C"} {
		dir := filepath.Join(t.TempDir(), "base")
		if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
			t.Fatal(err)
		}
		source := ocitest.Layout(t, dir)["linux/amd64"]
		img, err := tree.Cache{}.Open(t.Context(), source, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		db, err := packages.Read(t.Context(), img)
		if err != nil {
			t.Fatal(err)
		}
		s := Of(img, db, 1)
		files, visible := 0, int64(0)
		for p, n := range ocitest.Tree(t, source) {
			if n.Type == image.TypeDir {
				continue
			}
			files++
			if e, _ := img.Lookup(p); e.Type != image.TypeLink { // ocitest tells a file's size at each of its names
				visible += n.Size
			}
		}
		if s.Visible != visible {
			t.Errorf("%s: %d bytes are visible, want %d", line, s.Visible, visible)
		}
		var inComponents, inLayers, inDirectories int64
		count, heavy := 0, map[string]int64{}
		for _, c := range s.Components {
			inComponents += c.Size
			count += c.Files
			heavy[c.Name] = c.Size
		}
		for _, l := range s.Layers {
			inLayers += l.Visible
		}
		for _, d := range s.Directories {
			inDirectories += d.Size
		}
		if inComponents != s.Visible || inLayers != s.Visible || inDirectories != s.Visible || count != files || s.Hidden != s.Unpacked-s.Visible {
			t.Errorf("%s: components %d, layers %d, directories %d of %d bytes; %d of %d files", line, inComponents, inLayers, inDirectories, s.Visible, count, files)
		}
		for _, name := range []string{"Python 3.11", "Python 3.12", "code-server", "npm packages", "Jupyter", "fonts"} {
			if heavy[name] < 8*128<<10 {
				t.Errorf("%s: %s has %d bytes, and the stand-in a megabyte of it", line, name, heavy[name])
			}
		}
	}
}

// TestPlaces holds the table to its form: a pattern that is there twice would be of the component that comes last.
func TestPlaces(t *testing.T) {
	of := map[string]string{}
	for _, place := range places {
		for _, pattern := range place.patterns {
			if before, twice := of[pattern]; twice {
				t.Errorf("%s is of %s and of %s", pattern, before, place.component)
			}
			of[pattern] = place.component
			if _, err := path.Match(pattern, ""); err != nil || path.Clean(pattern) != pattern || pattern[0] != '/' {
				t.Errorf("%s is no pattern of a place: %v", pattern, err)
			}
			if got := new(sorter).findPlace(strings.ReplaceAll(pattern, "*", "x") + "/below").component; got != place.component {
				t.Errorf("what lies below %s is of %q", pattern, got)
			}
		}
	}
}
