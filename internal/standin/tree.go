package standin

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// files holds the content of plain files: files/common is for every line, files/a and files/b for their line, and
// files/c replaces files of files/b. files/shared has what goes to several places, and files/live what replaces
// placeholders on a real root file system. Modes, owners, links and programs are in tables.go.
//
//go:embed all:files
var files embed.FS

// layer is one layer of a stand-in.
type layer struct {
	by     string // the step in the history
	files  []image.File
	weight func() []image.File // instead of files, which would take too much memory for all layers at once
}

// stages lists the layers from the bottom up. A path belongs to the stage with its longest prefix.
var stages = []struct {
	by    string
	under []string
}{
	{"ADD rootfs.tar.xz /", []string{"/"}},
	{"RUN apt-get install -y nginx supervisor tigervnc-standalone-server openbox sudo", []string{
		"/etc/nginx", "/etc/sudoers", "/etc/sudoers.d", "/etc/alternatives", "/usr/bin", "/usr/sbin", "/var/lib/apt", "/var/lib/nginx",
	}},
	{"RUN install python, node and command line tools", []string{
		"/opt/fnm", "/opt/nodejs", "/opt/runtime", "/opt/python3.11", "/opt/python3.12", "/usr/lib/node_modules", "/usr/local",
	}},
	{"RUN install the browser", []string{"/opt/browser", "/etc/browser", "/etc/chromium", "/etc/opt", "/etc/alternatives/browser", "/usr/local/bin/browser"}},
	{"COPY rootfs/opt/gem /opt/gem", []string{"/opt/gem"}},
	{"RUN install the services", []string{
		"/opt/gem-server", "/opt/repl-servers", "/opt/jupyter", "/usr/local/bin/gem-server", "/usr/local/bin/python-server",
		"/opt/python3.12/bin/python-server", "/opt/python3.12/lib/python3.12/site-packages", "/etc/profile.d",
	}},
	{"COPY rootfs/opt /opt # user interfaces", []string{
		"/opt/novnc", "/opt/terminal", "/opt/aio", "/opt/browser-ui", "/opt/skills", "/opt/aio-staged-configs", "/var/www",
	}},
}

// layers returns the layers of a platform, bottom first, without weight, Options.Extra and the root file system below.
// The files of heavy have size bytes.
func (l line) layers(platform string, o Options, size int) ([]layer, error) {
	below := o.Rootfs
	a := archOf(platform)
	tree := map[string]image.File{}
	put := func(files ...image.File) {
		for _, f := range files {
			tree[f.Path] = f
		}
	}
	for _, name := range l.trees {
		embedded, err := l.embedded(name)
		if err != nil {
			return nil, err
		}
		put(embedded...)
	}
	put(skeleton(a)...)
	put(programs(l, a)...)
	put(l.node22(a)...)
	if l.isOld() {
		put(onlyA(a)...)
	} else {
		put(onlyB(l, a)...)
	}
	put(image.Bytes("/etc/aio_version", 0o644, []byte(l.tag+"\n")), image.Symlink("/opt/application/run.sh", "/opt/gem/run.sh"))

	below.adapt(tree)
	out := make([]layer, len(stages))
	for i, s := range stages {
		out[i].by = s.by
	}
	for _, p := range slices.Sorted(maps.Keys(tree)) {
		i := stageOf(p)
		out[i].files = append(out[i].files, tree[p])
	}
	heavy := l.heavy(size)
	put(heavy...)
	out = append(out,
		layer{by: "RUN install the heavy parts", files: append(heavy, sizes(tree))},
		layer{by: "RUN clean up and set the version", files: finish()})

	notDirs := map[string]bool{}
	for _, layer := range out {
		for _, f := range layer.files {
			notDirs[f.Path] = !f.IsDir()
		}
	}
	for i := range out {
		out[i].files = withParents(out[i].files, notDirs, below)
		for j := range out[i].files {
			out[i].files[j].ModTime = l.created
		}
	}
	if o.Rename != 0 {
		return out, rename(out, o.Rename)
	}
	return out, nil
}

func stageOf(p string) int {
	best, length := 0, 0
	for i, s := range stages {
		for _, dir := range s.under {
			if len(dir) > length && image.Within(p, dir) {
				best, length = i, len(dir)
			}
		}
	}
	return best
}

// embedded reads a tree of files. Scripts are executable. "@node22" stands for the default Node's directory of lines B
// and C.
func (l line) embedded(name string) ([]image.File, error) {
	root := path.Join("files", name)
	var out []image.File
	err := fs.WalkDir(files, root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		to := strings.TrimPrefix(p, root)
		if rest, ok := strings.CutPrefix(to, "/@node22/"); ok {
			to = l.nodeDir("22") + "/" + rest
		}
		f := image.Bytes(to, modeOf(p, data), data)
		if special, ok := specialFiles[to]; ok {
			f.Mode, f.UID, f.GID = special.mode, special.uid, special.gid
		}
		out = append(out, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", name, err)
	}
	return out, nil
}

func modeOf(name string, data []byte) int64 {
	if bytes.HasPrefix(data, []byte("#!")) || strings.HasSuffix(name, ".sh") {
		return 0o755
	}
	return 0o644
}

// extraLayer adds a test's files as the topmost layer, with the parents as the layers below have them.
func extraLayer(layers []layer, extra []image.File, below *Rootfs) []layer {
	if len(extra) == 0 {
		return nil
	}
	notDirs := map[string]bool{}
	for _, l := range layers {
		for _, f := range l.files {
			notDirs[f.Path] = !f.IsDir()
		}
	}
	return []layer{{by: "COPY extra / # planted by a test", files: withParents(slices.Clone(extra), notDirs, below)}}
}

// withParents adds the directories above files that files doesn't have, as in below or dirAt. It omits a parent that is
// not a directory (a symbolic link below), because an entry would replace it.
func withParents(files []image.File, notDirs map[string]bool, below *Rootfs) []image.File {
	have := map[string]bool{}
	for _, f := range files {
		have[f.Path] = true
	}
	for _, f := range files {
		for _, p := range image.Parents(f.Path) {
			if !have[p] && !notDirs[p] {
				have[p] = true
				files = append(files, below.dirAt(p))
			}
		}
	}
	return files
}

// dirAt returns the directory p with its mode, owner and attributes, equal in every layer.
func dirAt(p string) image.File {
	f := image.Dir(p, 0o755)
	if s, ok := specialDirs[p]; ok {
		f.Mode, f.UID, f.GID, f.Xattrs = s.mode, s.uid, s.gid, s.xattrs
	}
	return f
}

// sizes returns the manifest with the sizes of the removable components, to measure purges.
func sizes(tree map[string]image.File) image.File {
	type weight struct {
		Bytes int64 `json:"bytes"`
		Files int   `json:"files"`
	}
	total := map[string]weight{}
	for _, dir := range components {
		var w weight
		for p, f := range tree {
			if f.Type == image.TypeFile && image.Within(p, dir) {
				w.Bytes += f.Size
				w.Files++
			}
		}
		if w.Files > 0 {
			total[dir] = w
		}
	}
	data, err := json.MarshalIndent(total, "", "  ")
	if err != nil {
		panic(err) // a map of plain structs can always be encoded
	}
	return image.Bytes("/usr/share/standin/sizes.json", 0o644, append(data, '\n'))
}
