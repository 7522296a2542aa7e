package dockerfile

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// overlay is the stage that puts one overlay of one platform together.
type overlay struct {
	name, why, stage string
	copies           []instruction
}

// common is the folder of the files that all platforms share.
const common = "common"

// laid is one overlay of one recipe, with its folder's name and the layer that it makes.
type laid struct {
	build.Lay
	folder string
	files  map[string]image.File
	layer  build.Layer
}

// readOverlays gives the overlays of each recipe, checked, in order.
func readOverlays(recipes []*build.Recipe) ([][]laid, error) {
	all := make([][]laid, len(recipes))
	names := folders{}
	for i, r := range recipes {
		layers := r.Layers()
		layers = layers[len(layers)-len(r.Overlays):]
		seen := map[string]int{}
		for n, s := range r.Overlays {
			seen[s.Name]++
			l := laid{Lay: s, folder: names.of(s.Name, seen[s.Name]), files: map[string]image.File{}}
			for _, f := range s.Files {
				if f.ModTime.IsZero() {
					f.ModTime = r.Epoch
				}
				l.files[f.Path] = f
			}
			if err := checkFiles(l); err != nil {
				return nil, fmt.Errorf("%s: step %q: %w", r.Platform.String(), s, err)
			}
			l.layer = layers[n]
			all[i] = append(all[i], l)
		}
	}
	return all, nil
}

// layOverlays puts the files of recipe i's overlays into the context and the stages that copy them before s. Files
// that need the same flags lie in one folder, so that no path of an overlay is ever written into the Dockerfile.
func (p *plan) layOverlays(s *stage, all [][]laid, i int) error {
	for _, l := range all[i] {
		o, lost, err := p.overlay(l, s.arch, others(all, i, l.folder))
		if err != nil {
			return fmt.Errorf("step %q: %w", l.Lay, err)
		}
		s.overlays = append(s.overlays, o)
		s.lost = append(s.lost, lost...)
	}
	return nil
}

// others gives the same overlay of the other recipes; nil stands for a recipe without it.
func others(all [][]laid, self int, folder string) []map[string]image.File {
	var out []map[string]image.File
	for i := range all {
		if i == self {
			continue
		}
		at := slices.IndexFunc(all[i], func(l laid) bool { return l.folder == folder })
		if at < 0 {
			out = append(out, nil)
			continue
		}
		out = append(out, all[i][at].files)
	}
	return out
}

func (p *plan) overlay(l laid, arch string, others []map[string]image.File) (o overlay, lost []string, err error) {
	o = overlay{name: l.Name, why: l.Why, stage: "overlay-" + l.folder + "-" + arch}
	special, err := specials(l.files)
	if err != nil {
		return o, nil, err
	}
	groups := map[string]instruction{}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		f := l.files[name]
		if f.IsDir() || slices.ContainsFunc(special, func(s image.File) bool { return s.Path == name }) {
			continue
		}
		scope := common
		shared, err := everywhere(f, others)
		if err != nil {
			return o, nil, err
		}
		if !shared {
			scope = arch
		}
		folder, flags := grouping(f)
		source := path.Join("overlay", scope, l.folder, folder)
		groups[source] = instruction(fmt.Sprintf("COPY %s %s/ /", flags, source))
		p.put(source, f)
	}
	for _, source := range slices.Sorted(maps.Keys(groups)) {
		o.copies = append(o.copies, groups[source])
	}
	dirs, lost, err := directories(l.layer)
	if err != nil {
		return o, nil, err
	}
	for _, a := range []struct {
		name  string
		files []image.File
	}{{"special.tar", special}, {"directories.tar", dirs}} {
		if len(a.files) == 0 {
			continue
		}
		archive, err := p.tar(path.Join("overlay", arch, l.folder, a.name), a.files)
		if err != nil {
			return o, nil, err
		}
		o.copies = append(o.copies, instruction(fmt.Sprintf("ADD %s /", archive)))
	}
	return o, lost, nil
}

// put adds f below the folder source; a file that all platforms share is there once.
func (p *plan) put(source string, f image.File) {
	p.sources = append(p.sources, source)
	at := source + f.Path
	if !p.have[at] {
		p.have[at] = true
		p.files = append(p.files, contextFile{path: at, File: f})
	}
}

// grouping gives the folder of f within its overlay, and the flags that make what is copied from there right even when
// the context was checked out with other modes and owners.
func grouping(f image.File) (folder, flags string) {
	owner := ""
	if f.UID != 0 || f.GID != 0 {
		owner = fmt.Sprintf("-%d-%d", f.UID, f.GID)
	}
	flags = fmt.Sprintf("--chown=%d:%d", f.UID, f.GID)
	if f.Type == image.TypeSymlink {
		return "symlinks" + owner, flags
	}
	return fmt.Sprintf("%04o", f.Mode) + owner, flags + fmt.Sprintf(" --chmod=%04o", f.Mode)
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

// plainName makes of name what can be part of a path, a stage's name and an image's; it may be empty.
func plainName(name string) string {
	plain := notPlain.ReplaceAllString(strings.ToLower(name), "-")
	return strings.Trim(plain[:min(len(plain), 64)], "-")
}

// folders gives each overlay a folder of its own with a plain name.
type folders map[string]string

func (n folders) of(overlay string, occurrence int) string {
	key := overlay + "\x00" + strconv.Itoa(occurrence)
	if got, ok := n[key]; ok {
		return got
	}
	plain := plainName(overlay)
	if plain == "" {
		plain = "overlay"
	}
	unique := plain
	for i := 2; slices.Contains(slices.Collect(maps.Values(n)), unique); i++ {
		unique = plain + "-" + strconv.Itoa(i)
	}
	n[key] = unique
	return unique
}
