package dockerfile

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// overlay is the archive of one overlay, for one platform.
type overlay struct{ name, why, archive string }

// addOverlays adds an archive for each overlay of r to the stage.
func (p *plan) addOverlays(s *stage, r *build.Recipe) error {
	layers := r.Layers()
	layers = layers[len(layers)-len(r.Overlays):]
	var names []string
	for i, lay := range r.Overlays {
		if err := checkFiles(lay.Files); err != nil {
			return fmt.Errorf("step %q: %w", lay, err)
		}
		files, lost, err := keepableFiles(layers[i])
		if err != nil {
			return fmt.Errorf("step %q: %w", lay, err)
		}
		names = append(names, uniqueName(lay.Name, names))
		archive := p.addArchive(path.Join("overlay", s.arch, names[i]+".tar"), files)
		s.overlays = append(s.overlays, overlay{lay.Name, lay.Why, archive})
		s.lost = append(s.lost, lost...)
	}
	return nil
}

// addArchive adds an archive of files to the context.
func (p *plan) addArchive(name string, files []image.File) string {
	p.files = append(p.files, contextFile{name, func(w io.Writer) error { return image.WriteTar(w, files) }})
	return name
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

// plainName returns name reduced to characters that paths and image names allow; it may be empty.
func plainName(name string) string {
	plain := notPlain.ReplaceAllString(strings.ToLower(name), "-")
	return strings.Trim(plain[:min(len(plain), 64)], "-")
}

// uniqueName returns a plain name for an overlay, different from those in taken.
func uniqueName(name string, taken []string) string {
	plain := cmp.Or(plainName(name), "overlay")
	unique := plain
	for i := 2; slices.Contains(taken, unique); i++ {
		unique = plain + "-" + strconv.Itoa(i)
	}
	return unique
}
