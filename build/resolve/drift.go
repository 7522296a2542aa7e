package resolve

import (
	"path"
	"slices"
	"sort"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/image"
)

// hubFiles are where the base's hub has its MCP servers, before and after its start script rendered the template.
var hubFiles = []string{hubPath + ".template", hubPath}

// noteServers collects the MCP servers that go with the configuration of the base's hub.
func (w *work) noteServers() {
	for _, file := range hubFiles {
		w.servers = append(w.servers, w.base.Servers(file)...)
	}
	slices.Sort(w.servers)
	w.servers = slices.Compact(w.servers)
}

// drift returns what rules take away and neither the profile's known names nor the lock before has: globs, owned
// directories, privileged files, variables, MCP servers. What the profile removes by name is no news.
func (w *work) drift(before *lock.File) []build.Gone {
	known := w.in.Profile.Known
	files, env, servers := map[string]bool{}, slices.Clone(known.Env), slices.Clone(known.MCPServers)
	if before != nil && before.Platforms[w.platform.String()] != nil {
		old := before.Platforms[w.platform.String()]
		for _, p := range old.Removals {
			files[p] = true
		}
		for dir, below := range old.Footprint.Below {
			for _, rel := range below {
				files[path.Join(dir, rel)] = true
			}
		}
		env, servers = append(env, old.Env...), append(servers, old.Footprint.Servers...)
	}
	isKnown := func(p string) bool {
		for at := p; at != "/"; at = path.Dir(at) {
			if matchesAny(known.Files, at) {
				return true
			}
		}
		return files[p]
	}
	var out []build.Gone
	for _, r := range w.ruled {
		gone := r.With
		if len(gone) == 0 && r.Type != image.TypeDir { // an empty directory is no news
			gone = []build.Gone{{Path: r.Path, Why: r.Why}}
		}
		for _, g := range gone {
			if _, laid := w.laid[g.Path]; !laid && !isKnown(g.Path) {
				out = append(out, g)
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	for _, name := range w.recipe.Change.UnsetEnv {
		if !slices.Contains(env, name) {
			out = append(out, build.Gone{Path: "env " + name, Why: "the image's environment is the profile's"})
		}
	}
	for _, name := range w.servers {
		if !slices.Contains(servers, name) {
			out = append(out, build.Gone{Path: "MCP server " + name, Why: "the hub serves the profile's MCP servers and no other"})
		}
	}
	return out
}
