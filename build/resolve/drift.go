package resolve

import (
	"path"
	"slices"
	"sort"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
)

// hubFiles are the MCP configurations of the base's hub: the template, and the file that its start script renders from
// it.
var hubFiles = []string{profile.HubPath + ".template", profile.HubPath}

// noteServers collects the MCP servers in the base's hub configuration; the image has none of them.
func (w *work) noteServers() {
	for _, file := range hubFiles {
		w.servers = append(w.servers, w.base.Servers(file)...)
	}
	slices.Sort(w.servers)
	w.servers = slices.Compact(w.servers)
}

// findDrift returns what rules remove (globs, owned directories, privileged files, variables, MCP servers) and neither
// the profile's known names nor the earlier lock lists. Paths that the profile removes by name are not included.
func (w *work) findDrift(before *lock.File) []build.Gone {
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
	dirs := map[string]bool{"/": false} // whether the profile knows them
	var isKnown func(p string) bool
	isKnown = func(p string) bool {
		dir := path.Dir(p)
		if _, ok := dirs[dir]; !ok {
			dirs[dir] = isKnown(dir)
		}
		return dirs[dir] || matchesAny(known.Files, p)
	}
	var out []build.Gone
	for _, r := range w.ruled {
		gone := r.With
		if len(gone) == 0 && r.Type != image.TypeDir { // an empty directory isn't worth reporting
			gone = []build.Gone{{Path: r.Path, Why: r.Why}}
		}
		for _, g := range gone {
			if _, laid := w.laid[g.Path]; !laid && !files[g.Path] && !isKnown(g.Path) {
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
			out = append(out, build.Gone{Path: "MCP server " + name, Why: "the image serves one MCP server and no other"})
		}
	}
	return out
}
